#include "clt_ckpt_internal.h"

#include <zstd.h>

/* fp32 noise hardly compresses: level 1 runs at 0.5 GB/s per core for 8 %, this level at more than 5 GB/s. */
enum { LEVEL = -5 };

struct clt_chunk_codec {
    ZSTD_CCtx *c;
    ZSTD_DCtx *d;
    void *buffer;
};

size_t clt_chunk_codec_bytes(void) {
    return ZSTD_COMPRESSBOUND(CLT_CKPT_CHUNK * sizeof(float));
}

clt_chunk_codec *clt_chunk_codec_create(void) {
    clt_chunk_codec *k = clt_calloc(1, sizeof *k);
    k->c = ZSTD_createCCtx();
    k->d = ZSTD_createDCtx();
    k->buffer = clt_malloc(clt_chunk_codec_bytes());
    ZSTD_CCtx_setParameter(k->c, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(k->c, ZSTD_c_checksumFlag, 1);
    return k;
}

void clt_chunk_codec_destroy(clt_chunk_codec *k) {
    if (!k) return;
    ZSTD_freeCCtx(k->c);
    ZSTD_freeDCtx(k->d);
    clt_free(k->buffer);
    clt_free(k);
}

void *clt_chunk_codec_buffer(clt_chunk_codec *k) {
    return k->buffer;
}

clt_status clt_chunk_encode(clt_chunk_codec *k, const float *src, size_t count, clt_ckpt_stored *out) {
    size_t n = ZSTD_compress2(k->c, k->buffer, clt_chunk_codec_bytes(), src, count * sizeof *src);
    if (ZSTD_isError(n)) return clt_error(CLT_FAIL, "cannot compress a chunk: %s", ZSTD_getErrorName(n));
    out->stored = n;
    out->hash = clt_hash(k->buffer, n);
    return CLT_OK;
}

const char *clt_chunk_decode(clt_chunk_codec *k, const clt_ckpt_stored *at, float *dst, size_t count) {
    size_t stored = (size_t)at->stored, bytes = count * sizeof *dst;
    clt_hash128 h = clt_hash(k->buffer, stored);
    if (h.hi != at->hash.hi || h.lo != at->hash.lo) return "the hash of its stored bytes differs";
    if (ZSTD_getFrameContentSize(k->buffer, stored) != bytes) return "its frame has another length";
    if (ZSTD_findFrameCompressedSize(k->buffer, stored) != stored) return "there are bytes after its frame";
    if (!dst) return NULL;
    size_t n = ZSTD_decompressDCtx(k->d, dst, bytes, k->buffer, stored);
    if (ZSTD_isError(n)) return ZSTD_getErrorName(n);
    return n == bytes ? NULL : "its frame ends early";
}
