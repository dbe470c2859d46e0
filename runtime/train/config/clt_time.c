#include "runtime/train/config/clt_time.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Far above any run, far enough below 2^63 that sums and differences of times cannot overflow. */
static const int64_t MAX_COUNT = 1000000000000000000;

static const char *const unit_names[] = {"ep", "ba", "sp", "tok", "dur", "iter", "sec"};

const char *clt_time_unit_name(clt_time_unit u) {
    return unit_names[u];
}

/* Characters of the number that `s` begins with: digits with or without a point, and an exponent where
 * digits follow the e ("ep" begins with one, too). */
static size_t number_length(const char *s) {
    size_t n = strspn(s, "0123456789.");
    if (n == 0 || (s[n] != 'e' && s[n] != 'E')) return n;
    size_t sign = s[n + 1] == '-' || s[n + 1] == '+', digits = strspn(s + n + 1 + sign, "0123456789");
    return digits > 0 ? n + 1 + sign + digits : n;
}

bool clt_time_parse(const char *s, clt_time *out) {
    size_t digits = number_length(s);
    if (digits == 0 || digits > 24) return false;
    char number[32];
    memcpy(number, s, digits);
    number[digits] = 0;
    double value;
    if (!clt_parse_f64(number, &value)) return false;
    int64_t whole = 0;
    bool is_whole = clt_parse_i64(number, &whole);
    if (!is_whole && strpbrk(number, ".eE") && value == floor(value) && value < 9e15) {
        is_whole = true; /* "1.0ep", "2e9tok" */
        whole = (int64_t)value;
    }
    const char *unit = s + digits;
    clt_time t = {.unit = CLT_TIME_EPOCH, .value = whole};
    if (*unit) {
        int u = -1;
        for (int i = 0; i < (int)CLT_COUNT_OF(unit_names); i++)
            if (strcasecmp(unit, unit_names[i]) == 0) u = i;
        if (u < 0) return false;
        t.unit = (clt_time_unit)u;
    }
    if (t.unit == CLT_TIME_DURATION) {
        t.value = 0;
        t.fraction = value;
        if (value > 1e6) return false;
    } else if (!is_whole || whole > MAX_COUNT) {
        return false;
    }
    *out = t;
    return true;
}

bool clt_time_parse_length(const char *s, clt_time *out) {
    return clt_time_parse(s, out) && out->unit != CLT_TIME_ITERATION && (out->value > 0 || out->fraction > 0);
}

const char *clt_time_text(clt_time t, char *buf) {
    if (t.unit == CLT_TIME_DURATION)
        snprintf(buf, 40, "%.10gdur", t.fraction);
    else
        snprintf(buf, 40, "%lld%s", (long long)t.value, unit_names[t.unit]);
    return buf;
}

/* A fraction of max_duration, not yet rounded, in the order in which Composer multiplies: the last bit
 * decides whether 0.03 of 900 batches are 26 or 27. */
static double share(double fraction, clt_time max_duration, int64_t batches_per_epoch, bool interval) {
    double max = (double)max_duration.value, batches = (double)batches_per_epoch;
    if (max_duration.unit != CLT_TIME_EPOCH) return fraction * max;
    return interval ? max * fraction * batches : fraction * batches * max;
}

static clt_status resolve(clt_time t, clt_time max_duration, int64_t batches_per_epoch, const char *what,
                          bool interval, clt_time *out) {
    bool epochs =
        t.unit == CLT_TIME_EPOCH || (t.unit == CLT_TIME_DURATION && max_duration.unit == CLT_TIME_EPOCH);
    if (epochs && batches_per_epoch <= 0)
        return clt_error(CLT_BAD_CONFIG,
                         "%s is counted in epochs, but the data set has no full batch: use batches (ba)",
                         what);
    clt_time r = t.unit == CLT_TIME_DURATION ? max_duration : t;
    if (r.unit == CLT_TIME_EPOCH) {
        r.unit = CLT_TIME_BATCH;
        if (__builtin_mul_overflow(r.value, batches_per_epoch, &r.value) || r.value > MAX_COUNT)
            return clt_error(CLT_BAD_CONFIG, "%s is more batches than can be counted: make it shorter", what);
    }
    if (t.unit == CLT_TIME_DURATION) {
        double value = share(t.fraction, max_duration, batches_per_epoch, interval);
        if (value > (double)MAX_COUNT)
            return clt_error(CLT_BAD_CONFIG, "%s is too long: make it shorter", what);
        r.value = (int64_t)(interval ? ceil(value) : value);
    }
    *out = r;
    return CLT_OK;
}

clt_status clt_time_resolve(clt_time t, clt_time max_duration, int64_t batches_per_epoch, const char *what,
                            clt_time *out) {
    return resolve(t, max_duration, batches_per_epoch, what, false, out);
}

clt_status clt_time_resolve_interval(clt_time t, clt_time max_duration, int64_t batches_per_epoch,
                                     const char *what, clt_time *out) {
    if (t.unit == CLT_TIME_DURATION) return resolve(t, max_duration, batches_per_epoch, what, true, out);
    *out = t;
    return CLT_OK;
}

int64_t clt_timestamp_get(const clt_timestamp *t, clt_time_unit u) {
    switch (u) {
    case CLT_TIME_EPOCH:
        return t->epoch;
    case CLT_TIME_BATCH:
        return t->batch;
    case CLT_TIME_SAMPLE:
        return t->sample;
    case CLT_TIME_TOKEN:
        return t->token;
    case CLT_TIME_SECOND:
        return (int64_t)t->wall_seconds;
    default:
        return 0;
    }
}

bool clt_timestamp_reached(const clt_timestamp *now, clt_time t) {
    return clt_timestamp_get(now, t.unit) >= t.value;
}

bool clt_timestamp_crossed(const clt_timestamp *before, const clt_timestamp *now, clt_time every) {
    if (every.value <= 0) return false;
    return clt_timestamp_get(before, every.unit) / every.value !=
           clt_timestamp_get(now, every.unit) / every.value;
}

void clt_timestamp_end_epoch(clt_timestamp *t) {
    t->epoch++;
    t->batch_in_epoch = t->sample_in_epoch = t->token_in_epoch = 0;
}

void clt_timestamp_next_batch(clt_timestamp *t, int64_t samples, int64_t tokens, bool last_of_epoch) {
    t->batch++;
    t->sample += samples;
    t->token += tokens;
    t->batch_in_epoch++;
    t->sample_in_epoch += samples;
    t->token_in_epoch += tokens;
    if (last_of_epoch) clt_timestamp_end_epoch(t);
}
