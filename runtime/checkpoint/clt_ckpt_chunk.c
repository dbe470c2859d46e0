#include <zstd.h>
#include <zstd_errors.h>

#include "runtime/checkpoint/clt_ckpt_internal.h"

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

clt_status clt_chunk_codec_create(size_t count, clt_chunk_codec **out) {
    const size_t bytes = clt_chunk_stored_bound(count);
    void *buffer = clt_try_malloc(bytes);
    if (!buffer) return clt_no_memory("the buffer of a checkpoint's chunk", bytes);
    clt_chunk_codec *k = clt_calloc(1, sizeof *k);
    k->buffer = buffer;
    k->bytes = bytes;
    *out = k;
    return CLT_OK;
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

static clt_status out_of_memory(const char *what) {
    return clt_no_memory(what, 0);
}

static bool lacks_memory(size_t result) {
    return ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation;
}

static clt_status compressor(clt_chunk_codec *k) {
    if (k->c) return CLT_OK;
    k->c = ZSTD_createCCtx();
    if (!k->c) return out_of_memory("compressing a checkpoint");
    ZSTD_CCtx_setParameter(k->c, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(k->c, ZSTD_c_checksumFlag, 1);
    return CLT_OK;
}

clt_status clt_chunk_encode(clt_chunk_codec *k, const float *src, size_t count, clt_ckpt_stored *out) {
    CLT_TRY(compressor(k));
    size_t n = ZSTD_compress2(k->c, k->buffer, k->bytes, src, count * sizeof *src);
    if (lacks_memory(n)) return out_of_memory("compressing a checkpoint");
    if (ZSTD_isError(n)) return clt_error(CLT_FAIL, "cannot compress a chunk: %s", ZSTD_getErrorName(n));
    out->stored = n;
    out->hash = clt_hash(k->buffer, n);
    return CLT_OK;
}

clt_status clt_chunk_decode(clt_chunk_codec *k, const clt_ckpt_stored *at, float *dst, size_t count,
                            const char **why) {
    return clt_chunk_decode_at(k, k->buffer, at, dst, count, why);
}

clt_status clt_chunk_decode_at(clt_chunk_codec *k, const void *raw, const clt_ckpt_stored *at, float *dst,
                               size_t count, const char **why) {
    size_t stored = (size_t)at->stored, bytes = count * sizeof *dst;
    clt_hash128 h = clt_hash(raw, stored);
    *why = NULL;
    if (h.hi != at->hash.hi || h.lo != at->hash.lo)
        *why = "the hash of its stored bytes differs";
    else if (ZSTD_getFrameContentSize(raw, stored) != bytes)
        *why = "its frame has another length";
    else if (ZSTD_findFrameCompressedSize(raw, stored) != stored)
        *why = "bytes follow its frame";
    if (*why) return CLT_BAD_DATA;
    if (!k->d) k->d = ZSTD_createDCtx();
    size_t n = k->d ? ZSTD_decompressDCtx(k->d, dst, bytes, raw, stored) : 0;
    if (!k->d || lacks_memory(n)) return out_of_memory("decompressing a checkpoint");
    if (ZSTD_isError(n)) *why = ZSTD_getErrorName(n);
    if (!*why && n != bytes) *why = "its frame ends early";
    return *why ? CLT_BAD_DATA : CLT_OK;
}
