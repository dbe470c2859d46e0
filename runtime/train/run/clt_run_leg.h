/* clt_run_leg: the part of a run that one process trains when it is told to stop early (train --stop-after),
 * alone or as one leg of a hop (cltrain launch --hop: several devices take turns).
 *
 * Where a hop stands is in its checkpoints, as the manifest's numbers hop_id, hop_leg, hop_batch, hop_sample,
 * hop_token and hop_seconds: the leg that trains the next batch, counted from 0 through all rounds, and where
 * it began. So a run that falls back to an older checkpoint falls back in the hop, too, and a leg that was
 * interrupted is finished, not begun again. */
#ifndef CLT_RUN_LEG_H
#define CLT_RUN_LEG_H

#include "runtime/checkpoint/clt_checkpoint.h"
#include "runtime/train/config/clt_time.h"

enum { CLT_HOP_NUMBERS = 6 };

typedef struct {
    bool limited; /* it ends after `length` */
    bool hop;     /* it is leg `leg` of hop `id` */
    bool goes_on; /* `begun` came from a checkpoint */
    int64_t leg, id;
    clt_time length;     /* resolved: batches, samples, tokens or seconds */
    clt_timestamp begun; /* its batch, sample, token and wall_seconds */
} clt_run_leg;

/* A hop's name among its checkpoints: 48 bits of its text's hash. */
int64_t clt_hop_id(const char *text);

/* The value of CLTRAIN_HOP for a leg; malloc'ed. */
char *clt_hop_env(int64_t id, int64_t leg);
/* Takes CLTRAIN_HOP, if it is set: CLT_USAGE if it is no such value. Before a checkpoint is looked at. */
clt_status clt_run_leg_from_env(clt_run_leg *l);

/* One of a checkpoint's numbers: takes it if it says that this leg had begun. All six in any order. */
void clt_run_leg_take(clt_run_leg *l, const clt_checkpoint_state *s);
/* The leg starts: here, unless a checkpoint has said where. `length` is resolved; value 0: no limit. */
void clt_run_leg_start(clt_run_leg *l, const clt_timestamp *now, clt_time length);
bool clt_run_leg_over(const clt_run_leg *l, const clt_timestamp *now);
/* What a checkpoint of this moment says of the hop: 0 or CLT_HOP_NUMBERS numbers. */
int clt_run_leg_numbers(const clt_run_leg *l, const clt_timestamp *now, clt_ckpt_number out[CLT_HOP_NUMBERS]);

/* For the launcher: the leg that trains next by the newest valid checkpoint in `folder`, and that
 * checkpoint's batch. Leg 0 where there is none or it belongs to another hop (*other). */
clt_status clt_hop_position(const char *folder, int64_t id, int64_t *leg, int64_t *batch, bool *other);

#endif
