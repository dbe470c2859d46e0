/* Division of the lanes among ranks with different devices. The speed of each device is measured once with
 * this model and kept in its cache folder. With exact numerics the division does not change the result. With
 * fast numerics it does; the cached measurement makes the next start use the same division. */
#include <stdlib.h>
#include <string.h>

#include "runtime/device/clt_cache.h"
#include "runtime/train/run/clt_run.h"

/* Ranks with equal marks are assumed to be equally fast. */
typedef struct {
    char device[33];
    int32_t sharing; /* number of ranks that share this CPU; 1 on other devices */
    int32_t units;   /* CPU devices: compute units, which differ where bound ranks have different cores */
} mark;

static mark mark_of(const clt_run *r) {
    mark m = {.sharing = 1};
    snprintf(m.device, sizeof m.device, "%s", clt_device_id(r->dev));
    const clt_device_facts *f = clt_device_get_facts(r->dev);
    if (f->type != CLT_DEVICE_CPU) return m;
    m.sharing = clt_group_local_size(r->group);
    m.units = (int32_t)f->compute_units;
    return m;
}

/* Collects the marks of all ranks into marks[ranks]. */
static clt_status gather_marks(clt_run *r, mark *marks) {
    mark mine;
    memset(&mine, 0, sizeof mine); /* padding included: it is sent as bytes */
    mine = mark_of(r);
    return clt_group_all_gather(r->group, &mine, sizeof mine, marks);
}

static bool same(const mark *a, const mark *b) {
    return strcmp(a->device, b->device) == 0 && a->sharing == b->sharing && a->units == b->units;
}

/* The lowest rank with the same mark; its measurement is used for all of them. */
static int first_like(const mark *marks, int rank) {
    for (int i = 0; i < rank; i++)
        if (same(&marks[i], &marks[rank])) return i;
    return rank;
}

/* --- the speed of a device --- */

/* The name of the cache entry: a hash of everything that the speed depends on. */
static void entry_name(const clt_run *r, char name[64]) {
    const clt_config *c = r->cfg;
    json_t *model = clt_model_config_to_json(c->model);
    char *text = json_dumps(model, JSON_SORT_KEYS | JSON_COMPACT), hex[33];
    char *all = clt_format("%s|%s|%s|%lld|%d|%d|%d|%d|%d|%lld|%d|%d", clt_device_id(r->dev), text,
                           clt_version(), (long long)c->max_seq_len, (int)c->precision,
                           (int)c->eight_bits + 2 * (int)c->fp8, (int)c->attention_bits, (int)c->numerics,
                           (int)r->plan.recompute + 3 * (int)(c->inputs != CLT_OFFLOAD_NONE),
                           (long long)r->plan.microbatch, mark_of(r).sharing, (int)mark_of(r).units);
    clt_hash_hex(clt_hash(all, strlen(all)), hex);
    snprintf(name, 64, "speed-%s", hex);
    clt_free(all);
    clt_free(text);
    json_decref(model);
}

static bool known_speed(const clt_run *r, const char *name, double *speed) {
    char *text = NULL;
    size_t bytes;
    bool ok = clt_cache_get(clt_device_cache_dir(r->dev), name, &text, &bytes) &&
              clt_parse_f64(text, speed) && *speed > 0;
    clt_free(text);
    return ok;
}

static clt_status measure(clt_run *r, double *speed) {
    clt_engine *e = NULL;
    const clt_engine_params p = {
        .cfg = r->cfg, .group = r->group, .ops = r->ops, .plan = &r->plan, .training = true};
    clt_group_note(r->group, 0, "measuring the devices");
    clt_status st = clt_group_agree(r->group, clt_engine_create(&p, &e));
    if (st == CLT_OK) st = clt_group_agree(r->group, clt_engine_measure(e, speed));
    clt_engine_destroy(e);
    return st;
}

/* Samples per second of every rank, into all[ranks]. If one rank must measure, all do: ranks that share a CPU
 * slow each other down. */
static clt_status find_speeds(clt_run *r, const mark *marks, double *all) {
    char name[64], text[32];
    double mine = 0;
    int rank = clt_group_rank(r->group);
    entry_name(r, name);
    int64_t missing = !known_speed(r, name, &mine);
    CLT_TRY(clt_group_max_i64(r->group, &missing, 1));
    if (missing) CLT_TRY(measure(r, &mine));
    snprintf(text, sizeof text, "%.6g", mine);
    if (missing && first_like(marks, rank) == rank)
        clt_cache_put(clt_device_cache_dir(r->dev), name, text, strlen(text));
    if (!clt_parse_f64(text, &mine)) mine = 0; /* the rounded value, which the next start reads */
    CLT_TRY(clt_group_all_gather(r->group, &mine, sizeof mine, all));
    for (int i = clt_group_size(r->group) - 1; i >= 0; i--) all[i] = all[first_like(marks, i)];
    return CLT_OK;
}

/* --- the division --- */

static clt_status divide(clt_run *r, const mark *marks) {
    const int ranks = r->plan.ranks;
    int lanes = r->plan.lanes;
    double speed[CLT_GROUP_MAX_RANKS];
    CLT_TRY(find_speeds(r, marks, speed));
    /* Fast numerics has one lane per rank, too few to divide by speed; use as many as exact numerics. */
    if (r->cfg->numerics == CLT_FAST)
        while (lanes < r->plan.exact_lanes) lanes *= 2;
    int *counts = clt_calloc((size_t)ranks, sizeof *counts);
    clt_lane_counts_by_speed(lanes, ranks, speed, counts);
    clt_plan_take_counts(&r->plan, lanes, counts);
    clt_str b = {0};
    for (int i = 0; i < ranks; i++)
        clt_str_addf(&b, "%s%d of rank %d (%.4g samples/s)", i ? ", " : "", counts[i], i, speed[i]);
    clt_info("lanes, divided by measured speed: %s", b.s);
    clt_str_free(&b);
    clt_free(counts);
    return CLT_OK;
}

clt_status clt_run_divide_lanes(clt_run *r, bool *divided) {
    const int n = r->plan.ranks;
    *divided = false;
    if (n == 1 || r->cfg->n_lanes_per_rank > 0) return CLT_OK;
    mark *marks = clt_calloc((size_t)n, sizeof *marks);
    clt_status st = gather_marks(r, marks);
    for (int i = 1; i < n; i++) *divided |= !same(&marks[0], &marks[i]);
    if (st == CLT_OK && *divided) st = divide(r, marks);
    clt_free(marks);
    return st;
}

char *clt_run_lanes_text(const clt_run *r) {
    const clt_lane_split s = clt_plan_split(&r->plan);
    clt_str b = {0};
    clt_str_add(&b, "\"lanes\":[");
    for (int i = 0; i < s.ranks; i++)
        clt_str_addf(&b, "%s%d", i ? "," : "", clt_lane_begin(&s, i + 1) - clt_lane_begin(&s, i));
    clt_str_add(&b, "]");
    return b.s;
}
