/* How fast a disk is, measured as an update uses it: several stretches are on their way. */
#include <unistd.h>

#include "runtime/base/clt_scratch.h"

enum { AHEAD = 4, MOST = CLT_SCRATCH_MOST };

typedef struct {
    clt_scratch *s;
    uint64_t offset; /* of the stretches in the file */
    uint64_t stretches;
    double seconds; /* the most of a part */
    clt_scratch_op op[2 * AHEAD];
    char *memory[2 * AHEAD];
} probe;

/* The stretch of the n-th operation of a part, and what it does with it; n counts from 0. */
typedef uint64_t (*planner)(const probe *p, uint64_t n, bool *write);

static uint64_t plan_write(const probe *p, uint64_t n, bool *write) {
    (void)p;
    *write = true;
    return n;
}
static uint64_t plan_read(const probe *p, uint64_t n, bool *write) {
    (void)p;
    *write = false;
    return n;
}
/* Writes the first half and reads the second, in turn. */
static uint64_t plan_both(const probe *p, uint64_t n, bool *write) {
    *write = n % 2;
    return *write ? n / 2 : p->stretches / 2 + n / 2;
}

/* Runs a part with `ahead` operations in progress; *rate: bytes per second; *stretches: how many it moved. */
static clt_status run(probe *p, planner plan, uint64_t ahead, double *rate, uint64_t *stretches) {
    const double start = clt_now();
    clt_status st = CLT_OK;
    uint64_t n = 0;
    for (; n < p->stretches && st == CLT_OK && clt_now() - start < p->seconds; n++) {
        clt_scratch_op *op = &p->op[n % ahead];
        st = clt_scratch_wait(p->s, op);
        op->memory = p->memory[n % ahead];
        op->bytes = MOST;
        op->offset = p->offset + plan(p, n, &op->write) * MOST;
        if (st == CLT_OK) st = clt_scratch_begin(p->s, op);
    }
    for (uint64_t i = 0; i < ahead; i++) {
        const clt_status end = clt_scratch_wait(p->s, &p->op[i]);
        if (st == CLT_OK) st = end;
    }
    *rate = (double)n * MOST / CLT_MAX(clt_now() - start, 1e-9);
    *stretches = n;
    return st;
}

/* Data that no disk compresses. */
static void fill(char *memory, uint64_t seed) {
    for (size_t at = 0; at < MOST; at += sizeof seed) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        *(uint64_t *)(void *)(memory + at) = seed;
    }
}

static clt_status measure(probe *p, char *memory, clt_scratch_rates *out) {
    memory += CLT_SCRATCH_ALIGN - (uintptr_t)memory % CLT_SCRATCH_ALIGN;
    for (int i = 0; i < 2 * AHEAD; i++) {
        p->memory[i] = memory + (size_t)i * MOST;
        fill(p->memory[i], 88172645463325252 + (uint64_t)i);
    }
    CLT_TRY(clt_scratch_grow(p->s, p->stretches * MOST, &p->offset));
    uint64_t written, read;
    CLT_TRY(run(p, plan_write, AHEAD, &out->write, &written));
    p->stretches = CLT_MAX(written / 2 * 2, (uint64_t)2); /* what was never written costs nothing to read */
    CLT_TRY(run(p, plan_read, AHEAD, &out->read, &read));
    return run(p, plan_both, 2 * AHEAD, &out->both, &read);
}

clt_status clt_scratch_measure(const char *folder, uint64_t bytes, double seconds, clt_scratch_rates *out) {
    const size_t slots = (size_t)2 * AHEAD * MOST + CLT_SCRATCH_ALIGN;
    char *name = clt_format("cltrain-probe-%ld", (long)getpid()), *memory = clt_try_malloc(slots);
    probe *p = clt_calloc(1, sizeof *p);
    p->stretches = CLT_MAX(bytes / (2 * MOST), (uint64_t)1) * 2;
    p->seconds = seconds;
    clt_status st = memory ? CLT_OK : clt_no_memory("the probe of a disk", slots);
    if (st == CLT_OK) st = clt_scratch_open(folder, name, &p->s);
    if (st == CLT_OK) st = measure(p, memory, out);
    clt_scratch_close(p->s);
    clt_free(p);
    clt_free(memory);
    clt_free(name);
    return st;
}
