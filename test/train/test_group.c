/* The functions of a group, checked on every rank; test/train/group_mpi.sh runs this under mpirun. Alone it
 * is a group of one rank.
 *
 *   test_group [--rank R --do WHAT]    WHAT: stall, die, fail, refuse: what rank R does instead of its part;
 *                                      shm: dies where it reserves the memory of an exchange
 *
 * What fails is printed, and ends the job: cmocka's asserts would leave the other ranks waiting. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/clt_group.h"
#include "collectives/clt_launch.h"
#include "runtime/ops/clt_ops.h"

static clt_group *group;
static int rank, size;

static void check(bool ok, const char *what, int64_t a, int64_t b, int64_t c) {
    if (!ok)
        clt_group_abort(group, 1, "%s is wrong (%lld, %lld, %lld)", what, (long long)a, (long long)b,
                        (long long)c);
}
#define CHECK(cond, a, b, c) check(cond, #cond, a, b, c)

static void ok(clt_status st, const char *what) {
    check(st == CLT_OK, what, (int64_t)st, 0, 0);
}

/* --- host data --- */

static unsigned char byte_of(int r, size_t i) {
    return (unsigned char)(r * 37 + (int)(i * 11) + (int)(i >> 8));
}

static void test_gather(size_t bytes) {
    unsigned char *mine = clt_malloc(bytes), *all = clt_malloc(bytes * (size_t)size);
    for (size_t i = 0; i < bytes; i++) mine[i] = byte_of(rank, i);
    ok(clt_group_all_gather(group, mine, bytes, all), "all_gather");
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < bytes; i++)
            CHECK(all[(size_t)r * bytes + i] == byte_of(r, i), r, (int64_t)i, (int64_t)bytes);
    clt_free(mine);
    clt_free(all);
}

/* Lengths differ, some are 0; `scale` 0: all are. */
static size_t length_of(int r, size_t scale) {
    return (size_t)(r * 7 % 5) * scale;
}

static void test_gatherv(size_t scale) {
    size_t n = length_of(rank, scale), *lens = clt_calloc((size_t)size, sizeof *lens), at = 0;
    unsigned char *mine = clt_malloc(n);
    void *out = NULL;
    for (size_t i = 0; i < n; i++) mine[i] = byte_of(rank, i);
    ok(clt_group_all_gatherv(group, mine, n, lens, &out), "all_gatherv");
    for (int r = 0; r < size; r++) {
        CHECK(lens[r] == length_of(r, scale), r, (int64_t)lens[r], (int64_t)scale);
        for (size_t i = 0; i < lens[r]; i++)
            CHECK(((unsigned char *)out)[at + i] == byte_of(r, i), r, (int64_t)i, (int64_t)scale);
        at += lens[r];
    }
    clt_free(mine);
    clt_free(lens);
    clt_free(out);
}

static void test_broadcast(int root, size_t bytes) {
    unsigned char *data = clt_calloc(bytes, 1);
    for (size_t i = 0; i < bytes && rank == root; i++) data[i] = byte_of(root, i);
    ok(clt_group_broadcast(group, root, data, bytes), "broadcast");
    for (size_t i = 0; i < bytes; i++) CHECK(data[i] == byte_of(root, i), root, (int64_t)i, (int64_t)bytes);
    clt_free(data);
}

/* Sums are exact beyond a double's 53 bits, and negative numbers take part in the maximum. */
static void test_numbers(void) {
    const int64_t big = (int64_t)1 << 58;
    int64_t v[3] = {big + rank, -rank, rank * rank}, want[3] = {0};
    int64_t m[2] = {-100 - rank, rank == size / 2 ? big + 1 : big};
    for (int r = 0; r < size; r++) {
        want[0] += big + r;
        want[1] -= r;
        want[2] += r * r;
    }
    ok(clt_group_sum_i64(group, v, 3), "sum");
    for (int i = 0; i < 3; i++) CHECK(v[i] == want[i], i, v[i], want[i]);
    ok(clt_group_max_i64(group, m, 2), "max");
    CHECK(m[0] == -100 && m[1] == big + 1, m[0], m[1], 0);
}

/* The status of the lowest rank that failed, on every rank. */
static void test_agree(void) {
    ok(clt_group_agree(group, CLT_OK), "agree");
    for (int r = 0; r < size; r++) {
        clt_status mine = rank == r ? CLT_BAD_DATA : rank > r ? CLT_IO : CLT_OK;
        clt_status st = clt_group_agree(group, mine);
        CHECK(st == CLT_BAD_DATA, r, st, 0);
    }
    ok(clt_group_agree(group, CLT_OK), "agree");
    CHECK(clt_group_stop(group) == 0 && !clt_group_stop_asked(group), 0, 0, 0);
}

/* Nobody leaves the barrier before the last one has come to it. */
static void test_barrier(void) {
    double times[2], *all = clt_calloc((size_t)size, sizeof times);
    for (int late = 0; late < CLT_MIN(size, 3); late++) {
        if (rank == late) clt_sleep(20e-3);
        times[0] = clt_now();
        ok(clt_group_barrier(group), "barrier");
        times[1] = clt_now();
        ok(clt_group_all_gather(group, times, sizeof times, all), "all_gather");
        for (int r = 0; r < size; r++) CHECK(all[2 * r] <= times[1], late, r, 0);
    }
    clt_free(all);
}

static void test_host_data(void) {
    CHECK(rank >= 0 && rank < size && clt_group_local_rank(group) < clt_group_local_size(group), rank, size,
          0);
    static const size_t bytes[] = {0, 1, 4, 1000, 100003};
    for (size_t i = 0; i < CLT_COUNT_OF(bytes); i++) {
        test_gather(bytes[i]);
        test_gatherv(bytes[i] / 4);
        for (int r = 0; r < size; r++) test_broadcast(r, bytes[i]);
    }
    test_numbers();
    test_agree();
    test_barrier();
}

/* --- gradient reduction --- */

typedef struct {
    clt_device *dev;
    clt_ops *ops;
    clt_slab_table table;
    clt_slab *slab[12];
    int slabs;
} board;

static clt_status add(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_add(ctx, dst, src, count);
}
static clt_status to_bf16(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ctx, clt_tensor_vector(src, CLT_F32), clt_tensor_vector(dst, CLT_BF16), count);
}
static clt_status to_f32(void *ctx, clt_ref dst, clt_ref src, uint64_t count) {
    return clt_op_cast(ctx, clt_tensor_vector(src, CLT_BF16), clt_tensor_vector(dst, CLT_F32), count);
}

/* To bf16's nearest, ties to even; of finite numbers. */
static float rounded(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &u, sizeof v);
    return v;
}

/* Numbers of all sizes and both signs, some zero or denormal, so that another order of sums gives other bits.
 */
static float value(int lane, uint64_t element) {
    uint64_t x = (element + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(lane + 1) * 0xc2b2ae3d27d4eb4fu;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    if ((x & 63) == 0) return (x & 64) ? -0.0f : 0.0f;
    uint32_t exponent = (x & 63) == 1 ? 0 : 117 + (uint32_t)(x >> 8) % 20;
    uint32_t bits = (uint32_t)(x >> 40) << 31 | exponent << 23 | ((uint32_t)(x >> 13) & 0x7fffffu);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The tree over lanes [first, first + width), in plain C; false: all of them are empty. */
static bool tree(int lanes, int64_t samples, int first, int width, uint64_t element, float *out) {
    float l = 0, r = 0;
    if (width == 1) {
        *out = value(first, element);
        return clt_lane_sample_begin(samples, lanes, first) <
               clt_lane_sample_begin(samples, lanes, first + 1);
    }
    bool left = tree(lanes, samples, first, width / 2, element, &l);
    bool right = tree(lanes, samples, first + width / 2, width / 2, element, &r);
    *out = left && right ? l + r : left ? l : r;
    return left || right;
}

static clt_lane_split split; /* of the lanes under test */
static bool bf16;            /* gradients travel so */

static int owner(int lane) {
    int r = 0;
    while (clt_lane_begin(&split, r + 1) <= lane) r++;
    return r;
}

/* The total where gradients travel as bf16: what one rank owns of the tree is rounded, and at the end the
 * total. */
static bool travelled(int64_t samples, int first, int width, uint64_t element, float *out) {
    float l = 0, r = 0;
    if (owner(first) == owner(first + width - 1)) {
        bool there = tree(split.lanes, samples, first, width, element, out);
        *out = rounded(*out);
        return there;
    }
    bool left = travelled(samples, first, width / 2, element, &l);
    bool right = travelled(samples, first + width / 2, width / 2, element, &r);
    *out = left && right ? l + r : left ? l : r;
    return left || right;
}

static float wanted(int64_t samples, uint64_t element) {
    float v = 0;
    if (!bf16 || size == 1) return tree(split.lanes, samples, 0, split.lanes, element, &v) ? v : 0;
    return travelled(samples, 0, split.lanes, element, &v) ? rounded(v) : 0;
}

static void fill(const clt_slab *s, int lane) {
    float *v = clt_malloc(CLT_CHUNK * sizeof *v);
    for (uint64_t at = 0; at < s->table->total; at += CLT_CHUNK) {
        for (uint64_t i = 0; i < CLT_CHUNK; i++) v[i] = value(lane, at + i);
        ok(clt_slab_write(s, at, v, CLT_CHUNK), "slab_write");
    }
    clt_free(v);
}

static void compare(const clt_slab *total, int lanes, int64_t samples) {
    float *got = clt_malloc(CLT_CHUNK * sizeof *got), want;
    for (uint64_t at = 0; at < total->table->total; at += CLT_CHUNK) {
        ok(clt_slab_read(total, at, got, CLT_CHUNK), "slab_read");
        for (uint64_t i = 0; i < CLT_CHUNK; i++) {
            want = wanted(samples, at + i);
            if (memcmp(&want, &got[i], sizeof want) != 0)
                clt_group_abort(group, 1, "%d lanes, %lld samples: element %llu is %a, not %a", lanes,
                                (long long)samples, (unsigned long long)(at + i), (double)got[i],
                                (double)want);
        }
    }
    clt_free(got);
}

static void test_batch(board *b, clt_lane_stack *stack, clt_reduce_plan *plan, int lanes, int64_t samples) {
    int n, first = clt_lane_begin(&split, rank), last = clt_lane_begin(&split, rank + 1);
    clt_lane_stack_begin(stack);
    for (int lane = first; lane < last; lane++) {
        bool empty =
            clt_lane_sample_begin(samples, lanes, lane) == clt_lane_sample_begin(samples, lanes, lane + 1);
        clt_slab *s = empty ? NULL : clt_lane_stack_slab(stack);
        CHECK(empty || s, lanes, samples, lane);
        if (s) fill(s, lane);
        ok(clt_lane_stack_push(stack, empty), "lane_stack_push");
    }
    const clt_lane_sum *sums = clt_lane_stack_sums(stack, &n);
    clt_slab *total = clt_lane_stack_total(stack);
    if (samples % 3 == 2) total = b->slab[b->slabs - 1]; /* one that holds no sum */
    ok(clt_group_reduce(plan, sums, n, total), "reduce");
    compare(total, lanes, samples);
}

/* A rank that gives up makes all give up, and the next batch is whole again. */
static void test_give_up(clt_lane_stack *stack, clt_reduce_plan *plan) {
    int n;
    const clt_lane_sum *sums = clt_lane_stack_sums(stack, &n);
    clt_status st = clt_group_reduce(plan, sums, rank == size - 1 ? -1 : n, clt_lane_stack_total(stack));
    CHECK(st == CLT_STOPPED, st, 0, 0);
}

/* counts NULL: an even division. */
static void test_lanes(board *b, int lanes, const int *counts, bool brief) {
    split = (clt_lane_split){lanes, size, counts};
    int first = clt_lane_begin(&split, rank), last = clt_lane_begin(&split, rank + 1);
    int need = clt_lane_slabs_needed(lanes, first, last, 2 * lanes);
    clt_reduce_plan *plan = NULL;
    CHECK(need < (int)CLT_COUNT_OF(b->slab), need, lanes, 0);
    for (; b->slabs < need + 1; b->slabs++) /* pieces differ between ranks: 1, 2 or 3 chunks */
        ok(clt_slab_create(b->dev, &b->table, (uint64_t)(1 + rank % 3) * CLT_CHUNK * 4, "sums",
                           &b->slab[b->slabs]),
           "slab");
    clt_lane_stack *stack = clt_lane_stack_create(first, last, b->slab, need, add, b->ops);
    clt_reduce_math math = {.add = add, .ctx = b->ops};
    if (bf16) math.to_bf16 = to_bf16, math.to_f32 = to_f32;
    ok(clt_reduce_plan_create(group, b->dev, &b->table, &split, &math, &plan), "reduce_plan_create");
    const int64_t samples[] = {2 * lanes + 1, 1, lanes / 2 + 1, 0, lanes - 1, lanes};
    for (size_t i = 0; i < (brief ? 1 : CLT_COUNT_OF(samples)); i++) {
        test_batch(b, stack, plan, lanes, samples[i]);
        if (i == 0) test_give_up(stack, plan);
    }
    clt_reduce_plan_destroy(plan);
    clt_lane_stack_destroy(stack);
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
    clt_slab_table_free(&b->table);
}

static void test_reduction(void) {
    enum { CHUNKS = 4, MANY_CHUNKS = 80 /* more than one block of the exchange */ };
    board small = {0}, large = {0};
    open_board(&small, CHUNKS);
    for (int lanes = 1; lanes <= 16; lanes *= 2)
        if (lanes >= size) {
            test_lanes(&small, lanes, NULL, false);
            int counts[CLT_GROUP_MAX_RANKS];
            for (int r = 0; r < size; r++) counts[r] = r == size / 2 ? lanes - size + 1 : 1;
            test_lanes(&small, lanes, counts, false);
            bf16 = true;
            test_lanes(&small, lanes, counts, lanes != 8);
            bf16 = false;
        }
    clt_reduce_plan *none = NULL;
    clt_error_quiet(true);
    clt_status st =
        size > 1 ? clt_reduce_plan_create(group, small.dev, &small.table, &(clt_lane_split){1, size, NULL},
                                          &(clt_reduce_math){.add = add, .ctx = small.ops}, &none)
                 : CLT_BAD_CONFIG;
    clt_error_quiet(false);
    CHECK(st == CLT_BAD_CONFIG && !none, st, 0, 0);
    close_board(&small);
    if (size > 3) return;
    open_board(&large, MANY_CHUNKS);
    test_lanes(&large, 4, NULL, true);
    bf16 = true;
    test_lanes(&large, 4, NULL, true);
    bf16 = false;
    close_board(&large);
}

/* --- what goes wrong --- */

static bool dies_reserving;

/* In the place of the C library's. */
int posix_fallocate(int fd, off_t at, off_t bytes) {
    if (dies_reserving) raise(SIGKILL);
    return ftruncate(fd, at + bytes);
}

static int reserve_and_die(bool me) {
    board b = {0};
    clt_reduce_plan *plan = NULL;
    open_board(&b, 1);
    split = (clt_lane_split){size, size, NULL};
    dies_reserving = me;
    ok(clt_reduce_plan_create(group, b.dev, &b.table, &split, &(clt_reduce_math){.add = add, .ctx = b.ops},
                              &plan),
       "reduce_plan_create");
    return 4;
}

static int misbehave(const char *what) {
    clt_group_note(group, 7, "a phase of the test");
    if (!strcmp(what, "stall")) raise(SIGSTOP);
    if (!strcmp(what, "die")) raise(SIGKILL);
    if (!strcmp(what, "fail")) clt_group_give_up(group, clt_error(CLT_BAD_DATA, "sample 12 is broken"));
    return 2;
}

static int run(const char *what, int who) {
    clt_status st = what && !strcmp(what, "refuse") && clt_launch_detect().rank == who
                        ? clt_group_refuse(clt_error(CLT_BAD_DATA, "the file is not here"))
                        : clt_group_create(20, &group);
    if (st != CLT_OK) return clt_status_exit_code(st);
    rank = clt_group_rank(group);
    size = clt_group_size(group);
    if (what) {
        ok(clt_group_barrier(group), "barrier");
        if (!strcmp(what, "shm")) return reserve_and_die(rank == who);
        if (rank == who) return misbehave(what);
        clt_group_note(group, 8, "waiting");
        ok(clt_group_barrier(group), "barrier");
        return 3;
    }
    test_host_data();
    test_reduction();
    if (rank == 0) printf("%d ranks, %s: all the same\n", size, clt_group_component(group));
    clt_group_destroy(group);
    return 0;
}

int main(int argc, char **argv) {
    const char *what = NULL;
    int who = -1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--rank")) who = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--do")) what = argv[i + 1];
    }
    clt_launch_begin();
    return clt_launch_end(run(what, who));
}
