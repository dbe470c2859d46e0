#include "runtime/train/engine/clt_engine_file_ring.h"

#include "runtime/device/clt_mark.h"
#include "runtime/train/engine/clt_plan_memory.h"

enum { SLOTS = CLT_PLAN_FILE_SLOTS };

_Static_assert(CLT_CHUNK * sizeof(uint16_t) % CLT_SCRATCH_BLOCK == 0, "chunks of state are whole blocks");
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
    unsigned states;  /* mask of those that the file has of this stretch */
    unsigned changed; /* mask */
    clt_mark *left;   /* behind the copies */
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
        if (slab[s]) bytes += most * slab[s]->element_bytes;
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

/* Of the states in the mask, those that the file has of the stretch. */
static unsigned in_file(const clt_file_ring *r, unsigned states, clt_slab_range x) {
    unsigned out = 0;
    uint64_t offset;
    for (int s = 0; s < CLT_STATES; s++)
        if (r->slab[s] && states >> s & 1 && clt_slab_file_at(r->slab[s], x.first, NULL, &offset))
            out |= 1u << s;
    return out;
}

static clt_status begin_transfers(clt_file_ring *r, slot *p, unsigned states, bool write) {
    for (int s = 0; s < CLT_STATES; s++) {
        uint64_t offset;
        if (!(states >> s & 1)) continue;
        clt_slab_file_at(r->slab[s], p->x.first, NULL, &offset);
        p->op[s] = (clt_scratch_op){.memory = p->memory + r->row[s],
                                    .offset = offset,
                                    .bytes = p->x.count * r->slab[s]->element_bytes,
                                    .write = write};
        CLT_TRY(clt_scratch_begin(r->file, &p->op[s]));
    }
    return CLT_OK;
}

static clt_status transfers_done(clt_file_ring *r, slot *p, unsigned states, bool *done) {
    *done = true;
    for (int s = 0; s < CLT_STATES; s++) {
        bool one = true;
        if (states >> s & 1) CLT_TRY(clt_scratch_done(r->file, &p->op[s], &one));
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
    p->states = in_file(r, r->states, x);
    p->phase = READING;
    return begin_transfers(r, p, p->states, false);
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
    p->states = in_file(r, r->states, x);
    p->phase = READING;
    for (int s = 0; s < CLT_STATES; s++) {
        uint64_t offset;
        if (!(p->states >> s & 1)) continue;
        clt_slab_file_at(r->slab[s], x.first, NULL, &offset);
        CLT_TRY(
            clt_scratch_read(r->file, offset, p->memory + r->row[s], x.count * r->slab[s]->element_bytes));
    }
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
        CLT_TRY(transfers_done(r, p, p->states, &done));
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

char *clt_file_ring_at(const clt_file_ring *r, clt_state state) {
    return r->now->states >> state & 1 ? r->now->memory + r->row[state] : NULL;
}

clt_status clt_file_ring_leave(clt_file_ring *r, unsigned changed) {
    r->now->changed = changed & r->now->states;
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
