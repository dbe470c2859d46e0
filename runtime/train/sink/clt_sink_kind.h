/* clt_sink_kind: what an output for metrics implements. A sink is one file with one clt_sink_kind; its row in
 * the table of clt_sink.c is all that the run knows about it. clt_sink_csv.c is the example to copy.
 *
 * Sinks are called on rank 0 and by one thread. Every function but open may be NULL. A function that fails
 * has printed its message; it is called again with the next row, so that a disk that was full costs only the
 * rows that it could not take. */
#ifndef CLT_SINK_KIND_H
#define CLT_SINK_KIND_H

#include "runtime/train/sink/clt_metrics.h"
#include "runtime/train/sink/clt_sink.h"
#include "runtime/train/sink/clt_throughput.h"

typedef struct {
    const clt_step_row *row;
    clt_rates rate;            /* over the window of speed_monitor */
    double done, seconds_left; /* part of max_duration, 0 to 1; seconds to its end, 0: unknown */
    const clt_metrics *metrics;
} clt_sink_step;

typedef struct {
    const clt_eval_row *row;
    const clt_metrics *metrics;
} clt_sink_eval;

typedef struct {
    const clt_metrics_row *row;
    const clt_metrics *metrics;
} clt_sink_named;

typedef struct {
    const char *name, *fields; /* as clt_sinks_event has them */
    int64_t batch;
} clt_sink_event;

typedef struct {
    const char *name; /* in messages */
    bool essential;   /* a run does not start without it */
    /* *state stays NULL if the configuration does not ask for this sink. p outlives the sink. */
    clt_status (*open)(const clt_sinks_params *p, void **state);
    clt_status (*step)(void *state, const clt_sink_step *s);
    clt_status (*eval)(void *state, const clt_sink_eval *e);
    clt_status (*named)(void *state, const clt_sink_named *n);
    clt_status (*event)(void *state, const clt_sink_event *e);
    void (*progress)(void *state, const char *label, int64_t i, int64_t n); /* within an evaluation */
    clt_status (*close)(void *state); /* frees the state also when it fails */
} clt_sink_kind;

extern const clt_sink_kind clt_sink_jsonl, clt_sink_console, clt_sink_csv, clt_sink_prometheus,
    clt_sink_tensorboard, clt_sink_mlflow, clt_sink_text;

#endif
