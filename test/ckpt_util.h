/* ckpt_util: a small model state in host memory, and checkpoints of it, for the tests of runtime/checkpoint.
 */
#ifndef CKPT_UTIL_H
#define CKPT_UTIL_H

#include "runtime/checkpoint/clt_checkpoint.h"

enum { CU_PARTS = 3 };

typedef struct {
    clt_slab_table table;
    float *host[CU_PARTS];
    clt_ckpt_part part[CU_PARTS]; /* weight, exp_avg, exp_avg_sq */
} cu_state;

/* Tensors with few elements; with `big`, also one of several chunks. Values are random bits of ordinary
 * numbers. */
void cu_state_create(cu_state *s, bool big, uint64_t seed);
void cu_state_free(cu_state *s);
void cu_state_fill(cu_state *s, uint64_t seed);
bool cu_state_equal(const cu_state *a, const cu_state *b);

clt_checkpoint_state cu_numbers(int64_t batch);

/* A writer of s's parts in `folder`, everything in the calling thread. */
clt_ckpt_writer_params cu_params(cu_state *s, const char *folder);
/* Opens `path`, loads it into a fresh state and compares with `want`. */
clt_status cu_check(const char *path, const cu_state *want);

#endif
