/* Small operations on a device that shares the host's memory: the host itself copies and adds, because to
 * hand a command to the device and to wait for it takes longer. The additions are those of the device, fp32
 * rounded to nearest even, in the same order, so the bits are the same. What is in pinned host memory, which
 * the device cannot read there, the host copies on any device. */
#include <string.h>

#include "collectives/clt_exchange.h"

enum { MOST_BYTES = 1 << 20 /* of all ranks; with more the device's cores are faster */ };

/* A program that cltrain is a part of may have set the thread to flush denormal numbers. */
static bool keeps_denormals(void) {
    volatile float least = 0x1p-149f;
    return least + least == 0x1p-148f;
}

clt_status clt_exchange_find_host(clt_reduce_plan *p) {
    bool in_place = false;
    if (p->scratch || p->math.to_bf16) return CLT_OK;
    for (int r = 0; r < p->group->size; r++)
        if (!p->window[r]) return CLT_OK;
    CLT_TRY(clt_device_works_in_place(p->dev, &in_place));
    p->host_most = in_place && keeps_denormals() ? MOST_BYTES : 0;
    return CLT_OK;
}

static clt_status find_slab(const clt_slab *s) {
    void *at;
    for (int i = 0; s && i < s->n; i++)
        if (s->piece[i]) CLT_TRY(clt_buffer_host(s->piece[i], &at));
    return CLT_OK;
}

static bool is_on_host(const clt_slab *s) {
    bool any = false;
    for (int i = 0; s && i < s->n; i++) any = any || (s->piece[i] && !clt_buffer_is_on_device(s->piece[i]));
    return any;
}

clt_status clt_exchange_choose_host(clt_reduce_plan *p, clt_op *op, clt_slab *const *sum, uint64_t bytes) {
    void *at;
    op->by_host = bytes <= p->host_most || (op->kind == CLT_OP_GATHER && is_on_host(op->from));
    if (!op->by_host) return CLT_OK;
    if (op->kind == CLT_OP_CHUNKS) return clt_buffer_host(op->numbers, &at);
    for (int i = 0; i < op->sums; i++) CLT_TRY(find_slab(sum[i]));
    for (int i = 0; op->kind == CLT_OP_REDUCE && i < op->levels; i++) CLT_TRY(find_slab(op->level[i]));
    CLT_TRY(find_slab(op->from));
    return find_slab(op->to);
}

/* --- bytes and numbers --- */

static clt_status host_of(clt_ref r, float **out) {
    void *base;
    CLT_TRY(clt_buffer_host(r.buf, &base));
    *out = (float *)base + r.off;
    return CLT_OK;
}

clt_status clt_exchange_host_bytes(clt_buffer *b, uint64_t offset, char **out) {
    void *base;
    CLT_TRY(clt_buffer_host(b, &base));
    *out = (char *)base + offset;
    return CLT_OK;
}

clt_status clt_exchange_copy(const clt_reduce_plan *p, clt_buffer *dst, uint64_t dst_offset, clt_buffer *src,
                             uint64_t src_offset, uint64_t bytes) {
    char *to, *from;
    if (!p->by_host) return clt_buffer_copy(dst, dst_offset, src, src_offset, bytes);
    CLT_TRY(clt_exchange_host_bytes(dst, dst_offset, &to));
    CLT_TRY(clt_exchange_host_bytes(src, src_offset, &from));
    memcpy(to, from, bytes);
    return CLT_OK;
}

clt_status clt_exchange_sum(const clt_reduce_plan *p, clt_ref dst, clt_ref src, uint64_t count) {
    float *to, *from;
    if (!p->by_host) return p->math.add(p->math.ctx, dst, src, count);
    CLT_TRY(host_of(dst, &to));
    CLT_TRY(host_of(src, &from));
    for (uint64_t i = 0; i < count; i++) to[i] += from[i];
    return CLT_OK;
}

clt_status clt_exchange_clear(const clt_reduce_plan *p, clt_ref dst, uint64_t count) {
    float *to;
    if (!p->by_host) return clt_buffer_fill32(dst.buf, dst.off * 4, 0, count * 4);
    CLT_TRY(host_of(dst, &to));
    memset(to, 0, count * sizeof *to);
    return CLT_OK;
}
