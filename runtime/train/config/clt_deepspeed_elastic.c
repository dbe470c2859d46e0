/* elasticity: a batch that many numbers of ranks can train with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/train/config/clt_deepspeed_internal.h"

/* The highly composite numbers, each with more divisors than any smaller number, as far as a batch goes. */
static const int64_t composites[] = {
    1,     2,     4,     6,      12,     24,     36,     48,     60,     120,    180,    240,   360,
    720,   840,   1260,  1680,   2520,   5040,   7560,   10080,  15120,  20160,  25200,  27720, 45360,
    50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

static int64_t least_micro(const clt_deepspeed_elastic *e) {
    int64_t least = e->micro[0];
    for (int64_t i = 1; i < e->n_micro; i++) least = CLT_MIN(least, e->micro[i]);
    return least;
}

/* What a batch may be: DeepSpeed takes a least common multiple above max_train_batch_size as it is. */
static const int64_t most_multiple = 1000000000000;

static int64_t divisor_of_both(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* base times the largest highly composite number within the batch; base itself if it exceeds it. */
static int64_t scale_up(int64_t base, int64_t most) {
    int64_t batch = base;
    for (size_t i = 0; i < CLT_COUNT_OF(composites) && base <= most / composites[i]; i++)
        batch = base * composites[i];
    return batch;
}

/* --- valid numbers --- */

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void add_number(clt_deepspeed_elastic_plan *p, int64_t ranks, int64_t least, int64_t most) {
    if (ranks < least || ranks > most) return;
    p->ranks = clt_realloc(p->ranks, (size_t)(p->n + 1) * sizeof *p->ranks);
    p->ranks[p->n++] = ranks;
}

/* The divisors of batch / micro for each micro batch that divides the batch. */
static clt_deepspeed_elastic_plan numbers_of(const clt_deepspeed_elastic *e, int64_t batch, int64_t least,
                                             int64_t most) {
    clt_deepspeed_elastic_plan p = {.batch = batch};
    for (int64_t i = 0; i < e->n_micro; i++) {
        const int64_t all = batch / e->micro[i];
        if (batch % e->micro[i]) continue;
        for (int64_t k = 1; k <= all / k; k++) {
            if (all % k) continue;
            add_number(&p, k, least, most);
            if (k != all / k) add_number(&p, all / k, least, most);
        }
    }
    qsort(p.ranks, (size_t)p.n, sizeof *p.ranks, ascending);
    int n = 0;
    for (int i = 0; i < p.n; i++)
        if (n == 0 || p.ranks[n - 1] != p.ranks[i]) p.ranks[n++] = p.ranks[i];
    p.n = n;
    return p;
}

/* Version 0.1, with another largest batch and range of numbers than the section's. */
static const char *choose(const clt_deepspeed_elastic *e, int64_t max_batch, int64_t least, int64_t most,
                          clt_deepspeed_elastic_plan *out) {
    int64_t multiple = 1;
    *out = (clt_deepspeed_elastic_plan){.batch = least_micro(e)};
    for (int64_t i = 0; i < e->n_micro; i++) {
        if (e->micro[i] > max_batch) return "max_train_batch_size is below a micro batch";
        if (multiple <= most_multiple)
            multiple = multiple / divisor_of_both(multiple, e->micro[i]) * e->micro[i];
    }
    for (int64_t i = 0; i <= e->n_micro; i++) {
        const int64_t base = i < e->n_micro ? e->micro[i] : multiple, batch = scale_up(base, max_batch);
        if (base > most_multiple) continue;
        clt_deepspeed_elastic_plan p = numbers_of(e, batch, least, most);
        const bool wins =
            p.n > out->n || (p.n == out->n && (e->prefer_larger ? batch > out->batch : batch < out->batch));
        clt_free(wins ? out->ranks : p.ranks);
        if (wins) *out = p;
    }
    return out->n ? NULL : "no number of ranks from min_gpus to max_gpus is valid";
}

/* Version 0.2, for ranks that are not valid: the batch for them alone. */
static void choose_alone(const clt_deepspeed_elastic *e, int64_t ranks, int64_t per_node,
                         clt_deepspeed_elastic_plan *out) {
    const double size = (double)ranks / (double)e->gpus_per_node * (double)per_node;
    double best = e->prefer_larger ? -1 : INFINITY;
    for (int64_t i = 0; i < e->n_micro; i++) {
        const double step = (double)e->micro[i] * size, batch = floor((double)e->max_batch / step) * step;
        best = e->prefer_larger ? CLT_MAX(best, batch) : CLT_MIN(best, batch);
    }
    clt_free(out->ranks);
    *out = (clt_deepspeed_elastic_plan){.batch = (int64_t)best};
    add_number(out, (int64_t)size, 0, INT64_MAX);
}

static bool holds(const clt_deepspeed_elastic_plan *p, int64_t ranks) {
    for (int i = 0; i < p->n; i++)
        if (p->ranks[i] == ranks) return true;
    return false;
}

static const char *choose_nodes(const clt_deepspeed_elastic *e, int64_t ranks,
                                clt_deepspeed_elastic_plan *out) {
    const int64_t per_node = e->gpus_per_node / CLT_MAX(e->model_parallel, (int64_t)1);
    if (e->gpus_per_node % e->model_parallel) return "model_parallel_size does not divide num_gpus_per_node";
    if (ranks < 1) return "version 0.2 needs the number of ranks";
    const int64_t max_batch = e->max_batch / per_node, least = e->min_gpus / e->gpus_per_node,
                  most = e->max_gpus / e->gpus_per_node;
    const char *why = choose(e, max_batch, least ? least : 1, most ? most : max_batch / least_micro(e), out);
    if (why) return why;
    out->batch *= per_node;
    for (int i = 0; i < out->n; i++) out->ranks[i] *= per_node;
    if (!holds(out, ranks / e->model_parallel)) choose_alone(e, ranks, per_node, out);
    return NULL;
}

int64_t clt_deepspeed_elastic_micro(const clt_deepspeed_elastic *e, int64_t batch, int64_t ranks) {
    int64_t micro = 0;
    for (int64_t i = 0; i < e->n_micro; i++)
        if (batch / ranks % e->micro[i] == 0) micro = CLT_MAX(micro, e->micro[i]);
    return micro;
}

const char *clt_deepspeed_elastic_compute(const clt_deepspeed_elastic *e, int64_t ranks,
                                          clt_deepspeed_elastic_plan *out) {
    *out = (clt_deepspeed_elastic_plan){0};
    if (e->version == 1 && e->model_parallel > 1) return "version 0.1 has no model_parallel_size";
    const char *why = e->version == 1 ? choose(e, e->max_batch, e->min_gpus, e->max_gpus, out)
                                      : choose_nodes(e, ranks, out);
    if (why || ranks < 1) return why;
    if (!holds(out, ranks)) return "the number of ranks is not valid";
    out->micro = out->batch > 0 ? clt_deepspeed_elastic_micro(e, out->batch, ranks) : 0;
    return out->micro ? NULL : "no micro batch fits the number of ranks within max_train_batch_size";
}

/* --- the file's section --- */

#define SECTION "elasticity."
static const char batch_key[] = SECTION "max_train_batch_size", micro_key[] = SECTION "micro_batch_sizes";

/* A whole number of at least `least`. */
static clt_status take(clt_deepspeed *d, const char *key, int64_t otherwise, int64_t least, int64_t *out) {
    *out = (int64_t)clt_deepspeed_number(d, key, (double)otherwise);
    if (*out >= least && *out <= CLT_ELASTIC_MOST_BATCH) return CLT_OK;
    return clt_schema_fail(&d->r, key, "is %lld: it must be %lld to %d", (long long)*out, (long long)least,
                           CLT_ELASTIC_MOST_BATCH);
}

static clt_status take_micro(clt_deepspeed *d, clt_deepspeed_elastic *e) {
    const json_t *list = clt_deepspeed_get(d, micro_key);
    e->n_micro = (int64_t)json_array_size(list);
    if (e->n_micro < 1 || e->n_micro > CLT_ELASTIC_MOST_MICRO)
        return clt_schema_fail(&d->r, list ? micro_key : "elasticity",
                               "needs micro_batch_sizes, a list of 1 to %d sizes", CLT_ELASTIC_MOST_MICRO);
    for (int64_t i = 0; i < e->n_micro; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        e->micro[i] = json_is_integer(v) ? (int64_t)json_integer_value(v) : 0;
        if (e->micro[i] < 1 || e->micro[i] > CLT_ELASTIC_MOST_BATCH)
            return clt_schema_fail(&d->r, micro_key, "holds a size that is no whole number above 0");
    }
    return CLT_OK;
}

static clt_status take_section(clt_deepspeed *d, clt_deepspeed_elastic *e) {
    const double version = clt_deepspeed_number(d, SECTION "version", 0.2);
    if (version != 0.1 && version != 0.2)
        return clt_schema_fail(&d->r, SECTION "version", "is %g: known are 0.1 and 0.2", version);
    e->version = version == 0.1 ? 1 : 2;
    e->prefer_larger = !json_is_false(clt_deepspeed_get(d, SECTION "prefer_larger_batch"));
    if (!clt_deepspeed_get(d, batch_key))
        return clt_schema_fail(&d->r, "elasticity", "is enabled without max_train_batch_size: add it");
    CLT_TRY(take(d, batch_key, 0, 1, &e->max_batch));
    CLT_TRY(take_micro(d, e));
    CLT_TRY(take(d, SECTION "min_gpus", 1, 1, &e->min_gpus));
    CLT_TRY(take(d, SECTION "max_gpus", 10000, 1, &e->max_gpus));
    CLT_TRY(take(d, SECTION "num_gpus_per_node", 1, 1, &e->gpus_per_node));
    CLT_TRY(take(d, SECTION "model_parallel_size", 1, 1, &e->model_parallel));
    if (clt_deepspeed_number(d, SECTION "min_time", 0) < 0)
        return clt_schema_fail(&d->r, SECTION "min_time", "must not be negative");
    if (e->min_gpus > e->max_gpus)
        return clt_schema_fail(&d->r, SECTION "min_gpus", "is %lld, above max_gpus %lld",
                               (long long)e->min_gpus, (long long)e->max_gpus);
    if (e->model_parallel > 1)
        return clt_schema_fail(&d->r, SECTION "model_parallel_size",
                               "is %lld: every rank has samples of its own here, set it to 1",
                               (long long)e->model_parallel);
    return CLT_OK;
}

/* The valid numbers on either side of the ranks, three each. */
static clt_status refuse(clt_deepspeed *d, const clt_deepspeed_elastic_plan *p, const char *why) {
    enum { NEAR = 3 };
    clt_str near = {0};
    int above = 0;
    while (above < p->n && p->ranks[above] < d->ranks) above++;
    for (int i = CLT_MAX(above - NEAR, 0); i < CLT_MIN(above + NEAR, p->n); i++)
        clt_str_addf(&near, "%s%lld", near.len ? ", " : "; valid numbers near it are ",
                     (long long)p->ranks[i]);
    clt_status st =
        clt_schema_fail(&d->r, "elasticity", "%s (%lld rank%s, batch %lld)%s", why, (long long)d->ranks,
                        d->ranks == 1 ? "" : "s", (long long)p->batch, near.s ? near.s : "");
    clt_str_free(&near);
    return st;
}

static void keep_numbers(clt_config *c, const clt_deepspeed_elastic *e, const clt_deepspeed_elastic_plan *p) {
    c->elastic = clt_calloc((size_t)p->n, sizeof *c->elastic);
    c->n_elastic = p->n;
    for (int i = 0; i < p->n; i++) {
        c->elastic[i][0] = p->ranks[i];
        c->elastic[i][1] = clt_deepspeed_elastic_micro(e, p->batch, p->ranks[i]);
    }
}

static clt_status use(clt_deepspeed *d, const clt_deepspeed_elastic *e, const clt_deepspeed_elastic_plan *p) {
    keep_numbers(d->c, e, p);
    if (e->version == 2 && p->n == 1)
        clt_strv_add_owned(&d->c->remarks,
                           clt_format("%s: elasticity: batch %lld is for %lld ranks alone; another number of "
                                      "ranks may have another batch",
                                      d->path, (long long)p->batch, (long long)d->ranks));
    CLT_TRY(clt_deepspeed_put(d, batch_key, "global_train_batch_size", json_integer(p->batch)));
    return clt_deepspeed_put(d, micro_key, "device_train_microbatch_size", json_integer(p->micro));
}

clt_status clt_deepspeed_map_elastic(clt_deepspeed *d) {
    static const char *const fixed[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                        "gradient_accumulation_steps"};
    static const char ignore[] = SECTION "ignore_non_elastic_batch_info";
    clt_deepspeed_elastic e = {0};
    clt_deepspeed_elastic_plan p;
    for (size_t i = 0; i < CLT_COUNT_OF(fixed); i++) {
        if (!clt_deepspeed_get(d, fixed[i])) continue;
        if (!clt_deepspeed_true(d, ignore))
            return clt_schema_fail(&d->r, fixed[i],
                                   "is given, but elasticity chooses the batch: remove it, or set "
                                   "elasticity.ignore_non_elastic_batch_info to true");
        clt_notices_add(d->r.notices, fixed[i], "elasticity chooses the batch");
    }
    CLT_TRY(take_section(d, &e));
    const char *why = clt_deepspeed_elastic_compute(&e, d->ranks, &p);
    clt_status st = why ? refuse(d, &p, why) : use(d, &e, &p);
    clt_free(p.ranks);
    return st;
}
