#include "runtime/train/sink/clt_throughput.h"

#include "runtime/base/clt_base.h"

typedef struct {
    double seconds, flops;
    int64_t samples, tokens;
} step;

struct clt_throughput {
    int64_t window, counted; /* steps without the first one; -1: no step yet */
    step *steps;             /* [window], step i at i % window */
};

clt_throughput *clt_throughput_create(int64_t window) {
    clt_throughput *t = clt_calloc(1, sizeof *t);
    t->window = window;
    t->counted = -1;
    t->steps = clt_calloc((size_t)window, sizeof *t->steps);
    return t;
}

void clt_throughput_destroy(clt_throughput *t) {
    if (!t) return;
    clt_free(t->steps);
    clt_free(t);
}

void clt_throughput_step(clt_throughput *t, double seconds, int64_t samples, int64_t tokens, double flops) {
    const int64_t i = CLT_MAX(t->counted, 0);
    t->steps[i % t->window] = (step){seconds, flops, samples, tokens};
    t->counted++;
}

clt_rates clt_throughput_rates(const clt_throughput *t) {
    const int64_t n = CLT_MIN(t->counted == 0 ? 1 : t->counted, t->window);
    step sum = {0};
    for (int64_t i = 0; i < n; i++) {
        sum.seconds += t->steps[i].seconds;
        sum.flops += t->steps[i].flops;
        sum.samples += t->steps[i].samples;
        sum.tokens += t->steps[i].tokens;
    }
    if (!(sum.seconds > 0)) return (clt_rates){0};
    return (clt_rates){.batches = (double)n / sum.seconds,
                       .samples = (double)sum.samples / sum.seconds,
                       .tokens = (double)sum.tokens / sum.seconds,
                       .flops = sum.flops / sum.seconds};
}
