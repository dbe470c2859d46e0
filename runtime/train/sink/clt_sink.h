/* clt_sink: the outputs for a run's metrics. One call passes a row to every sink that the configuration asks
 * for (clt_sink_kind.h): the console, metrics.jsonl, TensorBoard event files and so on. On ranks other than 0
 * all calls do nothing.
 *
 * Metrics are not worth a run: a sink that cannot be opened or written costs one warning, except that
 * metrics.jsonl must be writable at the start. */
#ifndef CLT_SINK_H
#define CLT_SINK_H

#include "runtime/base/clt_io.h"
#include "runtime/train/config/clt_config.h"

typedef struct clt_sinks clt_sinks;

/* Receives a row of metrics.jsonl: the text of one JSON object. */
typedef void (*clt_row_fn)(void *ctx, const char *json);

typedef struct {
    clt_timestamp before, after; /* of the step */
    double loss, lr;
    float grad_norm;
    double loss_scale;                                            /* 0: none */
    double step_seconds, units_per_second, flops_per_second, mfu; /* units: clt_model_terms; mfu 0: unknown */
    uint64_t device_memory;
    int64_t microbatch;
    int ranks;
    double eval_seconds;  /* spent in evaluation by this process */
    double stall_seconds; /* that the rank that waited longest waited for shards to be fetched so far; -1:
                             none are */
} clt_step_row;

/* Which of the numbers are reported, and under which names: clt_model_get_terms. */
typedef struct {
    int64_t batch;
    const char *label;
    double loss, perplexity, accuracy;
    double accuracy5; /* of the five most likely classes */
    int64_t samples;
    double seconds;
} clt_eval_row;

/* Named metrics of one label, such as those of an in-context-learning task. */
typedef struct {
    int64_t batch;
    const char *label;  /* "lm/0-shot" */
    const char *prefix; /* of the console's names "PREFIXmetrics/LABEL/NAME"; NULL: none */
    int n;
    const char *const *name; /* [n] */
    const double *value;     /* [n] */
    int64_t samples;         /* 0: the values are no result of samples */
    double seconds;
} clt_metrics_row;

typedef struct {
    const clt_config *cfg;     /* borrowed */
    const char *folder;        /* the run's existing folder; NULL: write no files */
    bool main_rank;            /* rank 0 */
    int64_t batches_per_epoch; /* 0 if nothing is trained */
    int64_t start_batch;       /* batch at which this process starts; above 0: it resumes a run */
    clt_row_fn row;            /* receives every row of metrics.jsonl without the newline; NULL: none */
    void *row_ctx;
} clt_sinks_params;

clt_status clt_sinks_create(const clt_sinks_params *p, clt_sinks **out);
void clt_sinks_destroy(clt_sinks *s);

void clt_sinks_step(clt_sinks *s, const clt_step_row *r);
/* Reports progress within an evaluation: batch `i` of `n`. */
void clt_sinks_eval_progress(clt_sinks *s, const char *label, int64_t i, int64_t n);
void clt_sinks_eval(clt_sinks *s, const clt_eval_row *r);
void clt_sinks_metrics(clt_sinks *s, const clt_metrics_row *r);
/* Something that happened at a batch, written as {"event":"name","batch":N, ...} to metrics.jsonl; `fields`
 * is JSON text like "\"from\":3", or NULL. */
void clt_sinks_event(clt_sinks *s, const char *event, int64_t batch, const char *fields);

#endif
