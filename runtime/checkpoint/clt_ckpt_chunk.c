#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <zstd.h>

/* fp32 noise hardly compresses: level 1 runs at 0.5 GB/s per core for 8 %, this level at more than 5 GB/s. */
enum { LEVEL = -5 };

struct clt_chunk_codec {
    ZSTD_CCtx *c; /* made at the first use */
    ZSTD_DCtx *d;
    void *buffer;
    size_t bytes;
};

size_t clt_chunk_stored_bound(size_t count) {
    return ZSTD_COMPRESSBOUND(count * sizeof(float));
}

clt_chunk_codec *clt_chunk_codec_create(size_t count) {
    clt_chunk_codec *k = clt_calloc(1, sizeof *k);
    k->bytes = clt_chunk_stored_bound(count);
    k->buffer = clt_malloc(k->bytes);
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

static clt_status compressor(clt_chunk_codec *k) {
    if (k->c) return CLT_OK;
    k->c = ZSTD_createCCtx();
    if (!k->c) return clt_error(CLT_NO_MEMORY, "out of host memory for compression");
    ZSTD_CCtx_setParameter(k->c, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(k->c, ZSTD_c_checksumFlag, 1);
    return CLT_OK;
}

clt_status clt_chunk_encode(clt_chunk_codec *k, const float *src, size_t count, clt_ckpt_stored *out) {
    CLT_TRY(compressor(k));
    size_t n = ZSTD_compress2(k->c, k->buffer, k->bytes, src, count * sizeof *src);
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
    if (!k->d) k->d = ZSTD_createDCtx();
    if (!k->d) return "there is no memory to decompress it";
    size_t n = ZSTD_decompressDCtx(k->d, dst, bytes, k->buffer, stored);
    if (ZSTD_isError(n)) return ZSTD_getErrorName(n);
    return n == bytes ? NULL : "its frame ends early";
}
