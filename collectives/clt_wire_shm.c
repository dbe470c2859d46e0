/* The wire "shm": the ranks of the group are on one host and map one window of shared memory with a ring of
 * slots for each of them. Two numbers for each rank say how far it is: what it has posted, and what it has
 * read of all others. A number is written after what it announces, and read before it. */
#include <stdatomic.h>

#include "collectives/clt_exchange.h"
#include "collectives/clt_shm.h"

/* Each on a cache line of its own. */
typedef struct {
    _Alignas(64) _Atomic int64_t posted;
    _Alignas(64) _Atomic int64_t finished;
} rank_state;

/* The window starts with a rank_state for each rank; the rings follow, page aligned. */
typedef struct {
    rank_state *state;
    size_t bytes;
} shm_state;

static const char *refusal(const clt_reduce_plan *p) {
    return p->group->local_size == p->group->size ? NULL : "the ranks are on several hosts";
}

static size_t head_bytes(const clt_reduce_plan *p) {
    return CLT_ROUND_UP((size_t)p->group->size * sizeof(rank_state), (size_t)4096);
}

static uint64_t ring_bytes(const clt_reduce_plan *p) {
    return CLT_SLOTS * p->slot_bytes;
}

static uint64_t window_bytes(const clt_reduce_plan *p) {
    return head_bytes(p) + (uint64_t)p->group->size * ring_bytes(p);
}

/* Shorter strips where the host's shared memory is small: containers often have 64 MiB. */
static clt_status fit_strip(clt_reduce_plan *p) {
    enum { LEAST = 1024 /* elements */ };
    const uint64_t wanted = p->strip, room = clt_shm_free() / 2;
    uint64_t strip = wanted;
    while (strip > LEAST && window_bytes(p) > room) {
        strip = CLT_MAX(CLT_ROUND_UP(strip / 2, (uint64_t)64), (uint64_t)LEAST);
        clt_exchange_set_strip(p, strip);
    }
    CLT_TRY(clt_group_broadcast(p->group, 0, &strip, sizeof strip));
    clt_exchange_set_strip(p, strip);
    /* Down to a chunk, 256 KiB, copies take longer than what goes with them. */
    if (strip < CLT_MIN(wanted, (uint64_t)CLT_CHUNK) && p->group->rank == 0) {
        char have[32];
        clt_warn("/dev/shm has %s: gradients travel in blocks of %llu instead of %llu elements, which costs "
                 "more waits; enlarge it (in a container: --shm-size)",
                 clt_human_bytes((double)room * 2, have), (unsigned long long)strip,
                 (unsigned long long)wanted);
    }
    return CLT_OK;
}

/* A rank's ring; rank 0's also has what comes before the rings. */
static clt_shm_part own_part(const clt_reduce_plan *p) {
    const uint64_t head = head_bytes(p), ring = ring_bytes(p), rank = (uint64_t)p->group->rank;
    return rank == 0 ? (clt_shm_part){0, head + ring} : (clt_shm_part){head + rank * ring, ring};
}

static clt_status open_window(clt_reduce_plan *p) {
    clt_group *g = p->group;
    shm_state *s = clt_calloc(1, sizeof *s);
    char name[CLT_SHM_NAME];
    void *window = NULL;
    p->wire_state = s;
    CLT_TRY(fit_strip(p));
    s->bytes = window_bytes(p);
    clt_shm_new_name("window", name);
    CLT_TRY(clt_group_broadcast(g, 0, name, sizeof name));
    CLT_TRY(clt_shm_share(g, clt_group_agree, name, s->bytes, g->rank == 0, own_part(p), &window));
    s->state = window;
    for (int r = 0; r < g->size; r++) {
        p->host[r] = (char *)window + head_bytes(p) + (uint64_t)r * ring_bytes(p);
        p->host_bytes[r] = ring_bytes(p);
    }
    p->inbox.slot = p->slot_bytes;
    p->inbox.first = (uint64_t)g->rank * p->strip * p->bytes;
    p->inbox.sum = (uint64_t)g->size * p->strip * p->bytes;
    return CLT_OK;
}

static void close_window(clt_reduce_plan *p) {
    shm_state *s = p->wire_state;
    if (s) clt_shm_unmap(s->state, s->bytes);
    clt_free(s);
}

static bool is_free(clt_reduce_plan *p, int64_t op) {
    const shm_state *s = p->wire_state;
    for (int r = 0; r < p->group->size && op > CLT_SLOTS; r++)
        if (r != p->group->rank &&
            atomic_load_explicit(&s->state[r].finished, memory_order_acquire) < op - CLT_SLOTS)
            return false;
    return true;
}

static clt_status post(clt_reduce_plan *p, int64_t op) {
    const shm_state *s = p->wire_state;
    atomic_store_explicit(&s->state[p->group->rank].posted, op, memory_order_release);
    return CLT_OK;
}

static clt_status arrived(clt_reduce_plan *p, int64_t op, bool *all) {
    const shm_state *s = p->wire_state;
    *all = true;
    for (int r = 0; r < p->group->size && *all; r++)
        *all = atomic_load_explicit(&s->state[r].posted, memory_order_acquire) >= op;
    return CLT_OK;
}

static clt_status finished(clt_reduce_plan *p, int64_t op) {
    const shm_state *s = p->wire_state;
    atomic_store_explicit(&s->state[p->group->rank].finished, op, memory_order_release);
    return CLT_OK;
}

const clt_wire clt_wire_shm = {
    .name = "shm",
    .refusal = refusal,
    .open = open_window,
    .close = close_window,
    .is_free = is_free,
    .post = post,
    .arrived = arrived,
    .finished = finished,
};
