/* clt_codec: the whole-file compressions of MDS shards as one table: zstd, gz, bz2, br (brotli) and snappy
 * (the raw block format). A text is compressed as the reference's Python packages do: one frame, stream or
 * block for a whole shard. Compressed data are hostile: the output never exceeds the size that the caller
 * expects, and truncation, bytes after the end and every other size are errors. Any number of threads. */
#ifndef CLT_CODEC_H
#define CLT_CODEC_H

#include "runtime/base/clt_base.h"

typedef struct clt_codec clt_codec;

/* The codec of a name as index.json has it, "zstd" or "zstd:7"; the level is not looked at. NULL: unknown. */
const clt_codec *clt_codec_find(const char *text);
/* The same for writing: checks the level and returns it, the codec's default one without ":LEVEL".
 * CLT_BAD_CONFIG: the message names the codecs and their levels. */
clt_status clt_codec_parse(const char *text, const clt_codec **out, int *level);

/* "zstd"; also the extension of the files. A constant. */
const char *clt_codec_name(const clt_codec *c);
/* Whether so many compressed bytes may decompress to `raw` bytes at all; for sizes that a file claims. */
bool clt_codec_plausible(const clt_codec *c, uint64_t packed, uint64_t raw);

/* Upper bound of the compressed size of `bytes` bytes, at most 2^32 - 1. */
size_t clt_codec_bound(const clt_codec *c, size_t bytes);
/* Compresses src[0, bytes) into dst, which has room for clt_codec_bound. *written is the compressed size. The
 * result depends only on codec, level and src: a gz header has no time. CLT_NO_MEMORY; CLT_FAIL. */
clt_status clt_codec_compress(const clt_codec *c, int level, const void *src, size_t bytes, void *dst,
                              size_t *written);
/* Decompresses src[0, bytes) into dst[0, want); `file` names src in messages. CLT_BAD_DATA: it is damaged,
 * incomplete, followed by other bytes, or does not decompress to exactly `want` bytes, raw_data.bytes of
 * index.json; dst then holds part of the data. CLT_NO_MEMORY. */
clt_status clt_codec_decompress(const clt_codec *c, const char *file, const void *src, size_t bytes,
                                void *dst, size_t want);

#endif
