/* clt_metrics: the numbers of a step or an evaluation under Composer's names, in the order in which the
 * console prints them. Which ones there are follows the callbacks of the configuration. */
#ifndef CLT_METRICS_H
#define CLT_METRICS_H

#include "runtime/train/config/clt_config.h"
#include "runtime/train/sink/clt_sink.h"
#include "runtime/train/sink/clt_throughput.h"

typedef struct {
    char *name;
    double value;
    const char *format; /* of the console, for printf */
} clt_metric;

typedef struct { /* starts as {0} */
    clt_metric *v;
    size_t n, cap;
} clt_metrics;

/* The name is a printf format with arguments. */
void clt_metrics_add(clt_metrics *m, const char *format, double value, const char *name, ...)
    __attribute__((format(printf, 4, 5)));
void clt_metrics_free(clt_metrics *m);

/* Values that differences and rates need from the step or evaluation before. Starts as {NaN, NaN, ...}. */
typedef struct {
    double loss, wall, cpu;
} clt_metrics_before;

/* seconds_left 0: unknown. */
void clt_metrics_of_step(const clt_config *c, const clt_step_row *r, const clt_rates *rate,
                         double seconds_left, clt_metrics_before *before, clt_metrics *out);
void clt_metrics_of_eval(const clt_config *c, const clt_eval_row *r, clt_metrics *out);
void clt_metrics_of_row(const clt_metrics_row *r, clt_metrics *out);

/* The value of the metric `name`, or NaN. */
double clt_metrics_get(const clt_metrics *m, const char *name);

#endif
