/* clt_run_leg: the part of a run that one process trains if it must stop early (train --stop-after), alone or
 * as a leg of a hop (cltrain launch --hop: several devices take turns).
 *
 * The position of a hop is saved in its checkpoints, as the manifest's numbers hop_id, hop_leg, hop_batch,
 * hop_sample, hop_token and hop_seconds: the leg that trains the next batch, counted from 0 over all rounds,
 * and the position at which it began. A run that falls back to an older checkpoint therefore also falls back
 * in the hop, and an interrupted leg is completed instead of restarted. */
#ifndef CLT_RUN_LEG_H
#define CLT_RUN_LEG_H

#include "runtime/checkpoint/clt_checkpoint.h"
#include "runtime/train/config/clt_time.h"

enum { CLT_HOP_NUMBERS = 6 };

typedef struct {
    bool limited; /* the leg ends after `length` */
    bool hop;     /* it is leg `leg` of hop `id` */
    bool goes_on; /* an interrupted leg: `begun` comes from a checkpoint */
    int64_t leg, id;
    clt_time length;     /* resolved: batches, samples, tokens or seconds */
    clt_timestamp begun; /* its batch, sample, token and wall_seconds */
} clt_run_leg;

/* The id of a hop in its checkpoints: 48 bits of the hash of its --hop argument. */
int64_t clt_hop_id(const char *text);

/* The value of CLTRAIN_HOP for a leg; the caller frees it. */
char *clt_hop_env(int64_t id, int64_t leg);
/* Reads CLTRAIN_HOP if it is set; CLT_USAGE if its value is invalid. Call it before checkpoints are read. */
clt_status clt_run_leg_from_env(clt_run_leg *l);

/* Takes the begin of this leg from a checkpoint's numbers if the checkpoint was written during this leg. */
void clt_run_leg_take(clt_run_leg *l, const clt_checkpoint_state *s);
/* Starts the leg at `now`, or continues an interrupted one. `length` is resolved; value 0: no limit. */
void clt_run_leg_start(clt_run_leg *l, const clt_timestamp *now, clt_time length);
bool clt_run_leg_over(const clt_run_leg *l, const clt_timestamp *now);
/* The numbers about the hop for a checkpoint at `now`; returns their number, 0 or CLT_HOP_NUMBERS. */
int clt_run_leg_numbers(const clt_run_leg *l, const clt_timestamp *now, clt_ckpt_number out[CLT_HOP_NUMBERS]);

/* For the launcher: the leg that trains next according to the newest valid checkpoint in `folder`, and that
 * checkpoint's batch. Leg 0 if there is no checkpoint or it belongs to another hop (*other). */
clt_status clt_hop_position(const char *folder, int64_t id, int64_t *leg, int64_t *batch, bool *other);

#endif
