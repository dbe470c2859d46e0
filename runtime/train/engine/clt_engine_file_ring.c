#include "runtime/train/engine/clt_engine_file_ring.h"

#include "runtime/device/clt_mark.h"
#include "runtime/train/engine/clt_plan_memory.h"

enum { SLOTS = CLT_PLAN_FILE_SLOTS };

_Static_assert(CLT_CHUNK * sizeof(float) == CLT_SCRATCH_BLOCK, "a chunk of state is a block of the file");
_Static_assert(CLT_PLAN_OFFLOAD_CHUNKS *CLT_CHUNK * sizeof(float) <= CLT_SCRATCH_MOST,
               "a stretch of a state is one transfer");

/* A slot's phases follow each other in this order; without changes it is free after LEAVING. */
typedef enum {
    FREE,
    READING, /* from the file */
    HERE,    /* in use by the pass */
    LEAVING, /* copies between it and the device are queued */
    WRITING  /* to the file */
} phase;

typedef struct {
    clt_buffer *buffer;
    char *memory; /* aligned, in the buffer: `most` elements of each state, one behind the other */
    phase phase;
    clt_slab_range x;
    unsigned changed;
    clt_mark *left; /* behind the copies */
    clt_scratch_op op[CLT_STATES];
} slot;

struct clt_file_ring {
    clt_device *dev;
    clt_scratch *file;
    clt_slab *slab[CLT_STATES];
    uint64_t row[CLT_STATES]; /* the first byte of each state in a slot */
    slot slot[SLOTS];
    slot *now;
    /* The pass. Its stretches use the slots in turn. */
    unsigned states;
    clt_offload_next next;
    void *ctx;
    bool more;            /* `next` has not said that there are none */
    uint64_t asked, used; /* stretches of all passes whose reads were begun; that were brought */
    double began;
    clt_scratch_counters before;
    clt_offload_traffic traffic;
};

/* --- creation --- */

static clt_status create_slot(clt_file_ring *r, slot *p, size_t bytes) {
    void *host;
    CLT_TRY(clt_buffer_create_pinned(r->dev, bytes + CLT_SCRATCH_ALIGN, "passing state", &p->buffer));
    CLT_TRY(clt_buffer_host(p->buffer, &host));
    p->memory = (char *)CLT_ROUND_UP((uintptr_t)host, (uintptr_t)CLT_SCRATCH_ALIGN);
    return CLT_OK;
}

clt_status clt_file_ring_create(clt_device *dev, clt_scratch *file, clt_slab *const slab[CLT_STATES],
                                uint64_t most, clt_file_ring **out) {
    clt_file_ring *r = clt_calloc(1, sizeof *r);
    clt_status st = CLT_OK;
    size_t bytes = 0;
    r->dev = dev;
    r->file = file;
    for (int s = 0; s < CLT_STATES; s++) {
        r->slab[s] = slab[s];
        r->row[s] = bytes;
        if (slab[s]) bytes += most * sizeof(float);
    }
    for (int i = 0; i < SLOTS && bytes && st == CLT_OK; i++) st = create_slot(r, &r->slot[i], bytes);
    if (bytes && st == CLT_OK) st = clt_scratch_try(file, r->slot[0].memory);
    if (st != CLT_OK) {
        clt_file_ring_destroy(r);
        return st;
    }
    *out = r;
    return CLT_OK;
}

static bool is_in(const clt_file_ring *r, unsigned states, int s) {
    return r->slab[s] && states >> s & 1;
}

void clt_file_ring_destroy(clt_file_ring *r) {
    if (!r) return;
    clt_error_quiet(true); /* what ended the run has its message */
    for (int i = 0; i < SLOTS; i++) {
        slot *p = &r->slot[i];
        for (int s = 0; s < CLT_STATES; s++) clt_scratch_wait(r->file, &p->op[s]);
        clt_mark_release(p->left);
        clt_buffer_destroy(p->buffer);
    }
    clt_error_quiet(false);
    clt_free(r);
}

/* --- a slot --- */

static clt_status begin_transfers(clt_file_ring *r, slot *p, unsigned states, bool write) {
    for (int s = 0; s < CLT_STATES; s++) {
        if (!is_in(r, states, s)) continue;
        const clt_ref at = clt_slab_at(r->slab[s], p->x.first, NULL);
        uint64_t base;
        clt_buffer_file(at.buf, &base);
        p->op[s] = (clt_scratch_op){.memory = p->memory + r->row[s],
                                    .offset = base + at.off * sizeof(float),
                                    .bytes = p->x.count * sizeof(float),
                                    .write = write};
        CLT_TRY(clt_scratch_begin(r->file, &p->op[s]));
    }
    return CLT_OK;
}

static clt_status transfers_done(clt_file_ring *r, slot *p, unsigned states, bool *done) {
    *done = true;
    for (int s = 0; s < CLT_STATES; s++) {
        bool one = true;
        if (is_in(r, states, s)) CLT_TRY(clt_scratch_done(r->file, &p->op[s], &one));
        *done = *done && one;
    }
    return CLT_OK;
}

static clt_status wait_for_transfers(clt_file_ring *r, slot *p) {
    for (int s = 0; s < CLT_STATES; s++) CLT_TRY(clt_scratch_wait(r->file, &p->op[s]));
    return CLT_OK;
}

/* What the device has left goes into the file. */
static clt_status after_leaving(clt_file_ring *r, slot *p, bool wait) {
    bool reached = true;
    if (p->phase != LEAVING) return CLT_OK;
    CLT_TRY(wait ? clt_mark_wait(r->dev, p->left) : clt_mark_reached(p->left, &reached));
    if (!reached) return CLT_OK;
    clt_mark_release(p->left);
    p->left = NULL;
    p->phase = p->changed ? WRITING : FREE;
    return begin_transfers(r, p, p->changed, true);
}

static clt_status after_writing(clt_file_ring *r, slot *p, bool wait) {
    bool done = true;
    if (p->phase != WRITING) return CLT_OK;
    CLT_TRY(wait ? wait_for_transfers(r, p) : transfers_done(r, p, p->changed, &done));
    if (done) p->phase = FREE;
    return CLT_OK;
}

/* --- the pass --- */

static slot *slot_of(clt_file_ring *r, uint64_t n) {
    return &r->slot[n % SLOTS];
}

/* Begins the reads of a stretch into the next slot, which is free. */
static clt_status ask(clt_file_ring *r, clt_slab_range x) {
    slot *p = slot_of(r, r->asked++);
    p->x = x;
    p->phase = READING;
    return begin_transfers(r, p, r->states, false);
}

static clt_status read_ahead(clt_file_ring *r) {
    clt_slab_range x;
    while (r->more && slot_of(r, r->asked)->phase == FREE) {
        r->more = r->next(r->ctx, &x);
        if (r->more) CLT_TRY(ask(r, x));
    }
    return CLT_OK;
}

/* Whatever can go on without waiting goes on. */
static clt_status poll(clt_file_ring *r) {
    for (int i = 0; i < SLOTS; i++) {
        CLT_TRY(after_leaving(r, &r->slot[i], false));
        CLT_TRY(after_writing(r, &r->slot[i], false));
    }
    return read_ahead(r);
}

static bool any_leaves(const clt_file_ring *r) {
    bool any = false;
    for (int i = 0; i < SLOTS; i++) any = any || r->slot[i].phase == LEAVING;
    return any;
}

/* Everything that has changed is on its way into the file. */
static clt_status send_all(clt_file_ring *r) {
    for (uint64_t n = r->used; n < r->used + SLOTS; n++) { /* in the order in which they leave */
        CLT_TRY(after_leaving(r, slot_of(r, n), true));
        CLT_TRY(poll(r));
    }
    return CLT_OK;
}

clt_status clt_file_ring_begin(clt_file_ring *r, unsigned states, clt_offload_next next, void *ctx) {
    r->more = false;
    CLT_TRY(send_all(r));
    for (; r->used != r->asked; r->used++) { /* of a pass that was given up */
        CLT_TRY(wait_for_transfers(r, slot_of(r, r->used)));
        slot_of(r, r->used)->phase = FREE;
    }
    r->states = states;
    r->next = next;
    r->ctx = ctx;
    r->more = next != NULL;
    r->began = clt_now();
    r->before = clt_scratch_count(r->file);
    return poll(r);
}

/* Stretches of other than whole chunks, which a pass without `next` may have. */
static clt_status read_now(clt_file_ring *r, clt_slab_range x) {
    slot *p = slot_of(r, r->asked++);
    p->x = x;
    p->phase = READING;
    for (int s = 0; s < CLT_STATES; s++)
        if (is_in(r, r->states, s))
            CLT_TRY(clt_slab_read(r->slab[s], x.first, (float *)(void *)(p->memory + r->row[s]), x.count));
    return CLT_OK;
}

/* The reads of stretch x are begun. */
static clt_status ask_for(clt_file_ring *r, clt_slab_range x) {
    slot *p = slot_of(r, r->asked);
    if (r->used != r->asked) return CLT_OK;
    CLT_TRY(after_leaving(r, p, true));
    const double since = clt_now();
    CLT_TRY(after_writing(r, p, true));
    r->traffic.waited += clt_now() - since;
    if (r->next) return read_ahead(r);
    return x.first % CLT_CHUNK || x.count % CLT_CHUNK ? read_now(r, x) : ask(r, x);
}

clt_status clt_file_ring_bring(clt_file_ring *r, clt_slab_range x) {
    static const double soon = 1e-4, later = 1e-2; /* seconds: marks are polled, ends of transfers wake up */
    bool done = false;
    CLT_TRY(ask_for(r, x));
    slot *p = slot_of(r, r->used);
    if (r->used == r->asked || p->x.first != x.first || p->x.count != x.count)
        return clt_error(CLT_FAIL,
                         "offload: stretch %llu of %llu elements is not the next one; this is a bug",
                         (unsigned long long)x.first, (unsigned long long)x.count);
    const double since = clt_now();
    while (true) {
        CLT_TRY(transfers_done(r, p, r->states, &done));
        CLT_TRY(poll(r));
        if (done) break;
        clt_scratch_pause(r->file, any_leaves(r) ? soon : later);
    }
    r->traffic.waited += clt_now() - since;
    r->used++;
    r->now = p;
    p->phase = HERE;
    return CLT_OK;
}

float *clt_file_ring_at(const clt_file_ring *r, clt_state state) {
    return (float *)(void *)(r->now->memory + r->row[state]);
}

clt_status clt_file_ring_leave(clt_file_ring *r, unsigned changed) {
    r->now->changed = changed;
    CLT_TRY(clt_device_mark(r->dev, &r->now->left));
    r->now->phase = LEAVING;
    return poll(r);
}

clt_status clt_file_ring_end(clt_file_ring *r) {
    CLT_TRY(send_all(r));
    const clt_scratch_counters now = clt_scratch_count(r->file);
    r->traffic.read += now.read - r->before.read;
    r->traffic.written += now.written - r->before.written;
    r->traffic.seconds += clt_now() - r->began;
    return CLT_OK;
}

clt_offload_traffic clt_file_ring_traffic(const clt_file_ring *r) {
    return r->traffic;
}
