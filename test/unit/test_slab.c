/* The table's layout rules, the cutting into pieces, and access across pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/clt_shards.h"

static clt_device *dev;

static int open_device(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    return clt_device_open(&p, &dev) == CLT_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    clt_device_close(dev);
    return 0;
}

static void add(clt_slab_table *t, const char *name, int64_t rows, int64_t cols) {
    int64_t shape[2] = {rows, cols};
    int before = t->n;
    assert_int_equal(clt_slab_table_add(t, name, cols ? 2 : 1, shape), before);
}

/* Sizes on both sides of every border of the layout rules. */
static void make_table(clt_slab_table *t) {
    add(t, "small.0", 1, 0);
    add(t, "small.1", 65, 0);
    add(t, "almost", 65535, 0);
    add(t, "chunk", 256, 256);
    add(t, "small.2", 64, 0);
    add(t, "small.3", 7, 3);
    add(t, "big", 5, 65536);
    add(t, "odd", 65537, 0);
    add(t, "tail", 10, 0);
    clt_slab_table_finish(t);
}

static void table_layout(void **state) {
    (void)state;
    clt_slab_table t = {0};
    make_table(&t);
    /* By hand: multiples of 64 for small tensors, of 65,536 for those of at least 65,536 elements. */
    static const uint64_t offset[] = {0, 64, 192, 131072, 196608, 196672, 262144, 589824, 589824 + 65600};
    for (int i = 0; i < t.n; i++) assert_int_equal(t.entry[i].offset, offset[i]);
    assert_int_equal(t.total, 589824 + 131072);
    assert_int_equal(clt_slab_table_find(&t, "odd"), 7);
    assert_int_equal(clt_slab_table_find(&t, "od"), -1);
    assert_int_equal(t.entry[5].count, 21);
    assert_int_equal(t.entry[5].dims, 2);
    clt_slab_table_free(&t);
}

static void check_pieces(const clt_slab *s, const clt_slab_table *t, uint64_t limit) {
    assert_int_equal(s->start[0], 0);
    assert_int_equal(s->start[s->n], t->total);
    for (int i = 0; i < s->n; i++) {
        assert_true(s->start[i] < s->start[i + 1]);
        assert_int_equal(s->start[i] % CLT_CHUNK, 0);
        assert_int_equal(clt_buffer_bytes(s->piece[i]), (s->start[i + 1] - s->start[i]) * 4);
        int first = 0, tensors = 0;
        for (int e = 0; e < t->n; e++) {
            first += t->entry[e].offset == s->start[i];
            tensors += t->entry[e].offset >= s->start[i] && t->entry[e].offset < s->start[i + 1] &&
                       t->entry[e].count >= CLT_CHUNK;
        }
        assert_int_equal(first, 1);
        /* Exceeds the limit only where no border allows less. */
        if (s->start[i + 1] - s->start[i] > limit) assert_true(tensors <= 1);
    }
    for (int e = 0; e < t->n; e++) {
        clt_ref r = clt_slab_ref(s, e);
        assert_true((r.off + t->entry[e].count) * 4 <= clt_buffer_bytes(r.buf));
    }
}

static void pieces_and_access(void **state) {
    (void)state;
    clt_slab_table t = {0};
    make_table(&t);
    static const int expected[] = {1, 5, 3, 2};
    static const uint64_t limit[] = {0, 65536, 4 * 65536, 9 * 65536};
    float *x = clt_calloc(t.total, sizeof *x), *y = clt_calloc(t.total, sizeof *y);
    for (size_t c = 0; c < CLT_COUNT_OF(limit); c++) {
        clt_slab *s;
        assert_int_equal(clt_slab_create(dev, &t, limit[c] * 4, "test", &s), CLT_OK);
        assert_int_equal(s->n, expected[c]);
        check_pieces(s, &t, limit[c] ? limit[c] : (uint64_t)1 << 28);
        memset(y, 0xff, t.total * sizeof *y);
        memset(x, 0, t.total * sizeof *x);
        assert_int_equal(clt_slab_read(s, 0, y, t.total), CLT_OK);
        assert_memory_equal(x, y, t.total * sizeof *x);
        for (uint64_t i = 0; i < t.total; i++) x[i] = (float)(i % 8191) + 0.5f;
        /* A window that begins and ends inside pieces. */
        assert_int_equal(clt_slab_write(s, 1000, x + 1000, t.total - 2000), CLT_OK);
        assert_int_equal(clt_slab_read(s, 1000, y + 1000, t.total - 2000), CLT_OK);
        assert_memory_equal(x + 1000, y + 1000, (t.total - 2000) * sizeof *x);
        assert_int_equal(clt_slab_read(s, 0, y, 1001), CLT_OK);
        assert_true(y[999] == 0 && y[1000] == x[1000]);
        uint64_t run;
        clt_ref r = clt_slab_at(s, t.entry[6].offset + 5, &run);
        float one;
        assert_int_equal(clt_ref_read_f32(r, &one, 1), CLT_OK);
        assert_true(one == x[t.entry[6].offset + 5]);
        assert_true(run >= t.entry[6].count - 5);
        assert_int_equal(clt_slab_read(s, t.total - 1, y, 2), CLT_FAIL);
        assert_int_equal(clt_slab_zero(s), CLT_OK);
        assert_int_equal(clt_slab_read(s, 5000, y, 1), CLT_OK);
        assert_true(y[0] == 0);
        clt_slab_destroy(s);
    }
    clt_free(x);
    clt_free(y);
    clt_slab_table_free(&t);
}

/* --- slabs of shards --- */

/* A table of several buckets of 3 ranks. */
static void make_large_table(clt_slab_table *t) {
    add(t, "small.0", 70, 0);
    for (int i = 0; i < 7; i++) {
        add(t, "large", 33 * 16 + 5 * i, 4096);
        add(t, "small", 100, 0);
    }
    clt_slab_table_finish(t);
}

/* Every piece is owned or a hole as the shards say, and the buffers have room for nothing else. */
static void check_shard(const clt_slab *s, const clt_shards *shards, int rank, uint64_t limit) {
    uint64_t bytes = 0;
    assert_int_equal(s->start[0], 0);
    assert_int_equal(s->start[s->n], s->table->total);
    for (int i = 0; i < s->n; i++) {
        const uint64_t first = s->start[i], count = s->start[i + 1] - first;
        assert_true(count > 0);
        assert_int_equal(first % CLT_CHUNK, 0);
        assert_int_equal(clt_shards_has(shards, rank, first, count), s->piece[i] != NULL);
        assert_int_equal(clt_slab_touches(s, first, count), s->piece[i] != NULL);
        assert_ptr_equal(clt_slab_part(s, i).buf, s->piece[i]);
        uint64_t run;
        const clt_ref r = clt_slab_at(s, first + count - 1, &run);
        assert_int_equal(run, 1);
        assert_ptr_equal(r.buf, s->piece[i]);
        assert_int_equal(r.off, s->piece[i] ? s->origin[i] + count - 1 : 0);
        if (i + 1 < s->n) /* across a border */
            assert_int_equal(clt_slab_touches(s, first + count - 1, 2), s->piece[i] || s->piece[i + 1]);
    }
    for (int b = 0; b < s->buffers; b++) {
        assert_true(b == s->buffers - 1 || clt_buffer_bytes(s->buffer[b]) == limit * s->element_bytes);
        bytes += clt_buffer_bytes(s->buffer[b]);
    }
    assert_int_equal(bytes, clt_shards_owned(shards, rank) * s->element_bytes);
}

/* Writes the whole slab, and reads back what is here: each place has its own element. */
static void check_contents(const clt_slab *s, const float *x, float *y) {
    const uint64_t total = s->table->total;
    assert_int_equal(clt_slab_write(s, 0, x, total), CLT_OK);
    for (int i = 0; i < s->n; i++) {
        const uint64_t first = s->start[i], count = s->start[i + 1] - first;
        clt_error_quiet(!s->piece[i]);
        assert_int_equal(clt_slab_read(s, first, y, count), s->piece[i] ? CLT_OK : CLT_FAIL);
        clt_error_quiet(false);
        if (s->piece[i]) assert_memory_equal(y, x + first, count * sizeof *x);
    }
}

static void check_zero(const clt_slab *s, float *y) {
    assert_int_equal(clt_slab_zero(s), CLT_OK);
    for (int i = 0; i < s->n; i++)
        if (s->piece[i]) {
            assert_int_equal(clt_slab_read(s, s->start[i + 1] - 1, y, 1), CLT_OK);
            assert_true(y[0] == 0);
        }
}

enum { RANKS = 3 };

/* The first `resident` elements of the slab's ranges are on the device, the others are not. */
static void check_resident(const clt_slab *s, uint64_t resident) {
    uint64_t before = 0;
    for (int i = 0; i < s->n; i++) {
        if (!s->piece[i]) continue;
        assert_int_equal(clt_buffer_is_on_device(s->piece[i]), before < resident);
        before += s->start[i + 1] - s->start[i];
        assert_true(clt_buffer_is_on_device(s->piece[i]) ? before <= resident : before > resident);
    }
    assert_true(before >= resident);
}

/* The slabs of one rank, in buffers of `limit` elements. */
static void check_rank(const clt_slab_table *t, const clt_shards *shards, int rank, uint64_t limit,
                       const float *x, float *y) {
    clt_slab *s, *half, *narrow, *pinned, *mixed;
    clt_slab_range *own = clt_calloc((size_t)shards->buckets, sizeof *own);
    for (int b = 0; b < shards->buckets; b++) own[b] = clt_shards_range(shards, b, rank);
    assert_int_equal(clt_slab_create_shard(dev, t, shards, rank, 4, "shard", &s), CLT_OK);
    assert_int_equal(clt_slab_create_shard(dev, t, shards, rank, 2, "half", &half), CLT_OK);
    assert_int_equal(clt_slab_create_narrow(dev, s, "narrow", &narrow), CLT_OK);
    assert_int_equal(clt_slab_create_pinned(dev, t, own, shards->buckets, 0, 4, "pinned", &pinned), CLT_OK);
    const uint64_t owned = clt_shards_owned(shards, rank), resident = owned / 2 / CLT_CHUNK * CLT_CHUNK;
    assert_int_equal(clt_slab_create_pinned(dev, t, own, shards->buckets, resident, 4, "mixed", &mixed),
                     CLT_OK);
    check_resident(mixed, resident);
    assert_int_equal(s->buffers, CLT_CEIL_DIV(clt_shards_owned(shards, rank), limit));
    const clt_slab *all[] = {s, half, narrow, pinned};
    for (size_t k = 0; k < CLT_COUNT_OF(all); k++) {
        check_shard(all[k], shards, rank, limit);
        assert_int_equal(all[k]->n, s->n);
        assert_memory_equal(all[k]->start, s->start, ((size_t)s->n + 1) * sizeof *s->start);
        assert_memory_equal(all[k]->origin, s->origin, (size_t)s->n * sizeof *s->origin);
    }
    check_contents(s, x, y);
    check_zero(s, y);
    check_contents(mixed, x, y);
    check_zero(mixed, y);
    check_contents(pinned, x, y);
    check_zero(pinned, y);
    clt_free(own);
    clt_slab_destroy(mixed);
    clt_slab_destroy(pinned);
    clt_slab_destroy(narrow);
    clt_slab_destroy(half);
    clt_slab_destroy(s);
}

/* Each tensor of a slab of ranges lies in one buffer, of at most `limit` elements unless one tensor and the
 * small ones behind it are larger. */
static void check_tensors(const clt_slab *s, const bool *has, uint64_t limit) {
    const clt_slab_table *t = s->table;
    for (int i = 0; i < t->n; i++) {
        uint64_t run;
        const clt_ref at = clt_slab_at(s, t->entry[i].offset, &run);
        assert_true(has[i] == (at.buf != NULL));
        assert_true(run >= t->entry[i].count);
    }
    for (int p = 0; p < s->n; p++) {
        int inside = 0; /* places where the piece could have been cut */
        for (int i = 0; i < t->n; i++) {
            const uint64_t border = t->entry[i].offset;
            inside += border > s->start[p] && border < s->start[p + 1] && border % CLT_CHUNK == 0;
        }
        assert_true(!s->piece[p] || !inside || s->start[p + 1] - s->start[p] <= limit);
    }
}

/* Fills has[] and range[], and returns the number of ranges. Case 0: all tensors as one range; 1: each as its
 * own; 2: without every third one. */
static int choose_tensors(const clt_slab_table *t, int which, bool *has, clt_slab_range *range) {
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const uint64_t first = t->entry[i].offset, end = i + 1 < t->n ? t->entry[i + 1].offset : t->total;
        has[i] = which < 2 || i % 3;
        if (has[i]) range[n++] = (clt_slab_range){first, end - first};
    }
    if (which > 0) return n;
    range[0].count = t->total;
    return 1;
}

static void tensors_of_a_slab(void **state) {
    (void)state;
    clt_device_facts *facts = (clt_device_facts *)clt_device_get_facts(dev);
    const uint64_t max_alloc = facts->max_alloc, limit = 50 * (uint64_t)CLT_CHUNK;
    clt_slab_table t = {0};
    clt_slab *s;
    make_large_table(&t);
    assert_true(3 * limit < t.total);
    bool *has = clt_calloc((size_t)t.n, sizeof *has);
    clt_slab_range *range = clt_calloc((size_t)t.n, sizeof *range);
    float *x = clt_malloc(t.total * sizeof *x), *y = clt_malloc(t.total * sizeof *y);
    for (uint64_t i = 0; i < t.total; i++) x[i] = (float)(i % 16777213);
    for (int which = 0; which < 3; which++) {
        const int n = choose_tensors(&t, which, has, range);
        facts->max_alloc = limit * 4;
        assert_int_equal(clt_slab_create_ranges(dev, &t, range, n, 4, "tensors", &s), CLT_OK);
        check_tensors(s, has, limit);
        check_contents(s, x, y);
        clt_slab_destroy(s);
        facts->max_alloc = CLT_CHUNK; /* bytes: less than a large tensor */
        clt_error_quiet(true);
        assert_int_equal(clt_slab_create_ranges(dev, &t, range, n, 4, "tensors", &s), CLT_NO_MEMORY);
        clt_error_quiet(false);
        facts->max_alloc = max_alloc;
    }
    clt_free(y);
    clt_free(x);
    clt_free(range);
    clt_free(has);
    clt_slab_table_free(&t);
}

static void shards_of_a_slab(void **state) {
    (void)state;
    clt_device_facts *facts = (clt_device_facts *)clt_device_get_facts(dev);
    const uint64_t max_alloc = facts->max_alloc, small = 50 * (uint64_t)CLT_CHUNK;
    clt_slab_table t = {0};
    clt_shards shards;
    make_large_table(&t);
    float *x = clt_malloc(t.total * sizeof *x), *y = clt_malloc(t.total * sizeof *y);
    for (uint64_t i = 0; i < t.total; i++) x[i] = (float)(i % 16777213);
    assert_int_equal(clt_shards_create(&t, RANKS, (double[]){1, 0, 2}, &shards), CLT_OK);
    assert_true(shards.buckets > 2);
    for (int rank = 0; rank < RANKS; rank++) {
        check_rank(&t, &shards, rank, CLT_MIN((uint64_t)1 << 30, max_alloc) / 4, x, y);
        /* A device with small buffers: ranges are cut. */
        facts->max_alloc = small * 4;
        check_rank(&t, &shards, rank, small, x, y);
        facts->max_alloc = max_alloc;
    }
    clt_slab_table other = {0};
    clt_slab *s;
    make_table(&other);
    clt_error_quiet(true);
    assert_int_equal(clt_slab_create_shard(dev, &other, &shards, 0, 4, "other", &s), CLT_FAIL);
    clt_error_quiet(false);
    clt_slab_table_free(&other);
    clt_shards_free(&shards);
    clt_free(y);
    clt_free(x);
    clt_slab_table_free(&t);
}

/* The caller's memory is the slab: what is in it stays, what is written to the slab is in it. */
static void slab_in_host_memory(void **state) {
    (void)state;
    clt_slab_table t = {0};
    clt_slab *s, *like;
    make_table(&t);
    float *host = aligned_alloc(4096, t.total * sizeof *host), one;
    assert_non_null(host);
    for (uint64_t i = 0; i < t.total; i++) host[i] = (float)i;
    assert_int_equal(clt_slab_create_in(dev, &t, host, 4, "mine", &s), CLT_OK);
    assert_int_equal(clt_slab_create(dev, &t, 0, "like", &like), CLT_OK);
    assert_int_equal(s->n, like->n);
    assert_memory_equal(s->start, like->start, ((size_t)s->n + 1) * sizeof *s->start);
    assert_int_equal(clt_slab_read(s, 589824, &one, 1), CLT_OK);
    assert_true(one == 589824);
    assert_int_equal(clt_slab_write(s, 77, &(float){-1}, 1), CLT_OK);
    assert_int_equal(clt_slab_read(s, 77, &one, 1), CLT_OK);
    assert_true(one == -1);
    clt_slab_destroy(like);
    clt_slab_destroy(s);
    free(host);
    clt_slab_table_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(table_layout), cmocka_unit_test(pieces_and_access),
                                       cmocka_unit_test(shards_of_a_slab),
                                       cmocka_unit_test(tensors_of_a_slab),
                                       cmocka_unit_test(slab_in_host_memory)};
    return cmocka_run_group_tests_name("slab", tests, open_device, close_device);
}
