/* How fast a disk is, measured as an update uses it: several stretches are on their way. */
#include <unistd.h>

#include "runtime/base/clt_scratch.h"

enum { AHEAD = 4, STRETCHES = 16, MOST = CLT_SCRATCH_MOST };

typedef struct {
    clt_scratch *s;
    uint64_t offset; /* of the stretches in the file */
    clt_scratch_op op[2 * AHEAD];
    char *memory[2 * AHEAD];
} probe;

/* What the n-th operation of a part does; n counts from 0. */
typedef void (*planner)(int n, clt_scratch_op *op, int *stretch);

static void plan_write(int n, clt_scratch_op *op, int *stretch) {
    op->write = true;
    *stretch = n;
}
static void plan_read(int n, clt_scratch_op *op, int *stretch) {
    op->write = false;
    *stretch = n;
}
/* Reads the second half and writes the first, in turn. */
static void plan_both(int n, clt_scratch_op *op, int *stretch) {
    op->write = n % 2;
    *stretch = op->write ? n / 2 : STRETCHES / 2 + n / 2;
}

/* Runs a part with `ahead` operations in progress; *rate: bytes per second. */
static clt_status run(probe *p, planner plan, int ahead, double *rate) {
    const double start = clt_now();
    clt_status st = CLT_OK;
    int n = 0;
    for (; n < STRETCHES && st == CLT_OK && clt_now() - start < 1; n++) {
        clt_scratch_op *op = &p->op[n % ahead];
        int stretch;
        st = clt_scratch_wait(p->s, op);
        plan(n, op, &stretch);
        op->memory = p->memory[n % ahead];
        op->bytes = MOST;
        op->offset = p->offset + (uint64_t)stretch * MOST;
        if (st == CLT_OK) st = clt_scratch_begin(p->s, op);
    }
    for (int i = 0; i < ahead; i++) {
        const clt_status end = clt_scratch_wait(p->s, &p->op[i]);
        if (st == CLT_OK) st = end;
    }
    *rate = (double)n * MOST / CLT_MAX(clt_now() - start, 1e-9);
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
    CLT_TRY(clt_scratch_grow(p->s, (uint64_t)STRETCHES * MOST, &p->offset));
    CLT_TRY(run(p, plan_write, AHEAD, &out->write));
    CLT_TRY(run(p, plan_read, AHEAD, &out->read));
    return run(p, plan_both, 2 * AHEAD, &out->both);
}

clt_status clt_scratch_measure(const char *folder, clt_scratch_rates *out) {
    const size_t bytes = (size_t)2 * AHEAD * MOST + CLT_SCRATCH_ALIGN;
    char *name = clt_format("cltrain-probe-%ld", (long)getpid()), *memory = clt_try_malloc(bytes);
    probe *p = clt_calloc(1, sizeof *p);
    clt_status st = memory ? CLT_OK : clt_no_memory("the probe of a disk", bytes);
    if (st == CLT_OK) st = clt_scratch_open(folder, name, &p->s);
    if (st == CLT_OK) st = measure(p, memory, out);
    clt_scratch_close(p->s);
    clt_free(p);
    clt_free(memory);
    clt_free(name);
    return st;
}
