#include "runtime/data/clt_codec.h"

#include <brotli/decode.h>
#include <brotli/encode.h>
#include <bzlib.h>
#include <setjmp.h>
#include <snappy-c.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

typedef enum {
    PACKED_OK,
    PACKED_FOREIGN,  /* not this format */
    PACKED_CUT,      /* incomplete */
    PACKED_DAMAGED,  /* the library's reason is in packed.reason */
    PACKED_TRAILING, /* bytes after the end: packed.rest */
    PACKED_LARGER,   /* the output exceeds the room */
    PACKED_NO_MEMORY
} packed_fact;

typedef struct {
    packed_fact fact;
    size_t size; /* of the output */
    size_t rest;
    const char *reason;
} packed;

struct clt_codec {
    const char *name;
    const char *unit;         /* what a file is made of, for messages */
    int first, last, initial; /* levels; last 0: none */
    uint64_t ratio;           /* no data decompress to more than this times their size */
    size_t (*bound)(size_t bytes);
    packed (*compress)(int level, const void *src, size_t bytes, void *dst, size_t room);
    packed (*decompress)(const void *src, size_t bytes, void *dst, size_t want);
};

static packed fact(packed_fact f) {
    return (packed){.fact = f};
}
static packed damaged(const char *reason) {
    return (packed){.fact = PACKED_DAMAGED, .reason = reason};
}
static packed done(size_t size) {
    return (packed){.fact = PACKED_OK, .size = size};
}
/* The end of the data after `size` bytes of output and `rest` bytes before the end of the input. */
static packed ended(size_t size, size_t rest) {
    return (packed){.fact = rest ? PACKED_TRAILING : PACKED_OK, .size = size, .rest = rest};
}
/* The decoder wants more of both. */
static packed stopped(size_t input_left, size_t room_left) {
    return fact(input_left == 0 || room_left > 0 ? PACKED_CUT : PACKED_LARGER);
}

/* --- zstd --- */

static packed zstd_compress(int level, const void *src, size_t bytes, void *dst, size_t room) {
    size_t n = ZSTD_compress(dst, room, src, bytes, level);
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation) return fact(PACKED_NO_MEMORY);
    return ZSTD_isError(n) ? damaged(ZSTD_getErrorName(n)) : done(n);
}

static packed zstd_decompress(const void *src, size_t bytes, void *dst, size_t want) {
    if (bytes < 4 || memcmp(src, "\x28\xb5\x2f\xfd", 4) != 0) return fact(PACKED_FOREIGN);
    unsigned long long size = ZSTD_getFrameContentSize(src, bytes);
    size_t frame = ZSTD_findFrameCompressedSize(src, bytes);
    if (ZSTD_isError(frame) || size == ZSTD_CONTENTSIZE_ERROR) return fact(PACKED_CUT);
    if (frame != bytes) return ended(0, bytes - frame);
    if (size != ZSTD_CONTENTSIZE_UNKNOWN && size > want) return fact(PACKED_LARGER);
    size_t n = ZSTD_decompress(dst, want, src, bytes);
    if (ZSTD_getErrorCode(n) == ZSTD_error_memory_allocation) return fact(PACKED_NO_MEMORY);
    if (ZSTD_getErrorCode(n) == ZSTD_error_dstSize_tooSmall) return fact(PACKED_LARGER);
    return ZSTD_isError(n) ? damaged(ZSTD_getErrorName(n)) : done(n);
}

/* --- gz: one member (RFC 1952) with the header of Python's gzip.compress, but without a time --- */

enum { GZ_HEADER = 10, GZ_TRAILER = 8 };

static size_t gz_bound(size_t bytes) {
    return compressBound((uLong)bytes) + GZ_HEADER + GZ_TRAILER;
}

static void put_le32(unsigned char *to, uint32_t v) {
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(v >> 8 * i);
}

static packed gz_compress(int level, const void *src, size_t bytes, void *dst, size_t room) {
    unsigned char *to = dst;
    z_stream z = {.next_in = (Bytef *)(uintptr_t)src,
                  .avail_in = (uInt)bytes,
                  .next_out = to + GZ_HEADER,
                  .avail_out = (uInt)(room - GZ_HEADER - GZ_TRAILER)};
    memcpy(to, "\x1f\x8b\x08\0\0\0\0\0\0\xff", GZ_HEADER);
    to[8] = level == 9 ? 2 : level == 1 ? 4 : 0;
    int e = deflateInit2(&z, level, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
    if (e == Z_OK) e = deflate(&z, Z_FINISH);
    size_t n = z.total_out;
    deflateEnd(&z);
    if (e == Z_MEM_ERROR) return fact(PACKED_NO_MEMORY);
    if (e != Z_STREAM_END) return damaged(zError(e));
    put_le32(to + GZ_HEADER + n, (uint32_t)crc32(crc32(0, NULL, 0), src, (uInt)bytes));
    put_le32(to + GZ_HEADER + n + 4, (uint32_t)bytes);
    return done(GZ_HEADER + n + GZ_TRAILER);
}

static packed gz_decompress(const void *src, size_t bytes, void *dst, size_t want) {
    enum { GZIP_ONLY = 16 };
    if (bytes < 2 || memcmp(src, "\x1f\x8b", 2) != 0) return fact(PACKED_FOREIGN);
    z_stream z = {.next_in = (Bytef *)(uintptr_t)src,
                  .avail_in = (uInt)bytes,
                  .next_out = dst,
                  .avail_out = (uInt)want};
    int e = inflateInit2(&z, MAX_WBITS + GZIP_ONLY);
    if (e == Z_OK) e = inflate(&z, Z_FINISH);
    const char *reason = z.msg ? z.msg : zError(e); /* constants of zlib */
    inflateEnd(&z);
    if (e == Z_STREAM_END) return ended(z.total_out, z.avail_in);
    if (e == Z_MEM_ERROR) return fact(PACKED_NO_MEMORY);
    return e == Z_BUF_ERROR || e == Z_OK ? stopped(z.avail_in, z.avail_out) : damaged(reason);
}

/* --- bz2: one stream --- */

static size_t bz2_bound(size_t bytes) {
    return bytes + bytes / 100 + 601; /* the bound that bzlib's manual states */
}

static packed bz2_compress(int level, const void *src, size_t bytes, void *dst, size_t room) {
    unsigned n = (unsigned)room;
    int e = BZ2_bzBuffToBuffCompress(dst, &n, (char *)(uintptr_t)src, (unsigned)bytes, level, 0, 0);
    if (e == BZ_MEM_ERROR) return fact(PACKED_NO_MEMORY);
    return e == BZ_OK ? done(n) : damaged("bzlib reports an error");
}

static packed bz2_decompress(const void *src, size_t bytes, void *dst, size_t want) {
    if (bytes < 3 || memcmp(src, "BZh", 3) != 0) return fact(PACKED_FOREIGN);
    bz_stream z = {.next_in = (char *)(uintptr_t)src,
                   .avail_in = (unsigned)bytes,
                   .next_out = dst,
                   .avail_out = (unsigned)want};
    int e = BZ2_bzDecompressInit(&z, 0, 0);
    if (e == BZ_OK) e = BZ2_bzDecompress(&z);
    BZ2_bzDecompressEnd(&z);
    if (e == BZ_STREAM_END) return ended(want - z.avail_out, z.avail_in);
    if (e == BZ_MEM_ERROR) return fact(PACKED_NO_MEMORY);
    return e == BZ_OK ? stopped(z.avail_in, z.avail_out) : damaged("checksum or structure is wrong");
}

/* --- br --- */

static size_t br_bound(size_t bytes) {
    return bytes + bytes / 4096 +
           1024; /* above BrotliEncoderMaxCompressedSize, which 4 bytes per 16 KiB need */
}

/* The encoder ends the process when its allocator returns NULL. So the allocator leaves it with longjmp, and
 * what it allocated is freed from a list. */
typedef struct br_block {
    struct br_block *next, *before; /* of a ring that br_memory.ring begins */
} br_block;

typedef struct {
    jmp_buf failed;
    br_block ring;
} br_memory;

static void *br_alloc(void *opaque, size_t bytes) {
    br_memory *m = opaque;
    br_block *b = bytes < SIZE_MAX - sizeof *b ? clt_try_malloc(sizeof *b + bytes) : NULL;
    if (!b) longjmp(m->failed, 1);
    *b = (br_block){m->ring.next, &m->ring};
    m->ring.next->before = b;
    m->ring.next = b;
    return b + 1;
}

static void br_free(void *opaque, void *p) {
    (void)opaque;
    if (!p) return;
    br_block *b = (br_block *)p - 1;
    b->next->before = b->before;
    b->before->next = b->next;
    clt_free(b);
}

static packed br_encode(br_memory *m, int level, const uint8_t *src, size_t bytes, uint8_t *dst,
                        size_t room) {
    BrotliEncoderState *b = BrotliEncoderCreateInstance(br_alloc, br_free, m);
    size_t left = room;
    BrotliEncoderSetParameter(b, BROTLI_PARAM_QUALITY, (uint32_t)level);
    BROTLI_BOOL ok =
        BrotliEncoderCompressStream(b, BROTLI_OPERATION_PROCESS, &bytes, &src, &left, &dst, NULL);
    if (ok) ok = BrotliEncoderCompressStream(b, BROTLI_OPERATION_FINISH, &bytes, &src, &left, &dst, NULL);
    ok = ok && BrotliEncoderIsFinished(b);
    BrotliEncoderDestroyInstance(b);
    return ok ? done(room - left) : damaged("the encoder reports an error");
}

static packed br_compress(int level, const void *src, size_t bytes, void *dst, size_t room) {
    br_memory m;
    m.ring = (br_block){&m.ring, &m.ring};
    if (setjmp(m.failed) == 0) return br_encode(&m, level, src, bytes, dst, room);
    while (m.ring.next != &m.ring) br_free(&m, m.ring.next + 1);
    return fact(PACKED_NO_MEMORY);
}

static packed br_decompress(const void *src, size_t bytes, void *dst, size_t want) {
    BrotliDecoderState *b = BrotliDecoderCreateInstance(NULL, NULL, NULL);
    if (!b) return fact(PACKED_NO_MEMORY);
    const uint8_t *in = src;
    uint8_t *out = dst;
    size_t left = want;
    BrotliDecoderResult e = BrotliDecoderDecompressStream(b, &bytes, &in, &left, &out, NULL);
    const BrotliDecoderErrorCode code = BrotliDecoderGetErrorCode(b);
    BrotliDecoderDestroyInstance(b);
    if (e == BROTLI_DECODER_RESULT_SUCCESS) return ended(want - left, bytes);
    if (e == BROTLI_DECODER_RESULT_NEEDS_MORE_INPUT) return fact(PACKED_CUT);
    if (e == BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT) return fact(PACKED_LARGER);
    if (code <= BROTLI_DECODER_ERROR_ALLOC_CONTEXT_MODES &&
        code >= BROTLI_DECODER_ERROR_ALLOC_BLOCK_TYPE_TREES)
        return fact(PACKED_NO_MEMORY);
    return damaged(BrotliDecoderErrorString(code));
}

/* --- snappy: the block format, which begins with the size of the output --- */

static packed snappy_pack(int level, const void *src, size_t bytes, void *dst, size_t room) {
    (void)level;
    return snappy_compress(src, bytes, dst, &room) == SNAPPY_OK ? done(room) : damaged("snappy failed");
}

static packed snappy_unpack(const void *src, size_t bytes, void *dst, size_t want) {
    size_t size = 0;
    if (snappy_uncompressed_length(src, bytes, &size) != SNAPPY_OK) return damaged("it states no size");
    if (size > want) return fact(PACKED_LARGER);
    return snappy_uncompress(src, bytes, dst, &want) == SNAPPY_OK
               ? done(want)
               : damaged("its contents do not give the size that it states");
}

/* --- the table --- */

/* Ratios: deflate gives at most 258 bytes for 2 bits; a bz2 block of 900,000 equal bytes is run-length coded
 * 255 times and takes about 40 bytes; a brotli meta-block has 2^24 bytes and takes several; a snappy copy
 * gives 64 bytes for 3. zstd: above what its blocks of 128 KiB give. */
static const clt_codec codecs[] = {
    {"zstd", "zstd frame", 1, 22, 3, 1 << 16, ZSTD_compressBound, zstd_compress, zstd_decompress},
    {"gz", "gz stream", 0, 9, 9, 1 << 11, gz_bound, gz_compress, gz_decompress},
    {"bz2", "bz2 stream", 1, 9, 9, 1 << 23, bz2_bound, bz2_compress, bz2_decompress},
    {"br", "br stream", 0, 11, 11, 1 << 24, br_bound, br_compress, br_decompress},
    {"snappy", "snappy block", 0, 0, 0, 1 << 5, snappy_max_compressed_length, snappy_pack, snappy_unpack},
};

const clt_codec *clt_codec_find(const char *text) {
    size_t n = strcspn(text, ":");
    for (size_t i = 0; i < CLT_COUNT_OF(codecs); i++)
        if (strlen(codecs[i].name) == n && strncmp(text, codecs[i].name, n) == 0) return &codecs[i];
    return NULL;
}

static clt_status unknown(const char *text) {
    clt_str b = {0};
    for (size_t i = 0; i < CLT_COUNT_OF(codecs); i++) {
        const clt_codec *c = &codecs[i];
        clt_str_addf(&b, "%s%s", i ? ", " : "", c->name);
        if (c->last) clt_str_addf(&b, " (%s:%d to %s:%d)", c->name, c->first, c->name, c->last);
    }
    clt_error(CLT_BAD_CONFIG, "compression '%s' cannot be written; known are %s", text, b.s);
    clt_str_free(&b);
    return CLT_BAD_CONFIG;
}

clt_status clt_codec_parse(const char *text, const clt_codec **out, int *level) {
    const clt_codec *c = clt_codec_find(text);
    if (!c) return unknown(text);
    const char *rest = text + strlen(c->name);
    int64_t n = c->initial;
    if (*rest && !c->last) return clt_error(CLT_BAD_CONFIG, "compression '%s': snappy has no levels", text);
    if (*rest && (!clt_parse_i64(rest + 1, &n) || n < c->first || n > c->last))
        return clt_error(CLT_BAD_CONFIG, "compression '%s': the level must be %d to %d", text, c->first,
                         c->last);
    *out = c;
    *level = (int)n;
    return CLT_OK;
}

const char *clt_codec_name(const clt_codec *c) {
    return c->name;
}

bool clt_codec_plausible(const clt_codec *c, uint64_t bytes, uint64_t raw) {
    return raw / c->ratio <= bytes;
}

size_t clt_codec_bound(const clt_codec *c, size_t bytes) {
    return CLT_MIN(c->bound(bytes), UINT32_MAX);
}

clt_status clt_codec_compress(const clt_codec *c, int level, const void *src, size_t bytes, void *dst,
                              size_t *written) {
    packed p = c->compress(level, src, bytes, dst, clt_codec_bound(c, bytes));
    if (p.fact == PACKED_NO_MEMORY) return clt_no_memory("compressing a shard", 0);
    if (p.fact != PACKED_OK) return clt_error(CLT_FAIL, "%s cannot compress a shard: %s", c->name, p.reason);
    *written = p.size;
    return CLT_OK;
}

clt_status clt_codec_decompress(const clt_codec *c, const char *file, const void *src, size_t bytes,
                                void *dst, size_t want) {
    packed p = c->decompress(src, bytes, dst, want);
    switch (p.fact) {
    case PACKED_OK:
        if (p.size == want) return CLT_OK;
        return clt_error(CLT_BAD_DATA,
                         "%s decompresses to another size than raw_data.bytes: %zu bytes, not %zu", file,
                         p.size, want);
    case PACKED_FOREIGN:
        return clt_error(CLT_BAD_DATA, "%s is not a %s", file, c->unit);
    case PACKED_CUT:
        return clt_error(CLT_BAD_DATA, "%s of %s is incomplete or damaged; fetch or write it again", c->unit,
                         file);
    case PACKED_TRAILING:
        return clt_error(CLT_BAD_DATA, "%s has %zu bytes after its %s", file, p.rest, c->unit);
    case PACKED_LARGER:
        return clt_error(CLT_BAD_DATA,
                         "%s: the decompressed data are larger than raw_data.bytes %zu: it decompresses to "
                         "another size than raw_data.bytes",
                         file, want);
    case PACKED_NO_MEMORY:
        return clt_no_memory("decompressing a shard", 0);
    case PACKED_DAMAGED:
        break;
    }
    return clt_error(CLT_BAD_DATA, "%s: damaged %s data: %s; fetch or write it again", file, c->name,
                     p.reason);
}
