/* The wire "mpi": what a slot holds travels as messages of the group, wherever its ranks are. Each rank has a
 * ring of its own and, for each other rank, a ring that receives. */
#include <string.h>

#include "collectives/clt_exchange.h"

/* The messages of one operation. */
typedef struct {
    clt_request *request;
    int n;
} pending;

typedef struct {
    pending send[CLT_SLOTS], receive[CLT_SLOTS];
    void *memory;
} mpi_state;

enum { TAGS = 512 /* operations that have tags of their own */, PAGE = 4096 };

static const char *refusal(const clt_reduce_plan *p) {
    return p->group->ops->start ? NULL : "the group sends no messages";
}

/* Of another rank, as it arrives. */
static uint64_t inbox_bytes(const clt_reduce_plan *p) {
    const uint64_t place = p->strip * CLT_MAX((uint64_t)p->most * p->bytes, sizeof(float));
    return CLT_ROUND_UP(place, (uint64_t)4096);
}

static clt_status open_rings(clt_reduce_plan *p) {
    clt_group *g = p->group;
    mpi_state *s = clt_calloc(1, sizeof *s);
    p->wire_state = s;
    p->inbox.slot = inbox_bytes(p);
    p->inbox.sum = p->strip * p->bytes;
    uint64_t total = 0;
    for (int r = 0; r < g->size; r++) {
        p->host_bytes[r] = CLT_SLOTS * (r == g->rank ? p->slot_bytes : p->inbox.slot);
        total += p->host_bytes[r];
    }
    for (int i = 0; i < CLT_SLOTS; i++) {
        const size_t most = (size_t)(p->most * g->size);
        s->send[i].request = clt_calloc(most, sizeof *s->send[i].request);
        s->receive[i].request = clt_calloc(most, sizeof *s->receive[i].request);
    }
    /* Drivers map whole pages. */
    s->memory = clt_try_aligned_alloc(total + PAGE);
    char *at = s->memory ? (char *)CLT_ROUND_UP((uintptr_t)s->memory, (uintptr_t)PAGE) : NULL;
    for (int r = 0; at && r < g->size; r++) {
        p->host[r] = at;
        at += p->host_bytes[r];
    }
    return clt_group_agree(g, s->memory ? CLT_OK : clt_no_memory("the exchange of gradients", total));
}

static clt_status test_all(clt_reduce_plan *p, pending *q, bool *done) {
    *done = true;
    while (q->n > 0 && *done) {
        CLT_TRY(p->group->ops->test(p->group, &q->request[q->n - 1], done));
        q->n -= *done;
    }
    return CLT_OK;
}

static void close_rings(clt_reduce_plan *p) {
    mpi_state *s = p->wire_state;
    if (!s) return;
    for (int i = 0; i < CLT_SLOTS; i++) {
        clt_free(s->send[i].request);
        clt_free(s->receive[i].request);
    }
    clt_free(s->memory);
    clt_free(s);
}

/* The messages of the slot's operation before this one are through. */
static bool is_free(clt_reduce_plan *p, int64_t op) {
    mpi_state *s = p->wire_state;
    bool done = false;
    const clt_status st = test_all(p, &s->send[op % CLT_SLOTS], &done);
    if (st != CLT_OK) p->failed = st;
    return done && op <= p->posted + CLT_SLOTS;
}

/* Every message of an operation from this rank to another (send), or from it; messages of equal tags between
 * two ranks arrive in the order in which they are sent. */
static clt_status start(clt_reduce_plan *p, int64_t k, int r, bool send, pending *q) {
    const clt_op *op = clt_exchange_op(p, k);
    const int me = p->group->rank, from = send ? me : r, to = send ? r : me;
    const bool reduces = op->kind == CLT_OP_REDUCE;
    const int n = reduces ? op->round->sums_of[from] : 1;
    const uint64_t bytes = clt_exchange_bytes(p, op, from, to);
    for (int i = 0; i < n && bytes; i++) {
        const uint64_t at = send ? clt_exchange_out_place(p, k, i, reduces ? r : 0)
                                 : clt_exchange_in_place(p, k, i, !reduces);
        const clt_message m = {.rank = r,
                               .send = send,
                               .tag = (int)(k % TAGS) * p->most + i,
                               .data = (char *)p->host[send ? me : r] + at,
                               .bytes = bytes};
        CLT_TRY(p->group->ops->start(p->group, &m, &q->request[q->n++]));
        if (send) p->sent_bytes += bytes;
    }
    return CLT_OK;
}

static clt_status start_all(clt_reduce_plan *p, int64_t k, bool send, pending *q) {
    for (int i = 1; i < p->group->size; i++) { /* not all ranks to rank 0 first */
        const int size = p->group->size, me = p->group->rank;
        CLT_TRY(start(p, k, (send ? me + i : me + size - i) % size, send, q));
    }
    return CLT_OK;
}

static clt_status post(clt_reduce_plan *p, int64_t op) {
    mpi_state *s = p->wire_state;
    return start_all(p, op, true, &s->send[op % CLT_SLOTS]);
}

static clt_status expect(clt_reduce_plan *p, int64_t op) {
    mpi_state *s = p->wire_state;
    return start_all(p, op, false, &s->receive[op % CLT_SLOTS]);
}

static clt_status arrived(clt_reduce_plan *p, int64_t op, bool *all) {
    mpi_state *s = p->wire_state;
    bool sent;
    /* Testing sends moves them on. */
    for (int i = 0; i < CLT_SLOTS; i++) CLT_TRY(test_all(p, &s->send[i], &sent));
    return test_all(p, &s->receive[op % CLT_SLOTS], all);
}

/* Nobody else reads this rank's memory. */
static clt_status finished(clt_reduce_plan *p, int64_t op) {
    (void)p;
    (void)op;
    return CLT_OK;
}

/* What is left of this rank's messages. */
static clt_status flushed(clt_reduce_plan *p, bool *all) {
    mpi_state *s = p->wire_state;
    *all = true;
    for (int i = 0; i < CLT_SLOTS && *all; i++) CLT_TRY(test_all(p, &s->send[i], all));
    return CLT_OK;
}

const clt_wire clt_wire_mpi = {
    .name = "mpi",
    .refusal = refusal,
    .open = open_rings,
    .close = close_rings,
    .is_free = is_free,
    .post = post,
    .expect = expect,
    .arrived = arrived,
    .finished = finished,
    .flushed = flushed,
};
