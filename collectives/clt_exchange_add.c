/* The tree over lane numbers: which sums there are, and their additions for one operation. */
#include <string.h>

#include "collectives/clt_exchange.h"

/* --- the sums of all ranks --- */

/* The maximal whole subtree of lanes [at, last) that begins at `at`. */
static int widest(int at, int last) {
    int w = 1;
    while (at % (2 * w) == 0 && at + 2 * w <= last) w *= 2;
    return w;
}

/* The lanes [*first, *last) of a rank of the view in a round; they are neighbours. */
static void lanes_of(const clt_lane_split *s, const clt_exchange_view *v, int rank, int number, int *first,
                     int *last) {
    const int begin = v->first + rank * v->each, end = begin + v->each;
    *first = *last = 0;
    if (!s->dealt) {
        *first = clt_lane_begin(s, begin);
        *last = clt_lane_begin(s, end);
        return;
    }
    for (int r = begin; r < end; r++) {
        if (number >= clt_lane_count(s, r)) continue;
        const int lane = clt_lane_at(s, r, number);
        if (*last == 0) *first = lane;
        *last = lane + 1;
    }
}

int clt_exchange_most_sums(const clt_lane_split *s, const clt_exchange_view *v) {
    const int rounds = s->dealt && v->each > 1 ? clt_lane_rounds(s) : 1;
    int most = 1;
    for (int r = 0; r < v->ranks; r++)
        for (int i = 0; i < rounds; i++) {
            int at, last, n = 0;
            lanes_of(s, v, r, i, &at, &last);
            for (; at < last; at += widest(at, last)) n++;
            most = CLT_MAX(most, n);
        }
    return most;
}

static bool is_empty(const clt_lane_split *s, int64_t samples, int first, int width) {
    return clt_lane_sample_begin(samples, s->lanes, first) ==
           clt_lane_sample_begin(samples, s->lanes, first + width);
}

static void list_rank(const clt_lane_split *s, int64_t samples, int rank, int first, int last,
                      clt_exchange_round *out) {
    for (int at = first, w; at < last; at += w) {
        w = widest(at, last);
        const int slot = is_empty(s, samples, at, w) ? -1 : out->sums_of[rank]++;
        out->entry[out->n_entries++] = (clt_exchange_entry){at, w, rank, slot};
    }
}

/* Whether the two topmost subtrees of a stack of n are the halves of a node. With `all` they are joined in
 * any case: in a chain, and where nothing follows, so that whatever is left of the tree is empty. */
static bool are_halves(const clt_exchange_subtree *s, int n, bool all) {
    if (n < 2) return false;
    return all || (s[n - 2].width == s[n - 1].width && s[n - 2].first % (2 * s[n - 2].width) == 0);
}

/* The subtrees that are complete after a round. */
static void list_before(const clt_lane_split *s, int64_t samples, const clt_exchange_round *done,
                        clt_exchange_round *out) {
    clt_exchange_subtree *t = out->before;
    int n = done->n_before;
    memcpy(t, done->before, (size_t)n * sizeof *t);
    for (int i = 0; i < done->n_entries; i++) {
        t[n++] = (clt_exchange_subtree){done->entry[i].first, done->entry[i].width, clt_ref_none()};
        for (; are_halves(t, n, s->chain); n--) t[n - 2].width += t[n - 1].width;
    }
    out->n_before = n;
    for (int i = 0; i < n; i++) out->empty[i] = is_empty(s, samples, t[i].first, t[i].width);
}

/* A round's lanes are neighbours, and follow those of the round before. *lanes: so many came before this
 * round, and are complete after it. */
static int add_round(const clt_lane_split *s, int number, int *lanes, clt_exchange_subtree *t, int n) {
    const int first = *lanes;
    for (int r = 0; r < s->ranks; r++) *lanes += number < clt_lane_count(s, r);
    for (int lane = first; lane < *lanes; lane++) {
        t[n++] = (clt_exchange_subtree){lane, 1, clt_ref_none()};
        for (; are_halves(t, n, s->chain); n--) t[n - 2].width += t[n - 1].width;
    }
    return n;
}

/* After `rounds` rounds; *most: at most after any of them but the last, at least 1. */
static int kept(const clt_lane_split *s, int rounds, int *most) {
    clt_exchange_subtree t[CLT_LANE_LEVELS + 1];
    int n = 0, lanes = 0;
    *most = 1;
    for (int i = 0; i < rounds; i++) {
        n = add_round(s, i, &lanes, t, n);
        if (i + 1 < rounds) *most = CLT_MAX(*most, n);
    }
    return n;
}

int clt_reduce_kept(const clt_lane_split *split, int rounds) {
    int most;
    if (!split->dealt || rounds >= clt_lane_rounds(split)) return CLT_MIN(rounds, 1);
    return kept(split, rounds, &most);
}

int clt_reduce_levels(const clt_lane_split *split) {
    int most = 1;
    if (split->dealt) kept(split, clt_lane_rounds(split), &most);
    return most;
}

void clt_exchange_list(const clt_lane_split *s, const clt_exchange_view *v, int64_t samples, int number,
                       const clt_exchange_round *before, clt_exchange_round *out) {
    const bool all = v->ranks * v->each == s->ranks;
    out->n_entries = out->n_before = 0;
    out->last = all && (!s->dealt || number + 1 == clt_lane_rounds(s));
    for (int r = 0; r < v->ranks; r++) {
        int first, last;
        out->sums_of[r] = 0;
        lanes_of(s, v, r, number, &first, &last);
        list_rank(s, samples, r, first, last, out);
    }
    if (before && all) list_before(s, samples, before, out);
}

/* --- additions --- */

static bool same_place(clt_ref a, clt_ref b) {
    return a.buf == b.buf && a.off == b.off;
}

/* left = left + right, or the one of them that is not empty. The sum of two numbers does not depend on their
 * order, so it may replace either of them: the one that lies in the total, if one does. */
static clt_status join_subtrees(clt_reduce_plan *p, clt_exchange_subtree *left,
                                const clt_exchange_subtree *right, clt_ref total, uint64_t count) {
    left->width += right->width;
    if (!right->at.buf) return CLT_OK;
    if (!left->at.buf) {
        left->at = right->at;
        return CLT_OK;
    }
    if (!same_place(right->at, total)) return clt_exchange_sum(p, left->at, right->at, count);
    const clt_ref other = left->at;
    left->at = total;
    return clt_exchange_sum(p, total, other, count);
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

/* Where the subtree at height i of the stack is kept. */
static clt_ref level_at(const clt_op *op, int i, uint64_t at) {
    return clt_slab_at(op->level[i], at, NULL);
}

/* A stack of complete subtrees, joined as soon as two are the halves of a node. Returns how many are left in
 * p->stack. */
static clt_status add_tree(clt_reduce_plan *p, int64_t k, uint64_t at, uint64_t skip, uint64_t count,
                           int *left) {
    const clt_op *op = clt_exchange_op(p, k);
    const clt_exchange_round *round = op->round;
    const clt_ref total = level_at(op, 0, at);
    clt_exchange_subtree *s = p->stack;
    int n = round->n_before;
    memcpy(s, round->before, (size_t)n * sizeof *s);
    for (int i = 0; i < n; i++) s[i].at = round->empty[i] ? clt_ref_none() : level_at(op, i, at);
    for (int i = 0; i < round->n_entries; i++) {
        const clt_exchange_entry *e = &round->entry[i];
        s[n++] = (clt_exchange_subtree){e->first, e->width, place_of(p, k, e, at, skip)};
        for (; are_halves(s, n, p->split.chain); n--)
            CLT_TRY(join_subtrees(p, &s[n - 2], &s[n - 1], total, count));
    }
    for (; are_halves(s, n, round->last); n--) CLT_TRY(join_subtrees(p, &s[n - 2], &s[n - 1], total, count));
    *left = n;
    return CLT_OK;
}

/* --- all additions in one kernel --- */

/* A subtree of the stack that clt_sum_parts describes: `full` if it is not empty. */
typedef struct {
    int first, width;
    bool full;
} subtree;

/* Joins the two topmost subtrees as long as they are halves; counts the sums that a kernel computes for it.
 */
static void join_tops(subtree *s, int *n, bool all, int *full, clt_sum_parts *out) {
    for (; *n > 1; (*n)--) {
        subtree *left = &s[*n - 2], *right = &s[*n - 1];
        if (!all && (left->width != right->width || left->first % (2 * left->width) != 0)) break;
        if (left->full && right->full) {
            out->part[out->n - 1].joins++;
            (*full)--;
        }
        left->width += right->width;
        left->full |= right->full;
    }
}

bool clt_exchange_at_once(const clt_reduce_plan *p, const clt_op *op, clt_sum_parts *out,
                          const clt_exchange_entry *entry[CLT_PARTS_MOST]) {
    const clt_exchange_round *round = op->round;
    clt_sum_parts parts = {.n = 0};
    subtree s[CLT_PARTS_MOST + CLT_LANE_LEVELS];
    int n = 0, full = 0;
    if (!p->math.sum || !p->scratch || round->n_before || !round->last) return false;
    for (int i = 0; i < round->n_entries; i++) {
        const clt_exchange_entry *e = &round->entry[i];
        if (n == (int)CLT_COUNT_OF(s)) return false;
        s[n++] = (subtree){e->first, e->width, e->slot >= 0};
        if (e->slot >= 0) {
            if (parts.n == CLT_PARTS_MOST || full == CLT_PARTS_DEPTH) return false;
            if (entry) entry[parts.n] = e;
            parts.part[parts.n].narrow = op->narrow && e->rank != p->group->rank;
            parts.n++;
            full++;
        }
        join_tops(s, &n, p->split.chain, &full, &parts);
    }
    join_tops(s, &n, true, &full, &parts);
    parts.round = op->narrow;
    if (out) *out = parts;
    return parts.n > 0;
}

/* Where a part lies for the kernel: as place_of, but what travelled as bf16 is still bf16. */
static clt_ref part_of(clt_reduce_plan *p, int64_t k, const clt_exchange_entry *e, uint64_t at,
                       uint64_t skip) {
    const bool narrow = clt_exchange_op(p, k)->narrow;
    if (e->rank == p->group->rank) return clt_slab_at(clt_exchange_op(p, k)->sum[e->slot], at, NULL);
    const uint64_t bytes = clt_exchange_shares(p, e->rank)
                               ? clt_exchange_in_place(p, k, e->slot, false)
                               : (uint64_t)(e->rank * p->most + e->slot) * p->strip * sizeof(float);
    return (clt_ref){clt_exchange_shares(p, e->rank) ? p->window[e->rank] : p->scratch,
                     bytes / (narrow ? sizeof(uint16_t) : sizeof(float)) + skip};
}

static clt_status add_at_once(clt_reduce_plan *p, int64_t k, clt_sum_parts *s,
                              const clt_exchange_entry *const *entry, uint64_t at, uint64_t skip) {
    for (int i = 0; i < s->n; i++) s->part[i].at = part_of(p, k, entry[i], at, skip);
    s->dst = level_at(clt_exchange_op(p, k), 0, at);
    return p->math.sum(p->math.ctx, s);
}

/* --- one addition after the other --- */

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

/* Into the level where it stays. */
static clt_status keep(clt_reduce_plan *p, const clt_op *op, clt_ref level, clt_ref sum, uint64_t count) {
    if (!sum.buf) return clt_exchange_clear(p, level, count);
    if (op->narrow && op->round->last) return round_to(p, level, sum, count);
    if (same_place(level, sum)) return CLT_OK;
    return clt_exchange_copy(p, level.buf, level.off * 4, sum.buf, sum.off * 4, count * 4);
}

/* From element `at` on, at most `count`: as many as lie in one piece of every slab. */
static uint64_t stretch(const clt_op *op, uint64_t at, uint64_t count, int levels) {
    uint64_t run;
    for (int i = 0; i < op->sums; i++) {
        clt_slab_at(op->sum[i], at, &run);
        count = CLT_MIN(count, run);
    }
    for (int i = 0; i < levels; i++) {
        clt_slab_at(op->level[i], at, &run);
        count = CLT_MIN(count, run);
    }
    return count;
}

clt_status clt_exchange_add(clt_reduce_plan *p, int64_t k) {
    const clt_op *op = clt_exchange_op(p, k);
    const clt_slab_range own = clt_exchange_range(p, op, p->group->rank);
    const clt_exchange_entry *entry[CLT_PARTS_MOST];
    clt_sum_parts parts;
    const bool at_once = clt_exchange_at_once(p, op, &parts, entry);
    for (uint64_t done = 0, n; done < own.count; done += n) {
        const uint64_t at = own.first + done;
        int left = 0;
        n = stretch(op, at, own.count - done, CLT_MAX(op->round->n_before, 1));
        parts.count = n;
        if (at_once) {
            CLT_TRY(add_at_once(p, k, &parts, entry, at, done));
            continue;
        }
        CLT_TRY(round_own(p, op, at, n));
        CLT_TRY(add_tree(p, k, at, done, n, &left));
        for (int i = 0; i < left; i++) CLT_TRY(keep(p, op, level_at(op, i, at), p->stack[i].at, n));
    }
    return CLT_OK;
}
