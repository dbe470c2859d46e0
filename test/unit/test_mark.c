/* Queues beside the compute queue, marks in them, and work while the host waits. */
#include "runtime/device/clt_mark.h"

#include <string.h>
#include <time.h>

#include "runtime/device/clt_device_test.h"
#include "test/device_util.h"
#include "test/test_util.h"

enum { WORDS = 1 << 16, BYTES = WORDS * 4 };

static clt_device *open_with(const char *queues) {
    clt_device *dev;
    setenv("CLTRAIN_QUEUES", queues, 1);
    clt_device_params p = clt_device_params_default();
    tu_assert_ok(clt_device_open(&p, &dev), "device");
    return dev;
}

static clt_buffer *buffer(clt_device *dev, uint32_t word) {
    clt_buffer *b;
    tu_assert_ok(clt_buffer_create(dev, BYTES, "words", &b), "buffer");
    tu_assert_ok(clt_buffer_fill32(b, 0, word, BYTES), "fill");
    return b;
}

/* With the compute queue stopped, work of another queue that does not wait for it goes on, and work that
 * waits for a mark in it does not. */
static void queues_run_beside_each_other(void **state) {
    (void)state;
    clt_device *dev = open_with("3");
    clt_mark *made, *free_one, *bound;
    bool there = false;
    clt_buffer *a = buffer(dev, 1), *b = buffer(dev, 2), *c = buffer(dev, 3);
    uint32_t word = 0;
    assert_false(clt_device_shares_host(dev));
    tu_assert_ok(clt_device_finish(dev), "finish");
    tu_assert_ok(clt_device_gate(dev, true), "gate");
    tu_assert_ok(clt_buffer_fill32(a, 0, 7, BYTES), "fill");
    tu_assert_ok(clt_device_mark(dev, &made), "mark");

    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_OUT), "use");
    tu_assert_ok(clt_buffer_fill32(b, 0, 8, BYTES), "fill");
    tu_assert_ok(clt_device_mark(dev, &free_one), "mark");
    tu_assert_ok(clt_mark_wait(dev, free_one), "wait");
    tu_assert_ok(clt_mark_reached(free_one, &there), "reached");
    assert_true(there);

    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_IN), "use");
    tu_assert_ok(clt_device_after(dev, made), "after");
    tu_assert_ok(clt_buffer_copy(c, 0, a, 0, BYTES), "copy");
    tu_assert_ok(clt_device_mark(dev, &bound), "mark");
    clt_sleep(0.05);
    tu_assert_ok(clt_mark_reached(bound, &there), "reached");
    assert_false(there);
    tu_assert_ok(clt_mark_reached(made, &there), "reached");
    assert_false(there);

    tu_assert_ok(clt_device_gate(dev, false), "gate");
    tu_assert_ok(clt_mark_wait(dev, bound), "wait");
    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_COMPUTE), "use");
    tu_assert_ok(clt_buffer_read(c, BYTES - 4, &word, 4), "read");
    assert_int_equal(word, 7);
    clt_mark_release(made);
    clt_mark_release(free_one);
    clt_mark_release(bound);
    clt_buffer_destroy(a);
    clt_buffer_destroy(b);
    clt_buffer_destroy(c);
    clt_device_close(dev);
}

/* --- pinned memory --- */

static void assert_words(clt_buffer *b, uint32_t word) {
    uint32_t got[WORDS];
    tu_assert_ok(clt_buffer_read(b, 0, got, BYTES), "read");
    for (int i = 0; i < WORDS; i++) assert_int_equal(got[i], word);
}

/* Copies from and to it are queued; the host's accesses wait for them. */
static void pinned_memory_is_read_behind_copies(void **state) {
    (void)state;
    clt_device *dev = open_with("3");
    clt_device_counters counters;
    clt_buffer *a = buffer(dev, 1), *pinned;
    void *host;
    clt_device_get_counters(dev, &counters);
    const uint64_t before = counters.bytes;
    tu_assert_ok(clt_buffer_create_pinned(dev, BYTES, "pinned", &pinned), "pinned");
    clt_device_get_counters(dev, &counters);
    assert_int_equal(counters.bytes, before);
    assert_int_equal(counters.pinned_bytes, BYTES);
    tu_assert_ok(clt_buffer_host(pinned, &host), "host");
    tu_assert_ok(clt_buffer_fill32(pinned, 0, 5, BYTES), "fill");
    tu_assert_ok(clt_buffer_fetch(a, 0, host, BYTES), "fetch");
    tu_assert_ok(clt_buffer_fill32(pinned, 0, 6, BYTES), "fill behind the copy");
    assert_words(a, 5);
    assert_words(pinned, 6);
    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_OUT), "use");
    tu_assert_ok(clt_buffer_send(a, 0, host, BYTES), "send");
    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_COMPUTE), "use");
    assert_words(pinned, 5);
    clt_buffer_destroy(pinned);
    clt_device_get_counters(dev, &counters);
    assert_int_equal(counters.pinned_bytes, 0);
    clt_buffer_destroy(a);
    clt_device_close(dev);
}

/* The driver has mapped it: what the device itself would do with it is undefined in OpenCL. */
static void the_device_refuses_pinned_memory(void **state) {
    (void)state;
    static const char text[] = "__kernel void k(__global uint *x) { x[0] = 1; }";
    clt_device *dev = open_with("3");
    clt_buffer *a = buffer(dev, 1), *pinned;
    clt_kernel *k;
    clt_later later;
    uint32_t word = 0;
    void *p;
    tu_assert_ok(clt_buffer_create_pinned(dev, BYTES, "pinned", &pinned), "pinned");
    tu_assert_ok(clt_kernel_from_text(dev, "test", text, "k", "", &k), "kernel");
    clt_error_quiet(true);
    assert_int_equal(clt_launch(k, 1, (size_t[]){1}, NULL, (clt_arg[]){CLT_BUF(pinned)}, 1), CLT_FAIL);
    assert_int_equal(clt_buffer_copy(a, 0, pinned, 0, BYTES), CLT_FAIL);
    assert_int_equal(clt_buffer_copy(pinned, 0, a, 0, BYTES), CLT_FAIL);
    assert_int_equal(clt_buffer_send(pinned, 0, &word, 4), CLT_FAIL);
    assert_int_equal(clt_buffer_fetch(pinned, 0, &word, 4), CLT_FAIL);
    assert_int_equal(clt_buffer_map(pinned, true, 0, 4, &p), CLT_FAIL);
    assert_int_equal(clt_buffer_read_begin(pinned, 0, 4, &later), CLT_FAIL);
    clt_error_quiet(false);
    clt_buffer_destroy(pinned);
    clt_buffer_destroy(a);
    clt_device_close(dev);
}

/* A read that is looked at late says when it was complete. */
static void a_read_knows_its_time(void **state) {
    (void)state;
    static const struct timespec late = {.tv_nsec = 200000000};
    clt_device *dev = open_with("3");
    clt_buffer *a = buffer(dev, 7);
    uint32_t word = 0;
    clt_later later;
    const double before = clt_now();
    tu_assert_ok(clt_buffer_read_begin(a, 0, 4, &later), "read_begin");
    tu_assert_ok(clt_device_finish(dev), "finish");
    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_COMPUTE), "use");
    nanosleep(&late, NULL);
    const double looked = clt_now();
    tu_assert_ok(clt_buffer_read_end(&later, &word), "read_end");
    assert_int_equal(word, 7);
    assert_true(later.done >= before && later.done < looked - 0.1);
    clt_buffer_destroy(a);
    clt_device_close(dev);
}

/* --- one queue --- */

/* A device that shares the host's memory has one queue, and kernels write to wrapped memory in place. */
static void one_queue_serves_for_all(void **state) {
    (void)state;
    clt_device *dev = open_with("1");
    clt_mark *m;
    clt_buffer *window, *a = buffer(dev, 5);
    if (!clt_device_shares_host(dev)) {
        clt_buffer_destroy(a);
        clt_device_close(dev);
        print_message("the device has memory of its own\n");
        skip();
    }
    char *memory = clt_aligned_alloc(BYTES + 4096);
    uint32_t *host = (uint32_t *)CLT_ROUND_UP((uintptr_t)memory, (uintptr_t)4096);
    memset(host, 0, BYTES);
    tu_assert_ok(clt_buffer_wrap(dev, host, BYTES, "window", &window), "wrap");
    tu_assert_ok(clt_device_use(dev, CLT_QUEUE_OUT), "use");
    tu_assert_ok(clt_buffer_copy(window, 0, a, 0, BYTES), "copy");
    tu_assert_ok(clt_device_mark(dev, &m), "mark");
    tu_assert_ok(clt_mark_wait(dev, m), "wait");
    for (int i = 0; i < WORDS; i++) assert_int_equal(host[i], 5);
    clt_mark_release(m);
    clt_buffer_destroy(window);
    clt_buffer_destroy(a);
    clt_device_close(dev);
    clt_free(memory);
}

/* What the device is known to have done needs no mark; anything that is queued after it does. */
static void marks_of_an_idle_queue(void **state) {
    (void)state;
    clt_device *dev = open_with("1");
    clt_mark *m;
    bool there = false;
    clt_buffer *a = buffer(dev, 5);
    tu_assert_ok(clt_device_finish(dev), "finish");
    if (!clt_device_shares_host(dev)) {
        clt_buffer_destroy(a);
        clt_device_close(dev);
        print_message("the device has memory of its own\n");
        skip();
    }
    tu_assert_ok(clt_device_mark(dev, &m), "mark");
    assert_null(m);
    tu_assert_ok(clt_mark_reached(m, &there), "reached");
    assert_true(there);
    tu_assert_ok(clt_mark_wait(dev, m), "wait");

    tu_assert_ok(clt_device_gate(dev, true), "gate");
    tu_assert_ok(clt_device_mark(dev, &m), "mark");
    assert_non_null(m);
    tu_assert_ok(clt_buffer_fill32(a, 0, 6, BYTES), "fill");
    clt_sleep(0.05);
    tu_assert_ok(clt_mark_reached(m, &there), "reached");
    assert_false(there);
    tu_assert_ok(clt_device_gate(dev, false), "gate");
    tu_assert_ok(clt_mark_wait(dev, m), "wait");
    tu_assert_ok(clt_mark_reached(m, &there), "reached");
    assert_true(there);
    clt_mark_release(m);

    /* The fill is behind that mark. */
    tu_assert_ok(clt_device_mark(dev, &m), "mark");
    assert_non_null(m);
    tu_assert_ok(clt_mark_wait(dev, m), "wait");
    clt_mark_release(m);
    clt_buffer_destroy(a);
    clt_device_close(dev);
}

/* Host and device see each other's words without a copy, at any place of the buffer. */
static void host_works_in_buffers(void **state) {
    (void)state;
    clt_device *dev = open_with("1");
    clt_buffer *a = buffer(dev, 5);
    bool in_place = false;
    void *host = NULL;
    uint32_t word = 0;
    tu_assert_ok(clt_device_works_in_place(dev, &in_place), "works in place");
    if (in_place) {
        tu_assert_ok(clt_device_finish(dev), "finish");
        tu_assert_ok(clt_buffer_host(a, &host), "host");
        for (int i = 0; i < WORDS; i++) assert_int_equal(((uint32_t *)host)[i], 5);
        ((uint32_t *)host)[WORDS - 1] = 7;
        tu_assert_ok(clt_buffer_read(a, BYTES - 4, &word, 4), "read");
        assert_int_equal(word, 7);
    }
    clt_buffer_destroy(a);
    clt_device_close(dev);
    dev = open_with("3");
    tu_assert_ok(clt_device_works_in_place(dev, &in_place), "works in place");
    assert_false(in_place);
    clt_device_close(dev);
}

typedef struct {
    clt_device *dev;
    int calls;
} idle_work;

static void work(void *ctx) {
    idle_work *w = ctx;
    w->calls++;
    clt_device_use(w->dev, CLT_QUEUE_IN); /* restored after the call */
    if (w->calls == 3) clt_device_gate(w->dev, false);
}

static void waits_do_other_work(void **state) {
    (void)state;
    clt_device *dev = open_with("3");
    idle_work w = {.dev = dev};
    uint32_t word = 0;
    clt_buffer *a = buffer(dev, 5);
    tu_assert_ok(clt_device_finish(dev), "finish");
    clt_device_set_idle(dev, work, &w);
    tu_assert_ok(clt_device_gate(dev, true), "gate");
    tu_assert_ok(clt_buffer_fill32(a, 0, 6, BYTES), "fill");
    tu_assert_ok(clt_buffer_read(a, 0, &word, 4),
                 "read"); /* in the compute queue, which work() opens again */
    assert_int_equal(word, 6);
    assert_true(w.calls >= 3);
    clt_device_set_idle(dev, NULL, NULL);
    clt_buffer_destroy(a);
    clt_device_close(dev);
}

enum { WRITES = 9 }; /* one more than there are staging blocks */

typedef struct {
    clt_device *dev;
    clt_buffer *other;
    uint32_t *words;
    int calls;
} writing;

/* Opens the compute queue, and writes at once, before the device can have read what waits there. */
static void write_meanwhile(void *ctx) {
    writing *w = ctx;
    if (w->calls++) return;
    clt_device_gate(w->dev, false);
    tu_assert_ok(clt_buffer_write(w->other, 0, w->words, BYTES), "write");
}

static void check_words(clt_buffer *b, uint32_t word, uint32_t *got) {
    tu_assert_ok(clt_buffer_read(b, 0, got, BYTES), "read");
    for (int k = 0; k < WORDS; k++) assert_int_equal(got[k], word);
    clt_buffer_destroy(b);
}

/* A write waits for a staging block, and what runs in that time writes, too: no write changes another. */
static void writes_while_a_write_waits(void **state) {
    (void)state;
    clt_device *dev = open_with("3");
    clt_buffer *to[WRITES];
    uint32_t *words = clt_malloc(BYTES), *other = clt_malloc(BYTES);
    writing w = {.dev = dev, .other = buffer(dev, 1), .words = other};
    for (int k = 0; k < WORDS; k++) other[k] = 99;
    for (int i = 0; i < WRITES; i++) to[i] = buffer(dev, 2);
    tu_assert_ok(clt_device_finish(dev), "finish");
    clt_device_set_idle(dev, write_meanwhile, &w);
    tu_assert_ok(clt_device_gate(dev, true), "gate");
    for (uint32_t i = 0; i < WRITES; i++) {
        for (int k = 0; k < WORDS; k++) words[k] = 10 + i;
        tu_assert_ok(clt_buffer_write(to[i], 0, words, BYTES), "write");
    }
    assert_true(w.calls >= 1);
    clt_device_set_idle(dev, NULL, NULL);
    for (uint32_t i = 0; i < WRITES; i++) check_words(to[i], 10 + i, words);
    check_words(w.other, 99, words);
    clt_free(words);
    clt_free(other);
    clt_device_close(dev);
}

static void count(void *ctx) {
    ++*(int *)ctx;
}

static void idle_can_be_paused(void **state) {
    (void)state;
    clt_device *dev = open_with("3");
    int calls = 0;
    uint32_t word;
    clt_buffer *a = buffer(dev, 5);
    tu_assert_ok(clt_device_finish(dev), "finish");
    clt_device_set_idle(dev, count, &calls);
    assert_false(clt_device_pause_idle(dev, true));
    assert_true(clt_device_pause_idle(dev, true));
    for (int i = 0; i < 100; i++) tu_assert_ok(clt_buffer_read(a, 0, &word, 4), "read");
    assert_int_equal(calls, 0);
    clt_device_pause_idle(dev, false);
    for (int i = 0; i < 10000 && !calls; i++) tu_assert_ok(clt_buffer_read(a, 0, &word, 4), "read");
    assert_true(calls > 0);
    clt_device_set_idle(dev, NULL, NULL);
    clt_buffer_destroy(a);
    clt_device_close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_read_knows_its_time),
        cmocka_unit_test(pinned_memory_is_read_behind_copies),
        cmocka_unit_test(the_device_refuses_pinned_memory),
        cmocka_unit_test(queues_run_beside_each_other),
        cmocka_unit_test(one_queue_serves_for_all),
        cmocka_unit_test(marks_of_an_idle_queue),
        cmocka_unit_test(host_works_in_buffers),
        cmocka_unit_test(waits_do_other_work),
        cmocka_unit_test(writes_while_a_write_waits),
        cmocka_unit_test(idle_can_be_paused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
