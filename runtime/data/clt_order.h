/* clt_order: the order of samples, exactly that of StreamingDataset ("elastic determinism"), so that a run
 * may move between cltrain and LLM Foundry and between any number of ranks.
 *
 * An epoch is one global sequence of sample ids. The position of a run in it is one number, the samples
 * already seen in this epoch, and a global batch is a contiguous piece of the sequence, however ranks share
 * it. With N samples and NCN canonical nodes, row c of a table holds ids floor(c N / NCN) up to floor((c+1) N
 * / NCN), padded to ceil(N / NCN) by repeating its last id. Position t of the sequence is column t / NCN of
 * row t % NCN (also without shuffle); the shuffle then renames the ids. With N < NCN ids 0 ... N - 1 repeat.
 * A resume replays nothing: an epoch's shuffle is a function of (shards, NCN, seed, epoch, block size).
 *
 * Several streams with weights: clt_streams.h. */
#ifndef CLT_ORDER_H
#define CLT_ORDER_H

#include "runtime/base/clt_base.h"

typedef struct {
    const int64_t *shard_samples; /* samples of each shard, in index order; copied */
    size_t num_shards;
    int64_t physical_nodes;  /* default 1; cltrain's own runs always use 1 */
    int64_t canonical_nodes; /* 0: default, physical nodes of the first run (64 times that for py1s, py2s) */
    int64_t initial_nodes;   /* physical nodes of the first run if this one resumes it; 0: first run */
    uint64_t seed;           /* default 9176 */
    bool shuffle;            /* default true */
    const char *algo;        /* default py1e; naive, py1s, py1e, py1br, py2s; without shuffle it
                                only has to be valid, and decides the default of canonical_nodes */
    const char *partition_algo; /* default relaxed; orig */
    int64_t block_size;         /* 0: default max(4,000,000 / NCN, 262,144) */
    bool share; /* other processes of this host need the same order: from 2^20 samples on it is computed and
                   kept once (/dev/shm) */
} clt_order_params;

typedef struct clt_order clt_order;

void clt_order_params_default(clt_order_params *p);
/* Replaces the zeros of canonical_nodes and block_size by their defaults. CLT_BAD_CONFIG: unknown algorithm.
 */
clt_status clt_order_params_resolve(clt_order_params *p);

/* CLT_BAD_CONFIG: unknown algorithm, impossible node counts; CLT_BAD_DATA: no sample; CLT_NO_MEMORY.
 * Allocates everything that it needs: per sample with a shuffle 4 bytes (8 from 2^32 samples on; py2s: twice
 * that), without one 0; py1e about 60 bytes more for each sample of a block (the pages that it uses). */
clt_status clt_order_create(const clt_order_params *p, clt_order **out);
void clt_order_destroy(clt_order *o);

int64_t clt_order_num_samples(const clt_order *o);
int64_t clt_order_canonical_nodes(const clt_order *o);
int64_t clt_order_block_size(const clt_order *o);
/* Length of an epoch's sequence, NCN * ceil(N / NCN) (more only when NCN < physical nodes): at least N, since
 * some ids are repeated. */
int64_t clt_order_length(const clt_order *o);

/* ids_out[i] = sample at position first + i of the epoch's sequence, i < count; global batch g is (g * B,
 * min(B, N - g * B)). The first call of an epoch computes its shuffle, O(N); after that O(count). Not
 * thread-safe. CLT_BAD_CONFIG: the range exceeds [0, length), or epoch is negative. */
clt_status clt_order_batch(clt_order *o, int64_t epoch, int64_t first, int64_t count, int64_t *ids_out);

/* How the reference divides an epoch among ranks, for `cltrain data order`. */
typedef struct {
    int64_t ranks_per_node, batch_size; /* batch_size is per rank */
    int64_t epoch, from;                /* samples of this epoch already seen by all ranks together */
} clt_order_world;

/* The samples of rank 0 ... ranks_per_node - 1 of a node: *ids_out (clt_free) has *count_out entries, batch b
 * is [b * batch_size, (b+1) * batch_size). Entries of -1 are padding: the caller skips them, and a batch that
 * has nothing else. CLT_USAGE: a number is out of range; CLT_BAD_DATA, with the reason: the reference refuses
 * the case; CLT_NO_MEMORY. */
clt_status clt_order_rank(clt_order *o, const clt_order_world *w, int64_t node, int64_t rank,
                          int64_t **ids_out, int64_t *count_out);

/* Nodes among which the reference deals the sequence from its start: those of the first run for a run resumed
 * under 'relaxed' on a number of nodes that does not fit the canonical nodes, else the physical nodes. */
int64_t clt_order_dealing_nodes(const clt_order *o);
/* Samples of each rank when every node has `ranks` of them; the last ones may repeat others. */
int64_t clt_order_dealt_count(const clt_order *o, int64_t ranks);
/* Sample i < clt_order_dealt_count of a rank, in an epoch that clt_order_use_epoch has made current. */
int64_t clt_order_dealt(const clt_order *o, int64_t ranks, int64_t node, int64_t rank, int64_t i);
/* Computes the shuffle of an epoch, O(N), unless it is current. */
void clt_order_use_epoch(clt_order *o, int64_t epoch);

/* --- shuffles, also for the tests --- */

typedef enum {
    CLT_SHUFFLE_NAIVE,
    CLT_SHUFFLE_PY1S,
    CLT_SHUFFLE_PY1E,
    CLT_SHUFFLE_PY1BR,
    CLT_SHUFFLE_PY2S
} clt_shuffle_algo;

/* CLT_BAD_CONFIG with the known names (and the nearest) for an unknown one. */
clt_status clt_shuffle_parse(const char *name, clt_shuffle_algo *out);

typedef struct clt_shuffle clt_shuffle;
/* Work space for shuffles of these shards. share: epochs are computed once for all processes of the host that
 * ask for the same (clt_shared_ids.h). CLT_BAD_CONFIG where the algorithm cannot work (a canonical node
 * without samples under py1e, a block size too small to draw from); CLT_NO_MEMORY. */
clt_status clt_shuffle_create(clt_shuffle_algo algo, const int64_t *shard_samples, size_t num_shards,
                              int64_t canonical_nodes, uint64_t seed, int64_t block_size, bool share,
                              clt_shuffle **out);
void clt_shuffle_destroy(clt_shuffle *s);
/* Computes the shuffle of an epoch. Not thread-safe. */
void clt_shuffle_epoch(clt_shuffle *s, int64_t epoch);
/* In the epoch computed last: what replaces id i < N of the table (i is not a position of the sequence). */
int64_t clt_shuffle_id(const clt_shuffle *s, int64_t i);

#endif
