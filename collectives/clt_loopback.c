/* loopback: a group of one rank, and the wire of such a group, which moves nothing. */
#include <string.h>

#include "collectives/clt_end.h"
#include "collectives/clt_exchange.h"

/* --- the group --- */

static bool serves(const clt_launch_info *l) {
    return l->size == 1;
}

/* There is nobody to end. */
static void end_others(int code) {
    (void)code;
}

static clt_status join(clt_group *g) {
    clt_group_run *run = g->run;
    g->size = g->local_size = run->size = run->local_size = 1;
    run->end_others = end_others;
    run->flight = clt_calloc(1, sizeof *run->flight);
    clt_flight_begin(run->flight, 0);
    return CLT_OK;
}

static void leave(clt_group *g) {
    clt_free(g->run->flight);
}

/* A child of one rank is like its parent. */
static clt_status split(clt_group *g, int color, clt_group *child) {
    (void)g;
    (void)color;
    (void)child;
    return CLT_OK;
}

static void unsplit(clt_group *child) {
    (void)child;
}

__attribute__((noreturn)) static void end_job(clt_group *g, int code) {
    (void)g;
    clt_end_process(code);
}

static clt_status barrier(clt_group *g) {
    (void)g;
    return CLT_OK;
}

static clt_status broadcast(clt_group *g, int root, void *data, size_t bytes) {
    (void)g;
    (void)root;
    (void)data;
    (void)bytes;
    return CLT_OK;
}

static clt_status all_gather(clt_group *g, const void *mine, size_t bytes, void *out) {
    (void)g;
    if (bytes) memmove(out, mine, bytes);
    return CLT_OK;
}

const clt_group_ops clt_group_loopback = {
    .name = "loopback",
    .serves = serves,
    .join = join,
    .leave = leave,
    .split = split,
    .unsplit = unsplit,
    .abort = end_job,
    .barrier = barrier,
    .broadcast = broadcast,
    .all_gather = all_gather,
};

/* --- the wire --- */

static const char *refusal(const clt_reduce_plan *p) {
    return p->group->size == 1 ? NULL : "there are several ranks";
}

const clt_wire clt_wire_loopback = {.name = "loopback", .refusal = refusal};
