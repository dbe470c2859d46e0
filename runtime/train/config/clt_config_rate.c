/* scheduler: DeepSpeed's learning rates. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define OUTSIDE "is %g: it must be at least 0 and below 1"
enum { WARMUP = 1, DECAY = 2, COSINE = 4, CYCLE = 8, RANGE = 16 };

/* Keys of the table, the kinds that they belong to, and their fields. */
typedef enum { REAL, COUNT, SWITCH } field_type;
static const struct {
    const char *key;
    int kinds;
    field_type type;
    size_t at;
} own[] = {
#define OWN(key, kinds, type, field)                                                                         \
    { "scheduler." key, kinds, type, offsetof(clt_deepspeed_rate, field) }
    OWN("warmup_min_lr", WARMUP | DECAY, REAL, min_lr),
    OWN("warmup_max_lr", WARMUP | DECAY, REAL, max_lr),
    OWN("warmup_num_steps", WARMUP | DECAY | COSINE, COUNT, warmup_steps),
    OWN("warmup_type", WARMUP | DECAY | COSINE, SWITCH, linear),
    OWN("total_num_steps", DECAY | COSINE, COUNT, total_steps),
    OWN("warmup_min_ratio", COSINE, REAL, warmup_min_ratio),
    OWN("cos_min_ratio", COSINE, REAL, cos_min_ratio),
    OWN("cycle_min_lr", CYCLE, REAL, min_lr),
    OWN("cycle_max_lr", CYCLE, REAL, max_lr),
    OWN("cycle_first_step_size", CYCLE, COUNT, first_steps),
    OWN("cycle_second_step_size", CYCLE, COUNT, second_steps),
    OWN("cycle_first_stair_count", CYCLE, COUNT, first_stairs),
    OWN("cycle_second_stair_count", CYCLE, COUNT, second_stairs),
    OWN("decay_step_size", CYCLE, COUNT, decay_steps),
    OWN("decay_lr_rate", CYCLE, REAL, decay_rate),
    OWN("cycle_momentum", CYCLE, SWITCH, cycle_momentum),
    OWN("cycle_min_mom", CYCLE, REAL, min_mom),
    OWN("cycle_max_mom", CYCLE, REAL, max_mom),
    OWN("decay_mom_rate", CYCLE, REAL, mom_rate),
    OWN("lr_range_test_min_lr", RANGE, REAL, min_lr),
    OWN("lr_range_test_step_size", RANGE, COUNT, range_steps),
    OWN("lr_range_test_step_rate", RANGE, REAL, range_rate),
    OWN("lr_range_test_staircase", RANGE, SWITCH, staircase),
#undef OWN
};

json_t *clt_config_rate_values(const clt_schedule_config *s) {
    static const char *const names[] = {"warmup_lr", "warmup_decay_lr", "warmup_cosine_lr", "one_cycle",
                                        "lr_range_test"};
    const int kind = (int)s->kind - CLT_SCHEDULE_DEEPSPEED;
    json_t *out = json_pack("{ss}", "name", names[kind]);
    for (size_t i = 0; i < CLT_COUNT_OF(own); i++) {
        const char *field = (const char *)&s->deepspeed + own[i].at, *name = strchr(own[i].key, '.') + 1;
        if (!(own[i].kinds & 1 << kind)) continue;
        const bool on = own[i].type == SWITCH && *(const bool *)field;
        json_object_set_new(out, name,
                            own[i].type == REAL                ? json_real(*(const double *)field)
                            : own[i].type == COUNT             ? json_integer(*(const int64_t *)field)
                            : strcmp(name, "warmup_type") == 0 ? json_string(on ? "linear" : "log")
                                                               : json_boolean(on));
    }
    return out;
}

void clt_config_preset_rate(clt_config_scheduler_raw *s) {
    s->deepspeed = (clt_deepspeed_rate){.min_lr = NAN,
                                        .max_lr = NAN,
                                        .warmup_steps = 1000,
                                        .cos_min_ratio = 1e-4,
                                        .first_steps = 2000,
                                        .second_steps = -1,
                                        .second_stairs = -1,
                                        .min_mom = 0.8,
                                        .max_mom = 0.9,
                                        .range_steps = 2000,
                                        .range_rate = 1};
}

static int kind_bit(const clt_config_builder *b) {
    const int kind = b->scheduler.kind - CLT_SCHEDULE_DEEPSPEED;
    return kind < 0 ? 0 : 1 << kind;
}

clt_status clt_config_check_deepspeed_keys(clt_schema_reader *r, const clt_config_builder *b,
                                           const char *name) {
    static const char *const times[] = {"scheduler.t_warmup", "scheduler.t_max"};
    for (size_t i = 0; i < CLT_COUNT_OF(own); i++)
        if (clt_config_given(&b->c, own[i].key) && !(own[i].kinds & kind_bit(b)))
            return clt_schema_fail(r, own[i].key, "does not belong to %s", name);
    for (size_t i = 0; i < CLT_COUNT_OF(times) && kind_bit(b); i++)
        if (clt_config_given(&b->c, times[i]))
            return clt_schema_fail(r, times[i], "does not belong to %s, which counts updates", name);
    return CLT_OK;
}

static clt_status need(clt_schema_reader *r, const clt_config_builder *b, int kinds, const char *key) {
    if (!(kinds & kind_bit(b)) || clt_config_given(&b->c, key)) return CLT_OK;
    return clt_schema_fail(r, "scheduler", "needs the key %s", strrchr(key, '.') + 1);
}

static clt_status check_counts(clt_schema_reader *r, const clt_config_builder *b,
                               const clt_deepspeed_rate *p) {
    const struct {
        const char *key;
        int64_t v, least;
    } counts[] = {{"scheduler.warmup_num_steps", p->warmup_steps, 1},
                  {"scheduler.total_num_steps", p->total_steps, 1},
                  {"scheduler.cycle_first_step_size", p->first_steps, 1},
                  {"scheduler.cycle_second_step_size", p->second_steps, 1},
                  {"scheduler.cycle_first_stair_count", p->first_stairs, 0},
                  {"scheduler.cycle_second_stair_count", p->second_stairs, 0},
                  {"scheduler.decay_step_size", p->decay_steps, 0},
                  {"scheduler.lr_range_test_step_size", p->range_steps, 1}};
    const int64_t most = (int64_t)1 << 40;
    for (size_t i = 0; i < CLT_COUNT_OF(counts); i++)
        if (clt_config_given(&b->c, counts[i].key) && (counts[i].v < counts[i].least || counts[i].v > most))
            return clt_schema_fail(r, counts[i].key, "is %lld: it must be at least %lld",
                                   (long long)counts[i].v, (long long)counts[i].least);
    if (p->min_lr < 0 || p->max_lr < 0) return clt_schema_fail(r, "scheduler", "has a learning rate below 0");
    if (p->decay_rate < 0) return clt_schema_fail(r, "scheduler.decay_lr_rate", "must not be negative");
    return CLT_OK;
}

/* one_cycle's betas. */
static clt_status check_momentum(clt_schema_reader *r, clt_config_builder *b, clt_deepspeed_rate *p) {
    static const char key[] = "scheduler.cycle_momentum";
    const clt_optimizer_kind kind = b->c.optimizer.kind;
    if (!p->cycle_momentum) return CLT_OK;
    if (!(p->min_mom >= 0 && p->min_mom < 1))
        return clt_schema_fail(r, "scheduler.cycle_min_mom", OUTSIDE, p->min_mom);
    if (!(p->max_mom >= 0 && p->max_mom < 1))
        return clt_schema_fail(r, "scheduler.cycle_max_mom", OUTSIDE, p->max_mom);
    if (p->mom_rate < 0) return clt_schema_fail(r, "scheduler.decay_mom_rate", "must not be negative");
    if (kind == CLT_OPTIMIZER_SGD || kind == CLT_OPTIMIZER_ADAGRAD) {
        p->cycle_momentum = false;
        clt_notices_add(r->notices, key, "the optimizer has no betas; DeepSpeed ignores it, too");
    } else if (p->mom_rate > 0 && p->decay_steps > 0) {
        clt_strv_add_owned(
            &b->c.remarks,
            clt_format("scheduler.decay_mom_rate: beta1 grows up to %g and stays there; in DeepSpeed "
                       "it passes 1, where Adam's steps change their sign",
                       CLT_MAX(p->max_mom, CLT_DEEPSPEED_MOST_MOM)));
    }
    return CLT_OK;
}

clt_status clt_config_resolve_deepspeed_rate(clt_schema_reader *r, clt_config_builder *b) {
    const double lr = b->c.optimizer.groups[0].lr;
    clt_deepspeed_rate p = b->scheduler.deepspeed;
    CLT_TRY(need(r, b, DECAY | COSINE, "scheduler.total_num_steps"));
    CLT_TRY(need(r, b, CYCLE, "scheduler.cycle_min_lr"));
    CLT_TRY(need(r, b, CYCLE, "scheduler.cycle_max_lr"));
    if (!(lr > 0))
        return clt_schema_fail(r, "scheduler.name",
                               "gives learning rates, which needs an optimizer.lr above 0");
    if (isnan(p.min_lr)) p.min_lr = kind_bit(b) == RANGE ? 1e-3 : 0;
    if (isnan(p.max_lr)) p.max_lr = lr;
    if (p.second_steps < 0 && !clt_config_given(&b->c, "scheduler.cycle_second_step_size"))
        p.second_steps = p.first_steps;
    if (p.second_stairs < 0 && !clt_config_given(&b->c, "scheduler.cycle_second_stair_count"))
        p.second_stairs = p.first_stairs;
    p.linear = b->scheduler.warmup_type == 1;
    CLT_TRY(check_counts(r, b, &p));
    CLT_TRY(check_momentum(r, b, &p));
    b->c.schedule =
        (clt_schedule_config){.kind = (clt_schedule_kind)b->scheduler.kind, .deepspeed = p, .lr = lr};
    return CLT_OK;
}
