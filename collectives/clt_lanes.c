#include "collectives/clt_exchange.h"

int clt_lane_begin(const clt_lane_split *s, int rank) {
    int first = 0;
    if (!s->count) return (int)((int64_t)s->lanes * rank / s->ranks);
    for (int r = 0; r < rank; r++) first += s->count[r];
    return first;
}

int clt_lane_count(const clt_lane_split *s, int rank) {
    if (s->count) return s->count[rank];
    return (int)((int64_t)s->lanes * (rank + 1) / s->ranks - (int64_t)s->lanes * rank / s->ranks);
}

int clt_lane_rounds(const clt_lane_split *s) {
    int most = 0;
    for (int r = 0; r < s->ranks; r++) most = CLT_MAX(most, clt_lane_count(s, r));
    return most;
}

int clt_lane_at(const clt_lane_split *s, int rank, int i) {
    int lane = 0;
    if (!s->dealt) return clt_lane_begin(s, rank) + i;
    for (int r = 0; r < s->ranks; r++) /* what others got in the rounds before, and before it in this one */
        lane += CLT_MIN(clt_lane_count(s, r), r < rank ? i + 1 : i);
    return lane;
}

/* Greedy is optimal: each lane goes to the rank that finishes first with it, and no division can give every
 * rank less than it has at that moment without giving some other rank this much. */
void clt_lane_counts_by_speed(int lanes, int ranks, const double *speed, int *count) {
    for (int r = 0; r < ranks; r++) count[r] = 1;
    for (int left = lanes - ranks; left > 0; left--) {
        int best = 0;
        for (int r = 1; r < ranks; r++)
            if ((count[r] + 1) / speed[r] < (count[best] + 1) / speed[best]) best = r;
        count[best]++;
    }
}

int64_t clt_lane_sample_begin(int64_t samples, int lanes, int lane) {
    return (int64_t)lane * samples / lanes;
}

/* The next stretch of x, after `done` elements, that lies in one piece of both slabs. */
static uint64_t stretch(const clt_slab *a, const clt_slab *b, clt_slab_range x, uint64_t done, clt_ref *in_a,
                        clt_ref *in_b) {
    uint64_t run_a, run_b;
    *in_a = clt_slab_at(a, x.first + done, &run_a);
    *in_b = clt_slab_at(b, x.first + done, &run_b);
    return CLT_MIN(CLT_MIN(run_a, run_b), x.count - done);
}

clt_status clt_slab_add_range(clt_add_fn add, void *ctx, const clt_slab *dst, const clt_slab *src,
                              clt_slab_range x) {
    for (uint64_t done = 0, n; done < x.count; done += n) {
        clt_ref d, s;
        n = stretch(dst, src, x, done, &d, &s);
        CLT_TRY(add(ctx, d, s, n));
    }
    return CLT_OK;
}

clt_status clt_slab_copy_range(const clt_slab *dst, const clt_slab *src, clt_slab_range x) {
    for (uint64_t done = 0, n; done < x.count; done += n) {
        clt_ref d, s;
        n = stretch(dst, src, x, done, &d, &s);
        CLT_TRY(clt_buffer_copy(d.buf, d.off * 4, s.buf, s.off * 4, n * 4));
    }
    return CLT_OK;
}

clt_status clt_slab_zero_range(const clt_slab *s, clt_slab_range x) {
    for (uint64_t done = 0, n; done < x.count; done += n) {
        const clt_ref d = clt_slab_at(s, x.first + done, &n);
        n = CLT_MIN(n, x.count - done);
        CLT_TRY(clt_buffer_fill32(d.buf, d.off * 4, 0, n * 4));
    }
    return CLT_OK;
}

struct clt_lane_stack {
    int first, last, next; /* lanes */
    clt_slab **slabs;
    bool *used;
    int n;
    clt_lane_sum *sum; /* complete subtrees so far, ascending */
    int n_sums;
    clt_add_fn add;
    void *add_ctx;
    bool defers;        /* additions are noted, not made */
    clt_lane_sum *owed; /* pairs: the second is to be added to the first */
    int n_owed;
};

clt_lane_stack *clt_lane_stack_create(int first, int last, clt_slab **slabs, int n, clt_add_fn add,
                                      void *add_ctx) {
    clt_lane_stack *s = clt_calloc(1, sizeof *s);
    s->first = s->next = first;
    s->last = last;
    s->slabs = clt_memdup(slabs, (size_t)n * sizeof *slabs);
    s->used = clt_calloc((size_t)n, sizeof *s->used);
    s->n = n;
    s->sum = clt_calloc((size_t)(last - first) + 1, sizeof *s->sum);
    s->owed = clt_calloc(2 * CLT_LANE_LEVELS, sizeof *s->owed);
    s->add = add;
    s->add_ctx = add_ctx;
    return s;
}

void clt_lane_stack_destroy(clt_lane_stack *s) {
    if (!s) return;
    clt_free(s->slabs);
    clt_free(s->used);
    clt_free(s->sum);
    clt_free(s->owed);
    clt_free(s);
}

void clt_lane_stack_begin(clt_lane_stack *s) {
    s->next = s->first;
    s->n_sums = s->n_owed = 0;
    for (int i = 0; i < s->n; i++) s->used[i] = false;
}

static int free_slab(const clt_lane_stack *s) {
    for (int i = 0; i < s->n; i++)
        if (!s->used[i]) return i;
    return -1;
}

clt_slab *clt_lane_stack_slab(clt_lane_stack *s) {
    int i = free_slab(s);
    return i < 0 ? NULL : s->slabs[i];
}

static bool buddies(const clt_lane_sum *a, const clt_lane_sum *b) {
    return a->width == b->width && a->first % (2 * a->width) == 0 && b->first == a->first + a->width;
}

static clt_slab_range whole(const clt_slab *s) {
    return (clt_slab_range){0, s->table->total};
}

/* a = a + b; returns through a, and frees b's slab. */
static clt_status merge(clt_lane_stack *s, clt_lane_sum *a, clt_lane_sum *b) {
    if (a->empty) {
        a->slab = b->slab;
        a->empty = b->empty;
    } else if (!b->empty) {
        if (s->defers) {
            s->owed[s->n_owed++] = *a;
            s->owed[s->n_owed++] = *b;
        } else if (s->add) {
            CLT_TRY(clt_slab_add_range(s->add, s->add_ctx, a->slab, b->slab, whole(a->slab)));
        }
        for (int i = 0; i < s->n; i++)
            if (s->slabs[i] == b->slab) s->used[i] = false;
    }
    a->width *= 2;
    return CLT_OK;
}

clt_status clt_lane_stack_push(clt_lane_stack *s, bool empty) {
    clt_lane_sum *top = &s->sum[s->n_sums++];
    *top = (clt_lane_sum){.first = s->next++, .width = 1, .empty = empty};
    if (!empty) {
        int i = free_slab(s);
        if (i < 0) return clt_error(CLT_FAIL, "lane %d has no gradient slab left; this is a bug", top->first);
        s->used[i] = true;
        top->slab = s->slabs[i];
    }
    for (; s->n_sums >= 2 && buddies(&s->sum[s->n_sums - 2], &s->sum[s->n_sums - 1]); s->n_sums--)
        CLT_TRY(merge(s, &s->sum[s->n_sums - 2], &s->sum[s->n_sums - 1]));
    return CLT_OK;
}

clt_status clt_lane_stack_push_early(clt_lane_stack *s) {
    s->defers = true;
    const clt_status st = clt_lane_stack_push(s, false);
    s->defers = false;
    return st;
}

clt_status clt_lane_stack_settle(clt_lane_stack *s, clt_slab_range x) {
    for (int i = 0; i < s->n_owed; i += 2)
        CLT_TRY(clt_slab_add_range(s->add, s->add_ctx, s->owed[i].slab, s->owed[i + 1].slab, x));
    return CLT_OK;
}

const clt_lane_sum *clt_lane_stack_sums(clt_lane_stack *s, int *n) {
    *n = s->n_sums;
    return s->sum;
}

clt_slab *clt_lane_stack_total(clt_lane_stack *s) {
    for (int i = 0; i < s->n_sums; i++)
        if (!s->sum[i].empty) return s->sum[i].slab;
    return s->slabs[0];
}

/* Slabs in use at once for one size of the batch: the stack itself, run without adding. */
static int most_used(clt_lane_stack *s, int lanes, int64_t samples) {
    int most = 1;
    clt_lane_stack_begin(s);
    for (int lane = s->first; lane < s->last; lane++) {
        bool empty =
            clt_lane_sample_begin(samples, lanes, lane) == clt_lane_sample_begin(samples, lanes, lane + 1);
        int used = !empty;
        for (int i = 0; i < s->n; i++) used += s->used[i];
        most = CLT_MAX(most, used);
        clt_lane_stack_push(s, empty);
    }
    return most;
}

int clt_lane_slabs_needed(int lanes, int first, int last, int64_t samples) {
    int n = 2;
    for (int w = 1; w < lanes; w *= 2) n += 2; /* at most two subtrees of each size exist at once */
    clt_slab *dummy = clt_calloc((size_t)n, sizeof *dummy), **slabs = clt_calloc((size_t)n, sizeof *slabs);
    for (int i = 0; i < n; i++) slabs[i] = &dummy[i];
    clt_lane_stack *s = clt_lane_stack_create(first, last, slabs, n, NULL, NULL);
    int most = most_used(s, lanes, CLT_MIN(samples, (int64_t)lanes));
    /* No lane is empty with at least as many samples as lanes. Below that, fewer samples can need more slabs.
     */
    for (int64_t fewer = 1; fewer < CLT_MIN(samples, (int64_t)lanes); fewer++)
        most = CLT_MAX(most, most_used(s, lanes, fewer));
    clt_lane_stack_destroy(s);
    clt_free(slabs);
    clt_free(dummy);
    return most;
}
