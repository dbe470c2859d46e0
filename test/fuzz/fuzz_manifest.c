/* Hostile checkpoints. An input that begins with '{' is a manifest without its last 45 bytes: its own hash is
 * added, so that the fuzzer gets past it. Any other input is a stored chunk: two bytes of element count, then
 * the frame, with a matching hash. What is accepted must obey the format's rules. */
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
    if (!ok) abort();
}

static void check(const clt_manifest *m) {
    size_t chunks = 0;
    uint64_t bytes = 0, stored = 0;
    for (size_t i = 0; i < m->tensors; i++) {
        const clt_man_tensor *t = &m->tensor[i];
        uint64_t have = 0;
        require(t->first_chunk == chunks);
        for (int k = 0; k < t->chunks; k++, chunks++) {
            const clt_man_chunk *c = &m->chunk[chunks];
            require(c->tensor == i && c->first == have && c->file < m->files);
            require(c->at.offset + c->at.stored <= m->file[c->file].bytes);
            have += c->count;
            stored += c->at.stored;
        }
        require(have == t->count);
    }
    for (size_t i = 0; i < m->files; i++) {
        require(!strchr(m->file[i].name, '/') && strcmp(m->file[i].name, ".."));
        bytes += m->file[i].bytes;
    }
    require(chunks == m->chunks && stored == bytes);
}

static void fuzz_manifest(const uint8_t *data, size_t size) {
    clt_manifest *m;
    clt_str text = {0};
    if (clt_manifest_parse((const char *)data, size, "fuzz", &m) == CLT_OK) clt_manifest_free(m);
    clt_str_addn(&text, (const char *)data, size);
    clt_manifest_seal(&text);
    if (clt_manifest_parse(text.s, text.len, "fuzz", &m) == CLT_OK) {
        check(m);
        clt_manifest_free(m);
    }
    clt_str_free(&text);
}

static void fuzz_chunk(const uint8_t *data, size_t size) {
    size_t count = data[0] | (size_t)data[1] << 8;
    data += 2;
    size -= 2;
    if (count == 0 || size > clt_chunk_stored_bound(count)) return;
    clt_chunk_codec *codec;
    const char *why;
    if (clt_chunk_codec_create(count, &codec) != CLT_OK) return;
    float *dst = clt_malloc(count * sizeof *dst);
    clt_ckpt_stored at = {0, size, clt_hash(data, size)};
    memcpy(clt_chunk_codec_buffer(codec), data, size);
    clt_chunk_decode(codec, &at, dst, count, &why);
    clt_free(dst);
    clt_chunk_codec_destroy(codec);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3) return 0;
    clt_error_quiet(true);
    if (data[0] == '{')
        fuzz_manifest(data, size);
    else
        fuzz_chunk(data, size);
    clt_error_quiet(false);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]:,\"\\0123456789-.e/ \n"
#include "test/fuzz/replay.h"
#endif
