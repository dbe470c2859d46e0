/* Attention backward on Hopper's matrix units (clkernels/attention/attention_wgmma_backward.cl). */
#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_op_attention_internal.h"

enum { ROWS = 128, KEPT_ROWS = 256, TILE = 64, ITEMS = 384, PREPARE_ITEMS = 256, SLOT_STATS = 0 };

/* Every launch over a part of the heads has an end where units idle: with four parts computing the scores
 * again is faster, and heads of 64 gain too little for any parts (clkernels/attention/README.md). Each part
 * is two launches with a counter each. */
enum { MOST_PARTS = 3, LAUNCHES = 8 };
_Static_assert(2 * MOST_PARTS <= LAUNCHES, "the kernels have LAUNCHES counters");

typedef clt_attention_params params;
typedef clt_attention_grad_params grad_params;
typedef clt_attention_args arg_list;

/* A tensor of `heads` heads, [B, T, heads, D], in boxes of 64 rows of 64 elements of a head. */
static clt_tensor_map_params map_of(const params *p, const clt_tensor *t, int64_t heads) {
    uint64_t d = (uint64_t)p->head_dim, row = (uint64_t)t->ld, seq = (uint64_t)p->seq;
    return (clt_tensor_map_params){.ref = t->ref,
                                   .type = clt_dtype_table[t->type].map,
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
    return (maps){map_of(p, &p->q, p->heads), map_of(p, &p->k, p->kv_heads), map_of(p, &p->v, p->kv_heads),
                  map_of(p, &g->dout, p->heads)};
}

/* Whether elements can be read or written in vectors of n. */
static bool in_vectors(const clt_tensor *t, int64_t n) {
    return t->ref.off % (uint64_t)n == 0 && t->ld % n == 0;
}

static bool keeps_ds(const clt_variant *v) {
    return clt_variant_param(v, "KEEP_DS", 0) != 0;
}

/* How many (sample, key/value head) pairs are computed at once where ds is stored, in parts as even as
 * possible; 0: too few. */
static int64_t kept_at_once(const grad_params *g) {
    const params *p = &g->fwd;
    const int64_t units = p->batch * p->kv_heads;
    const uint64_t head = clt_attention_kept_head_bytes(p);
    const uint64_t fit = clt_attention_kept_space(g) / (head * (uint64_t)(p->heads / p->kv_heads));
    if (fit == 0) return 0;
    const int64_t parts = CLT_CEIL_DIV(units, (int64_t)CLT_MIN(fit, (uint64_t)units));
    return parts > (p->head_dim > TILE ? MOST_PARTS : 1) ? 0 : CLT_CEIL_DIV(units, parts);
}

static bool takes_backward(const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    if (keeps_ds(v) && (p->head_dim % TILE != 0 || p->window >= 0 || p->seq_ids.buf || p->softcap > 0 ||
                        !in_vectors(&g->dq, 8) || kept_at_once(g) == 0))
        return false;
    int64_t d = p->head_dim;
    if (!clt_attention_wgmma_takes_mask(p)) return false;
    if (p->q.type == CLT_F32 || p->dropout > 0.0f || (d != 64 && d != 80 && d != 96 && d != 128))
        return false;
    maps m = maps_of(g);
    return clt_tensor_map_fits(&m.q) && clt_tensor_map_fits(&m.k) && clt_tensor_map_fits(&m.v) &&
           clt_tensor_map_fits(&m.dout) && in_vectors(&p->o, 8) && in_vectors(&g->dq, 2) &&
           in_vectors(&g->dk, 2) && in_vectors(&g->dv, 2);
}

static uint64_t padded(const params *p) {
    return CLT_ROUND_UP((uint64_t)p->seq, ROWS);
}

/* lse and delta of every row, then a counter for each launch. */
static uint64_t stats_bytes(const params *p) {
    return (uint64_t)(p->batch * p->heads) * 2 * padded(p) * sizeof(float) + LAUNCHES * sizeof(uint32_t);
}

static clt_status prepare(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *stats) {
    const params *p = &g->fwd;
    arg_list l = {.n = 0};
    clt_attention_add_tensor(&l, g->dout);
    clt_attention_add_tensor(&l, p->o);
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

/* A launch: some of the (sample, head) pairs, and the number of its counter. */
typedef struct {
    int64_t first, units;
    uint32_t number;
} part;

/* KERNEL_ARGS. section: heads whose tensors fit the second-level cache together. */
static clt_status common_args(clt_ops *ops, const grad_params *g, clt_buffer *stats, uint64_t section,
                              const part *at, arg_list *l) {
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
    clt_attention_add(l, CLT_U32(at->first));
    clt_attention_add(l, CLT_U32(at->units));
    clt_attention_add(l, CLT_U32(at->number));
    return CLT_OK;
}

/* How many of `units` heads, each with `tensors` tensors' rows, form a section: at most 32 MiB of Hopper's 50
 * MiB of cache, and sections as even as possible, since a short last one has too few items for the device. */
static uint64_t section_of(const params *p, int64_t tensors, int64_t units) {
    const uint64_t bytes = (uint64_t)(p->seq * p->head_dim * tensors) * clt_dtype_bytes(p->q.type);
    const int64_t sections = CLT_CEIL_DIV(units, (int64_t)CLT_MAX((32ull << 20) / bytes, 1));
    return (uint64_t)CLT_CEIL_DIV(units, sections);
}

static clt_status launch(clt_ops *ops, const clt_variant *v, const char *name, uint64_t items,
                         const arg_list *l) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    uint64_t groups = CLT_MIN(items, (uint64_t)clt_device_get_facts(clt_ops_device(ops))->compute_units);
    return clt_launch(k, 1, (size_t[]){(size_t)groups * ITEMS}, (size_t[]){ITEMS}, l->a, l->n);
}

/* dk and dv of key/value heads, and with a row that stores it ds of their query heads. */
static clt_status keys(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *stats,
                       clt_ref kept, const part *at) {
    const params *p = &g->fwd;
    arg_list l = {.n = 0};
    CLT_TRY(common_args(ops, g, stats, section_of(p, 2 + 2 * p->heads / p->kv_heads, at->units), at, &l));
    clt_attention_add_tensor(&l, g->dk);
    clt_attention_add_tensor(&l, g->dv);
    clt_attention_add(&l, CLT_U32(g->accumulate_kv));
    if (keeps_ds(v)) clt_attention_add_ref(&l, kept);
    return launch(ops, v, "attention_keys", padded(p) / ROWS * (uint64_t)at->units, &l);
}

/* dq of query heads, from recomputed scores. */
static clt_status queries(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *stats,
                          const part *at) {
    const params *p = &g->fwd;
    arg_list l = {.n = 0};
    CLT_TRY(common_args(ops, g, stats, section_of(p, 4, at->units), at, &l));
    clt_attention_add_tensor(&l, g->dq);
    return launch(ops, v, "attention_queries", padded(p) / ROWS * (uint64_t)at->units, &l);
}

/* The same from ds. */
static clt_status queries_kept(clt_ops *ops, const clt_variant *v, const grad_params *g, clt_buffer *stats,
                               clt_ref kept, const part *at) {
    const params *p = &g->fwd;
    const maps m = maps_of(g);
    clt_ref map;
    arg_list l = {.n = 0};
    CLT_TRY(clt_tensor_map_get(clt_ops_device(ops), &m.k, &map));
    clt_attention_add_ref(&l, map);
    clt_attention_add(&l, CLT_BUF(stats));
    clt_attention_add(&l, CLT_U32(p->batch));
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_F32(p->scale));
    clt_attention_add(&l, CLT_U32(at->first));
    clt_attention_add(&l, CLT_U32(at->units));
    clt_attention_add(&l, CLT_U32(at->number));
    clt_attention_add_ref(&l, kept);
    clt_attention_add_tensor(&l, g->dq);
    const uint64_t blocks = CLT_CEIL_DIV((uint64_t)p->seq, (uint64_t)KEPT_ROWS);
    return launch(ops, v, "attention_kept", blocks * (uint64_t)at->units, &l);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, const grad_params *g) {
    const params *p = &g->fwd;
    const int64_t units = p->batch * p->kv_heads, group = p->heads / p->kv_heads;
    const int64_t at_once = keeps_ds(v) ? kept_at_once(g) : units;
    clt_buffer *stats;
    clt_ref kept = clt_ref_none();
    CLT_TRY(clt_ops_scratch(ops, SLOT_STATS, stats_bytes(p), &stats));
    const uint64_t bytes = keeps_ds(v) ? clt_attention_kept_head_bytes(p) * (uint64_t)(at_once * group) : 0;
    if (bytes) CLT_TRY(clt_attention_kept_place(ops, g, bytes, &kept));
    CLT_TRY(prepare(ops, v, g, stats));
    uint32_t number = 0;
    for (int64_t first = 0; first < units; first += at_once) {
        const part kv = {first, CLT_MIN(at_once, units - first), number++};
        const part rows = {first * group, kv.units * group, number++};
        CLT_TRY(keys(ops, v, g, stats, kept, &kv));
        CLT_TRY(keeps_ds(v) ? queries_kept(ops, v, g, stats, kept, &rows) : queries(ops, v, g, stats, &rows));
    }
    return CLT_OK;
}

/* Without ds: the memory plan has spare memory for it (clt_attention_grad_params). */
static uint64_t workspace(clt_device_type type, const params *p) {
    return type == CLT_DEVICE_GPU && p->q.type != CLT_F32 ? stats_bytes(p) : 0;
}

const clt_attention_body clt_attention_wgmma = {
    "wgmma", clt_attention_wgmma_forward, backward, clt_attention_wgmma_takes, takes_backward, workspace};
