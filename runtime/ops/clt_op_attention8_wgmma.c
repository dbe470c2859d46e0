/* Attention in 8-bit blocks on Hopper's matrix units: maps and launch (attention8_wgmma.cl). */
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
static bool takes(const clt_variant *v, const params *p) {
    (void)v;
    const bool simple = p->window < 0 && !p->seq_ids.buf && !(p->softcap > 0.0f);
    return p->mask == CLT_MASK_CAUSAL && !(p->dropout > 0.0f) && p->head_dim <= 128 &&
           (p->head_dim <= 64 || simple);
}

static clt_attention_args args_of(const params *p, const input *in, const clt_ref map[MAPS]) {
    clt_attention_args l = {.n = 0};
    clt_attention_add(&l, CLT_BUF(map[0].buf));
    for (int i = 0; i < MAPS; i++) clt_attention_add(&l, CLT_U64(map[i].off));
    const clt_ref all[] = {in->q.scales, in->k.scales, in->v.scales, p->slopes, p->seq_ids};
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
                                             map_of(p, in->k.numbers, p->kv_heads, KEYS),
                                             map_of(p, in->v.numbers, p->kv_heads, KEYS)};
    clt_ref at[MAPS];
    for (int i = 0; i < MAPS; i++) CLT_TRY(clt_tensor_map_get(dev, &map[i], &at[i]));
    const clt_attention_args l = args_of(p, in, at);
    const uint64_t tiles =
        CLT_CEIL_DIV((uint64_t)p->seq, (uint64_t)(64 * wgs)) * (uint64_t)(p->batch * p->heads);
    const uint64_t groups = CLT_MIN(tiles, (uint64_t)clt_device_get_facts(dev)->compute_units);
    const size_t items = (size_t)(128 * (wgs + 1));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(dev, v->file, "attention8_forward_wgmma", v->options, &k));
    return clt_launch(k, 1, (size_t[]){(size_t)groups * items}, (size_t[]){items}, l.a, l.n);
}

const clt_attention8_body clt_attention8_wgmma = {"wgmma", forward, NULL, takes};
