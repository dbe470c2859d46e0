/* Fuzz target of the MDS reader: an input is a dataset of one shard in memory. Its first byte says what the
 * rest is:
 *
 * - even: two bytes, the length of index.json (little endian); index.json; the shard's file;
 * - odd: two bytes, column and compression, as below; the shard's file. index.json is made to fit it, so that
 * the fuzzer gets past it.
 *
 * Nothing may crash, and what is read obeys the requested limits. test/unit/test_fuzz_mds.c runs the same
 * function over the golden sets and mutations of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io_component.h"
#include "runtime/data/clt_mds.h"

enum { FUZZ_TOKENS = 64, FUZZ_SAMPLES = 200, FUZZ_VOCAB = 1000 };

static struct {
    const char *index;
    const uint8_t *shard;
    size_t index_bytes, shard_bytes;
} fuzz_files;

/* --- two files in memory --- */

static bool fuzz_is_index(const void *name) {
    return strcmp(clt_path_base(name), "index.json") == 0;
}

static int fuzz_stat(clt_io_component *c, const char *path, clt_io_info *out) {
    (void)c;
    *out = (clt_io_info){.kind = strcmp(path, "/set") == 0 ? CLT_IO_FOLDER : CLT_IO_FILE,
                         .bytes = fuzz_is_index(path) ? fuzz_files.index_bytes : fuzz_files.shard_bytes};
    return 0;
}

static int fuzz_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    (void)c;
    *handle = fuzz_is_index(path) ? &fuzz_files.index : (void *)&fuzz_files.shard;
    return mode == CLT_IO_READ ? 0 : EROFS;
}

static int fuzz_size(clt_io_component *c, void *handle, uint64_t *bytes) {
    (void)c;
    *bytes = handle == (void *)&fuzz_files.index ? fuzz_files.index_bytes : fuzz_files.shard_bytes;
    return 0;
}

static int fuzz_pread(clt_io_component *c, void *handle, void *dst, size_t bytes, uint64_t offset,
                      size_t *done) {
    const uint8_t *data =
        handle == (void *)&fuzz_files.index ? (const uint8_t *)fuzz_files.index : fuzz_files.shard;
    uint64_t size;
    fuzz_size(c, handle, &size);
    *done = offset >= size ? 0 : (size_t)CLT_MIN(size - offset, (uint64_t)bytes);
    if (*done) memcpy(dst, data + offset, *done);
    return 0;
}

static int fuzz_close(clt_io_component *c, void *handle) {
    (void)c, (void)handle;
    return 0;
}

static const clt_io_ops fuzz_ops = {.name = "fuzz",
                                    .open = fuzz_open,
                                    .pread = fuzz_pread,
                                    .size = fuzz_size,
                                    .close = fuzz_close,
                                    .stat = fuzz_stat};
static clt_io_component fuzz_io = {&fuzz_ops, CLT_IO_CAN_READ_RANGES | CLT_IO_HAS_FOLDERS, 0};

/* --- the dataset --- */

/* An index.json that agrees with the shard's bytes. */
static char *fuzz_make_index(uint8_t column, uint8_t compression, const uint8_t *shard, size_t bytes) {
    static const char *const codecs[] = {"zstd", "gz", "bz2", "br", "snappy"};
    static const char *const columns[][3] = {
        {"tokens", "ndarray:int32", "null"},  {"tokens", "ndarray", "null"},
        {"tokens", "bytes", "null"},          {"text", "str", "null"},
        {"tokens", "ndarray:uint16:8", "16"}, {"tokens", "ndarray:uint8", "null"}};
    const char *const *c = columns[column % CLT_COUNT_OF(columns)];
    uint32_t n = 1;
    if (bytes >= 4) memcpy(&n, shard, 4);
    bool packed = compression & 1;
    size_t raw = packed ? (size_t)compression * 16 : bytes;
    const char *codec = codecs[compression / 2 % CLT_COUNT_OF(codecs)];
    if (raw < 8 || n > (raw - 8) / 4) n = 1;
    return clt_format(
        "{\"shards\": [{\"column_encodings\": [\"%s\"], \"column_names\": [\"%s\"], \"column_sizes\": [%s], "
        "\"compression\": %s%s%s, \"format\": \"mds\", \"hashes\": [], \"raw_data\": {\"basename\": \"raw\", "
        "\"bytes\": "
        "%zu, \"hashes\": {}}, \"samples\": %u, \"size_limit\": 100, \"version\": 2, \"zip_data\": "
        "{\"basename\": \"zip\", \"bytes\": %zu, \"hashes\": {}}}], \"version\": 2}",
        c[1], c[0], c[2], packed ? "\"" : "", packed ? codec : "null", packed ? "\"" : "", raw, n, bytes);
}

static void fuzz_check(bool good) {
    if (!good) abort();
}

static void fuzz_read(clt_mds *m) {
    int64_t samples = CLT_MIN(clt_mds_num_samples(m), FUZZ_SAMPLES);
    clt_str text = {0};
    clt_mds_picture picture = {0};
    size_t bad;
    for (int64_t i = 0; i < samples; i++) {
        int32_t tokens[FUZZ_TOKENS];
        int64_t n = 0, full = 0;
        if (clt_mds_has_pictures(m)) clt_mds_get_picture(m, i, &picture);
        if (clt_mds_json_column(m)) {
            clt_mds_get_json(m, i, &text);
        } else if (!clt_mds_has_tokens(m)) {
            clt_mds_get_text(m, i, &text);
        } else if (clt_mds_get_tokens(m, i, FUZZ_TOKENS, FUZZ_VOCAB, tokens, &n, &full) == CLT_OK) {
            fuzz_check(n >= 0 && n <= FUZZ_TOKENS && n <= full);
            for (int64_t t = 0; t < n; t++) fuzz_check(tokens[t] >= 0 && tokens[t] < FUZZ_VOCAB);
        }
    }
    clt_str_free(&text);
    clt_str_free(&picture.bytes);
    clt_mds_verify(m, 0, NULL, &bad);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    size_t length = (size_t)data[1] | (size_t)data[2] << 8;
    char *made = NULL;
    if (data[0] & 1) {
        fuzz_files.shard = data + 3;
        fuzz_files.shard_bytes = size - 3;
        fuzz_files.index = made = fuzz_make_index(data[1], data[2], data + 3, size - 3);
        fuzz_files.index_bytes = strlen(made);
    } else {
        length = CLT_MIN(length, size - 3);
        fuzz_files.index = (const char *)data + 3;
        fuzz_files.index_bytes = length;
        fuzz_files.shard = data + 3 + length;
        fuzz_files.shard_bytes = size - 3 - length;
    }
    if (clt_io_register("fuzz", &fuzz_io) != CLT_OK) abort();
    clt_error_quiet(true);
    clt_mds *m;
    if (clt_mds_open("fuzz:///set", NULL, &m) == CLT_OK) {
        fuzz_read(m);
        clt_mds_close(m);
    }
    clt_error_quiet(false);
    clt_free(made);
    return 0;
}

#ifdef FUZZ_REPLAY
/* fuzz_mds FILE ...: runs the inputs that a fuzzer left. */
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *data;
        size_t n;
        if (clt_io_read_all(argv[i], 1 << 28, &data, &n) != CLT_OK) return 1;
        LLVMFuzzerTestOneInput((const uint8_t *)data, n);
        clt_free(data);
    }
    return 0;
}
#endif
