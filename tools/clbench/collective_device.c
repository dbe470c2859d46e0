/* The device's side of a collective: slabs, and the operations of clt_reduce.h. Nothing else of clbench knows
 * that interface.
 *
 * The table's total is the row's count and not rounded up to whole chunks, so only the row's elements travel.
 * Every rank brings one slab: the sum of its last lane. Its other lanes, which exist where the number of
 * ranks is no power of two, are empty. */
#include "tools/clbench/collective.h"

enum { STAGE = 1 << 20 }; /* elements */

typedef struct {
    collective_row row;
    int rank, ranks;
    clt_slab_table table;
    clt_shards shards;
    clt_lane_split split;
    int *lanes; /* [ranks] of each rank */
    clt_reduce_plan *plan;
    clt_slab **slab;        /* [row.calls] */
    clt_lane_stack **stack; /* [row.calls]: the sums of slab i */
    void *stage;            /* STAGE elements in host memory */
} device_side;

static clt_status add(void *ops, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ops, dst, src, count);
}
static clt_status sum(void *ops, const clt_sum_parts *s) {
    return clt_op_sum_parts(ops, s);
}
static clt_status to_bf16(void *ops, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ops, clt_tensor_vector(src, CLT_F32), clt_tensor_vector(dst, CLT_BF16), count);
}
static clt_status to_f32(void *ops, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ops, clt_tensor_vector(src, CLT_BF16), clt_tensor_vector(dst, CLT_F32), count);
}

/* --- the interface of collectives/ --- */

/* Tensors of one chunk: the ranks' parts of a bucket then differ by a chunk at most. */
static void make_table(device_side *d) {
    for (uint64_t at = 0; at < d->row.count; at += CLT_CHUNK) {
        const int64_t n = (int64_t)CLT_MIN(d->row.count - at, (uint64_t)CLT_CHUNK);
        clt_slab_table_add(&d->table, "part", 1, &n);
    }
    d->table.total = d->row.count;
}

/* A batch of one sample per rank. Sample r is in lane ceil(lanes * (r + 1) / ranks) - 1, which is the last
 * one of rank r. */
static void split_lanes(device_side *d) {
    const int ranks = d->ranks;
    int lanes = 1;
    while (lanes < ranks) lanes *= 2;
    d->lanes = clt_calloc((size_t)ranks, sizeof *d->lanes);
    for (int r = 0; r < ranks; r++)
        d->lanes[r] = CLT_CEIL_DIV(lanes * (r + 1), ranks) - CLT_CEIL_DIV(lanes * r, ranks);
    d->split = (clt_lane_split){.lanes = lanes, .ranks = ranks, .count = d->lanes};
}

static clt_status make_plan(device_side *d) {
    clt_reduce_math math = {.add = add, .sum = sum, .ctx = d->row.ops};
    if (d->row.type == CLT_BF16) math.to_bf16 = to_bf16, math.to_f32 = to_f32;
    return clt_reduce_plan_create(d->row.group, clt_ops_device(d->row.ops), &d->shards, &d->split, &math,
                                  &d->plan);
}

static clt_status make_slab(device_side *d, int i) {
    clt_device *dev = clt_ops_device(d->row.ops);
    clt_slab *wide = NULL;
    CLT_TRY(clt_slab_create(dev, &d->table, 0, "bench slab", &wide));
    d->slab[i] = wide;
    if (d->row.what != CLT_MPI_ALL_GATHER || d->row.type == CLT_F32) return CLT_OK;
    clt_status st = clt_slab_create_narrow(dev, wide, "bench slab", &d->slab[i]);
    clt_slab_destroy(wide);
    if (st != CLT_OK) d->slab[i] = NULL;
    return st;
}

static clt_status make_sums(device_side *d, int i) {
    const int first = clt_lane_begin(&d->split, d->rank), last = clt_lane_begin(&d->split, d->rank + 1);
    d->stack[i] = clt_lane_stack_create(first, last, &d->slab[i], 1, add, d->row.ops);
    clt_lane_stack_begin(d->stack[i]);
    for (int lane = first; lane < last; lane++) CLT_TRY(clt_lane_stack_push(d->stack[i], lane < last - 1));
    return CLT_OK;
}

static clt_status call_once(device_side *d, int i) {
    int n;
    const clt_lane_sum *sums = clt_lane_stack_sums(d->stack[i], &n);
    CLT_TRY(clt_reduce_batch(d->plan, d->ranks));
    switch (d->row.what) {
    case CLT_MPI_REDUCE_SCATTER:
        return clt_group_reduce_scatter(d->plan, sums, n, d->slab[i]);
    case CLT_MPI_ALL_GATHER:
        return clt_group_all_gather_slab(d->plan, d->slab[i]);
    default:
        return clt_group_reduce(d->plan, sums, n, d->slab[i]);
    }
}

const char *collective_device_exchange(const void *side) {
    return clt_reduce_plan_wire(((const device_side *)side)->plan);
}

/* --- the side --- */

static void destroy(void *side) {
    device_side *d = side;
    if (!d) return;
    clt_reduce_plan_destroy(d->plan);
    for (int i = 0; i < d->row.calls; i++) {
        clt_lane_stack_destroy(d->stack[i]);
        clt_slab_destroy(d->slab[i]);
    }
    clt_free(d->stack);
    clt_free(d->slab);
    clt_free(d->stage);
    clt_free(d->lanes);
    clt_shards_free(&d->shards);
    clt_slab_table_free(&d->table);
    clt_free(d);
}

static clt_status make_slabs(device_side *d) {
    CLT_TRY(clt_shards_create(&d->table, d->ranks, NULL, &d->shards));
    for (int i = 0; i < d->row.calls; i++) {
        CLT_TRY(make_slab(d, i));
        CLT_TRY(make_sums(d, i));
    }
    return CLT_OK;
}

clt_status collective_device_create(const collective_row *r, void **out) {
    device_side *d = clt_calloc(1, sizeof *d);
    *out = d;
    d->row = *r;
    d->rank = clt_group_rank(r->group);
    d->ranks = clt_group_size(r->group);
    split_lanes(d);
    d->slab = clt_calloc((size_t)r->calls, sizeof(clt_slab *));
    d->stack = clt_calloc((size_t)r->calls, sizeof(clt_lane_stack *));
    d->stage = clt_malloc(STAGE * sizeof(float));
    make_table(d);
    clt_status st = clt_group_agree(r->group, make_slabs(d));
    if (st == CLT_OK) st = clt_group_agree(r->group, make_plan(d));
    return st;
}

/* Elements [first, first + n) between a slab and host memory, piece by piece. */
static clt_status copy(const clt_slab *s, uint64_t first, uint64_t n, void *host, bool write) {
    const uint64_t bytes = s->element_bytes;
    for (uint64_t done = 0, run; done < n; done += run) {
        const clt_ref at = clt_slab_at(s, first + done, &run);
        char *place = (char *)host + done * bytes;
        run = CLT_MIN(run, n - done);
        CLT_TRY(write ? clt_buffer_write(at.buf, at.off * bytes, place, run * bytes)
                      : clt_buffer_read(at.buf, at.off * bytes, place, run * bytes));
    }
    return CLT_OK;
}

/* The type of a slab's elements: gradients are fp32 whatever they travel as. */
static clt_dtype stored_type(const device_side *d) {
    return d->row.what == CLT_MPI_ALL_GATHER ? d->row.type : CLT_F32;
}

static clt_status fill(void *side, uint32_t first) {
    device_side *d = side;
    for (int i = 0; i < d->row.calls; i++)
        for (uint64_t at = 0, n; at < d->row.count; at += n) {
            n = CLT_MIN(d->row.count - at, (uint64_t)STAGE);
            collective_fill(stored_type(d), d->rank, first + (uint32_t)i, at, n, d->stage);
            CLT_TRY(copy(d->slab[i], at, n, d->stage, true));
        }
    return clt_device_finish(clt_ops_device(d->row.ops));
}

static clt_status run(void *side) {
    device_side *d = side;
    for (int i = 0; i < d->row.calls; i++) CLT_TRY(call_once(d, i));
    return clt_device_finish(clt_ops_device(d->row.ops));
}

static clt_status check_range(device_side *d, int i, uint32_t call, int owner, clt_slab_range x,
                              int64_t *wrong) {
    const double bound = collective_bound(d->row.type, d->ranks);
    for (uint64_t at = x.first, n; at < x.first + x.count; at += n) {
        n = CLT_MIN(x.first + x.count - at, (uint64_t)STAGE);
        CLT_TRY(copy(d->slab[i], at, n, d->stage, false));
        *wrong += (int64_t)(d->row.what == CLT_MPI_ALL_GATHER
                                ? collective_wrong_copies(d->row.type, owner, call, at, n, d->stage)
                                : collective_wrong_sums(d->ranks, call, bound, at, n, d->stage));
    }
    return CLT_OK;
}

/* Reduce-scatter leaves a rank the total of its own ranges, the others leave all ranges. Elements that no
 * rank owns are wrong. */
static clt_status check(void *side, uint32_t first, int64_t *wrong) {
    device_side *d = side;
    for (int i = 0; i < d->row.calls; i++) {
        int64_t unowned = (int64_t)d->row.count;
        for (int owner = 0; owner < d->ranks; owner++)
            for (int b = 0; b < d->shards.buckets; b++) {
                const clt_slab_range x = clt_shards_range(&d->shards, b, owner);
                unowned -= (int64_t)x.count;
                if (d->row.what == CLT_MPI_REDUCE_SCATTER && owner != d->rank) continue;
                CLT_TRY(check_range(d, i, first + (uint32_t)i, owner, x, wrong));
            }
        *wrong += unowned < 0 ? -unowned : unowned;
    }
    return CLT_OK;
}

clt_status collective_device_flip(void *side, int i, uint64_t bit) {
    device_side *d = side;
    const uint64_t bits = d->slab[i]->element_bytes * 8u, element = bit / bits;
    unsigned char word[sizeof(float)];
    if (element >= d->row.count) return CLT_OK;
    CLT_TRY(copy(d->slab[i], element, 1, word, false));
    word[bit % bits / 8] ^= (unsigned char)(1u << bit % 8);
    return copy(d->slab[i], element, 1, word, true);
}

const collective_side collective_device = {fill, run, check, destroy};
