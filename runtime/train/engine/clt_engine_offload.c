#include "runtime/train/engine/clt_engine_offload.h"

#include "runtime/device/clt_mark.h"
#include "runtime/train/engine/clt_engine_file_ring.h"
#include "runtime/train/engine/clt_plan_memory.h"

enum { PLACES = CLT_PLAN_OFFLOAD_PLACES };

typedef struct {
    clt_buffer *buffer; /* `most` elements of each offloaded state, one state behind the other */
    clt_mark *left;     /* behind the last use; NULL: it is free */
} place;

struct clt_offload_ring {
    clt_device *dev;
    clt_slab *slab[CLT_STATES];
    uint64_t row[CLT_STATES]; /* the first byte of each state in a place */
    uint64_t most;            /* UINT64_MAX: everything is on the device */
    place place[PLACES];
    unsigned turn;        /* stretches that the pass has brought */
    place *now;           /* of the current stretch; NULL: it is on the device */
    unsigned at;          /* mask of the states that are in this place */
    clt_file_ring *files; /* of slabs in files; NULL: all are pinned */
    bool now_in_file;     /* the file has some of the current stretch */
    unsigned states;      /* of the pass */
    clt_offload_next next;
    void *ctx;
    bool timed;
    double began;
    clt_offload_traffic traffic; /* with pinned slabs */
};

static bool is_in_file(const clt_slab *s) {
    bool any = false;
    uint64_t at;
    for (int i = 0; s && i < s->buffers; i++) any = any || clt_buffer_file(s->buffer[i], &at);
    return any;
}

static clt_status create_files(clt_offload_ring *o, clt_scratch *file) {
    clt_slab *slab[CLT_STATES] = {0};
    bool any = false;
    for (int s = 0; s < CLT_STATES; s++) {
        if (!is_in_file(o->slab[s])) continue;
        slab[s] = o->slab[s];
        any = true;
    }
    return any ? clt_file_ring_create(o->dev, file, slab, o->most, &o->files) : CLT_OK;
}

clt_status clt_offload_create(clt_device *dev, clt_slab *const slab[CLT_STATES], uint64_t offloaded,
                              clt_scratch *file, clt_offload_ring **out) {
    clt_offload_ring *o = clt_calloc(1, sizeof *o);
    clt_status st = CLT_OK;
    uint64_t bytes = 0;
    o->dev = dev;
    o->most = offloaded ? clt_plan_offload_stretch(offloaded) : UINT64_MAX;
    for (int s = 0; s < CLT_STATES; s++) {
        o->slab[s] = slab[s];
        o->row[s] = bytes;
        if (slab[s] && offloaded) bytes += o->most * slab[s]->element_bytes;
    }
    for (int i = 0; i < PLACES && bytes && st == CLT_OK; i++)
        st = clt_buffer_create(dev, bytes, "passing state", &o->place[i].buffer);
    if (file && bytes && st == CLT_OK) st = create_files(o, file);
    *out = o;
    return st;
}

void clt_offload_destroy(clt_offload_ring *o) {
    if (!o) return;
    clt_file_ring_destroy(o->files);
    for (int i = 0; i < PLACES; i++) {
        clt_mark_release(o->place[i].left);
        clt_buffer_destroy(o->place[i].buffer);
    }
    clt_free(o);
}

bool clt_offload_has(const clt_offload_ring *o, clt_state state) {
    return o && o->slab[state];
}

uint64_t clt_offload_most(const clt_offload_ring *o, unsigned states) {
    for (int s = 0; s < CLT_STATES; s++)
        if (states >> s & 1 && clt_offload_has(o, (clt_state)s)) return o->most;
    return UINT64_MAX;
}

/* A rehearsal must not change the host's memory: it is filled meanwhile. */
static bool moves(const clt_offload_ring *o) {
    return o && !clt_device_rehearses(o->dev);
}

/* The queue in use waits until the place is free. */
static clt_status claim(clt_offload_ring *o, place *p) {
    CLT_TRY(clt_device_after(o->dev, p->left));
    clt_mark_release(p->left);
    p->left = NULL;
    return CLT_OK;
}

/* Of the states in the mask, those that are not on the device at an element. What another rank owns is
 * nowhere here. */
static unsigned passing(const clt_offload_ring *o, unsigned states, uint64_t first) {
    unsigned out = 0;
    for (int s = 0; s < CLT_STATES; s++) {
        const clt_buffer *b = o->slab[s] && states >> s & 1 ? clt_slab_at(o->slab[s], first, NULL).buf : NULL;
        if (b && !clt_buffer_is_on_device(b)) out |= 1u << s;
    }
    return out;
}

static bool any_in_file(const clt_offload_ring *o, unsigned states, uint64_t first) {
    bool any = false;
    uint64_t offset;
    for (int s = 0; s < CLT_STATES && o->files; s++)
        any = any || (o->slab[s] && states >> s & 1 && clt_slab_file_at(o->slab[s], first, NULL, &offset));
    return any;
}

/* The stretches that come from files. */
static bool next_in_file(void *ring, clt_slab_range *x) {
    const clt_offload_ring *o = ring;
    while (o->next(o->ctx, x))
        if (any_in_file(o, o->states, x->first)) return true;
    return false;
}

clt_status clt_offload_begin(clt_offload_ring *o, unsigned states, clt_offload_next next, void *ctx) {
    if (!moves(o)) return CLT_OK;
    o->states = states;
    o->next = next;
    o->ctx = ctx;
    if (o->timed) CLT_TRY(clt_device_finish(o->dev));
    o->began = clt_now();
    if (o->files) CLT_TRY(clt_file_ring_begin(o->files, states, next ? next_in_file : NULL, o));
    o->turn = 0;
    CLT_TRY(clt_device_use(o->dev, CLT_QUEUE_IN));
    for (int i = 0; i < PLACES; i++) CLT_TRY(claim(o, &o->place[i]));
    return clt_device_use(o->dev, CLT_QUEUE_COMPUTE);
}

/* --- a stretch --- */

/* Where elements x of a state are in the host's memory. */
static clt_status find_host(const clt_offload_ring *o, clt_state state, clt_slab_range x, char **elements) {
    *elements = o->now_in_file ? clt_file_ring_at(o->files, state) : NULL;
    return *elements ? CLT_OK : clt_slab_host_at(o->slab[state], x.first, NULL, elements);
}

/* Queues the copy of elements x of a state from the host's memory, or back to it. */
static clt_status move(clt_offload_ring *o, clt_state state, clt_slab_range x, bool back) {
    const size_t offset = o->row[state], bytes = x.count * o->slab[state]->element_bytes;
    char *elements;
    CLT_TRY(find_host(o, state, x, &elements));
    *(back ? &o->traffic.written : &o->traffic.read) += bytes;
    return back ? clt_buffer_send(o->now->buffer, offset, elements, bytes)
                : clt_buffer_fetch(o->now->buffer, offset, elements, bytes);
}

static clt_status move_all(clt_offload_ring *o, unsigned states, clt_slab_range x, bool back) {
    for (int s = 0; s < CLT_STATES; s++)
        if (o->at & states & 1u << s) CLT_TRY(move(o, (clt_state)s, x, back));
    return CLT_OK;
}

clt_status clt_offload_bring(clt_offload_ring *o, unsigned states, clt_slab_range x) {
    if (!o) return CLT_OK;
    o->at = passing(o, states, x.first);
    o->now = o->at ? &o->place[o->turn++ % PLACES] : NULL;
    if (!o->now || !moves(o)) return CLT_OK;
    o->now_in_file = any_in_file(o, states, x.first);
    if (o->now_in_file) CLT_TRY(clt_file_ring_bring(o->files, x));
    CLT_TRY(clt_device_use(o->dev, CLT_QUEUE_IN));
    CLT_TRY(claim(o, o->now));
    CLT_TRY(move_all(o, states, x, false));
    return clt_device_hand_over(o->dev, CLT_QUEUE_COMPUTE);
}

clt_ref clt_offload_at(const clt_offload_ring *o, clt_state state, const clt_slab *slab, uint64_t first) {
    if (!slab) return clt_ref_none();
    return o && o->at >> state & 1 ? (clt_ref){o->now->buffer, o->row[state] / slab->element_bytes}
                                   : clt_slab_at(slab, first, NULL);
}

clt_status clt_offload_leave(clt_offload_ring *o, unsigned changed, clt_slab_range x) {
    if (!moves(o) || !o->now) return CLT_OK;
    if (changed) {
        CLT_TRY(clt_device_hand_over(o->dev, CLT_QUEUE_OUT));
        CLT_TRY(move_all(o, changed, x, true));
    }
    CLT_TRY(clt_device_mark(o->dev, &o->now->left));
    if (o->now_in_file) CLT_TRY(clt_file_ring_leave(o->files, changed));
    return clt_device_use(o->dev, CLT_QUEUE_COMPUTE);
}

clt_status clt_offload_end(clt_offload_ring *o) {
    if (!moves(o)) return CLT_OK;
    if (o->files) CLT_TRY(clt_file_ring_end(o->files));
    if (!o->timed) return CLT_OK;
    CLT_TRY(clt_device_finish(o->dev));
    o->traffic.seconds += clt_now() - o->began;
    return CLT_OK;
}

clt_offload_traffic clt_offload_count(const clt_offload_ring *o) {
    if (!o) return (clt_offload_traffic){0};
    return o->files ? clt_file_ring_traffic(o->files) : o->traffic;
}

void clt_offload_time(clt_offload_ring *o, bool timed) {
    if (o) o->timed = timed;
}
