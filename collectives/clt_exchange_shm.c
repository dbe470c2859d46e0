/* The exchange "shm": all ranks of the group are on one host and map one window of shared memory, so that a
 * filled slot is there for everybody and only barriers are needed. */
#include <stdatomic.h>

#include "collectives/clt_blocks.h"
#include "collectives/clt_shm.h"

/* The window starts with this, then slots [rank][most][rank][strip], then the total [rank][strip]. */
typedef struct {
    _Atomic uint64_t arrived; /* at barriers, ever growing: barrier k is over at k * ranks */
    char padding[4096 - sizeof(uint64_t)];
} window_head;

typedef struct {
    window_head *window;
    size_t bytes;
} shm_state;

static const char *refusal(const clt_reduce_plan *p) {
    return p->group->local_size == p->group->size ? NULL : "the ranks are on several hosts";
}

static clt_status barrier(clt_blocks *b) {
    const clt_group *g = b->plan->group;
    window_head *w = ((shm_state *)b->wire_state)->window;
    clt_watch watch = clt_watch_begin(g, "gradient reduction");
    const uint64_t n = (uint64_t)g->size, mine = atomic_fetch_add(&w->arrived, 1) + 1;
    const uint64_t target = CLT_CEIL_DIV(mine, n) * n;
    while (atomic_load(&w->arrived) < target) clt_watch_pause(&watch);
    clt_watch_end(&watch);
    return CLT_OK;
}

static uint64_t slots_bytes(const clt_blocks *b) {
    return (uint64_t)b->places * (uint64_t)b->plan->group->size * b->strip * b->bytes;
}

static uint64_t window_bytes(const clt_blocks *b) {
    return sizeof(window_head) + slots_bytes(b) +
           (uint64_t)b->plan->group->size * b->strip * CLT_BLOCKS_WIDEST;
}

/* Shorter strips where the host's shared memory is small: containers often have 64 MiB. */
static clt_status fit_strip(clt_blocks *b) {
    clt_group *g = b->plan->group;
    const uint64_t room = clt_shm_free() / 2, ranks = (uint64_t)g->size;
    while (ranks * b->strip > CLT_CHUNK && window_bytes(b) > room)
        b->strip = CLT_ROUND_UP(b->strip / 2, (uint64_t)64);
    return clt_group_broadcast(g, 0, &b->strip, sizeof b->strip);
}

static clt_status open_window(clt_blocks *b) {
    clt_group *g = b->plan->group;
    shm_state *s = clt_calloc(1, sizeof *s);
    char name[CLT_SHM_NAME];
    void *window = NULL;
    b->wire_state = s;
    CLT_TRY(fit_strip(b));
    s->bytes = window_bytes(b);
    clt_shm_new_name("window", name);
    CLT_TRY(clt_group_broadcast(g, 0, name, sizeof name));
    CLT_TRY(clt_shm_share(g, clt_group_agree, name, s->bytes, g->rank == 0, &window));
    s->window = window;
    char *slots = (char *)window + sizeof(window_head);
    const uint64_t slot_bytes = (uint64_t)g->size * b->strip * b->bytes;
    b->slot = slots + (uint64_t)(g->rank * b->most) * slot_bytes;
    b->total = slots + slots_bytes(b);
    b->inbox = slots + (uint64_t)g->rank * b->strip * b->bytes;
    b->inbox_stride = slot_bytes;
    return CLT_OK;
}

static void close_window(clt_blocks *b) {
    shm_state *s = b->wire_state;
    clt_shm_unmap(s->window, s->bytes);
    clt_free(s);
}

static clt_status scatter(clt_blocks *b, uint64_t step) {
    (void)step;
    return barrier(b);
}

static clt_status gather(clt_blocks *b, uint64_t bytes) {
    (void)bytes;
    return barrier(b);
}

static const clt_blocks_wire wire = {open_window, close_window, scatter, gather, barrier};

static clt_status plan(clt_reduce_plan *p) {
    return clt_blocks_plan(p, &wire);
}

const clt_exchange_ops clt_exchange_shm = {
    .name = "shm",
    .refusal = refusal,
    .device_bytes = clt_blocks_device_bytes,
    .plan = plan,
    .unplan = clt_blocks_unplan,
    .reduce = clt_blocks_reduce,
    .reduce_scatter = clt_blocks_reduce_scatter,
    .all_gather = clt_blocks_all_gather,
};
