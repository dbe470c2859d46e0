/* Copies between the device and slots. */
#include <string.h>

#include "collectives/clt_exchange.h"

static uint64_t slot_of(int64_t op) {
    return (uint64_t)(op % CLT_SLOTS);
}

uint64_t clt_exchange_out_place(const clt_reduce_plan *p, int64_t op, int i, int owner) {
    const uint64_t places = (uint64_t)i * (uint64_t)p->group->size + (uint64_t)owner;
    return slot_of(op) * p->slot_bytes + places * p->strip * p->bytes;
}

uint64_t clt_exchange_in_place(const clt_reduce_plan *p, int64_t op, int i, bool gather) {
    const uint64_t slot = slot_of(op) * p->inbox.slot;
    return gather ? slot : slot + p->inbox.first + (uint64_t)i * p->inbox.sum;
}

/* --- bytes --- */

bool clt_exchange_shares(const clt_reduce_plan *p, int r) {
    return p->window[r] && clt_device_shares_host(p->dev);
}

static clt_status to_window(clt_reduce_plan *p, uint64_t offset, clt_buffer *src, uint64_t first,
                            uint64_t bytes) {
    const int me = p->group->rank;
    char *from, *to = (char *)p->host[me] + offset;
    if (!p->by_host && clt_exchange_shares(p, me))
        return clt_buffer_copy(p->window[me], offset, src, first, bytes);
    if (!p->by_host) return clt_buffer_send(src, first, to, bytes);
    CLT_TRY(clt_exchange_host_bytes(src, first, &from));
    memcpy(to, from, bytes);
    return CLT_OK;
}

static clt_status from_window(clt_reduce_plan *p, int r, uint64_t offset, clt_buffer *dst, uint64_t first,
                              uint64_t bytes) {
    const char *from = (const char *)p->host[r] + offset;
    char *to;
    if (!p->by_host && clt_exchange_shares(p, r))
        return clt_buffer_copy(dst, first, p->window[r], offset, bytes);
    if (!p->by_host) return clt_buffer_fetch(dst, first, from, bytes);
    CLT_TRY(clt_exchange_host_bytes(dst, first, &to));
    memcpy(to, from, bytes);
    return CLT_OK;
}

/* --- elements --- */

/* fp32 at src, as bf16, to `offset` of this rank's ring. */
static clt_status narrow_out(clt_reduce_plan *p, uint64_t offset, clt_ref src, uint64_t count) {
    const clt_reduce_math *m = &p->math;
    const int me = p->group->rank;
    if (clt_exchange_shares(p, me))
        return m->to_bf16(m->ctx, (clt_ref){p->window[me], offset / 2}, src, count);
    CLT_TRY(m->to_bf16(m->ctx, (clt_ref){p->narrow[0], 0}, src, count));
    return to_window(p, offset, p->narrow[0], 0, count * 2);
}

/* bf16 at `offset` of rank r's ring, as fp32, to dst. */
static clt_status narrow_in(clt_reduce_plan *p, int r, uint64_t offset, clt_ref dst, uint64_t count) {
    const clt_reduce_math *m = &p->math;
    if (clt_exchange_shares(p, r)) return m->to_f32(m->ctx, dst, (clt_ref){p->window[r], offset / 2}, count);
    CLT_TRY(from_window(p, r, offset, p->narrow[1], 0, count * 2));
    return m->to_f32(m->ctx, dst, (clt_ref){p->narrow[1], 0}, count);
}

/* A range of a slab, piece by piece, to `offset` of this rank's ring (r < 0), or from rank r's. *offset grows
 * by what was moved. */
static clt_status move(clt_reduce_plan *p, const clt_op *op, const clt_slab *s, clt_slab_range x, int r,
                       uint64_t *offset) {
    const uint64_t width = s->element_bytes, travels = op->narrow ? 2 : width;
    for (uint64_t done = 0, n; done < x.count; done += n) {
        const clt_ref at = clt_slab_at(s, x.first + done, &n);
        n = CLT_MIN(n, x.count - done);
        clt_status st;
        if (r < 0)
            st = op->narrow ? narrow_out(p, *offset, at, n)
                            : to_window(p, *offset, at.buf, at.off * width, n * width);
        else
            st = op->narrow ? narrow_in(p, r, *offset, at, n)
                            : from_window(p, r, *offset, at.buf, at.off * width, n * width);
        CLT_TRY(st);
        *offset += n * travels;
    }
    return CLT_OK;
}

/* The parts of x in op->only, one behind the other. */
static clt_status move_only(clt_reduce_plan *p, const clt_op *op, clt_slab_range x, int r, uint64_t offset) {
    clt_slab *const s = r < 0 ? op->from : op->to;
    if (op->n_only < 0) return move(p, op, s, x, r, &offset);
    for (int i = 0; i < op->n_only; i++) {
        const clt_slab_range part = clt_slab_range_common(x, op->only[i]);
        if (part.count) CLT_TRY(move(p, op, s, part, r, &offset));
    }
    return CLT_OK;
}

/* One number for each chunk that `owner` owns in the operation's buckets. */
static clt_status move_numbers(clt_reduce_plan *p, const clt_op *op, int owner, uint64_t offset) {
    for (int b = op->bucket; b < op->end; b++) {
        const clt_slab_range x = clt_exchange_owned(p, b, owner);
        const uint64_t first = x.first / CLT_CHUNK * 4, bytes = CLT_CEIL_DIV(x.count, CLT_CHUNK) * 4;
        if (!bytes) continue;
        CLT_TRY(owner == p->group->rank ? to_window(p, offset, op->numbers, first, bytes)
                                        : from_window(p, owner, offset, op->numbers, first, bytes));
        offset += bytes;
    }
    return CLT_OK;
}

/* Bytes of x that travel. */
static uint64_t bytes_of(const clt_op *op, clt_slab_range x) {
    uint64_t count = op->n_only < 0 ? x.count : 0;
    for (int i = 0; i < op->n_only; i++) count += clt_slab_range_common(x, op->only[i]).count;
    return count * (op->narrow ? 2 : op->from->element_bytes);
}

uint64_t clt_exchange_bytes(const clt_reduce_plan *p, const clt_op *op, int from, int owner) {
    uint64_t bytes = 0;
    switch (op->kind) {
    case CLT_OP_REDUCE:
        return clt_exchange_range(p, op, owner).count * p->bytes;
    case CLT_OP_GATHER:
        return bytes_of(op, clt_exchange_range(p, op, from));
    case CLT_OP_CHUNKS:
        for (int b = op->bucket; b < op->end; b++)
            bytes += CLT_CEIL_DIV(clt_exchange_owned(p, b, from).count, CLT_CHUNK) * 4;
        return bytes;
    }
    return bytes;
}

bool clt_exchange_is_empty(const clt_reduce_plan *p, const clt_op *op, bool in) {
    const int me = p->group->rank;
    uint64_t bytes = 0;
    if (in && op->kind == CLT_OP_REDUCE) return clt_exchange_range(p, op, me).count == 0;
    if (in && op->kind == CLT_OP_GATHER && op->from != op->to) bytes += clt_exchange_bytes(p, op, me, me);
    for (int r = 0; r < p->group->size; r++)
        if (r != me) bytes += in ? clt_exchange_bytes(p, op, r, me) : clt_exchange_bytes(p, op, me, r);
    return bytes == 0;
}

/* --- slots --- */

clt_status clt_exchange_fill(clt_reduce_plan *p, int64_t k) {
    const clt_op *op = clt_exchange_op(p, k);
    const int me = p->group->rank;
    if (op->kind == CLT_OP_CHUNKS) return move_numbers(p, op, me, clt_exchange_out_place(p, k, 0, 0));
    if (op->kind == CLT_OP_GATHER)
        return move_only(p, op, clt_exchange_range(p, op, me), -1, clt_exchange_out_place(p, k, 0, 0));
    for (int i = 0; i < op->sums; i++)
        for (int r = 0; r < p->group->size; r++) {
            uint64_t offset = clt_exchange_out_place(p, k, i, r);
            if (r != me) CLT_TRY(move(p, op, op->sum[i], clt_exchange_range(p, op, r), -1, &offset));
        }
    return CLT_OK;
}

/* Rank r's sums for this rank, to their places in scratch: as they travel, if one kernel adds them all up,
 * and then only if it cannot read them where they are. */
static clt_status fetch_sums(clt_reduce_plan *p, const clt_op *op, int64_t k, int r) {
    const uint64_t count = clt_exchange_range(p, op, p->group->rank).count;
    const bool at_once = clt_exchange_at_once(p, op, NULL, NULL);
    for (int i = 0; i < op->round->sums_of[r] && count && !(at_once && clt_exchange_shares(p, r)); i++) {
        const clt_ref dst = {p->scratch, (uint64_t)(r * p->most + i) * p->strip};
        const uint64_t from = clt_exchange_in_place(p, k, i, false);
        if (at_once)
            CLT_TRY(from_window(p, r, from, dst.buf, dst.off * 4, count * p->bytes));
        else
            CLT_TRY(op->narrow ? narrow_in(p, r, from, dst, count)
                               : from_window(p, r, from, dst.buf, dst.off * 4, count * 4));
    }
    return CLT_OK;
}

static clt_status copy_stretch(const clt_reduce_plan *p, const clt_op *op, clt_slab_range x) {
    const uint64_t bytes = op->from->element_bytes;
    for (uint64_t done = 0, n; done < x.count; done += n) {
        uint64_t run;
        const clt_ref s = clt_slab_at(op->from, x.first + done, &n);
        const clt_ref d = clt_slab_at(op->to, x.first + done, &run);
        n = CLT_MIN(CLT_MIN(n, run), x.count - done);
        CLT_TRY(clt_exchange_copy(p, d.buf, d.off * bytes, s.buf, s.off * bytes, n * bytes));
    }
    return CLT_OK;
}

/* The own range of a gather into another slab. */
static clt_status copy_own(const clt_reduce_plan *p, const clt_op *op, clt_slab_range x) {
    if (op->from == op->to) return CLT_OK;
    if (op->n_only < 0) return copy_stretch(p, op, x);
    for (int i = 0; i < op->n_only; i++) CLT_TRY(copy_stretch(p, op, clt_slab_range_common(x, op->only[i])));
    return CLT_OK;
}

clt_status clt_exchange_fetch(clt_reduce_plan *p, int64_t k) {
    const clt_op *op = clt_exchange_op(p, k);
    if (op->kind == CLT_OP_GATHER) CLT_TRY(copy_own(p, op, clt_exchange_range(p, op, p->group->rank)));
    for (int r = 0; r < p->group->size; r++) {
        clt_status st = CLT_OK;
        if (r == p->group->rank) continue;
        if (op->kind == CLT_OP_CHUNKS)
            st = move_numbers(p, op, r, clt_exchange_in_place(p, k, 0, true));
        else if (op->kind == CLT_OP_GATHER)
            st = move_only(p, op, clt_exchange_range(p, op, r), r, clt_exchange_in_place(p, k, 0, true));
        else if (p->scratch)
            st = fetch_sums(p, op, k, r);
        CLT_TRY(st);
    }
    return CLT_OK;
}
