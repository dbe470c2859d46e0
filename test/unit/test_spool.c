/* Copies between a device and a file (clt_spool.h), with three queues. The oracle: the same copies between
 * arrays. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/device/clt_device_test.h"
#include "runtime/device/clt_mark.h"
#include "runtime/device/clt_spool.h"
#include "test/device_util.h"
#include "test/test_util.h"

enum { BLOCK = CLT_SCRATCH_BLOCK, SLOT = CLT_SCRATCH_MOST, BYTES = 5 * SLOT + 3 * BLOCK, SLOTS = 2 };

typedef struct {
    clt_device *dev;
    clt_scratch *file;
    clt_spool *spool;
    clt_buffer *buffer; /* on the device, BYTES */
    uint64_t offset;    /* of BYTES in the file */
    char folder[32];
    char *want, *have; /* [BYTES] what the file should have; what was read */
} rig;

static void open_rig(rig *r) {
    setenv("CLTRAIN_QUEUES", "3", 1);
    const clt_device_params p = clt_device_params_default();
    tu_assert_ok(clt_device_open(&p, &r->dev), "device");
    strcpy(r->folder, "/var/tmp/spool-XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    tu_assert_ok(clt_scratch_open(r->folder, "spool", &r->file), "file");
    tu_assert_ok(clt_spool_create(r->dev, r->file, clt_spool_pinned((uint64_t)SLOTS * SLOT), &r->spool),
                 "spool");
    tu_assert_ok(clt_scratch_grow(r->file, BYTES, &r->offset), "room");
    tu_assert_ok(clt_buffer_create(r->dev, BYTES, "bytes", &r->buffer), "buffer");
    r->want = clt_calloc(BYTES, 1);
    r->have = clt_calloc(BYTES, 1);
}

static void close_rig(rig *r) {
    clt_spool_destroy(r->spool);
    clt_buffer_destroy(r->buffer);
    clt_scratch_close(r->file);
    clt_device_close(r->dev);
    rmdir(r->folder);
    clt_free(r->want);
    clt_free(r->have);
    unsetenv("CLTRAIN_QUEUES");
}

static uint64_t draw(uint64_t *seed, uint64_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % n;
}

/* New bytes on the device go to the file, through the queue OUT. */
static void send(rig *r, uint64_t *seed, uint64_t offset, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 8) r->want[offset + i] = (char)draw(seed, 256);
    tu_assert_ok(clt_buffer_write(r->buffer, offset, r->want + offset, bytes), "write");
    tu_assert_ok(clt_device_hand_over(r->dev, CLT_QUEUE_OUT), "out");
    tu_assert_ok(clt_spool_send(r->spool, r->buffer, offset, r->offset + offset, bytes), "send");
    tu_assert_ok(clt_device_hand_over(r->dev, CLT_QUEUE_COMPUTE), "compute");
}

/* Bytes of the file come to the beginning of the device's buffer, through the queue IN. */
static void fetch(rig *r, uint64_t offset, size_t bytes) {
    tu_assert_ok(clt_buffer_fill32(r->buffer, 0, 0, BYTES), "clear");
    tu_assert_ok(clt_device_hand_over(r->dev, CLT_QUEUE_IN), "in");
    tu_assert_ok(clt_spool_fetch(r->spool, r->buffer, 0, r->offset + offset, bytes), "fetch");
    tu_assert_ok(clt_device_hand_over(r->dev, CLT_QUEUE_COMPUTE), "compute");
    tu_assert_ok(clt_buffer_read(r->buffer, 0, r->have, bytes), "read");
    assert_memory_equal(r->have, r->want + offset, bytes);
}

/* More bytes than slots, at once. What comes back has just left. */
static void everything_there_and_back(void **state) {
    (void)state;
    rig r = {0};
    uint64_t seed = 1;
    open_rig(&r);
    fetch(&r, 0, BYTES); /* zeros */
    for (int round = 0; round < 3; round++) {
        send(&r, &seed, 0, BYTES);
        fetch(&r, 0, BYTES);
    }
    close_rig(&r);
}

/* Reads begin and end anywhere, writes at blocks; each reads what was sent last. */
static void pieces_in_any_order(void **state) {
    (void)state;
    rig r = {0};
    uint64_t seed = 2;
    open_rig(&r);
    for (int i = 0; i < 60; i++) {
        const uint64_t first = draw(&seed, BYTES / BLOCK), blocks = 1 + draw(&seed, BYTES / BLOCK - first);
        if (draw(&seed, 2)) {
            send(&r, &seed, first * BLOCK, blocks * BLOCK);
        } else {
            const uint64_t at = first * BLOCK + 4 * draw(&seed, BLOCK / 4),
                           most = (first + blocks) * BLOCK - at;
            fetch(&r, at, 4 + 4 * draw(&seed, most / 4));
        }
    }
    close_rig(&r);
}

/* After a flush the file itself has the bytes; of an incomplete block those that were sent. */
static void a_flush_ends_in_the_file(void **state) {
    (void)state;
    rig r = {0};
    uint64_t seed = 3;
    open_rig(&r);
    const size_t bytes = BYTES - BLOCK + 12;
    send(&r, &seed, 0, bytes);
    tu_assert_ok(clt_spool_flush(r.spool), "flush");
    tu_assert_ok(clt_scratch_read(r.file, r.offset, r.have, bytes), "file");
    assert_memory_equal(r.have, r.want, bytes);
    close_rig(&r);
}

/* A byte that the disk has changed is an error of the copy that needs it, which names the file. */
static void damage_is_found(void **state) {
    (void)state;
    rig r = {0};
    uint64_t seed = 4;
    open_rig(&r);
    send(&r, &seed, 0, BYTES);
    tu_assert_ok(clt_spool_flush(r.spool), "flush");
    tu_assert_ok(clt_scratch_read(r.file, r.offset, r.have, BYTES), "everything is written");
    const int fd = du_scratch_file(r.folder);
    const char byte = (char)(r.want[3 * SLOT + 5] ^ 1);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(r.offset + 3 * SLOT + 5)), 1);
    close(fd);
    fetch(&r, 0, 3 * SLOT);
    tu_assert_ok(clt_device_use(r.dev, CLT_QUEUE_IN), "in");
    clt_error_quiet(true);
    assert_int_equal(clt_spool_fetch(r.spool, r.buffer, 0, r.offset, BYTES), CLT_IO);
    clt_error_quiet(false);
    du_assert_says(r.folder);
    close_rig(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_there_and_back),
        cmocka_unit_test(pieces_in_any_order),
        cmocka_unit_test(a_flush_ends_in_the_file),
        cmocka_unit_test(damage_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
