/* How many samples an epoch draws from each stream. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/clt_nprng.h"
#include "runtime/data/clt_streams_internal.h"

static const double most_samples = 1099511627776.0; /* 2^40, as clt_order */

/* --- an epoch size as text --- */

/* Decimal digits with at most one point and an exponent; strtod alone also takes hexadecimal, "inf" and
 * "nan".
 */
static bool is_decimal(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)s[i]) && !strchr("+-.eE", s[i])) return false;
    return n > 0;
}

clt_status clt_streams_parse_size(const char *text, int64_t *out) {
    static const struct {
        char suffix;
        double unit;
    } units[] = {{'k', 1e3}, {'m', 1e6}, {'b', 1e9}, {'t', 1e12}};
    const char *s = text;
    while (isspace((unsigned char)*s)) s++;
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1])) n--;
    double unit = 0, value = NAN;
    for (size_t i = 0; i < CLT_COUNT_OF(units) && n > 0; i++)
        if (tolower((unsigned char)s[n - 1]) == units[i].suffix) unit = units[i].unit;
    char *number = clt_strndup(s, unit > 0 ? n - 1 : n), *end = number;
    bool whole = n > 0 && strspn(number, "0123456789") == n;
    if (whole || (unit > 0 && is_decimal(number, strlen(number)))) value = strtod(number, &end);
    bool good = end != number && !*end;
    clt_free(number);
    if (unit > 0) value *= unit;
    if (!good || !(value >= 0 && value <= most_samples))
        return clt_error(
            CLT_BAD_CONFIG,
            "epoch_size '%.40s' must be a number of samples up to 2^40, like 100, 10k, 1.5m or 2b", text);
    *out = (int64_t)value;
    return CLT_OK;
}

/* --- checks --- */

static clt_status check_stream(const clt_stream *s, const clt_stream *first) {
    const struct {
        const char *key;
        double v;
    } weights[] = {{"proportion", s->proportion}, {"repeat", s->repeat}, {"choose", s->choose}};
    const char *given = NULL;
    for (size_t i = 0; i < CLT_COUNT_OF(weights); i++) {
        if (isnan(weights[i].v)) continue;
        if (given)
            return clt_error(
                CLT_BAD_CONFIG,
                "stream '%s' has both %s and %s: give at most one of proportion, repeat and choose", s->name,
                given, weights[i].key);
        given = weights[i].key;
        if (!(weights[i].v >= 0 && weights[i].v <= most_samples))
            return clt_error(CLT_BAD_CONFIG, "stream '%s': %s %g must be from 0 to 2^40", s->name, given,
                             weights[i].v);
    }
    if (isnan(s->proportion) != isnan(first->proportion))
        return clt_error(CLT_BAD_CONFIG,
                         "stream '%s' has %s and stream '%s' has %s: give all streams a proportion, or none",
                         first->name, isnan(first->proportion) ? "no proportion" : "a proportion", s->name,
                         isnan(s->proportion) ? "none" : "one");
    return CLT_OK;
}

/* --- rules --- */

/* NumPy's sum of doubles: pairwise, eight at a time. The shares depend on its rounding. */
static double pairwise_sum(const double *v, size_t n) {
    if (n < 8) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += v[i];
        return sum;
    }
    if (n > 128) {
        size_t half = n / 2 - n / 2 % 8;
        return pairwise_sum(v, half) + pairwise_sum(v + half, n - half);
    }
    double r[8];
    memcpy(r, v, sizeof r);
    size_t i = 8;
    for (; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++) r[k] += v[i + k];
    double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    for (; i < n; i++) sum += v[i];
    return sum;
}

/* share[] holds relative weights. The samples that rounding down leaves over go to random streams, one each.
 */
static clt_status choose_by_share(const clt_streams_params *p, int64_t size, int64_t *choose, double *share) {
    const double sum = pairwise_sum(share, p->n);
    if (!(sum > 0))
        return clt_error(CLT_BAD_CONFIG,
                         "the proportions of the streams are all 0: at least one must be positive");
    int64_t missing = size;
    for (size_t i = 0; i < p->n; i++) {
        share[i] /= sum;
        choose[i] = (int64_t)((double)size * share[i]);
        missing -= choose[i];
    }
    if (missing < 0 || missing > (int64_t)p->n)
        return clt_error(CLT_BAD_CONFIG,
                         "the proportions of the streams differ too much to divide %lld samples",
                         (long long)size);
    int64_t *extra = clt_calloc(p->n, sizeof *extra);
    clt_nprng r;
    clt_nprng_seed(&r, p->weight_seed, 0);
    bool good = clt_nprng_choice(&r, (int64_t)p->n, missing, extra);
    for (int64_t i = 0; i < missing && good; i++) choose[extra[i]]++;
    clt_free(extra);
    return good ? CLT_OK : clt_no_memory("the weights of streams", p->n * sizeof *extra);
}

static clt_status choose_absolutely(const clt_streams_params *p, const int64_t *totals, int64_t *choose,
                                    double *share) {
    if (p->epoch_size > 0)
        return clt_error(CLT_BAD_CONFIG,
                         "epoch_size %lld contradicts the streams' repeat and choose, which already fix it: "
                         "remove it, or use proportion",
                         (long long)p->epoch_size);
    double sum = 0;
    for (size_t i = 0; i < p->n; i++) {
        const clt_stream *s = &p->stream[i];
        double v = !isnan(s->repeat)   ? s->repeat * (double)totals[i]
                   : !isnan(s->choose) ? s->choose
                                       : (double)totals[i];
        sum += floor(v);
        if (sum > most_samples)
            return clt_error(CLT_BAD_CONFIG,
                             "stream '%s': an epoch of more than 2^40 samples is not supported", s->name);
        choose[i] = (int64_t)v;
    }
    for (size_t i = 0; i < p->n; i++) share[i] = (double)choose[i] / sum;
    if (sum > 0) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "repeat or choose of every stream is 0: an epoch would have no samples");
}

clt_status clt_streams_weigh(const clt_streams_params *p, const int64_t *totals, int64_t *choose,
                             double *share) {
    bool weighted = false;
    int64_t all = 0;
    for (size_t i = 0; i < p->n; i++) {
        const clt_stream *s = &p->stream[i];
        CLT_TRY(check_stream(s, &p->stream[0]));
        weighted = weighted || !isnan(s->proportion) || !isnan(s->repeat) || !isnan(s->choose);
        all += totals[i];
    }
    const bool relative = !isnan(p->stream[0].proportion);
    if (!relative && (weighted || p->epoch_size == 0)) return choose_absolutely(p, totals, choose, share);
    for (size_t i = 0; i < p->n; i++) share[i] = relative ? p->stream[i].proportion : (double)totals[i];
    return choose_by_share(p, p->epoch_size > 0 ? p->epoch_size : all, choose, share);
}
