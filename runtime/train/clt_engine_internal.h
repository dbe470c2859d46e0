/* clt_engine_internal: the engine's state, shared by its files. */
#ifndef CLT_ENGINE_INTERNAL_H
#define CLT_ENGINE_INTERNAL_H

#include "clt_engine.h"

enum { FROZEN_GROUP = CLT_MAX_PARAM_GROUPS };

struct clt_engine {
    const clt_config *cfg;
    clt_group *group;
    clt_ops *ops;
    clt_mpt *model;
    clt_slab_table table;
    clt_slab *weights, *m, *v;
    clt_slab **grads;
    int n_grads;
    int lanes, first_lane, last_lane;
    int64_t microbatch, seq;
    clt_lane_stack *stack;
    clt_reduce_plan *reduce;
    bool *frozen; /* [table.n] */
    clt_buffer *block_group, *groups, *chunk_sums, *status, *losses, *correct, *nonfinite;
    clt_optimizer_group host_groups[CLT_MAX_PARAM_GROUPS + 1];
    float *host_losses, *host_row_weight;
    int32_t *host_correct;
    clt_ckpt_part parts[3];
    int n_parts;
};

#endif
