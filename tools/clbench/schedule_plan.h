/* schedule_plan: what a step of a configuration exchanges and when, for the simulator of step_sim.h. */
#ifndef CLBENCH_SCHEDULE_PLAN_H
#define CLBENCH_SCHEDULE_PLAN_H

#include "runtime/train/config/clt_config.h"
#include "tools/clbench/step_sim.h"

/* ranks on `hosts` hosts, at `stage`, with so many microbatches each. Buckets have 64 chunks, or one per rank
 * if that is more; the caller may change them, and sets one_queue, halving and ahead. */
step_plan schedule_plan_of(const clt_config *c, const step_model *m, int ranks, int hosts, int stage,
                           int microbatches);
/* The part of a microbatch's time that is the forward pass. */
double schedule_forward_share(const clt_config *c);

#endif
