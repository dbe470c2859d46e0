/* Attention forward on Hopper's matrix units: maps, order of tiles, launch (attention_wgmma.cl). */
#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_op_attention_internal.h"

typedef clt_attention_params params;

/* A tensor of rows [B * T, ld] as {head size, heads, T, B}, moved in boxes of 64 elements of `rows` rows. */
static clt_tensor_map_params map_of(const params *p, const clt_tensor *t, int64_t heads, uint32_t rows) {
    return (clt_tensor_map_params){
        .ref = t->ref,
        .type = clt_dtype_table[t->type].map,
        .dims = 4,
        .size = {(uint64_t)p->head_dim, (uint64_t)heads, (uint64_t)p->seq, (uint64_t)p->batch},
        .stride = {1, (uint64_t)p->head_dim, (uint64_t)t->ld, (uint64_t)(t->ld * p->seq)},
        .box = {64, 1, rows, 1},
        .swizzle = 128};
}

enum { MAP_Q, MAP_K, MAP_V, MAP_O, MAPS };

static void maps_of(const clt_variant *v, const params *p, clt_tensor_map_params map[MAPS]) {
    uint32_t rows = 64 * (uint32_t)clt_variant_param(v, "WGS", 2),
             keys = (uint32_t)clt_variant_param(v, "BN", 128);
    map[MAP_Q] = map_of(p, &p->q, p->heads, rows);
    map[MAP_K] = map_of(p, &p->k, p->kv_heads, keys);
    map[MAP_V] = map_of(p, &p->v, p->kv_heads, keys);
    map[MAP_O] = map_of(p, &p->o, p->heads, 64);
}

/* Without the causal mask every row sees all keys: the block that pads them least, of two the larger. */
static int64_t best_block(int64_t seq) {
    return CLT_ROUND_UP(seq, 96) < CLT_ROUND_UP(seq, 112) ? 96 : 112;
}

bool clt_attention_wgmma_takes_mask(const params *p) {
    return p->mask == CLT_MASK_CAUSAL || (p->window < 0 && !p->slopes.buf);
}

bool clt_attention_wgmma_takes(const clt_variant *v, const params *p) {
    if (p->q.type == CLT_F32 || p->dropout > 0.0f || !(p->scale > 0.0f)) return false;
    if (p->head_dim % 8 || p->head_dim > 128 || !clt_attention_wgmma_takes_mask(p)) return false;
    if (p->mask == CLT_MASK_NONE && clt_variant_param(v, "BN", 128) != best_block(p->seq)) return false;
    clt_tensor_map_params map[MAPS];
    maps_of(v, p, map);
    for (int i = 0; i < MAPS; i++)
        if (!clt_tensor_map_fits(&map[i])) return false;
    return true;
}

/* Heads whose keys and values fit half of the second-level cache together. */
static int64_t heads_in_set(const params *p) {
    const int64_t cache = 24 << 20, one = p->seq * p->head_dim * 2 * (int64_t)clt_dtype_bytes(p->q.type);
    int64_t set = CLT_MAX(cache / one, 1) * (p->heads / p->kv_heads);
    return CLT_MIN(set, p->batch * p->heads);
}

clt_status clt_attention_wgmma_forward(clt_ops *ops, const clt_variant *v, const params *p) {
    clt_device *dev = clt_ops_device(ops);
    clt_buffer *counter;
    clt_tensor_map_params map[MAPS];
    CLT_TRY(clt_ops_counters(ops, 1, &counter));
    clt_ref at[MAPS];
    maps_of(v, p, map);
    for (int i = 0; i < MAPS; i++) CLT_TRY(clt_tensor_map_get(dev, &map[i], &at[i]));
    const int64_t wgs = clt_variant_param(v, "WGS", 2), all_heads = p->batch * p->heads;
    const uint64_t tiles = CLT_CEIL_DIV((uint64_t)p->seq, (uint64_t)(64 * wgs)) * (uint64_t)all_heads;
    const uint64_t groups = CLT_MIN(tiles, (uint64_t)clt_device_get_facts(dev)->compute_units);
    clt_attention_args l = {.n = 0};
    clt_attention_add(&l, CLT_BUF(at[0].buf));
    for (int i = 0; i < MAPS; i++) clt_attention_add(&l, CLT_U64(at[i].off));
    clt_attention_add_ref(&l, p->slopes);
    clt_attention_add_ref(&l, p->seq_ids);
    clt_attention_add_ref(&l, p->lse);
    clt_attention_add(&l, CLT_BUF(counter));
    clt_attention_add(&l, CLT_U32(p->seq));
    clt_attention_add(&l, CLT_U32(p->heads));
    clt_attention_add(&l, CLT_U32(p->heads / p->kv_heads));
    clt_attention_add(&l, CLT_U32(all_heads));
    clt_attention_add(&l, CLT_U32(heads_in_set(p)));
    clt_attention_add(&l, CLT_F32(p->scale));
    clt_attention_add(&l, CLT_F32(p->softcap));
    clt_attention_add(&l, CLT_U32(p->window >= 0 ? CLT_MIN(p->window, p->seq) : 0));
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(dev, v->file, "attention_forward_wgmma", v->options, &k));
    const size_t items = (size_t)(128 * (wgs + 1));
    return clt_launch(k, 1, (size_t[]){(size_t)groups * items}, (size_t[]){items}, l.a, l.n);
}
