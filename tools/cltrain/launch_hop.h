/* launch_hop: one training run that changes devices: legs, each on its own device and number of ranks for its
 * own time, in turn and round and round until the run's max_duration. A leg is a `cltrain train --stop-after`
 * of its own; what goes from leg to leg is a checkpoint. */
#ifndef CLTRAIN_LAUNCH_HOP_H
#define CLTRAIN_LAUNCH_HOP_H

#include "runtime/base/clt_base.h"

/* Runs `command` on `ranks` ranks of `device` to its end; the exit code. */
typedef int (*clt_launch_leg_fn)(void *ctx, int64_t ranks, const char *device, const clt_strv *command);

/* spec: "DEVICE[*RANKS]:TIME,...", DEVICE a pattern as --device takes it, or several with + between them, one
 * for each rank of a host in turn. command: "train", its configuration and arguments. here: all ranks run on
 * this host, so that its devices can be looked at before the first leg. Returns the launch's exit code. */
int clt_launch_hop(const char *spec, const clt_strv *command, bool here, clt_launch_leg_fn run, void *ctx);

#endif
