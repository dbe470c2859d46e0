#include "collectives/clt_blocks.h"

#include <string.h>

enum { GAVE_UP = -1 /* as a width */, ALIGN = 64 /* elements */ };

typedef struct clt_subtree {
    int first, width, place; /* place -1: empty */
} subtree;

/* --- sizes --- */

/* Subtrees of a rank: at most two of each size. */
static int most_sums(const clt_lane_split *s) {
    int most = 1;
    for (int r = 0; r < s->ranks; r++) {
        int first = clt_lane_begin(s, r), last = clt_lane_begin(s, r + 1), n = 0;
        for (int at = first; at < last; n++) {
            int w = 1;
            while (at % (2 * w) == 0 && at + 2 * w <= last) w *= 2;
            at += w;
        }
        most = CLT_MAX(most, n);
    }
    return most;
}

/* A whole run, unless runs of so many ranks are much more than a bucket. */
static uint64_t largest_strip(uint64_t run, int ranks) {
    const uint64_t steps = run * (uint64_t)ranks / ((uint64_t)CLT_BUCKET_CHUNKS * CLT_CHUNK);
    return CLT_ROUND_UP(CLT_CEIL_DIV(run, CLT_MAX(steps, (uint64_t)1)), (uint64_t)ALIGN);
}

uint64_t clt_blocks_device_bytes(const clt_slab_table *t, const clt_lane_split *s, bool bf16) {
    const uint64_t strips = largest_strip(clt_owned_run(t, s->ranks), s->ranks) * (uint64_t)s->ranks;
    return strips * (uint64_t)most_sums(s) * sizeof(float) + (bf16 ? strips * sizeof(uint16_t) : 0);
}

static uint64_t steps_of_run(const clt_blocks *b) {
    return CLT_CEIL_DIV(b->run, b->strip);
}

static uint64_t steps_of_slab(const clt_blocks *b) {
    const uint64_t bucket = b->run * (uint64_t)b->plan->group->size;
    return CLT_CEIL_DIV(b->plan->table->total, bucket) * steps_of_run(b);
}

clt_slab_range clt_blocks_strip(const clt_blocks *b, uint64_t step, int owner) {
    const clt_reduce_plan *p = b->plan;
    const uint64_t skip = step % steps_of_run(b) * b->strip;
    const clt_slab_range run = clt_owned_range(p->table, p->group->size, owner, step / steps_of_run(b));
    const uint64_t at = CLT_MIN(skip, run.count);
    return (clt_slab_range){run.first + at, CLT_MIN(b->strip, run.count - at)};
}

/* --- the plan --- */

static clt_status prepare(clt_blocks *b) {
    clt_reduce_plan *p = b->plan;
    const uint64_t ranks = (uint64_t)p->group->size;
    b->bytes = p->math.to_bf16 ? sizeof(uint16_t) : sizeof(float);
    b->most = most_sums(&p->split);
    b->places = p->group->size * b->most;
    b->run = clt_owned_run(p->table, p->group->size);
    b->strip = largest_strip(b->run, p->group->size);
    b->entry = clt_calloc((size_t)b->places, sizeof *b->entry);
    b->stack = clt_calloc((size_t)b->places, sizeof *b->stack);
    CLT_TRY(b->wire->open(b));
    clt_status st =
        clt_buffer_create(p->dev, (uint64_t)b->places * b->strip * sizeof(float), "exchange", &b->scratch);
    if (st == CLT_OK && p->math.to_bf16)
        st = clt_buffer_create(p->dev, ranks * b->strip * b->bytes, "exchange", &b->narrow);
    return clt_group_agree(p->group, st);
}

clt_status clt_blocks_plan(clt_reduce_plan *p, const clt_blocks_wire *wire) {
    clt_blocks *b = clt_calloc(1, sizeof *b);
    p->state = b;
    b->plan = p;
    b->wire = wire;
    clt_status st = prepare(b);
    if (st != CLT_OK) clt_blocks_unplan(p);
    return st;
}

void clt_blocks_unplan(clt_reduce_plan *p) {
    clt_blocks *b = p->state;
    clt_buffer_destroy(b->scratch);
    clt_buffer_destroy(b->narrow);
    b->wire->close(b);
    clt_free(b->entry);
    clt_free(b->stack);
    clt_free(b);
    p->state = NULL;
}

/* --- between host and device --- */

/* Gradients between the host's bytes and fp32 on the device, by way of `narrow` where bf16 travels. */
static clt_status from_wire(clt_blocks *b, clt_ref dst, const char *src, uint64_t count) {
    const clt_reduce_math *m = &b->plan->math;
    if (!b->narrow) return clt_buffer_write(dst.buf, dst.off * sizeof(float), src, count * sizeof(float));
    CLT_TRY(clt_buffer_write(b->narrow, 0, src, count * b->bytes));
    return m->to_f32(m->ctx, dst, (clt_ref){b->narrow, 0}, count);
}
static clt_status to_wire(clt_blocks *b, char *dst, clt_ref src, uint64_t count) {
    const clt_reduce_math *m = &b->plan->math;
    if (!b->narrow) return clt_buffer_read(src.buf, src.off * sizeof(float), dst, count * sizeof(float));
    CLT_TRY(m->to_bf16(m->ctx, (clt_ref){b->narrow, 0}, src, count));
    return clt_buffer_read(b->narrow, 0, dst, count * b->bytes);
}

/* Copies between a slab and host memory: gradients as they travel, or elements of any type as they are. */
typedef enum { GRADIENTS_OUT, GRADIENTS_IN, RAW_OUT, RAW_IN } copy_kind;

/* A range of the slab, piece by piece. */
static clt_status copy_range(clt_blocks *b, const clt_slab *s, clt_slab_range x, char *host, copy_kind kind) {
    const bool raw = kind == RAW_OUT || kind == RAW_IN;
    const uint64_t bytes = raw ? s->element_bytes : b->bytes;
    for (uint64_t done = 0, n; done < x.count; done += n) {
        const clt_ref place = clt_slab_at(s, x.first + done, &n);
        char *at = host + done * bytes;
        n = CLT_MIN(n, x.count - done);
        switch (kind) {
        case GRADIENTS_OUT:
            CLT_TRY(to_wire(b, at, place, n));
            break;
        case GRADIENTS_IN:
            CLT_TRY(from_wire(b, place, at, n));
            break;
        case RAW_OUT:
            CLT_TRY(clt_buffer_read(place.buf, place.off * bytes, at, n * bytes));
            break;
        case RAW_IN:
            CLT_TRY(clt_buffer_write(place.buf, place.off * bytes, at, n * bytes));
            break;
        }
    }
    return CLT_OK;
}

/* The strips of all owners; host is [ranks][strip]. Where a strip is a whole run, those of all owners follow
 * each other in the slab as they do in host memory, and are copied as one. */
static clt_status copy_strips(clt_blocks *b, const clt_slab *s, uint64_t step, char *host, copy_kind kind) {
    const int ranks = b->plan->group->size, joined = b->strip == b->run ? ranks : 1;
    const uint64_t bytes = kind == RAW_IN ? s->element_bytes : b->bytes;
    for (int r = 0; r < ranks; r += joined) {
        clt_slab_range x = clt_blocks_strip(b, step, r);
        for (int i = 1; i < joined; i++) x.count += clt_blocks_strip(b, step, r + i).count;
        CLT_TRY(copy_range(b, s, x, host + (uint64_t)r * b->strip * bytes, kind));
    }
    return CLT_OK;
}

/* --- the tree --- */

/* Lists the sums of all ranks in the order of their lanes; CLT_STOPPED on all ranks if one gives up (n < 0).
 */
static clt_status list_sums(clt_blocks *b, const clt_lane_sum *sums, int n) {
    clt_group *g = b->plan->group;
    clt_blocks_entry *mine = clt_calloc((size_t)b->most, sizeof *mine),
                     *all = clt_calloc((size_t)b->places, sizeof *all);
    bool gave_up = false;
    for (int i = 0; i < b->most; i++) {
        mine[i] = (clt_blocks_entry){.rank = g->rank, .slot = i, .width = n < 0 ? GAVE_UP : 0};
        if (i >= n) continue;
        mine[i].first = sums[i].first;
        mine[i].width = sums[i].width;
        mine[i].empty = sums[i].empty;
    }
    clt_status st = clt_group_all_gather(g, mine, (size_t)b->most * sizeof *mine, all);
    b->n_entries = 0;
    for (int i = 0; i < b->places; i++) {
        if (all[i].width > 0) b->entry[b->n_entries++] = all[i];
        gave_up |= all[i].width == GAVE_UP;
    }
    clt_free(mine);
    clt_free(all);
    return st == CLT_OK && gave_up ? CLT_STOPPED : st;
}

static clt_ref scratch_at(const clt_blocks *b, int place) {
    return (clt_ref){b->scratch, (uint64_t)place * b->strip};
}

/* left = left + right on the device, or the one of them that is not empty. */
static clt_status join_subtrees(clt_blocks *b, subtree *left, const subtree *right, uint64_t count) {
    const clt_reduce_math *m = &b->plan->math;
    if (left->place < 0)
        left->place = right->place;
    else if (right->place >= 0)
        CLT_TRY(m->add(m->ctx, scratch_at(b, left->place), scratch_at(b, right->place), count));
    left->width *= 2;
    return CLT_OK;
}

/* Adds `count` elements of this rank's strip on the device: a stack of complete subtrees, joined as soon as
 * two are the halves of a node. *place: where in scratch the total lies, or -1: all lanes are empty. */
static clt_status add_tree(clt_blocks *b, uint64_t count, int *place) {
    const int lanes = b->plan->split.lanes;
    subtree *s = b->stack;
    int n = 0;
    for (int i = 0; i < b->n_entries; i++) {
        const clt_blocks_entry *e = &b->entry[i];
        const char *from = b->inbox + (uint64_t)(e->rank * b->most + e->slot) * b->inbox_stride;
        if (!e->empty) CLT_TRY(from_wire(b, scratch_at(b, i), from, count));
        s[n++] = (subtree){e->first, e->width, e->empty ? -1 : i};
        for (; n > 1 && s[n - 2].width == s[n - 1].width && s[n - 2].first % (2 * s[n - 2].width) == 0; n--)
            CLT_TRY(join_subtrees(b, &s[n - 2], &s[n - 1], count));
    }
    if (n != 1 || s[0].width != lanes)
        return clt_error(CLT_FAIL, "the ranks' lanes do not make up all %d; this is a bug", lanes);
    *place = s[0].place;
    return CLT_OK;
}

/* --- steps --- */

/* Copies this rank's sums out, and adds the strip that it owns. */
static clt_status add_step(clt_blocks *b, const clt_lane_sum *sums, int n, uint64_t step, int *place) {
    const clt_group *g = b->plan->group;
    const uint64_t slot_bytes = (uint64_t)g->size * b->strip * b->bytes;
    const clt_slab_range own = clt_blocks_strip(b, step, g->rank);
    for (int i = 0; i < n; i++)
        if (!sums[i].empty)
            CLT_TRY(copy_strips(b, sums[i].slab, step, b->slot + (uint64_t)i * slot_bytes, GRADIENTS_OUT));
    CLT_TRY(b->wire->scatter(b, step));
    return own.count ? add_tree(b, own.count, place) : CLT_OK;
}

/* To this rank's place in total. */
static clt_status publish(clt_blocks *b, int place, uint64_t count) {
    char *out = b->total + (uint64_t)b->plan->group->rank * b->strip * b->bytes;
    if (place >= 0) return to_wire(b, out, scratch_at(b, place), count);
    memset(out, 0, count * b->bytes);
    return CLT_OK;
}

/* Into the slab, piece by piece. Where bf16 travels the total is rounded all the same, for the bits of a
 * reduce. */
static clt_status keep(clt_blocks *b, int place, clt_slab *total, clt_slab_range own) {
    const clt_reduce_math *m = &b->plan->math;
    const clt_ref narrow = {b->narrow, 0};
    for (uint64_t done = 0, n; done < own.count; done += n) {
        const clt_ref dst = clt_slab_at(total, own.first + done, &n);
        n = CLT_MIN(n, own.count - done);
        if (place < 0) {
            CLT_TRY(clt_buffer_fill32(dst.buf, dst.off * sizeof(float), 0, n * sizeof(float)));
            continue;
        }
        clt_ref src = scratch_at(b, place);
        src.off += done;
        if (b->narrow) {
            CLT_TRY(m->to_bf16(m->ctx, narrow, src, n));
            CLT_TRY(m->to_f32(m->ctx, dst, narrow, n));
        } else {
            CLT_TRY(clt_buffer_copy(dst.buf, dst.off * sizeof(float), src.buf, src.off * sizeof(float),
                                    n * sizeof(float)));
        }
    }
    return CLT_OK;
}

clt_status clt_blocks_reduce(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    clt_blocks *b = p->state;
    CLT_TRY(list_sums(b, sums, n));
    for (uint64_t step = 0; step < steps_of_slab(b); step++) {
        const uint64_t count = clt_blocks_strip(b, step, p->group->rank).count;
        int place = -1;
        CLT_TRY(add_step(b, sums, n, step, &place));
        if (count) CLT_TRY(publish(b, place, count));
        CLT_TRY(b->wire->gather(b, b->bytes));
        CLT_TRY(copy_strips(b, total, step, b->total, GRADIENTS_IN));
        CLT_TRY(b->wire->release(b));
    }
    return CLT_OK;
}

clt_status clt_blocks_reduce_scatter(clt_reduce_plan *p, const clt_lane_sum *sums, int n, clt_slab *total) {
    clt_blocks *b = p->state;
    CLT_TRY(list_sums(b, sums, n));
    for (uint64_t step = 0; step < steps_of_slab(b); step++) {
        int place = -1;
        CLT_TRY(add_step(b, sums, n, step, &place));
        CLT_TRY(keep(b, place, total, clt_blocks_strip(b, step, p->group->rank)));
        CLT_TRY(b->wire->release(b));
    }
    return CLT_OK;
}

clt_status clt_blocks_all_gather(clt_reduce_plan *p, clt_slab *s) {
    clt_blocks *b = p->state;
    const uint64_t bytes = s->element_bytes;
    char *mine = b->total + (uint64_t)p->group->rank * b->strip * bytes;
    for (uint64_t step = 0; step < steps_of_slab(b); step++) {
        CLT_TRY(copy_range(b, s, clt_blocks_strip(b, step, p->group->rank), mine, RAW_OUT));
        CLT_TRY(b->wire->gather(b, bytes));
        CLT_TRY(copy_strips(b, s, step, b->total, RAW_IN));
        CLT_TRY(b->wire->release(b));
    }
    return CLT_OK;
}
