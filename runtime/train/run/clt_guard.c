#include "runtime/train/run/clt_guard.h"

#include <math.h>
#include <string.h>

/* --- spikes --- */

double clt_spike_add(clt_spike *s, double x) {
    double mean = 0, variance = 0;
    if (!isfinite(x)) return NAN;
    if (s->n == s->window) {
        memmove(s->v, s->v + 1, (size_t)(s->n - 1) * sizeof *s->v);
        s->n--;
    }
    s->v[s->n++] = x;
    if (s->n < s->window) return NAN;
    for (int i = 0; i < s->n; i++) mean += s->v[i];
    mean /= s->n;
    for (int i = 0; i < s->n; i++) variance += (s->v[i] - mean) * (s->v[i] - mean);
    variance /= s->n;
    return variance > 0 ? (x - mean) / sqrt(variance) : 0.0;
}

/* --- stragglers --- */

void clt_straggler_begin(clt_straggler *s, int ranks) {
    *s = (clt_straggler){.ranks = ranks, .last = -1};
    s->sum = clt_calloc((size_t)ranks, sizeof *s->sum);
}

void clt_straggler_end(clt_straggler *s) {
    clt_free(s->sum);
    s->sum = NULL;
}

/* The smallest value v[i] such that at least half of all values are <= v[i]. */
static double lower_median(const double *v, int n) {
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        int below = 0;
        for (int k = 0; k < n; k++) below += v[k] <= v[i];
        if (2 * below >= n && v[i] < best) best = v[i];
    }
    return best;
}

/* Ends a round: finds the slow rank and counts its consecutive rounds. */
static clt_straggler_found end_round(clt_straggler *s, double ratio, double least) {
    clt_straggler_found f = {.rank = -1};
    int slow = 0;
    for (int r = 0; r < s->ranks; r++) {
        s->sum[r] /= s->steps;
        if (s->sum[r] > s->sum[slow]) slow = r;
    }
    f.seconds = s->sum[slow];
    f.median = lower_median(s->sum, s->ranks);
    bool behind = f.seconds > ratio * f.median && f.seconds - f.median >= least;
    s->rounds = behind && slow == s->last ? s->rounds + 1 : behind;
    s->last = behind ? slow : -1;
    if (s->rounds == CLT_STRAGGLER_ROUNDS) f.rank = slow;
    return f;
}

clt_straggler_found clt_straggler_add(clt_straggler *s, const double *seconds, double ratio, double least) {
    clt_straggler_found f = {.rank = -1};
    for (int r = 0; r < s->ranks; r++) s->sum[r] += seconds[r];
    if (++s->steps < CLT_STRAGGLER_STEPS) return f;
    f = end_round(s, ratio, least);
    s->steps = 0;
    memset(s->sum, 0, (size_t)s->ranks * sizeof *s->sum);
    return f;
}

/* --- replicas --- */

int clt_replicas_odd(const uint64_t *hash, int ranks, int words, bool *odd) {
    size_t bytes = (size_t)words * sizeof *hash;
    int common = -1, n = 0;
    for (int r = 0; r < ranks && common < 0; r++) {
        int same = 0;
        for (int k = 0; k < ranks; k++) same += !memcmp(hash + r * words, hash + k * words, bytes);
        if (2 * same > ranks) common = r;
    }
    for (int r = 0; r < ranks; r++) {
        odd[r] = common < 0 || memcmp(hash + r * words, hash + common * words, bytes) != 0;
        n += odd[r];
    }
    return common < 0 ? -1 : n;
}
