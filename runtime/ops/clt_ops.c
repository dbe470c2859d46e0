/* The context of the operations: device, numerics mode, variant tables, and the shared scratch buffers. */
#include "runtime/ops/clt_ops.h"

#include "runtime/base/clt_signal.h"
#include "runtime/ops/clt_ops_state.h"
#include "runtime/ops/clt_tune.h"

clt_ops_params clt_ops_params_default(void) {
    return (clt_ops_params){.numerics = CLT_EXACT, .tune_seconds = 5};
}

clt_status clt_ops_create(clt_device *dev, const clt_ops_params *p, clt_ops **out) {
    clt_ops *ops = clt_calloc(1, sizeof *ops);
    ops->dev = dev;
    ops->params = p ? *p : clt_ops_params_default();
    clt_status st = clt_variant_load_tables(ops);
    if (st != CLT_OK) {
        clt_ops_destroy(ops);
        return st;
    }
    clt_tune_open(ops);
    *out = ops;
    return CLT_OK;
}

void clt_ops_destroy(clt_ops *ops) {
    if (!ops) return;
    clt_tune_close(ops);
    for (int i = 0; i < CLT_SCRATCH_SLOTS; i++) clt_buffer_destroy(ops->scratch[i]);
    clt_buffer_destroy(ops->counters);
    clt_free(ops->later);
    clt_variant_free_tables(ops);
    clt_free(ops);
}

clt_device *clt_ops_device(const clt_ops *ops) {
    return ops->dev;
}

void clt_ops_let_stop(clt_ops *ops, bool on) {
    ops->may_stop = on;
}

bool clt_ops_stops(const clt_ops *ops) {
    return ops->may_stop && clt_signal_received();
}

clt_numerics clt_ops_numerics(const clt_ops *ops) {
    return ops->params.numerics;
}

uint64_t clt_ops_workspace_bytes(const clt_ops *ops) {
    uint64_t sum = 0;
    for (int i = 0; i < CLT_SCRATCH_SLOTS; i++)
        if (ops->scratch[i]) sum += clt_buffer_bytes(ops->scratch[i]);
    return sum;
}

clt_status clt_ops_scratch(clt_ops *ops, int slot, uint64_t bytes, clt_buffer **out) {
    if (slot < 0 || slot >= CLT_SCRATCH_SLOTS)
        return clt_error(CLT_FAIL, "scratch slot %d does not exist", slot);
    clt_buffer *b = ops->scratch[slot];
    if (!b || clt_buffer_bytes(b) < bytes) {
        /* The old buffer is released first, so that growing never needs both; queued kernels keep it alive in
         * the driver. */
        clt_buffer_destroy(b);
        ops->scratch[slot] = NULL;
        CLT_TRY(clt_buffer_create(ops->dev, CLT_ROUND_UP(CLT_MAX(bytes, 1), 4096), "operation scratch", &b));
        ops->scratch[slot] = b;
    }
    *out = b;
    return CLT_OK;
}

clt_status clt_ops_counters(clt_ops *ops, uint64_t count, clt_buffer **out) {
    if (!ops->counters || clt_buffer_bytes(ops->counters) < count * 4) {
        const uint64_t bytes = CLT_ROUND_UP(count * 4, 4096);
        clt_buffer_destroy(ops->counters); /* queued kernels keep it alive in the driver */
        ops->counters = NULL;
        CLT_TRY(clt_buffer_create(ops->dev, bytes, "work-groups' counters", &ops->counters));
        CLT_TRY(clt_buffer_fill32(ops->counters, 0, 0, bytes));
    }
    *out = ops->counters;
    return CLT_OK;
}
