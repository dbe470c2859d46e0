/* clt_mds_shards: the bytes of checked shards. Plain shards are read in place through a small cache of open
 * files; compressed shards are decompressed whole into slots that are reused, least recently used first. A
 * shard's header is checked at the first use. Internal to clt_mds. */
#ifndef CLT_MDS_SHARDS_H
#define CLT_MDS_SHARDS_H

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_fetch.h"
#include "runtime/data/clt_mds_index.h"

enum { MDS_OPEN_FILES = 128, MDS_BUFFER = 1 << 16 };

typedef struct {
    clt_file *file;
    size_t shard; /* SIZE_MAX: free */
    uint64_t used;
} mds_open_file;

typedef struct {
    char *data;
    size_t shard;
    uint64_t used;
} mds_slot;

typedef struct {
    const char *dir; /* borrowed */
    mds_index x;
    clt_fetch *fetch; /* dir is its local folder; NULL: the files are there. Borrowed */
    size_t fetch_first;
    bool check_any, check_all; /* verify the fastest checksum of the raw bytes; every one of both files */
    int check_algo;            /* or this one, of both files; -1: none */
    mds_open_file files[MDS_OPEN_FILES];
    mds_slot *slots;
    size_t num_slots;
    char *zip; /* a compressed file, before it is decompressed */
    uint64_t clock;
    _Alignas(16) char buffer[MDS_BUFFER]; /* for reading files in pieces */
} mds_shards;

/* Takes over x; mds_shards_free in any case. CLT_NO_MEMORY. */
clt_status mds_shards_init(mds_shards *s, const char *dir, mds_index x, size_t cache_bytes);
void mds_shards_free(mds_shards *s);

/* Makes the shard readable; checks it at the first use. */
clt_status mds_shard_use(mds_shards *s, size_t shard);
/* The next mds_shard_use reads and checks the shard again. */
void mds_shards_forget(mds_shards *s, size_t shard);
/* Bytes [offset, offset + n) of the raw shard, a range inside it, after mds_shard_use. */
clt_status mds_shard_read(mds_shards *s, size_t shard, uint64_t offset, size_t n, void *dst);

#endif
