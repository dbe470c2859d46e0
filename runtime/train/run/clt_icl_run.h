/* clt_icl_run: evaluates the sets of in-context-learning tasks with an engine's current weights. Every rank
 * takes part of the items; results are sums of integers, so they do not depend on the number of ranks. With
 * exact numerics they do not depend on device and batch size either. */
#ifndef CLT_ICL_RUN_H
#define CLT_ICL_RUN_H

#include "collectives/clt_group.h"
#include "runtime/data/icl/clt_icl_set.h"
#include "runtime/train/engine/clt_engine.h"

/* What the model makes of one row. */
typedef struct {
    double logprob;    /* of the continuation: sum of natural logarithms */
    double confidence; /* the smallest of the largest probabilities at its positions */
    double mean;       /* of the probabilities of its tokens */
    bool greedy;       /* each of its tokens is the most likely one */
} clt_icl_score;

/* What became of one item. */
typedef struct {
    const clt_icl_score *score; /* [n_rows]; NULL: generation */
    int64_t chosen;             /* multiple choice and schema: the smallest mean loss per token */
    const char *output;         /* generation: the text, as UTF-8 */
    bool correct;
} clt_icl_outcome;

typedef void (*clt_icl_item_fn)(void *ctx, const clt_icl_set *s, size_t i, const clt_icl_item *item,
                                const clt_icl_outcome *o);

typedef struct {
    double value[CLT_ICL_METRICS]; /* by metric; those of the task */
    int64_t samples;
    double seconds;
} clt_icl_result;

typedef struct {
    clt_engine *engine;
    clt_group *group;
    clt_model_facts facts;
    clt_model *text;      /* for generation; NULL: there is no such task */
    int64_t places;       /* texts that it continues together */
    int64_t subset;       /* batches of a set at most; -1: all */
    clt_icl_item_fn item; /* receives this rank's items in order; may be NULL */
    void *ctx;
} clt_icl_run;

/* Evaluates one set. CLT_STOPPED: a stop is requested. CLT_BAD_DATA: an item cannot be scored (FILE:LINE in
 * the message). Collective. */
clt_status clt_icl_run_set(const clt_icl_run *r, const clt_icl_set *s, clt_icl_result *out);

/* Scores rows of any number, in passes of the engine's microbatch. `passes`: at least so many passes, because
 * other ranks make them; 0 if weights are not sharded. */
clt_status clt_icl_score_rows(const clt_icl_run *r, const clt_icl_row *const *row, size_t n, int64_t passes,
                              clt_icl_score *out);

/* Greedy continuations of the rows of a batch, as Foundry's generation makes them: it ends for all rows when
 * every row has ended, or one of the stop strings stands in every row. output[i] are owned by the caller. */
clt_status clt_icl_generate(const clt_icl_run *r, const clt_icl_set *s, const clt_icl_row *const *row,
                            size_t n, clt_str *output);

/* --- sums, for clt_icl_run.c and tests --- */

enum { CLT_ICL_BUCKETS = 10 };

/* Integers, so that ranks can add them exactly. */
typedef struct {
    int64_t total, correct;
    int64_t in_bucket[CLT_ICL_BUCKETS], right_in_bucket[CLT_ICL_BUCKETS];
    int64_t padded; /* rows that have the padding token in their text */
} clt_icl_sums;

/* Counts an item; *chosen and *correct receive the result. */
void clt_icl_sums_add(clt_icl_sums *x, const clt_icl_set *s, const clt_icl_item *item,
                      const clt_icl_score *score, int64_t *chosen, bool *correct);
/* The calibration error: buckets of equal width by confidence, |accuracy - middle of the bucket|, weighted by
 * the number of items. */
double clt_icl_sums_metric(const clt_icl_sums *x, clt_icl_metric m);

#endif
