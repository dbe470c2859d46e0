/* clt_time: Composer's time strings ("4800ba", "1ep", "0.1dur", "2000000tok") and the timestamp that counts
 * all of them at once. Epochs are worth batches as soon as the batches of an epoch are known, "dur" is a
 * fraction of max_duration in max_duration's own unit. */
#ifndef CLT_TIME_H
#define CLT_TIME_H

#include "runtime/base/clt_base.h"

typedef enum {
    CLT_TIME_EPOCH,
    CLT_TIME_BATCH,
    CLT_TIME_SAMPLE,
    CLT_TIME_TOKEN,
    CLT_TIME_DURATION, /* the only unit whose value is a fraction */
    CLT_TIME_ITERATION,
    CLT_TIME_SECOND
} clt_time_unit;

typedef struct {
    clt_time_unit unit;
    int64_t value;   /* all units but CLT_TIME_DURATION */
    double fraction; /* CLT_TIME_DURATION */
} clt_time;

#define CLT_BATCHES(n) ((clt_time){.unit = CLT_TIME_BATCH, .value = (n)})

/* Where a run stands. Wall clock in seconds of training (without evaluation). */
typedef struct {
    int64_t epoch, batch, sample, token;
    int64_t batch_in_epoch, sample_in_epoch, token_in_epoch;
    double wall_seconds;
} clt_timestamp;

/* "ep", "ba", "sp", "tok", "dur", "iter", "sec". */
const char *clt_time_unit_name(clt_time_unit u);

/* Value (also as 2e9) and unit, letter case ignored; a bare whole number means epochs. Negative values are
 * not times. False if `s` is no time string. */
bool clt_time_parse(const char *s, clt_time *out);
/* The same for how long something lasts: above 0, and not in iterations. */
bool clt_time_parse_length(const char *s, clt_time *out);
/* "4800ba"; buf holds at least 40 bytes; returns buf. */
const char *clt_time_text(clt_time t, char *buf);

/* In terms that a timestamp counts: dur -> int(fraction * max_duration) in max_duration's unit, and epochs ->
 * batches (batches_per_epoch > 0 needed for it, otherwise CLT_BAD_CONFIG). `what` names the key in messages.
 */
clt_status clt_time_resolve(clt_time t, clt_time max_duration, int64_t batches_per_epoch, const char *what,
                            clt_time *out);

/* The same for the time between two evaluations or checkpoints, by Composer's other rule for these: dur is
 * rounded up, so a short one is not "never", and epochs stay epochs. */
clt_status clt_time_resolve_interval(clt_time t, clt_time max_duration, int64_t batches_per_epoch,
                                     const char *what, clt_time *out);

/* The timestamp's count in that unit (epochs, batches, samples, tokens; seconds: whole seconds). */
int64_t clt_timestamp_get(const clt_timestamp *t, clt_time_unit u);
/* True when the timestamp has reached `t` (not dur: resolve it first). */
bool clt_timestamp_reached(const clt_timestamp *now, clt_time t);
/* True when a multiple of `every` lies in (before, now]: the rule of all intervals. every.value 0: never. */
bool clt_timestamp_crossed(const clt_timestamp *before, const clt_timestamp *now, clt_time every);
/* One finished optimizer step of a global batch; the last batch of an epoch also ends it. */
void clt_timestamp_next_batch(clt_timestamp *t, int64_t samples, int64_t tokens, bool last_of_epoch);
/* Advances the epoch and clears the counts inside it. */
void clt_timestamp_end_epoch(clt_timestamp *t);

#endif
