#include "runtime/device/clt_spool.h"

#include "runtime/device/clt_device_private.h"
#include "runtime/device/clt_mark.h"

enum { MOST = CLT_SCRATCH_MOST, BLOCK = CLT_SCRATCH_BLOCK };

/* Of pinned memory. */
typedef struct slot {
    char *memory; /* MOST bytes, aligned */
    clt_scratch_op op;
    clt_mark *mark; /* behind the copy between the slot and the device */
    struct slot *next;
} slot;

typedef struct {
    slot *first, *last;
} line;

/* Each slot is in one of these lines. A copy to the device goes through reading and coming, a copy from it
 * through leaving and writing. In each of them what came first ends first, or is looked at first. */
struct clt_spool {
    clt_device *dev;
    clt_scratch *file;
    clt_buffer *buffer;
    slot *slots;
    line free;
    line reading; /* from the file */
    line coming;  /* the copy to the device is queued */
    line leaving; /* the copy from the device is queued */
    line writing; /* to the file */
    double waited;
};

static void push(line *l, slot *p) {
    p->next = NULL;
    if (l->first)
        l->last->next = p;
    else
        l->first = p;
    l->last = p;
}

static slot *pop(line *l) {
    slot *p = l->first;
    l->first = p->next;
    return p;
}

/* --- creation --- */

uint64_t clt_spool_pinned(uint64_t bytes) {
    return CLT_MAX(CLT_CEIL_DIV(bytes, (uint64_t)MOST), (uint64_t)2) * MOST + CLT_SCRATCH_ALIGN;
}

static clt_status create_slots(clt_spool *s, uint64_t pinned) {
    const uint64_t n = pinned / MOST;
    uint64_t block;
    void *host;
    CLT_TRY(clt_buffer_create_pinned(s->dev, pinned, "between a file and the device", &s->buffer));
    CLT_TRY(clt_buffer_host(s->buffer, &host));
    char *memory = (char *)CLT_ROUND_UP((uintptr_t)host, (uintptr_t)CLT_SCRATCH_ALIGN);
    s->slots = clt_calloc(n, sizeof *s->slots);
    for (uint64_t i = 0; i < n; i++) {
        s->slots[i].memory = memory + i * MOST;
        push(&s->free, &s->slots[i]);
    }
    CLT_TRY(clt_scratch_grow(s->file, BLOCK, &block));
    return clt_scratch_try(s->file, memory);
}

clt_scratch *clt_spool_file(const clt_spool *s) {
    return s->file;
}

clt_status clt_spool_create(clt_device *dev, clt_scratch *file, uint64_t pinned, clt_spool **out) {
    clt_spool *s = clt_calloc(1, sizeof *s);
    s->dev = dev;
    s->file = file;
    const clt_status st = create_slots(s, pinned);
    if (st == CLT_OK)
        *out = s;
    else
        clt_spool_destroy(s);
    return st;
}

static void release_marks(line *l) {
    for (slot *p = l->first; p; p = p->next) clt_mark_release(p->mark);
}

void clt_spool_destroy(clt_spool *s) {
    if (!s) return;
    clt_error_quiet(true); /* what ended the run has its message */
    for (slot *p = s->reading.first; p; p = p->next) clt_scratch_wait(s->file, &p->op);
    for (slot *p = s->writing.first; p; p = p->next) clt_scratch_wait(s->file, &p->op);
    clt_error_quiet(false);
    release_marks(&s->coming);
    release_marks(&s->leaving);
    clt_buffer_destroy(s->buffer);
    clt_free(s->slots);
    clt_free(s);
}

/* --- progress --- */

static clt_status begin(clt_spool *s, line *l, slot *p, bool write) {
    p->op.write = write;
    push(l, p);
    return clt_scratch_begin(s->file, &p->op);
}

/* The slots in a line whose copy the device has done: to the file, or free. */
static clt_status after_copies(clt_spool *s, line *l, bool to_file) {
    while (l->first) {
        bool reached;
        CLT_TRY(clt_mark_reached(l->first->mark, &reached));
        if (!reached) break;
        slot *p = pop(l);
        clt_mark_release(p->mark);
        p->mark = NULL;
        if (to_file)
            CLT_TRY(begin(s, &s->writing, p, true));
        else
            push(&s->free, p);
    }
    return CLT_OK;
}

/* Whatever can go on without waiting goes on. */
static clt_status poll(clt_spool *s) {
    CLT_TRY(after_copies(s, &s->leaving, true));
    CLT_TRY(after_copies(s, &s->coming, false));
    while (s->writing.first) {
        bool done;
        CLT_TRY(clt_scratch_done(s->file, &s->writing.first->op, &done));
        if (!done) break;
        push(&s->free, pop(&s->writing));
    }
    return CLT_OK;
}

/* Waits for a moment, or until something has happened, and polls. */
static clt_status wait_a_little(clt_spool *s) {
    static const double soon = 1e-4, later = 1e-2; /* seconds: marks are polled, ends of transfers wake up */
    const slot *device = s->leaving.first ? s->leaving.first : s->coming.first;
    const double since = clt_now();
    if (s->reading.first || s->writing.first) {
        clt_scratch_pause(s->file, device ? soon : later);
        clt_device_idle(s->dev);
    } else if (device) {
        CLT_TRY(clt_mark_wait(s->dev, device->mark));
    }
    s->waited += clt_now() - since;
    return poll(s);
}

double clt_spool_waited(const clt_spool *s) {
    return s->waited;
}

/* --- copies --- */

/* Sets what a slot transfers: blocks that have bytes [offset, end) of the file, as many as it takes. */
static void set_range(slot *p, uint64_t offset, uint64_t end) {
    const uint64_t first = offset / BLOCK * BLOCK,
                   bytes = CLT_MIN(CLT_ROUND_UP(end, (uint64_t)BLOCK) - first, (uint64_t)MOST);
    p->op = (clt_scratch_op){.memory = p->memory, .offset = first, .bytes = (size_t)bytes};
}

/* What the slot has of bytes [offset, end): the count. */
static size_t part_of(const slot *p, uint64_t offset, uint64_t end) {
    return (size_t)(CLT_MIN(end, p->op.offset + p->op.bytes) - offset);
}

/* The way of the slot's bytes between it and the device is queued. */
static clt_status queued(clt_spool *s, line *l, slot *p) {
    push(l, p);
    return clt_device_mark(s->dev, &p->mark);
}

/* Whether blocks that a copy to the device needs are still on their way from the device. */
static bool is_leaving(const clt_spool *s, const slot *wanted) {
    const clt_scratch_op *a = &wanted->op;
    for (const slot *p = s->leaving.first; p; p = p->next)
        if (a->offset < p->op.offset + p->op.bytes && p->op.offset < a->offset + a->bytes) return true;
    return false;
}

/* Begins reads of bytes from *asked on, as long as slots are free. */
static clt_status read_ahead(clt_spool *s, uint64_t *asked, uint64_t end) {
    while (*asked < end && s->free.first) {
        set_range(s->free.first, *asked, end);
        if (is_leaving(s, s->free.first)) break;
        slot *p = pop(&s->free);
        CLT_TRY(begin(s, &s->reading, p, false));
        *asked += part_of(p, *asked, end);
    }
    return CLT_OK;
}

/* If the oldest read has ended, queues its way to the device. */
static clt_status take(clt_spool *s, clt_buffer *dst, size_t at, uint64_t offset, uint64_t end, size_t *n) {
    slot *p = s->reading.first;
    bool done = false;
    *n = 0;
    if (p) CLT_TRY(clt_scratch_done(s->file, &p->op, &done));
    if (!done) return CLT_OK;
    *n = part_of(p, offset, end);
    pop(&s->reading);
    CLT_TRY(clt_buffer_fetch(dst, at, p->memory + (offset - p->op.offset), *n));
    return queued(s, &s->coming, p);
}

clt_status clt_spool_fetch(clt_spool *s, clt_buffer *dst, size_t at, uint64_t offset, size_t bytes) {
    const uint64_t end = offset + bytes;
    uint64_t asked = offset;
    CLT_TRY(poll(s));
    while (offset < end) {
        size_t n;
        CLT_TRY(read_ahead(s, &asked, end));
        CLT_TRY(take(s, dst, at, offset, end, &n));
        offset += n;
        at += n;
        if (n == 0) CLT_TRY(wait_a_little(s));
    }
    return CLT_OK;
}

clt_status clt_spool_send(clt_spool *s, clt_buffer *src, size_t at, uint64_t offset, size_t bytes) {
    const uint64_t end = offset + bytes;
    if (offset % BLOCK) return clt_error(CLT_FAIL, "a copy to a file begins inside a block; this is a bug");
    CLT_TRY(poll(s));
    while (offset < end) {
        if (!s->free.first) {
            CLT_TRY(wait_a_little(s));
            continue;
        }
        slot *p = pop(&s->free);
        set_range(p, offset, end);
        const size_t n = part_of(p, offset, end);
        CLT_TRY(clt_buffer_send(src, at, p->memory, n));
        CLT_TRY(queued(s, &s->leaving, p));
        offset += n;
        at += n;
    }
    return CLT_OK;
}

clt_status clt_spool_flush(clt_spool *s) {
    CLT_TRY(poll(s));
    while (s->leaving.first) CLT_TRY(wait_a_little(s));
    return CLT_OK;
}
