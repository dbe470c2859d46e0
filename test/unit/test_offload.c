/* State that passes through the device, stretch by stretch (clt_engine_offload.h), from the host's memory and
 * from files, with three queues. The oracle: the same arithmetic on arrays. Small integers, so that every sum
 * is exact. */
#include <stdlib.h>
#include <unistd.h>

#include "runtime/device/clt_device_test.h"
#include "runtime/device/clt_mark.h"
#include "runtime/train/engine/clt_engine_offload.h"
#include "runtime/train/engine/clt_plan_memory.h"
#include "test/test_util.h"

/* More stretches than places, the last one short. */
enum { STRETCH = CLT_PLAN_OFFLOAD_CHUNKS * CLT_CHUNK, TOTAL = 4 * STRETCH + 2 * CLT_CHUNK };
enum { WEIGHTS = 1 << CLT_STATE_WEIGHTS, SECOND = 1 << CLT_STATE_SECOND };

/* The first moments are not offloaded. */
typedef struct {
    clt_device *dev;
    clt_slab_table table;
    uint64_t resident; /* elements that stay on the device */
    clt_slab *weights, *second;
    clt_offload_ring *ring;
    clt_scratch *file; /* NULL: the slabs are pinned */
    char folder[32];
    clt_kernel *advance;
    float *w, *s; /* what the slabs should hold */
} rig;

static void open_slab(rig *r, const char *name, clt_slab **out) {
    const clt_slab_range all = {0, TOTAL};
    tu_assert_ok(r->file
                     ? clt_slab_create_in_file(r->dev, &r->table, &all, 1, r->resident, 4, r->file, name, out)
                     : clt_slab_create_pinned(r->dev, &r->table, &all, 1, r->resident, 4, name, out),
                 name);
}

static void open_rig(rig *r) {
    static const char text[] =
        "__kernel void advance(__global float *w, ulong w_off, __global float *s, ulong s_off) {\n"
        "    size_t i = get_global_id(0);\n"
        "    s[s_off + i] -= w[w_off + i];\n"
        "    w[w_off + i] = 2.0f * w[w_off + i] + 1.0f;\n"
        "}\n";
    setenv("CLTRAIN_QUEUES", "3", 1);
    const clt_device_params p = clt_device_params_default();
    tu_assert_ok(clt_device_open(&p, &r->dev), "device");
    clt_slab_table_add(&r->table, "x", 1, (int64_t[]){TOTAL});
    clt_slab_table_finish(&r->table);
    open_slab(r, "weights", &r->weights);
    open_slab(r, "second", &r->second);
    clt_slab *const slab[CLT_STATES] = {[CLT_STATE_WEIGHTS] = r->weights, [CLT_STATE_SECOND] = r->second};
    tu_assert_ok(clt_offload_create(r->dev, slab, TOTAL - r->resident, r->file, &r->ring), "ring");
    tu_assert_ok(clt_kernel_from_text(r->dev, "advance", text, "advance", "", &r->advance), "kernel");
    r->w = clt_malloc(TOTAL * sizeof *r->w);
    r->s = clt_malloc(TOTAL * sizeof *r->s);
    for (uint64_t i = 0; i < TOTAL; i++) r->w[i] = (float)(i % 1021), r->s[i] = (float)(i % 509);
    tu_assert_ok(clt_slab_write(r->weights, 0, r->w, TOTAL), "weights");
    tu_assert_ok(clt_slab_write(r->second, 0, r->s, TOTAL), "second");
}

static void close_rig(rig *r) {
    clt_offload_destroy(r->ring);
    clt_slab_destroy(r->weights);
    clt_slab_destroy(r->second);
    clt_scratch_close(r->file);
    clt_slab_table_free(&r->table);
    clt_device_close(r->dev);
    clt_free(r->w);
    clt_free(r->s);
}

/* One stretch of a pass, and the same on the arrays; `changed` goes back. */
static void take(rig *r, clt_slab_range x, unsigned changed) {
    tu_assert_ok(clt_offload_bring(r->ring, CLT_STATE_ALL, x), "bring");
    const clt_ref w = clt_offload_at(r->ring, CLT_STATE_WEIGHTS, r->weights, x.first),
                  s = clt_offload_at(r->ring, CLT_STATE_SECOND, r->second, x.first);
    tu_assert_ok(clt_launch(r->advance, 1, (size_t[]){x.count}, NULL, (clt_arg[]){CLT_REF(w), CLT_REF(s)}, 4),
                 "step");
    tu_assert_ok(clt_offload_leave(r->ring, changed, x), "leave");
    for (uint64_t i = x.first; i < x.first + x.count; i++) {
        if (changed & SECOND) r->s[i] -= r->w[i];
        if (changed & WEIGHTS) r->w[i] = 2.0f * r->w[i] + 1.0f;
    }
}

static clt_slab_range stretch(uint64_t i) {
    return (clt_slab_range){i * STRETCH, CLT_MIN((uint64_t)STRETCH, TOTAL - i * STRETCH)};
}

/* The stretches from number *i on. */
static bool next_stretch(void *i, clt_slab_range *x) {
    uint64_t *at = i;
    if (*at * STRETCH >= TOTAL) return false;
    *x = stretch((*at)++);
    return true;
}

static void pass(rig *r, unsigned changed) {
    uint64_t ahead = 0;
    tu_assert_ok(clt_offload_begin(r->ring, CLT_STATE_ALL, next_stretch, &ahead), "begin");
    for (uint64_t i = 0; i * STRETCH < TOTAL; i++) take(r, stretch(i), changed);
    tu_assert_ok(clt_offload_end(r->ring), "end");
}

static void assert_slab(const clt_slab *s, const float *want) {
    float *got = clt_malloc(TOTAL * sizeof *got);
    tu_assert_ok(clt_slab_read(s, 0, got, TOTAL), "read");
    for (uint64_t i = 0; i < TOTAL; i++)
        if (got[i] != want[i])
            fail_msg("element %llu is %g, not %g", (unsigned long long)i, (double)got[i], (double)want[i]);
    clt_free(got);
}

/* Closes or opens a queue. */
static void gate(rig *r, clt_queue queue, bool closed) {
    tu_assert_ok(clt_device_use(r->dev, queue), "use");
    tu_assert_ok(clt_device_gate(r->dev, closed), "gate");
    tu_assert_ok(clt_device_use(r->dev, CLT_QUEUE_COMPUTE), "use");
}

/* Kernels that start late: nothing leaves before them, and nothing comes into the place that they work on. */
static void stretches_wait_for_kernels(void **state) {
    (void)state;
    rig r = {0};
    open_rig(&r);
    assert_int_equal(clt_offload_most(r.ring, CLT_STATE_ALL), STRETCH);
    assert_true(clt_offload_most(r.ring, 1 << CLT_STATE_FIRST) == UINT64_MAX);
    gate(&r, CLT_QUEUE_COMPUTE, true);
    pass(&r, CLT_STATE_ALL);
    pass(&r, CLT_STATE_ALL);
    clt_sleep(0.1);
    gate(&r, CLT_QUEUE_COMPUTE, false);
    assert_slab(r.weights, r.w);
    assert_slab(r.second, r.s);
    close_rig(&r);
}

/* Kernels wait for what comes in late. */
static void kernels_wait_for_stretches(void **state) {
    (void)state;
    rig r = {0};
    open_rig(&r);
    tu_assert_ok(clt_device_use(r.dev, CLT_QUEUE_IN), "use"); /* the queue exists */
    gate(&r, CLT_QUEUE_IN, true);
    pass(&r, CLT_STATE_ALL);
    clt_sleep(0.1);
    gate(&r, CLT_QUEUE_IN, false);
    assert_slab(r.weights, r.w);
    assert_slab(r.second, r.s);
    close_rig(&r);
}

/* A pass may take stretches in another order: what the pass before it sends late comes in updated. */
static void passes_wait_for_each_other(void **state) {
    (void)state;
    rig r = {0};
    open_rig(&r);
    tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, NULL, NULL), "begin");
    take(&r, stretch(0), CLT_STATE_ALL);
    gate(&r, CLT_QUEUE_OUT, true);
    take(&r, stretch(1), CLT_STATE_ALL);
    tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, NULL, NULL), "begin");
    take(&r, stretch(1), CLT_STATE_ALL);
    clt_sleep(0.1);
    gate(&r, CLT_QUEUE_OUT, false);
    assert_slab(r.weights, r.w);
    assert_slab(r.second, r.s);
    close_rig(&r);
}

/* The first stretches are on the device: they are used where they are, in one piece, and nothing of them
 * moves.
 */
static void resident_stretches_stay(void **state) {
    (void)state;
    rig r = {.resident = 2 * STRETCH + CLT_CHUNK};
    open_rig(&r);
    const clt_offload_traffic before = clt_offload_count(r.ring);
    gate(&r, CLT_QUEUE_COMPUTE, true);
    for (int turn = 0; turn < 2; turn++) {
        tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, NULL, NULL), "begin");
        take(&r, (clt_slab_range){0, r.resident}, CLT_STATE_ALL);
        for (uint64_t at = r.resident, n; at < TOTAL; at += n) {
            n = CLT_MIN((uint64_t)STRETCH, TOTAL - at);
            take(&r, (clt_slab_range){at, n}, CLT_STATE_ALL);
        }
        tu_assert_ok(clt_offload_end(r.ring), "end");
    }
    clt_sleep(0.1);
    gate(&r, CLT_QUEUE_COMPUTE, false);
    const clt_offload_traffic t = clt_offload_count(r.ring);
    const uint64_t bytes = 2 * 2 * (TOTAL - r.resident) * sizeof(float); /* two states, two passes */
    assert_true(t.read - before.read == bytes && t.written - before.written == bytes);
    assert_slab(r.weights, r.w);
    assert_slab(r.second, r.s);
    close_rig(&r);
}

/* Passes that are timed have done everything when they end. */
static void timed_passes_end_with_the_device(void **state) {
    (void)state;
    rig r = {0};
    open_rig(&r);
    pass(&r, CLT_STATE_ALL);
    assert_true(clt_offload_count(r.ring).seconds == 0);
    clt_offload_time(r.ring, true);
    pass(&r, CLT_STATE_ALL);
    const uint64_t bytes = 2 * TOTAL * sizeof(float);
    const clt_offload_traffic t = clt_offload_count(r.ring);
    assert_true(t.seconds > 0 && t.read == 2 * bytes && t.written == 2 * bytes);
    void *host;
    tu_assert_ok(clt_buffer_host(r.weights->piece[0], &host), "host");
    assert_memory_equal(host, r.w, STRETCH * sizeof(float));
    close_rig(&r);
}

/* What a pass has only read stays in the host's memory. */
static void unchanged_state_does_not_leave(void **state) {
    (void)state;
    rig r = {0};
    open_rig(&r);
    pass(&r, 0);
    pass(&r, WEIGHTS);
    assert_slab(r.weights, r.w);
    assert_slab(r.second, r.s);
    close_rig(&r);
}

/* --- files --- */

static void open_files(rig *r, uint64_t resident) {
    *r = (rig){.folder = "/var/tmp/clt_offload_XXXXXX", .resident = resident};
    assert_non_null(mkdtemp(r->folder));
    tu_assert_ok(clt_scratch_open(r->folder, "state", &r->file), "file");
    open_rig(r);
}

/* Compares what the files have, and closes them. */
static void close_files(rig *r) {
    assert_slab(r->weights, r->w);
    assert_slab(r->second, r->s);
    close_rig(r);
    assert_int_equal(rmdir(r->folder), 0);
}

/* Slots are used several times, by passes that change all, some or nothing. */
static void state_in_files_passes_through_slots(void **state) {
    (void)state;
    rig r;
    open_files(&r, 0);
    const unsigned changed[] = {CLT_STATE_ALL, WEIGHTS, 0, CLT_STATE_ALL, SECOND};
    for (size_t i = 0; i < CLT_COUNT_OF(changed); i++) pass(&r, changed[i]);
    const clt_offload_traffic t = clt_offload_count(r.ring);
    const uint64_t bytes = TOTAL * sizeof(float);
    assert_true(t.read == 10 * bytes && t.written == 6 * bytes && t.seconds > 0);
    close_files(&r);
}

/* Whole stretches are on the device: the pass says them ahead, too, and files are read for the others. */
static void resident_stretches_are_not_in_files(void **state) {
    (void)state;
    rig r;
    open_files(&r, 2 * STRETCH);
    for (int turn = 0; turn < 3; turn++) pass(&r, CLT_STATE_ALL);
    const uint64_t bytes = 3 * 2 * (TOTAL - r.resident) * sizeof(float);
    const clt_offload_traffic t = clt_offload_count(r.ring);
    assert_true(t.read == bytes && t.written == bytes);
    close_files(&r);
}

/* A pass that ends early, after what it has asked for ahead; one that asks for nothing, in another order; and
 * one that does not do what it has said. */
static void passes_differ_from_what_was_asked_for(void **state) {
    (void)state;
    rig r;
    uint64_t ahead = 0;
    open_files(&r, 0);
    tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, next_stretch, &ahead), "begin");
    take(&r, stretch(0), CLT_STATE_ALL);
    tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, NULL, NULL), "begin");
    const clt_slab_range some = {3 * STRETCH + 77, 1001};
    take(&r, some, 0);
    const uint64_t order[] = {3, 0, 4, 1, 2};
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < CLT_COUNT_OF(order); i++) take(&r, stretch(order[i]), CLT_STATE_ALL);
        tu_assert_ok(clt_offload_end(r.ring), "end");
        tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, NULL, NULL), "begin");
    }
    pass(&r, CLT_STATE_ALL);
    ahead = 0;
    tu_assert_ok(clt_offload_begin(r.ring, CLT_STATE_ALL, next_stretch, &ahead), "begin");
    clt_error_quiet(true);
    assert_int_equal(clt_offload_bring(r.ring, CLT_STATE_ALL, stretch(1)), CLT_FAIL);
    clt_error_quiet(false);
    close_files(&r);
}

static void files_are_no_use_to_kernels(void **state) {
    (void)state;
    rig r;
    uint64_t offset;
    open_files(&r, 0);
    clt_buffer *b = r.weights->piece[0];
    assert_ptr_equal(clt_buffer_file(b, &offset), r.file);
    void *host;
    clt_error_quiet(true);
    assert_int_equal(clt_launch(r.advance, 1, (size_t[]){64}, NULL,
                                (clt_arg[]){CLT_BUF(b), CLT_U64(0), CLT_BUF(b), CLT_U64(0)}, 4),
                     CLT_FAIL);
    assert_int_equal(clt_buffer_host(b, &host), CLT_FAIL);
    assert_int_equal(clt_buffer_copy(b, 0, b, 4096, 64), CLT_FAIL);
    clt_error_quiet(false);
    close_files(&r);
}

/* 16-bit weights, beside state of which a part stays on the device. Places have had other stretches before.
 */
static void narrow_state_passes_beside_wide(void **state) {
    (void)state;
    enum { OLD = 0x1111, KEPT = 1 /* a stretch whose kernels write nothing */ };
    rig r = {.resident = STRETCH};
    open_rig(&r);
    const clt_slab_range all = {0, TOTAL};
    clt_slab *copy;
    clt_offload_ring *ring;
    tu_assert_ok(clt_slab_create_pinned(r.dev, &r.table, &all, 1, 0, 2, "copy", &copy), "copy");
    tu_assert_ok(clt_buffer_fill32(copy->buffer[0], 0, OLD * 0x10001u, TOTAL * 2), "fill");
    clt_slab *const slab[CLT_STATES] = {[CLT_STATE_SECOND] = r.second, [CLT_STATE_COPY] = copy};
    tu_assert_ok(clt_offload_create(r.dev, slab, TOTAL, NULL, &ring), "ring");
    for (int turn = 0; turn < 2; turn++) {
        tu_assert_ok(clt_offload_begin(ring, CLT_STATE_ALL, NULL, NULL), "begin");
        for (uint64_t i = 0; i * STRETCH < TOTAL; i++) {
            const clt_slab_range x = stretch(i);
            tu_assert_ok(clt_offload_bring(ring, CLT_STATE_ALL, x), "bring");
            const clt_ref at = clt_offload_at(ring, CLT_STATE_COPY, copy, x.first),
                          second = clt_offload_at(ring, CLT_STATE_SECOND, r.second, x.first);
            assert_int_equal(second.buf == r.second->piece[0], i == 0); /* it is resident */
            if (i != KEPT)
                tu_assert_ok(clt_buffer_fill32(at.buf, at.off * 2, (uint32_t)i * 0x10001u, x.count * 2),
                             "new");
            tu_assert_ok(clt_offload_leave(ring, CLT_STATE_ALL, x), "leave");
        }
        tu_assert_ok(clt_offload_end(ring), "end");
    }
    uint16_t *got = clt_malloc(TOTAL * sizeof *got);
    tu_assert_ok(clt_buffer_read(copy->buffer[0], 0, got, TOTAL * sizeof *got), "read");
    for (uint64_t i = 0; i < TOTAL; i++)
        if (got[i] != (i / STRETCH == KEPT ? OLD : i / STRETCH))
            fail_msg("element %llu", (unsigned long long)i);
    const clt_offload_traffic t = clt_offload_count(ring);
    assert_true(t.written == t.read && t.read == 2 * (2 * TOTAL + 4 * (TOTAL - (uint64_t)STRETCH)));
    clt_free(got);
    clt_offload_destroy(ring);
    clt_slab_destroy(copy);
    close_rig(&r);
}

static void without_offload_state_stays_where_it_is(void **state) {
    (void)state;
    const clt_slab_range x = {0, CLT_CHUNK};
    clt_slab_table t = {0};
    clt_slab *s;
    clt_slab_table_add(&t, "x", 1, (int64_t[]){CLT_CHUNK});
    clt_slab_table_finish(&t);
    tu_assert_ok(clt_slab_create(tu_device(0), &t, 0, "weights", &s), "slab");
    assert_true(clt_offload_most(NULL, CLT_STATE_ALL) == UINT64_MAX);
    assert_false(clt_offload_has(NULL, CLT_STATE_WEIGHTS));
    tu_assert_ok(clt_offload_begin(NULL, CLT_STATE_ALL, NULL, NULL), "begin");
    tu_assert_ok(clt_offload_bring(NULL, CLT_STATE_ALL, x), "bring");
    const clt_ref at = clt_offload_at(NULL, CLT_STATE_WEIGHTS, s, 77);
    assert_ptr_equal(at.buf, s->piece[0]);
    assert_int_equal(at.off, 77);
    assert_null(clt_offload_at(NULL, CLT_STATE_SECOND, NULL, 0).buf);
    tu_assert_ok(clt_offload_leave(NULL, CLT_STATE_ALL, x), "leave");
    clt_slab_destroy(s);
    clt_slab_table_free(&t);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(without_offload_state_stays_where_it_is),
                                       cmocka_unit_test(stretches_wait_for_kernels),
                                       cmocka_unit_test(kernels_wait_for_stretches),
                                       cmocka_unit_test(passes_wait_for_each_other),
                                       cmocka_unit_test(unchanged_state_does_not_leave),
                                       cmocka_unit_test(resident_stretches_stay),
                                       cmocka_unit_test(narrow_state_passes_beside_wide),
                                       cmocka_unit_test(timed_passes_end_with_the_device),
                                       cmocka_unit_test(resident_stretches_are_not_in_files),
                                       cmocka_unit_test(state_in_files_passes_through_slots),
                                       cmocka_unit_test(passes_differ_from_what_was_asked_for),
                                       cmocka_unit_test(files_are_no_use_to_kernels)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
