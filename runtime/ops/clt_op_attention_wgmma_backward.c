/* The backward pass of attention on Hopper's matrix unit (clkernels/attention/attention_wgmma_backward.cl).
 */
#include "../device/clt_tensor_map.h"
#include "clt_op_attention.h"

enum { ROWS = 128, TILE = 64, ITEMS = 384, PREPARE_ITEMS = 256 };

typedef clt_attention_params params;
typedef clt_attention_grad_params grad_params;
typedef clt_attention_args arg_list;

/* A tensor of `heads` heads: [B, T, heads, D] with rows `ld` apart, in boxes of 64 rows of 64 elements of a
 * head. */
static clt_tensor_map_params map_of(const params *p, clt_ref r, int64_t heads, int64_t ld) {
    uint64_t d = (uint64_t)p->head_dim, row = (uint64_t)ld, seq = (uint64_t)p->seq;
    return (clt_tensor_map_params){.ref = r,
                                   .type = p->type == CLT_F16 ? CLT_MAP_F16 : CLT_MAP_BF16,
                                   .dims = 4,
                                   .size = {d, (uint64_t)heads, seq, (uint64_t)p->batch},
                                   .stride = {1, d, row, seq * row},
                                   .box = {TILE, 1, TILE, 1},
                                   .swizzle = 128};
}

typedef struct {
    clt_tensor_map_params q, k, v, dout;
} maps;

static maps maps_of(const grad_params *g) {
    const params *p = &g->fwd;
    return (maps){map_of(p, p->q, p->heads, p->ldq), map_of(p, p->k, p->kv_heads, p->ldk),
                  map_of(p, p->v, p->kv_heads, p->ldv), map_of(p, g->dout, p->heads, g->lddout)};
}

/* Whether elements can be read or written in vectors of n. */
static bool in_vectors(clt_ref r, int64_t ld, int64_t n) {
    return r.off % (uint64_t)n == 0 && ld % n == 0;
}

static bool takes_backward(const clt_variant *v, const grad_params *g) {
    (void)v;
    const params *p = &g->fwd;
    int64_t d = p->head_dim;
    if (p->type == CLT_F32 || p->dropout > 0.0f || (d != 64 && d != 80 && d != 96 && d != 128)) return false;
    maps m = maps_of(g);
    return clt_tensor_map_fits(&m.q) && clt_tensor_map_fits(&m.k) && clt_tensor_map_fits(&m.v) &&
           clt_tensor_map_fits(&m.dout) && in_vectors(p->o, p->ldo, 8) && in_vectors(g->dq, g->lddq, 2) &&
           in_vectors(g->dk, g->lddk, 2) && in_vectors(g->dv, g->lddv, 2);
}

static uint64_t padded(const params *p) {
    return CLT_ROUND_UP((uint64_t)p->seq, ROWS);
}

/* lse and delta of every row, then two counters. */
static uint64_t stats_bytes(const params *p) {
    return (uint64_t)(p->batch * p->heads) * 2 * padded(p) * sizeof(float) + 64;
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *stats) {
    const params *p = &g->fwd;
    arg_list l = {.n = 0};
    clt_attention_add_matrix(&l, g->dout, g->lddout);
    clt_attention_add_matrix(&l, p->o, p->ldo);
    clt_attention_add_ref(&l, p->lse);
    clt_attention_add(&l, CLT_BUF(stats));
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_prepare", v->options, &k));
    size_t lanes = p->head_dim > 64 ? 16 : 8; /* LANES */
    return clt_launch(k, 3, (size_t[]){padded(p) * lanes, (size_t)p->heads, (size_t)p->batch},
                      (size_t[]){PREPARE_ITEMS, 1, 1}, l.a, l.n);
}

/* KERNEL_ARGS. section: heads whose tensors fit the second-level cache together. */
static clt_status common_args(clt_ops *ops, const grad_params *g, clt_buffer *stats, uint64_t section,
                              arg_list *l) {
    const params *p = &g->fwd;
    maps m = maps_of(g);
    const clt_tensor_map_params *const list[] = {&m.q, &m.k, &m.v, &m.dout};
    for (size_t i = 0; i < CLT_COUNT_OF(list); i++) {
        clt_ref map;
        CLT_TRY(clt_tensor_map_get(clt_ops_device(ops), list[i], &map));
        clt_attention_add_ref(l, map);
    }
    clt_attention_add(l, CLT_BUF(stats));
    clt_attention_add_ref(l, p->slopes);
    clt_attention_add_ref(l, p->seq_ids);
    clt_attention_add(l, CLT_U32(p->batch));
    clt_attention_add(l, CLT_U32(p->seq));
    clt_attention_add(l, CLT_U32(p->heads));
    clt_attention_add(l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(l, CLT_F32(p->scale));
    clt_attention_add(l, CLT_F32(p->softcap));
    clt_attention_add(l, CLT_U32(p->window >= 0 ? CLT_MIN(p->window, p->seq) : 0));
    clt_attention_add(l, CLT_U32(section));
    return CLT_OK;
}

/* Heads (of `heads` a sample, each with `tensors` tensors' rows) to a section: 32 MiB, of the 50 MiB of a
 * Hopper. */
static uint64_t section_of(const params *p, int64_t tensors) {
    uint64_t bytes = (uint64_t)(p->seq * p->head_dim * tensors) * clt_dtype_bytes(p->type);
    return CLT_MAX((32ull << 20) / bytes, 1);
}

static clt_status launch(clt_ops *ops, const clt_variant *v, const char *name, const params *p, int64_t heads,
                         const arg_list *l) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    uint64_t items = padded(p) / ROWS * (uint64_t)(p->batch * heads);
    uint64_t groups = CLT_MIN(items, (uint64_t)clt_device_get_facts(clt_ops_device(ops))->compute_units);
    return clt_launch(k, 1, (size_t[]){(size_t)groups * ITEMS}, (size_t[]){ITEMS}, l->a, l->n);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    clt_buffer *stats;
    CLT_TRY(clt_ops_scratch(ops, 0, stats_bytes(p), &stats));
    CLT_TRY(prepare(ops, v, g, stats));
    arg_list kv = {.n = 0}, l = {.n = 0};
    CLT_TRY(common_args(ops, g, stats, section_of(p, 2 + 2 * p->heads / p->kv_heads), &kv));
    clt_attention_add_matrix(&kv, g->dk, g->lddk);
    clt_attention_add_matrix(&kv, g->dv, g->lddv);
    clt_attention_add(&kv, CLT_U32(g->accumulate_kv));
    CLT_TRY(launch(ops, v, "attention_keys", p, p->kv_heads, &kv));
    CLT_TRY(common_args(ops, g, stats, section_of(p, 4), &l));
    clt_attention_add_matrix(&l, g->dq, g->lddq);
    return launch(ops, v, "attention_queries", p, p->heads, &l);
}

static uint64_t workspace(clt_device_type type, const params *p) {
    return type == CLT_DEVICE_GPU && p->type != CLT_F32 ? stats_bytes(p) : 0;
}

const clt_attention_body clt_attention_wgmma = {
    "wgmma", clt_attention_wgmma_forward, backward, clt_attention_wgmma_takes, takes_backward, workspace};
