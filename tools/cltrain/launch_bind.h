/* launch_bind: how many ranks cltrain launch starts without -n, and whether it binds them to the CPUs of NUMA
 * nodes. Both depend on the devices that the ranks of this host would take: ranks on GPUs bind themselves
 * (clt_bind_near). */
#ifndef CLTRAIN_LAUNCH_BIND_H
#define CLTRAIN_LAUNCH_BIND_H

#include "runtime/base/clt_bind.h"

typedef struct {
    const char *how;         /* numa or none; NULL: by the devices of this host */
    const char *device;      /* --device of the launch; NULL: not given */
    const clt_strv *command; /* "train", its configuration and arguments */
} clt_launch_bind_params;

/* CLT_USAGE if --bind is neither numa nor none, CLT_BAD_CONFIG for numa in a build without hwloc. */
clt_status clt_launch_bind_check(const char *how);
/* The number of ranks without -n, all on this host: one for each NUMA node if all of them would have a CPU
 * device, at most as many as the configuration allows (exact_lanes, global_train_batch_size); else 1. */
int clt_launch_bind_ranks(const clt_launch_bind_params *p);
/* Sets CLTRAIN_BIND for the ranks, or removes it: each binds to the node of its GPU, if it has one. here: all
 * `ranks` ranks are on this host; *plan is then their plan, with ranks 0 if they are not bound. Free it with
 * clt_bind_plan_free. Unless p says numa, ranks are not bound if the environment already sets the threads of
 * PoCL. */
void clt_launch_bind_set(const clt_launch_bind_params *p, int ranks, bool here, clt_bind_plan *plan);

#endif
