/* The exchange "mpi": strips travel as messages of the group, wherever its ranks are. */
#include <string.h>

#include "collectives/clt_blocks.h"

typedef struct {
    char *inbox;          /* [places][strip] */
    clt_message *message; /* [places + most * ranks] */
} mpi_state;

static const char *refusal(const clt_reduce_plan *p) {
    return p->group->ops->messages ? NULL : "the group sends no messages";
}

static clt_status open_boxes(clt_blocks *b) {
    clt_group *g = b->plan->group;
    const uint64_t ranks = (uint64_t)g->size, most = (uint64_t)b->most, strip = b->strip * b->bytes;
    mpi_state *s = clt_calloc(1, sizeof *s);
    b->wire_state = s;
    b->inbox_stride = strip;
    s->message = clt_calloc((size_t)b->places + (size_t)(most * ranks), sizeof *s->message);
    b->inbox = s->inbox = clt_try_aligned_alloc((uint64_t)b->places * strip);
    b->slot = clt_try_aligned_alloc(most * ranks * strip);
    b->total = clt_try_aligned_alloc(ranks * b->strip * CLT_BLOCKS_WIDEST);
    const bool all = b->inbox && b->slot && b->total;
    return clt_group_agree(g, all ? CLT_OK
                                  : clt_no_memory("the exchange of gradients",
                                                  (uint64_t)b->places * strip + most * ranks * strip +
                                                      ranks * b->strip * CLT_BLOCKS_WIDEST));
}

static void close_boxes(clt_blocks *b) {
    mpi_state *s = b->wire_state;
    clt_free(b->slot);
    clt_free(b->total);
    clt_free(s->inbox);
    clt_free(s->message);
    clt_free(s);
}

/* One of this rank's own sums: its strips to their owners. Returns how many messages m has then. */
static int send_sum(clt_blocks *b, const clt_blocks_entry *e, uint64_t step, clt_message *m, int n) {
    const clt_group *g = b->plan->group;
    for (int r = 0; r < g->size; r++) {
        const uint64_t bytes = clt_blocks_strip(b, step, r).count * b->bytes;
        char *from = b->slot + (uint64_t)(e->slot * g->size + r) * b->strip * b->bytes;
        if (r == g->rank)
            memcpy(((mpi_state *)b->wire_state)->inbox + (uint64_t)(r * b->most + e->slot) * b->inbox_stride,
                   from, bytes);
        else if (bytes)
            m[n++] = (clt_message){.rank = r, .send = true, .tag = e->slot, .data = from, .bytes = bytes};
    }
    return n;
}

static clt_status scatter(clt_blocks *b, uint64_t step) {
    clt_group *g = b->plan->group;
    mpi_state *s = b->wire_state;
    const uint64_t bytes = clt_blocks_strip(b, step, g->rank).count * b->bytes;
    int n = 0;
    for (int i = 0; i < b->n_entries; i++) {
        const clt_blocks_entry *e = &b->entry[i];
        char *to = s->inbox + (uint64_t)(e->rank * b->most + e->slot) * b->inbox_stride;
        if (e->empty) continue;
        if (e->rank == g->rank)
            n = send_sum(b, e, step, s->message, n);
        else if (bytes)
            s->message[n++] = (clt_message){.rank = e->rank, .tag = e->slot, .data = to, .bytes = bytes};
    }
    return g->ops->messages(g, s->message, n, "gradient reduction");
}

/* Places that are not full are sent whole: it costs only bytes, and only at the slab's end. */
static clt_status gather(clt_blocks *b, uint64_t bytes) {
    clt_group *g = b->plan->group;
    const uint64_t place = b->strip * bytes;
    return clt_group_all_gather(g, b->total + (uint64_t)g->rank * place, place, b->total);
}

/* Nobody else reads this rank's memory. */
static clt_status release(clt_blocks *b) {
    (void)b;
    return CLT_OK;
}

static const clt_blocks_wire wire = {open_boxes, close_boxes, scatter, gather, release};

static clt_status plan(clt_reduce_plan *p) {
    return clt_blocks_plan(p, &wire);
}

const clt_exchange_ops clt_exchange_mpi = {
    .name = "mpi",
    .refusal = refusal,
    .device_bytes = clt_blocks_device_bytes,
    .plan = plan,
    .unplan = clt_blocks_unplan,
    .reduce = clt_blocks_reduce,
    .reduce_scatter = clt_blocks_reduce_scatter,
    .all_gather = clt_blocks_all_gather,
};
