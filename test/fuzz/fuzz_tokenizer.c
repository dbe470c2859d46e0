/* Hostile tokenizers and texts. An input that begins with '{' is a tokenizer.json: what can be opened encodes
 * and decodes. Any other input is a text for tokenizers that are right: its ids are those of the vocabulary,
 * do not depend on how it is cut, and give valid UTF-8. Runs in the repository's root. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/clt_utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

typedef struct {
    int32_t *ids;
    size_t n, max;
} id_list;

static clt_status collect(void *ctx, const int32_t *ids, size_t n) {
    id_list *l = ctx;
    require(l->n + n <= l->max);
    memcpy(l->ids + l->n, ids, n * sizeof *ids);
    l->n += n;
    return CLT_OK;
}

static void check_decode(const clt_tokenizer *t, const id_list *l) {
    clt_str whole = {0}, parts = {0};
    clt_token_decoder d = clt_token_decoder_begin(t, false);
    require(clt_tokenizer_decode(t, l->ids, l->n, false, &whole) == CLT_OK);
    for (size_t i = 0; i < l->n; i++) {
        require(l->ids[i] >= 0 && l->ids[i] < clt_tokenizer_vocab_size(t));
        require(clt_token_decoder_add(&d, l->ids[i], &parts) == CLT_OK);
    }
    clt_token_decoder_end(&d, &parts);
    require(clt_utf8_valid(whole.s ? whole.s : "", whole.len));
    require(clt_utf8_valid(parts.s ? parts.s : "", parts.len));
    if (l->n <= CLT_TOKEN_RUN)
        require(whole.len == parts.len && (whole.len == 0 || !memcmp(whole.s, parts.s, whole.len)));
    clt_str_free(&whole);
    clt_str_free(&parts);
}

/* The ids of the text in pieces of `step` bytes are those of the whole. */
static void check_stream(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags, size_t step,
                         const id_list *want) {
    id_list got = {clt_malloc((want->max + 1) * sizeof(int32_t)), 0, want->max};
    clt_token_encoder *e = clt_token_encoder_create(t, flags, collect, &got);
    clt_status st = CLT_OK;
    for (size_t at = 0; at < bytes && st == CLT_OK; at += step)
        st = clt_token_encoder_add(e, text + at, CLT_MIN(step, bytes - at));
    if (st == CLT_OK) st = clt_token_encoder_end(e);
    if (st == CLT_OK) require(got.n == want->n && !memcmp(got.ids, want->ids, got.n * sizeof *got.ids));
    clt_token_encoder_destroy(e);
    clt_free(got.ids);
}

static void check_text(const clt_tokenizer *t, const char *text, size_t bytes, unsigned flags) {
    id_list l = {.max = clt_tokenizer_max_ids(t, bytes)};
    if (l.max > 1 << 24) return;
    l.ids = clt_malloc((l.max + 1) * sizeof *l.ids);
    if (clt_tokenizer_encode(t, text, bytes, flags, l.ids, l.max, &l.n) == CLT_OK) {
        require(l.n <= l.max);
        check_decode(t, &l);
        check_stream(t, text, bytes, flags, 1 + bytes / 7, &l);
    }
    clt_free(l.ids);
}

/* --- files --- */

static char dir[] = "/tmp/clt_fuzz_tokenizer_XXXXXX";

static void remove_dir(void) {
    clt_io_remove_tree(dir);
}

/* A file in memory whose path has the name that a tokenizer needs. */
static int make_file(void) {
    char target[64];
    const int fd = memfd_create("fuzz", 0);
    snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
    require(fd >= 0 && mkdtemp(dir) != NULL);
    atexit(remove_dir);
    char *path = clt_path_join(dir, "tokenizer.json");
    require(symlink(target, path) == 0);
    clt_free(path);
    return fd;
}

static void check_file(const uint8_t *data, size_t size) {
    static const char text[] =
        "A text <s> with\n\n  1234 \xc3\xa9 e\xcc\x81 \xf0\x9f\x99\x82\xe2\x96\x81 ab</s>";
    static int fd = -1;
    clt_tokenizer *t;
    if (fd < 0) fd = make_file();
    char *path = clt_path_join(dir, "tokenizer.json");
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    if (clt_tokenizer_open(path, &t) == CLT_OK) {
        for (unsigned flags = 0; flags < 4; flags++) check_text(t, text, sizeof text - 1, flags);
        for (int64_t id = 0; id < clt_tokenizer_vocab_size(t); id++) {
            const char *name = clt_tokenizer_text(t, id);
            require(!name || clt_tokenizer_id(t, name) == id);
        }
        clt_tokenizer_close(t);
    }
    clt_free(path);
}

/* --- texts --- */

static void check_texts(const char *text, size_t bytes) {
    static const char *const names[] = {"neox_mini", "llama3_mini", "flags_mini", "sp_mini", "sp_metaspace"};
    static clt_tokenizer *tokenizers[CLT_COUNT_OF(names)];
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) {
        char *path = clt_format("test/golden/tokenizer/%s/tokenizer.json", names[i]);
        if (!tokenizers[i]) require(clt_tokenizer_open(path, &tokenizers[i]) == CLT_OK);
        check_text(tokenizers[i], text, bytes, CLT_TOKEN_SPECIAL | CLT_TOKEN_TEMPLATE);
        check_text(tokenizers[i], text, bytes, 0);
        clt_free(path);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_error_quiet(true);
    if (size > 0 && data[0] == '{')
        check_file(data, size);
    else
        check_texts((const char *)data, size);
    clt_error_quiet(false);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]:,\"\\0123456789abest<>| \n"
#include "test/fuzz/replay.h"
#endif
