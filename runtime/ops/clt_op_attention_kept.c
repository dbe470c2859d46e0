/* Attention backward with stored ds: the memory for it, and body "kept", by the kernels of
 * clkernels/attention/attention_mma_backward.cl with KEEP_DS. */
#include "runtime/ops/clt_op_attention_internal.h"

/* MOST_PARTS: every launch over a part of the samples has an end where units idle. */
enum { TILE = 64, SLOT_KEPT = 2, MOST_PARTS = 3 };

/* Scratch memory for ds if the caller has none to spare. */
static const uint64_t own_kept_bytes = 1152ull << 20;

typedef clt_attention_params params;
typedef clt_attention_grad_params grad_params;
typedef clt_attention_args arg_list;

uint64_t clt_attention_kept_head_bytes(const params *p) {
    const uint64_t tiles = CLT_CEIL_DIV((uint64_t)p->seq, TILE);
    return tiles * (tiles + 1) / 2 * TILE * TILE * 2;
}

uint64_t clt_attention_kept_space(const grad_params *g) {
    return g->spare.buf ? g->spare_elements * clt_dtype_bytes(g->fwd.q.type) : own_kept_bytes;
}

clt_status clt_attention_kept_place(clt_ops *ops, const grad_params *g, uint64_t bytes, clt_ref *kept) {
    *kept = (clt_ref){g->spare.buf, g->spare.off * clt_dtype_bytes(g->fwd.q.type) / sizeof(uint32_t)};
    return kept->buf ? CLT_OK : clt_ops_scratch(ops, SLOT_KEPT, bytes, &kept->buf);
}

static uint64_t sample_bytes(const params *p) {
    return clt_attention_kept_head_bytes(p) * (uint64_t)p->heads;
}

/* How many samples are computed at once, in parts as even as possible; 0: too few. */
static int64_t samples_at_once(const grad_params *g) {
    const uint64_t fit = clt_attention_kept_space(g) / sample_bytes(&g->fwd);
    if (fit == 0) return 0;
    const int64_t batch = g->fwd.batch, parts = CLT_CEIL_DIV(batch, (int64_t)CLT_MIN(fit, (uint64_t)batch));
    return parts > MOST_PARTS ? 0 : CLT_CEIL_DIV(batch, parts);
}

/* What a row with SHARE leaves out: the features for which operands do not stay in registers. */
static bool is_plain(const params *p) {
    return !(p->dropout > 0.0f) && !(p->softcap > 0.0f) && !p->seq_ids.buf;
}

/* The kernel copies ds in units of 16 bytes. */
static bool takes_backward(const clt_variant *v, const grad_params *g) {
    return g->fwd.window < 0 && g->spare.off % 8 == 0 && samples_at_once(g) > 0 &&
           (!clt_variant_param(v, "SHARE", 0) || is_plain(&g->fwd));
}

/* dk, dv and ds of `samples` samples from `first` on. */
static clt_status keys(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *delta,
                       clt_ref kept, int64_t first, int64_t samples) {
    const params *p = &g->fwd;
    arg_list l = clt_attention_gradient_args(g, delta);
    clt_attention_add_tensor(&l, g->dk);
    clt_attention_add_tensor(&l, g->dv);
    clt_attention_add(&l, CLT_U32(g->accumulate_kv));
    clt_attention_add_ref(&l, kept);
    clt_attention_add(&l, CLT_U32(first));
    const int64_t tiles = CLT_CEIL_DIV(p->seq, (int64_t)clt_variant_param(v, "ROWS", TILE));
    return clt_attention_launch_tiles(ops, v, "attention_backward_kv", tiles, p->kv_heads, samples, &l);
}

/* dq of the same from ds. */
static clt_status queries(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_ref kept,
                          int64_t first, int64_t samples) {
    const params *p = &g->fwd;
    arg_list l = {.n = 0};
    clt_attention_add_tensor(&l, p->k);
    clt_attention_add_ref(&l, kept);
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_F32(p->scale));
    clt_attention_add(&l, CLT_U32(first));
    clt_attention_add_tensor(&l, g->dq);
    const int64_t rows = clt_variant_param(v, "ITEMS", 128);
    return clt_attention_launch_tiles(ops, v, "attention_backward_kept", CLT_CEIL_DIV(p->seq, rows), p->heads,
                                      samples, &l);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const int64_t at_once = samples_at_once(g);
    clt_buffer *delta;
    clt_ref kept;
    CLT_TRY(clt_attention_delta(ops, v, g, &delta));
    CLT_TRY(clt_attention_kept_place(ops, g, sample_bytes(&g->fwd) * (uint64_t)at_once, &kept));
    for (int64_t first = 0; first < g->fwd.batch; first += at_once) {
        const int64_t samples = CLT_MIN(at_once, g->fwd.batch - first);
        CLT_TRY(keys(ops, v, g, delta, kept, first, samples));
        CLT_TRY(queries(ops, v, g, kept, first, samples));
    }
    return CLT_OK;
}

const clt_attention_body clt_attention_kept = {"kept", NULL, backward, NULL, takes_backward, NULL};
