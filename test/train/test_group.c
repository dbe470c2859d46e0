/* The functions of a group, checked on every rank; test/train/group_mpi.sh runs this under mpirun. Alone it
 * is a group of one rank.
 *
 *   test_group [--rank R --do WHAT]    what rank R does instead of its part: stall, die, fail, refuse; shm:
 * dies where it reserves the memory of an exchange; name: dies where it removes that memory's name; stop:
 * receives SIGTERM; warn: warns alone, after a warning of all ranks
 *              [--in child]            the ranks of even and of odd number are groups of their own
 *
 * What fails is printed, and ends the job: cmocka's asserts would leave the other ranks waiting.
 * Runs alone: stops and stalls have time limits. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "collectives/clt_launch.h"
#include "collectives/clt_reduce.h"
#include "runtime/base/clt_signal.h"
#include "runtime/device/clt_mark.h"
#include "runtime/ops/clt_ops.h"
#include "test/group_data.h"
#include "test/group_gather.h"
#include "test/lane_total.h"

static const char *exchange; /* of the last plan */

/* --- gradient reduction --- */

typedef struct {
    clt_device *dev;
    clt_ops *ops;
    clt_slab_table table;
    clt_shards shards; /* for the ranks of the last share_out */
    clt_slab *slab[12];
    int slabs;
} board;

static clt_status add(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ctx, dst, src, count);
}
static clt_status sum(void *ctx, const clt_sum_parts *s) {
    return clt_op_sum_parts(ctx, s);
}
static clt_status to_bf16(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ctx, clt_tensor_vector(src, CLT_F32), clt_tensor_vector(dst, CLT_BF16), count);
}
static clt_status to_f32(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ctx, clt_tensor_vector(src, CLT_BF16), clt_tensor_vector(dst, CLT_F32), count);
}

static clt_lane_split split; /* of the lanes under test */
static bool bf16;            /* gradients travel so */

static void fill(const clt_slab *s, int lane) {
    float *v = clt_malloc(CLT_CHUNK * sizeof *v);
    for (uint64_t at = 0; at < s->table->total; at += CLT_CHUNK) {
        lt_values(lane, at, CLT_CHUNK, v);
        ok(clt_slab_write(s, at, v, CLT_CHUNK), "slab_write");
    }
    clt_free(v);
}

/* The whole total, by the plain recursion. The caller frees it. */
static float *wanted_slab(const clt_slab_table *t, int64_t samples) {
    const int per_host = strcmp(exchange, "hosts") == 0 ? clt_group_local_size(group) : 0;
    const lt_batch b = {split, samples, bf16, per_host};
    float *want = clt_malloc(t->total * sizeof *want);
    lt_totals(&b, 0, t->total, want);
    return want;
}

/* Every word of a range. */
static void compare(const clt_slab *got, const float *want, clt_slab_range x, const char *what) {
    float *v = clt_malloc(x.count * sizeof *v);
    ok(clt_slab_read(got, x.first, v, x.count), "slab_read");
    for (uint64_t i = 0; i < x.count; i++)
        if (memcmp(&want[x.first + i], &v[i], sizeof *v) != 0)
            clt_group_abort(group, 1, "%s, %d lanes: element %llu is %a, not %a", what, split.lanes,
                            (unsigned long long)(x.first + i), (double)v[i], (double)want[x.first + i]);
    clt_free(v);
}

static void compare_all(const clt_slab *got, const float *want, const char *what) {
    compare(got, want, (clt_slab_range){0, got->table->total}, what);
}

static void compare_own(const clt_slab *got, const float *want, const clt_shards *s, const char *what) {
    for (int b = 0; b < s->buckets; b++) compare(got, want, clt_shards_range(s, b, rank), what);
}

static void add_lanes(clt_lane_stack *stack, int lanes, int64_t samples) {
    clt_lane_stack_begin(stack);
    for (int lane = clt_lane_begin(&split, rank); lane < clt_lane_begin(&split, rank + 1); lane++) {
        bool empty =
            clt_lane_sample_begin(samples, lanes, lane) == clt_lane_sample_begin(samples, lanes, lane + 1);
        clt_slab *s = empty ? NULL : clt_lane_stack_slab(stack);
        CHECK(empty || s, lanes, samples, lane);
        if (s) fill(s, lane);
        ok(clt_lane_stack_push(stack, empty), "lane_stack_push");
    }
}

/* Bytes in messages since *before, by all ranks: every element once to each host other than its owner's, or
 * to each rank. For batches of which each rank, and each host, brings one sum. */
static void check_sent(const board *b, const clt_reduce_plan *plan, uint64_t *before, uint64_t width) {
    const int hosts = size / clt_group_local_size(group);
    const int64_t crossings = !strcmp(exchange, "hosts") ? hosts - 1
                              : !strcmp(exchange, "mpi") ? size - 1
                                                         : 0;
    int64_t sent = (int64_t)(clt_reduce_plan_sent(plan) - *before);
    ok(clt_group_sum_i64(group, &sent, 1), "sum");
    CHECK(sent == crossings * (int64_t)(b->table.total * width), sent, crossings, (int64_t)width);
    *before = clt_reduce_plan_sent(plan);
}

static void clear_others(const clt_slab *s, const clt_shards *shards) {
    float *zero = clt_calloc(CLT_CHUNK, sizeof *zero);
    for (uint64_t at = 0; at < s->table->total; at += CLT_CHUNK)
        if (clt_shards_owner(shards, at) != rank) ok(clt_slab_write(s, at, zero, CLT_CHUNK), "slab_write");
    clt_free(zero);
}

/* Reductions of sums into `own` and gathers of totals in `all` in turn, of small parts of buckets: more than
 * can be on their way at once. */
static void test_in_turn(board *b, clt_reduce_plan *plan, const clt_lane_sum *sums, int n, clt_slab *own,
                         clt_slab *all) {
    enum { PART = 7000 };
    int64_t op = 0;
    clear_others(all, &b->shards);
    for (int k = 0; k < b->shards.buckets; k++) {
        const clt_slab_range x = clt_shards_bucket(&b->shards, k);
        for (uint64_t at = x.first; at < x.first + x.count; at += PART) {
            const clt_bucket_part part = {k, {at, PART}};
            ok(clt_reduce_begin(plan, part, sums, n, &own, &op), "reduce_begin");
            ok(clt_gather_begin(plan, part, all, all, CLT_GATHER_AS_IT_IS, NULL, 0, &op), "gather_begin");
        }
    }
    ok(clt_exchange_join(plan, op), "join");
}

/* The total into a slab that holds no sum, and into one that does. */
static void test_batch(board *b, clt_lane_stack *stack, clt_reduce_plan *plan, int lanes, int64_t samples) {
    int n;
    add_lanes(stack, lanes, samples);
    const clt_lane_sum *sums = clt_lane_stack_sums(stack, &n);
    clt_slab *own = clt_lane_stack_total(stack), *spare = b->slab[b->slabs - 1];
    const bool one_sum_each = lanes == size && samples > lanes;
    uint64_t sent = clt_reduce_plan_sent(plan);
    float *want = wanted_slab(&b->table, samples);
    ok(clt_reduce_batch(plan, samples), "reduce_batch");
    ok(clt_group_reduce_scatter(plan, sums, n, spare), "reduce_scatter");
    if (one_sum_each) check_sent(b, plan, &sent, bf16 ? 2 : 4);
    compare_own(spare, want, &b->shards, "reduce_scatter");
    ok(clt_group_all_gather_slab(plan, spare), "all_gather_slab");
    if (one_sum_each) check_sent(b, plan, &sent, 4);
    compare_all(spare, want, "all_gather_slab");
    add_lanes(stack, lanes, samples);
    if (samples == lanes) {
        test_in_turn(b, plan, sums, n, own, spare);
        compare_own(own, want, &b->shards, "reductions and gathers in turn");
        compare_all(spare, want, "reductions and gathers in turn");
    } else if (samples % 2) {
        ok(clt_group_reduce_scatter(plan, sums, n, own), "reduce_scatter in place");
        compare_own(own, want, &b->shards, "reduce_scatter in place");
    } else {
        ok(clt_group_reduce(plan, sums, n, own), "reduce in place");
        compare_all(own, want, "reduce in place");
    }
    clt_free(want);
}

static uint16_t narrow_value(uint64_t element, int owner) {
    return (uint16_t)(element * 31 + (uint64_t)owner + 1);
}

/* Writes the own ranges, or checks all owners' ranges. */
static void narrow_range(const clt_slab *s, int owner, clt_slab_range x, bool write) {
    static uint16_t v[CLT_CHUNK];
    for (uint64_t at = x.first; at < x.first + x.count; at += CLT_CHUNK) {
        const clt_ref r = clt_slab_at(s, at, NULL);
        for (uint64_t k = 0; k < CLT_CHUNK; k++) v[k] = narrow_value(at + k, owner);
        if (write) ok(clt_buffer_write(r.buf, r.off * sizeof *v, v, sizeof v), "buffer_write");
        if (write) continue;
        ok(clt_buffer_read(r.buf, r.off * sizeof *v, v, sizeof v), "buffer_read");
        for (uint64_t k = 0; k < CLT_CHUNK; k++)
            CHECK(v[k] == narrow_value(at + k, owner), owner, (int64_t)(at + k), v[k]);
    }
}

/* 16-bit elements travel as they are, whatever gradients travel as. */
static void test_narrow(board *b, clt_reduce_plan *plan) {
    clt_slab *s = NULL;
    ok(clt_slab_create_narrow(b->dev, b->slab[0], "narrow", &s), "slab_create_narrow");
    for (int i = 0; i < b->shards.buckets; i++)
        narrow_range(s, rank, clt_shards_range(&b->shards, i, rank), true);
    ok(clt_group_all_gather_slab(plan, s), "all_gather_slab of 16 bits");
    for (int owner = 0; owner < size; owner++)
        for (int i = 0; i < b->shards.buckets; i++)
            narrow_range(s, owner, clt_shards_range(&b->shards, i, owner), false);
    clt_slab_destroy(s);
}

/* So many at least. Pieces differ between ranks: 1, 2 or 3 chunks. */
static void add_slabs(board *b, int n) {
    CHECK(n <= (int)CLT_COUNT_OF(b->slab), n, 0, 0);
    for (; b->slabs < n; b->slabs++)
        ok(clt_slab_create(b->dev, &b->table, (uint64_t)(1 + rank % 3) * CLT_CHUNK * 4, "sums",
                           &b->slab[b->slabs]),
           "slab");
}

static void share_out(board *b) {
    clt_shards_free(&b->shards);
    ok(clt_shards_create(&b->table, size, NULL, &b->shards), "shards_create");
}

/* Its device memory is what the memory plan expects, at most. */
static clt_reduce_plan *make_plan(const board *b, const clt_reduce_math *math) {
    clt_device_counters before, with;
    clt_reduce_plan *plan = NULL;
    clt_device_get_counters(b->dev, &before);
    ok(clt_group_agree(group, clt_reduce_plan_create(group, b->dev, &b->shards, &split, math, &plan)),
       "reduce_plan_create");
    clt_device_get_counters(b->dev, &with);
    const uint64_t most = clt_reduce_plan_bytes(&b->shards, &split, clt_group_local_size(group),
                                                math->to_bf16 != NULL, clt_device_shares_host(b->dev));
    CHECK(with.bytes - before.bytes <= most, (int64_t)(with.bytes - before.bytes), (int64_t)most,
          split.lanes);
    exchange = clt_reduce_plan_wire(plan);
    return plan;
}

/* counts NULL: an even division. */
static void test_lanes(board *b, int lanes, const int *counts, bool brief) {
    split = (clt_lane_split){lanes, size, counts};
    int first = clt_lane_begin(&split, rank), last = clt_lane_begin(&split, rank + 1);
    int need = clt_lane_slabs_needed(lanes, first, last, 2 * lanes);
    share_out(b);
    add_slabs(b, need + 1);
    clt_lane_stack *stack = clt_lane_stack_create(first, last, b->slab, need, add, b->ops);
    clt_reduce_math math = {.add = add, .sum = sum, .ctx = b->ops};
    if (bf16) math.to_bf16 = to_bf16, math.to_f32 = to_f32;
    clt_reduce_plan *plan = make_plan(b, &math);
    const int64_t samples[] = {2 * lanes + 1, 1, lanes / 2 + 1, 0, lanes - 1, lanes};
    for (size_t i = 0; i < (brief ? 1 : CLT_COUNT_OF(samples)); i++) {
        test_batch(b, stack, plan, lanes, samples[i]);
    }
    test_narrow(b, plan);
    clt_reduce_plan_destroy(plan);
    clt_lane_stack_destroy(stack);
}

/* One lane of each rank at once; what is complete stays in levels, of which each rank has its part. */
static void run_rounds(board *b, clt_reduce_plan *plan, clt_slab *const *level, int64_t samples) {
    int64_t op = 0;
    ok(clt_reduce_batch(plan, samples), "reduce_batch");
    for (int i = 0; i < clt_lane_rounds(&split); i++) {
        clt_lane_sum sum = {.width = 1, .slab = b->slab[i % 2]};
        const bool has = i < clt_lane_count(&split, rank);
        if (i > 0) ok(clt_reduce_next_round(plan), "reduce_next_round");
        if (has) sum.first = clt_lane_at(&split, rank, i);
        sum.empty = clt_lane_sample_begin(samples, split.lanes, sum.first) ==
                    clt_lane_sample_begin(samples, split.lanes, sum.first + 1);
        if (i > 1) ok(clt_exchange_join(plan, op), "join"); /* before the slab is used again */
        if (has && !sum.empty) fill(sum.slab, sum.first);
        for (int k = b->shards.buckets - 1; k >= 0; k--) { /* in two parts, not cut at a chunk */
            const clt_slab_range all = clt_shards_bucket(&b->shards, k), upper = {all.first + 640, all.count};
            ok(clt_reduce_begin(plan, (clt_bucket_part){k, upper}, &sum, has, level, &op), "reduce_begin");
            ok(clt_reduce_begin(plan, (clt_bucket_part){k, {all.first, 640}}, &sum, has, level, &op),
               "reduce_begin");
        }
    }
    ok(clt_exchange_join(plan, op), "join");
}

static void test_rounds(board *b, int lanes, const int *counts, bool chain) {
    split = (clt_lane_split){lanes, size, counts, .dealt = true, .chain = chain};
    clt_slab *level[CLT_LANE_LEVELS] = {NULL}, *whole = NULL;
    int64_t op = 0;
    share_out(b);
    add_slabs(b, 2);
    for (int i = 0; i < clt_reduce_levels(&split); i++)
        ok(clt_slab_create_shard(b->dev, &b->table, &b->shards, rank, 4, "level", &level[i]), "shard");
    ok(clt_slab_create(b->dev, &b->table, 0, "total", &whole), "slab");
    clt_reduce_plan *plan = make_plan(b, &(clt_reduce_math){.add = add, .sum = sum, .ctx = b->ops});
    const int64_t samples[] = {2 * lanes + 1, 1, lanes / 2 + 1, 0};
    for (size_t i = 0; i < CLT_COUNT_OF(samples); i++) {
        float *want = wanted_slab(&b->table, samples[i]);
        run_rounds(b, plan, level, samples[i]);
        compare_own(level[0], want, &b->shards, "rounds");
        for (int k = 0; k < b->shards.buckets; k++)
            ok(clt_gather_begin(plan, clt_whole_bucket(k), level[0], whole, CLT_GATHER_TOTALS, NULL, 0, &op),
               "gather_begin");
        ok(clt_exchange_join(plan, op), "join");
        compare_all(whole, want, "gather of shards");
        clt_free(want);
    }
    clt_reduce_plan_destroy(plan);
    for (int i = 0; i < CLT_LANE_LEVELS; i++) clt_slab_destroy(level[i]);
    clt_slab_destroy(whole);
}

static void open_board(board *b, int chunks) {
    clt_device_params p = clt_device_params_default();
    clt_ops_params o = clt_ops_params_default();
    p.local_rank = clt_group_local_rank(group);
    p.local_size = clt_group_local_size(group);
    ok(clt_device_open(&p, &b->dev), "device_open");
    ok(clt_ops_create(b->dev, &o, &b->ops), "ops_create");
    for (int i = 0; i < chunks; i++) {
        int64_t shape = i % 3 == 2 ? 1000 : CLT_CHUNK;
        clt_slab_table_add(&b->table, "tensor", 1, &shape);
    }
    clt_slab_table_finish(&b->table);
}

static void close_board(board *b) {
    for (int i = 0; i < b->slabs; i++) clt_slab_destroy(b->slab[i]);
    clt_ops_destroy(b->ops);
    clt_device_close(b->dev);
    clt_shards_free(&b->shards);
    clt_slab_table_free(&b->table);
}

/* Even and uneven divisions; gradients of 32 and 16 bits. */
static void test_divisions(board *b) {
    for (int lanes = 1; lanes <= 16; lanes *= 2) {
        int counts[CLT_GROUP_MAX_RANKS];
        if (lanes < size) continue;
        for (int r = 0; r < size; r++) counts[r] = r == size / 2 ? lanes - size + 1 : 1;
        test_lanes(b, lanes, NULL, false);
        test_lanes(b, lanes, counts, false);
        if (size > 1) test_rounds(b, lanes, NULL, false);
        if (size > 1) test_rounds(b, lanes, counts, false);
        if (size > 1) test_rounds(b, lanes, counts, true);
        bf16 = true;
        test_lanes(b, lanes, counts, lanes != 8);
        bf16 = false;
    }
}

/* The first power of two that gives each rank a lane. */
static int enough_lanes(void) {
    int lanes = 1;
    while (lanes < size) lanes *= 2;
    return lanes;
}

static bool little_memory;

/* Before the C library's, which MPI calls, too: a host whose shared memory holds little more than a step of
 * one chunk. */
int statvfs(const char *restrict path, struct statvfs *restrict v) {
    int (*real)(const char *, struct statvfs *) =
        (int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs");
    const int failed = real(path, v);
    if (!failed && little_memory) v->f_bavail = ((fsblkcnt_t)4 << 20) / v->f_frsize;
    return failed;
}

static void test_little_memory(board *b) {
    little_memory = true;
    test_lanes(b, enough_lanes(), NULL, true);
    bf16 = true;
    test_lanes(b, enough_lanes(), NULL, true);
    bf16 = little_memory = false;
}

static uint64_t reserved; /* bytes of shared memory, by this rank */

/* Each rank reserves its own ring, which the system then places on its NUMA node; rank 0 also the page of
 * numbers before the rings. */
static void test_own_memory(board *b) {
    const char *wire = clt_env(CLT_ENV_TRANSPORT);
    clt_reduce_plan *plan = NULL;
    if (size == 1 || !wire || strcmp(wire, "shm") != 0) return;
    share_out(b);
    split = (clt_lane_split){enough_lanes(), size, NULL};
    reserved = 0;
    ok(clt_reduce_plan_create(group, b->dev, &b->shards, &split,
                              &(clt_reduce_math){.add = add, .sum = sum, .ctx = b->ops}, &plan),
       "reduce_plan_create");
    int64_t most[] = {(int64_t)reserved, -(int64_t)reserved};
    ok(clt_group_max_i64(group, most, 2), "max");
    CHECK(-most[1] > 0 && most[0] + most[1] == 4096, (int)(most[0] + most[1]), 4096, 0);
    clt_reduce_plan_destroy(plan);
}

static void test_too_many_ranks(board *b) {
    const clt_lane_split one_lane = {1, size, NULL};
    const clt_reduce_math math = {.add = add, .sum = sum, .ctx = b->ops};
    clt_reduce_plan *none = NULL;
    if (size == 1) return;
    clt_error_quiet(true);
    clt_status st = clt_reduce_plan_create(group, b->dev, &b->shards, &one_lane, &math, &none);
    clt_error_quiet(false);
    CHECK(st == CLT_BAD_CONFIG && !none, st, 0, 0);
}

static void test_reduction(board *small) {
    enum { MANY_CHUNKS = 80 /* more than one bucket */ };
    board large = {0};
    test_divisions(small);
    test_little_memory(small);
    test_own_memory(small);
    for (int each = 2; each <= 4; each++) test_gathers_in_groups(small->dev, &small->table, each);
    test_too_many_ranks(small);
    if (size > 4) return;
    open_board(&large, MANY_CHUNKS);
    test_lanes(&large, 4, NULL, true);
    bf16 = true;
    test_lanes(&large, 4, NULL, true);
    bf16 = false;
    close_board(&large);
}

/* --- children --- */

/* All that a group does, in a child with these ranks; returns the exchange that served it. */
static const char *test_child(clt_group *g, board *b, int color, int key, bool brief) {
    clt_group *child = NULL;
    const int host = clt_group_host(g);
    ok(clt_group_split(g, color, key, &child), "split");
    if (color < 0) {
        CHECK(!child, color, key, 0);
        return NULL;
    }
    enter(child);
    CHECK(clt_group_host(child) == host, host, 0, 0);
    test_host_data();
    test_lanes(b, enough_lanes(), NULL, brief);
    bf16 = true;
    test_lanes(b, 2 * enough_lanes(), NULL, true);
    bf16 = false;
    enter(g);
    clt_group_destroy(child);
    return exchange;
}

/* Halves of halves, until every rank is alone. */
static void test_nested(clt_group *g, board *b) {
    clt_group *half = NULL;
    if (size == 1) return;
    ok(clt_group_split(g, rank * 2 >= size, 0, &half), "split");
    enter(half);
    test_lanes(b, enough_lanes(), NULL, true);
    test_nested(half, b);
    enter(half);
    test_host_data();
    enter(g);
    clt_group_destroy(half);
}

/* The exchange of ranks that are all on one host. */
static const char *exchange_here(int ranks) {
    const char *forced = getenv("CLTRAIN_TRANSPORT");
    return ranks == 1 ? "loopback" : forced ? forced : "shm";
}

static void test_children(board *b) {
    clt_group *g = group;
    const int me = rank, here = clt_group_local_size(g);
    const char *used = test_child(g, b, clt_group_host(g), me, true);
    CHECK(!strcmp(used, exchange_here(here)), here, 0, 0);
    test_child(g, b, me % 2, -me, false);
    CHECK(!strcmp(test_child(g, b, me, 0, true), "loopback"), me, 0, 0);
    test_child(g, b, me == 0 ? CLT_GROUP_NO_COLOR : 0, 0, true);
    test_nested(g, b);
}

/* --- what goes wrong --- */

static bool dies_reserving, dies_unnaming;

/* These two are in the place of the C library's. */
int posix_fallocate(int fd, off_t at, off_t bytes) {
    if (dies_reserving) raise(SIGKILL);
    reserved += (uint64_t)bytes;
    return fallocate(fd, 0, at, bytes) == 0 ? 0 : errno;
}
int shm_unlink(const char *name) {
    char path[300];
    if (dies_unnaming) raise(SIGKILL);
    snprintf(path, sizeof path, "/dev/shm%s", name);
    return unlink(path);
}

static int share_and_die(bool *dies, bool me) {
    board b = {0};
    clt_reduce_plan *plan = NULL;
    open_board(&b, 1);
    share_out(&b);
    split = (clt_lane_split){size, size, NULL};
    *dies = me;
    ok(clt_reduce_plan_create(group, b.dev, &b.shards, &split,
                              &(clt_reduce_math){.add = add, .sum = sum, .ctx = b.ops}, &plan),
       "reduce_plan_create");
    return 4;
}

/* Each child hears of the signal, which one process of this host has received. */
static int wait_for_stop(bool me) {
    static const double at_most = 20;
    const double start = clt_now();
    if (me) kill(getpid(), SIGTERM); /* not raise(): another thread takes it */
    while (!clt_group_stop(group) && clt_now() - start < at_most) {
        ok(clt_group_agree(group, CLT_OK), "agree");
        clt_sleep(10e-3);
    }
    return clt_group_stop(group) == SIGTERM ? 0 : 3;
}

static int warn_all(bool me) {
    clt_warn("all ranks say this");
    if (me) clt_warn("one rank says this");
    ok(clt_group_agree(group, CLT_OK), "agree");
    return 0;
}

static int misbehave(const char *what) {
    clt_group_note(group, 7, "a phase of the test");
    if (!strcmp(what, "stall")) raise(SIGSTOP);
    if (!strcmp(what, "die")) raise(SIGKILL);
    if (!strcmp(what, "fail")) clt_group_give_up(group, clt_error(CLT_BAD_DATA, "sample 12 is broken"));
    return 2;
}

/* `me`: this is the rank that does it. */
static int disturb(clt_group *all, const char *what, bool me) {
    ok(clt_group_barrier(group), "barrier");
    if (!strcmp(what, "shm")) return share_and_die(&dies_reserving, me);
    if (!strcmp(what, "name")) return share_and_die(&dies_unnaming, me);
    if (!strcmp(what, "stop")) return wait_for_stop(me);
    if (!strcmp(what, "warn")) return warn_all(me);
    if (me) return misbehave(what);
    clt_group_note(group, 8, "waiting");
    ok(clt_group_barrier(group), "barrier");
    ok(clt_group_barrier(all), "barrier");
    return 3;
}

static int disturb_child(clt_group *all, const char *what, int who) {
    clt_group *child = NULL;
    const int me = rank;
    ok(clt_group_split(all, me % 2, -me, &child), "split");
    enter(child);
    const int code = disturb(all, what, me == who);
    clt_group_destroy(child);
    return code;
}

static void test_all(void) {
    enum { CHUNKS = 4 };
    board small = {0};
    test_host_data();
    open_board(&small, CHUNKS);
    test_reduction(&small);
    const char *used = exchange;
    test_children(&small);
    close_board(&small);
    if (rank == 0) printf("%d ranks, %s: all the same\n", size, used);
}

static int run(const char *what, int who, bool in_child) {
    clt_group *all = NULL;
    clt_status st = what && !strcmp(what, "refuse") && clt_launch_detect().rank == who
                        ? clt_group_refuse(clt_error(CLT_BAD_DATA, "the file is not here"))
                        : clt_group_create(20, &all);
    if (st != CLT_OK) return clt_status_exit_code(st);
    enter(all);
    int code = 0;
    if (!what)
        test_all();
    else
        code = in_child ? disturb_child(all, what, who) : disturb(all, what, rank == who);
    clt_group_destroy(all);
    return code;
}

int main(int argc, char **argv) {
    const char *what = NULL;
    bool in_child = false;
    int who = -1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rank")) who = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--do")) what = argv[i + 1];
        if (!strcmp(argv[i], "--in")) in_child = true;
    }
    if (what && !strcmp(what, "stop")) clt_signal_install(NULL);
    clt_launch_begin();
    return clt_launch_end(run(what, who, in_child));
}
