/* launch_hop: a training run that changes devices. It consists of legs, each with a device, a number of ranks
 * and a duration, run in turn and repeated until the run's max_duration. Each leg is a `cltrain train
 * --stop-after`; the checkpoint that it saves is the start of the next leg. */
#ifndef CLTRAIN_LAUNCH_HOP_H
#define CLTRAIN_LAUNCH_HOP_H

#include "runtime/base/clt_base.h"

/* Runs `command` on `ranks` ranks of `device` to its end; returns the exit code. */
typedef int (*clt_launch_leg_fn)(void *ctx, int64_t ranks, const char *device, const clt_strv *command);

/* spec: "DEVICE[*RANKS]:TIME,..."; DEVICE is a pattern as for --device, or several joined by +, assigned to
 * the ranks of a host in turn. command: "train", its configuration and arguments. here: all ranks run on this
 * host, so that the devices can be checked before the first leg. Returns the exit code of the launch. */
int clt_launch_hop(const char *spec, const clt_strv *command, bool here, clt_launch_leg_fn run, void *ctx);

#endif
