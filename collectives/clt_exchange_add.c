/* The tree over lane numbers: which sums there are, and their additions for one operation. */
#include "collectives/clt_exchange.h"

/* --- the sums of all ranks --- */

/* The maximal whole subtree of lanes [at, last) that begins at `at`. */
static int widest(int at, int last) {
    int w = 1;
    while (at % (2 * w) == 0 && at + 2 * w <= last) w *= 2;
    return w;
}

int clt_exchange_most_sums(const clt_lane_split *s) {
    int most = 1;
    for (int r = 0; r < s->ranks; r++) {
        const int last = clt_lane_begin(s, r + 1);
        int n = 0;
        for (int at = clt_lane_begin(s, r); at < last; at += widest(at, last)) n++;
        most = CLT_MAX(most, n);
    }
    return most;
}

void clt_exchange_list_sums(clt_reduce_plan *p, int64_t samples) {
    const clt_lane_split *s = &p->split;
    p->n_entries = 0;
    for (int r = 0; r < s->ranks; r++) {
        const int last = clt_lane_begin(s, r + 1);
        int slot = 0;
        for (int at = clt_lane_begin(s, r), w; at < last; at += w) {
            w = widest(at, last);
            const bool empty = clt_lane_sample_begin(samples, s->lanes, at) ==
                               clt_lane_sample_begin(samples, s->lanes, at + w);
            p->entry[p->n_entries++] = (clt_exchange_entry){at, w, r, empty ? -1 : slot++};
        }
        p->sums_of[r] = slot;
    }
}

int clt_exchange_sums_of(const clt_reduce_plan *p, int rank) {
    return p->sums_of[rank];
}

/* --- additions --- */

static bool same_place(clt_ref a, clt_ref b) {
    return a.buf == b.buf && a.off == b.off;
}

/* left = left + right, or the one of them that is not empty. The sum of two numbers does not depend on their
 * order, so it may replace either of them: the one that lies in the total, if one does. */
static clt_status join_subtrees(clt_reduce_plan *p, clt_exchange_subtree *left,
                                const clt_exchange_subtree *right, clt_ref total, uint64_t count) {
    const clt_reduce_math *m = &p->math;
    left->width *= 2;
    if (!right->at.buf) return CLT_OK;
    if (!left->at.buf) {
        left->at = right->at;
        return CLT_OK;
    }
    if (!same_place(right->at, total)) return m->add(m->ctx, left->at, right->at, count);
    const clt_ref other = left->at;
    left->at = total;
    return m->add(m->ctx, total, other, count);
}

/* `count` elements from element `at` of the slab on, which is `skip` elements into this rank's range of the
 * operation: where an entry's sum lies. */
static clt_ref place_of(clt_reduce_plan *p, int64_t k, const clt_exchange_entry *e, uint64_t at,
                        uint64_t skip) {
    if (e->slot < 0) return clt_ref_none();
    if (e->rank == p->group->rank) return clt_slab_at(clt_exchange_op(p, k)->sum[e->slot], at, NULL);
    if (p->scratch) return (clt_ref){p->scratch, (uint64_t)(e->rank * p->most + e->slot) * p->strip + skip};
    return (clt_ref){p->window[e->rank], clt_exchange_in_place(p, k, e->slot, false) / 4 + skip};
}

/* A stack of complete subtrees, joined as soon as two are the halves of a node. */
static clt_status add_tree(clt_reduce_plan *p, int64_t k, uint64_t at, uint64_t skip, uint64_t count,
                           clt_ref total, clt_ref *sum) {
    clt_exchange_subtree *s = p->stack;
    int n = 0;
    for (int i = 0; i < p->n_entries; i++) {
        const clt_exchange_entry *e = &p->entry[i];
        s[n++] = (clt_exchange_subtree){e->first, e->width, place_of(p, k, e, at, skip)};
        for (; n > 1 && s[n - 2].width == s[n - 1].width && s[n - 2].first % (2 * s[n - 2].width) == 0; n--)
            CLT_TRY(join_subtrees(p, &s[n - 2], &s[n - 1], total, count));
    }
    if (n != 1 || s[0].width != p->split.lanes)
        return clt_error(CLT_FAIL, "the ranks' lanes do not make up all %d; this is a bug", p->split.lanes);
    *sum = s[0].at;
    return CLT_OK;
}

/* dst = src, rounded to bf16. */
static clt_status round_to(clt_reduce_plan *p, clt_ref dst, clt_ref src, uint64_t count) {
    const clt_reduce_math *m = &p->math;
    const clt_ref narrow = {p->narrow[1], 0};
    CLT_TRY(m->to_bf16(m->ctx, narrow, src, count));
    return m->to_f32(m->ctx, dst, narrow, count);
}

/* What this rank itself brings is rounded like what travels. */
static clt_status round_own(clt_reduce_plan *p, const clt_op *op, uint64_t at, uint64_t count) {
    for (int i = 0; i < op->sums && op->narrow; i++) {
        const clt_ref r = clt_slab_at(op->sum[i], at, NULL);
        CLT_TRY(round_to(p, r, r, count));
    }
    return CLT_OK;
}

/* Into its place in the total. */
static clt_status keep(clt_reduce_plan *p, const clt_op *op, clt_ref total, clt_ref sum, uint64_t count) {
    if (!sum.buf) return clt_buffer_fill32(total.buf, total.off * 4, 0, count * 4);
    if (op->narrow) return round_to(p, total, sum, count);
    if (same_place(total, sum)) return CLT_OK;
    return clt_buffer_copy(total.buf, total.off * 4, sum.buf, sum.off * 4, count * 4);
}

clt_status clt_exchange_add(clt_reduce_plan *p, int64_t k) {
    const clt_op *op = clt_exchange_op(p, k);
    const clt_slab_range own = clt_exchange_range(p, op, p->group->rank);
    for (uint64_t done = 0, n; done < own.count; done += n) {
        const uint64_t at = own.first + done;
        const clt_ref total = clt_slab_at(op->slab, at, &n);
        clt_ref sum = clt_ref_none();
        n = CLT_MIN(n, own.count - done);
        for (int i = 0; i < op->sums; i++) { /* pieces of the slabs may differ */
            uint64_t run;
            clt_slab_at(op->sum[i], at, &run);
            n = CLT_MIN(n, run);
        }
        CLT_TRY(round_own(p, op, at, n));
        CLT_TRY(add_tree(p, k, at, done, n, total, &sum));
        CLT_TRY(keep(p, op, total, sum, n));
    }
    return CLT_OK;
}
