/* step_sim: predicts the time of a training step on many ranks from the model's table and measured rates, by
 * simulating its schedule (docs/scaling.md). All ranks are alike and do the same at the same time, so the
 * queues of one rank are simulated, with the host's memory and network shared by the ranks of its host.
 *
 * A step is compute in program order (forward and backward of each microbatch, unit by unit), the exchange of
 * each bucket as soon as its gradients are final, the update and the gathers of weights. */
#ifndef CLBENCH_STEP_SIM_H
#define CLBENCH_STEP_SIM_H

#include "runtime/model/clt_model.h"

/* A part of the model that computes as a whole: the embedding, each block, and the final norm with the head.
 */
typedef struct {
    uint64_t first, count; /* elements of the slab */
    double share;          /* of the FLOP of a microbatch */
} step_unit;

typedef struct {
    step_unit *unit; /* in forward order; together they are the slab */
    int units;
    uint64_t total;         /* elements */
    double flops_per_token; /* forward and backward */
} step_model;

/* The units of a transformer at sequence length seq. Free it with step_model_free. */
clt_status step_model_read(const clt_model_config *c, int64_t seq, step_model *out);
void step_model_free(step_model *m);

/* What is exchanged, and when. */
typedef struct {
    int ranks, hosts; /* ranks is a multiple of hosts */
    int stage;        /* cltrain.zero_stage, 0 to 3 */
    int microbatches; /* of a rank in a step */
    bool each;        /* gradients are exchanged after each microbatch, not only after the last one */
    bool clip;        /* an update waits for the norm of the whole gradient */
    bool one_queue;   /* a rank's copies run on its compute queue: CPU devices */
    bool halving;     /* hosts exchange by recursive halving and doubling instead of directly */
    int ahead;        /* stage 3: units that are gathered ahead of use */
    uint64_t bucket;  /* elements */
    double gradient_bytes, weight_bytes,
        update_bytes; /* of an element: exchanged, gathered, read and written */
} step_plan;

/* Of a rank, unless it says host. Rates are in bytes per second, 0: unlimited; times in seconds. */
typedef struct {
    double forward, backward; /* of a microbatch */
    double out, in;           /* device to host, host to device */
    double host;              /* the host's memory, read plus written by copies */
    double network;           /* of a host, each direction */
    double latency;           /* of a message between hosts */
    double message;           /* that each message occupies a rank's side of the network */
    double exchange;          /* a small exchange between the ranks of a host */
    double update, add;       /* the optimizer; additions: 12 bytes per element */
} step_rates;

enum { STEP_COMPUTE, STEP_OUT, STEP_IN, STEP_NETWORK, STEP_QUEUES };
extern const char *const step_queue_names[STEP_QUEUES];

/* Seconds of one step in the steady state. */
typedef struct {
    double step;
    double one_rank; /* a step of one rank with the same microbatches */
    double work;     /* forward, backward and this rank's part of the update */
    double exposed;  /* step - work: what the exchange costs */
    double busy[STEP_QUEUES];
    double bubble[STEP_QUEUES]; /* the compute queue is idle while this queue runs, and none behind it in the
                                   order of the names; [STEP_COMPUTE]: while no queue runs */
    int buckets, operations;
} step_result;

/* timeline (optional) receives the simulated steps (clt_timeline.h). */
void step_simulate(const step_model *m, const step_plan *p, const step_rates *r, step_result *out,
                   clt_str *timeline);

#endif
