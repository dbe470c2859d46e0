/* Attention in 8-bit blocks on Hopper's matrix units: maps and launch (attention8_hopper.cl,
 * attention8_hopper_backward.cl). */
#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_op_attention8_internal.h"

typedef clt_attention_params params;
typedef clt_attention8_input input;

enum { KEYS = 64, MAP_Q = 0, MAP_K, MAP_V, MAPS };

/* Rows of whole numbers as {head size, T, heads of all samples}, in boxes of 64 elements of `rows` rows. */
static clt_tensor_map_params map_of(const params *p, clt_ref numbers, int64_t heads, uint32_t rows) {
    const uint64_t pitch = CLT_ROUND_UP((uint64_t)p->head_dim, 8), seq = (uint64_t)p->seq;
    return (clt_tensor_map_params){.ref = numbers,
                                   .type = CLT_MAP_BF16,
                                   .dims = 3,
                                   .size = {pitch, seq, (uint64_t)(p->batch * heads)},
                                   .stride = {1, pitch, CLT_ROUND_UP(seq, 64) * pitch},
                                   .box = {64, rows, 1},
                                   .swizzle = 128};
}

/* With heads of more than 64 elements a score that takes more than a factor and ALiBi does not fit the
 * registers. */
static bool is_simple(const params *p) {
    return p->window < 0 && !p->seq_ids.buf && !(p->softcap > 0.0f);
}

/* Distances of ALiBi are those of earlier keys. */
static bool takes_mask(const params *p) {
    return p->mask == CLT_MASK_CAUSAL || (is_simple(p) && !p->slopes.buf);
}

static bool takes_forward(const clt_variant *v, const params *p) {
    (void)v;
    const bool simple = is_simple(p);
    return takes_mask(p) && !(p->dropout > 0.0f) && p->head_dim <= 128 && (p->head_dim <= 64 || simple);
}

static bool takes_backward(const clt_variant *v, const params *p) {
    (void)v;
    return takes_mask(p) && !(p->dropout > 0.0f) && p->head_dim <= 128 && is_simple(p);
}

/* Heads whose tiles may be computed in one order by length. They are read at the same time, so what they read
 * (two tensors of `heads` heads for each) must fit the cache. */
static int64_t section_of(const params *p, int64_t heads) {
    const int64_t cache = 24 << 20, bytes = 4 * heads * p->seq * CLT_ROUND_UP(p->head_dim, 8);
    return CLT_MAX(cache / bytes, 1);
}

static clt_attention_args args_of(const params *p, const input *in, const clt_ref map[MAPS]) {
    clt_attention_args l = {.n = 0};
    clt_attention_add(&l, CLT_BUF(map[0].buf));
    for (int i = 0; i < MAPS; i++) clt_attention_add(&l, CLT_U64(map[i].off));
    const clt_ref all[] = {in->q.scales, in->v.scales, p->slopes, p->seq_ids};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_attention_add_ref(&l, all[i]);
    clt_attention_add_tensor(&l, p->o);
    clt_attention_add_ref(&l, p->lse);
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_U32(p->batch * p->heads));
    clt_attention_add(&l, CLT_F32(p->scale));
    clt_attention_add(&l, CLT_F32(p->softcap));
    clt_attention_add(&l, CLT_U32(p->window >= 0 ? CLT_MIN(p->window, p->seq) : 0));
    return l;
}

static clt_status forward(clt_ops *ops, const clt_variant *v, const params *p, const input *in) {
    clt_device *dev = clt_ops_device(ops);
    const int64_t wgs = clt_variant_param(v, "WGS", 2);
    const clt_tensor_map_params map[MAPS] = {map_of(p, in->q.numbers, p->heads, 64 * (uint32_t)wgs),
                                             map_of(p, in->k_values, p->kv_heads, KEYS),
                                             map_of(p, in->v.numbers, p->kv_heads, KEYS)};
    clt_ref at[MAPS];
    for (int i = 0; i < MAPS; i++) CLT_TRY(clt_tensor_map_get(dev, &map[i], &at[i]));
    clt_attention_args l = args_of(p, in, at);
    clt_attention_add(&l, CLT_U32(section_of(p, 1) >= p->batch * p->kv_heads));
    const uint64_t tiles =
        CLT_CEIL_DIV((uint64_t)p->seq, (uint64_t)(64 * wgs)) * (uint64_t)(p->batch * p->heads);
    const uint64_t groups = CLT_MIN(tiles, (uint64_t)clt_device_get_facts(dev)->compute_units);
    const size_t items = (size_t)(128 * (wgs + 1));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(dev, v->file, "attention8_forward_hopper", v->options, &k));
    return clt_launch(k, 1, (size_t[]){(size_t)groups * items}, (size_t[]){items}, l.a, l.n);
}

/* --- backward --- */

/* A launch over rows of `own` (keys and values, or queries and dout), which reads blocks of `other`. */
typedef struct {
    const char *kernel;
    clt_ref own[2], other[2];
    int64_t own_heads, other_heads;
    clt_tensor out[2]; /* the second one may be absent */
    bool queries, add;
} pass;

static clt_status launch_pass(clt_ops *ops, const clt_variant *v, const params *p, const input *in,
                              const pass *a) {
    clt_device *dev = clt_ops_device(ops);
    const size_t wgs = (size_t)clt_variant_param(v, "WGS", 2), owned = 64 * wgs, items = 128 * (wgs + 1);
    clt_ref at[4];
    for (int i = 0; i < 2; i++) {
        const clt_tensor_map_params own = map_of(p, a->own[i], a->own_heads, (uint32_t)owned),
                                    other = map_of(p, a->other[i], a->other_heads, KEYS);
        CLT_TRY(clt_tensor_map_get(dev, &own, &at[i]));
        CLT_TRY(clt_tensor_map_get(dev, &other, &at[2 + i]));
    }
    const clt_ref vectors[] = {in->q.scales, in->k.scales, in->dout.scales, in->lse, in->delta};
    clt_attention_args l = {.n = 0};
    clt_attention_add(&l, CLT_BUF(at[0].buf));
    for (int i = 0; i < 4; i++) clt_attention_add(&l, CLT_U64(at[i].off));
    clt_attention_add(&l, CLT_BUF(in->lse.buf));
    for (size_t i = 0; i < CLT_COUNT_OF(vectors); i++) clt_attention_add(&l, CLT_U64(vectors[i].off));
    clt_attention_add_ref(&l, p->slopes);
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_U32(a->own_heads));
    clt_attention_add(&l, CLT_U32(p->batch * a->own_heads));
    clt_attention_add(&l, CLT_U32(section_of(p, a->queries ? 1 : p->heads / p->kv_heads)));
    clt_attention_add(&l, CLT_F32(p->scale));
    for (int i = 0; i < 2; i++)
        if (clt_tensor_present(a->out[i])) clt_attention_add_tensor(&l, a->out[i]);
    if (!a->queries) clt_attention_add(&l, CLT_U32(a->add));
    const size_t groups = CLT_CEIL_DIV((size_t)p->seq, owned) * (size_t)(a->own_heads * p->batch);
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(dev, v->file, a->kernel, v->options, &k));
    return clt_launch(k, 1, (size_t[]){groups * items}, (size_t[]){items}, l.a, l.n);
}

static clt_status backward(clt_ops *ops, const clt_variant *v, const clt_attention_grad_params *g,
                           const input *in) {
    const params *p = &g->fwd;
    const pass keys = {.kernel = "attention8_backward_kv_hopper",
                       .own = {in->k_values, in->v_values},
                       .other = {in->q.numbers, in->dout.numbers},
                       .own_heads = p->kv_heads,
                       .other_heads = p->heads,
                       .out = {g->dk, g->dv},
                       .add = g->accumulate_kv};
    CLT_TRY(launch_pass(ops, v, p, in, &keys));
    const pass queries = {.kernel = "attention8_backward_q_hopper",
                          .own = {in->q.numbers, in->dout.numbers},
                          .other = {in->k.numbers, in->v_values},
                          .own_heads = p->heads,
                          .other_heads = p->kv_heads,
                          .out = {g->dq},
                          .queries = true};
    return launch_pass(ops, v, p, in, &queries);
}

const clt_attention8_body clt_attention8_wgmma = {"wgmma", forward, backward, takes_forward, takes_backward};
