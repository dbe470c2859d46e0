/* scheduler: the shape of the learning rate. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define KEY(name, field, def, help, ...)                                                                     \
    CLT_KEY(clt_config_scheduler_raw, name, field, def, help, __VA_ARGS__)
#define TIME(name, field, def, help)                                                                         \
    CLT_KEY_OF(&clt_kind_schedule_time, clt_config_scheduler_raw, name, field, def, help)

/* In the order of clt_schedule_kind. */
static const char *const scheduler_names[] = {"constant_with_warmup",
                                              "cosine_with_warmup",
                                              "linear_decay_with_warmup",
                                              "inv_sqrt_with_warmup",
                                              "timm_cosine",
                                              "warmup_lr",
                                              "warmup_decay_lr",
                                              "warmup_cosine_lr",
                                              "one_cycle",
                                              "lr_range_test",
                                              NULL};
static const char *const warmup_types[] = {"log", "linear", NULL};
#define DS_WARMUP "warmup_lr, warmup_decay_lr: "
#define DS_COSINE "warmup_cosine_lr: "
#define DS_RAMP "warmup_lr, warmup_decay_lr, warmup_cosine_lr: "
#define DS_CYCLE "one_cycle: "
#define DS_RANGE "lr_range_test: "
static const clt_key scheduler_keys[] = {
    KEY("name", kind, CLT_KEY_REQUIRED,
        "shape of the learning rate; DeepSpeed's (warmup_lr and those below it) count updates and give "
        "learning rates of the first parameter group, others in proportion",
        .choices = scheduler_names),
    CLT_KEY_OF(&clt_kind_schedule_time, clt_config_scheduler_raw, "t_warmup", t_warmup, NULL,
               "length of the linear rise; must be given, but not with DeepSpeed's", .nullable = true),
    TIME("t_max", t_max, "\"1dur\"", "end of the schedule"),
    KEY("alpha", alpha, NULL, "constant_with_warmup: multiplier; default: 1"),
    KEY("alpha_i", alpha_i, NULL,
        "linear_decay_with_warmup: first multiplier; default: 1. timm_cosine: first multiplier of the "
        "warm-up (warmup_lr / lr); default: 0"),
    KEY("alpha_f", alpha_f, NULL,
        "cosine_with_warmup, linear_decay_with_warmup, timm_cosine: last multiplier; default: 0"),
    TIME("t_scale", t_scale, NULL, "inv_sqrt_with_warmup: time scale of the decay; must be given"),
    TIME("t_cooldown", t_cooldown, NULL, "inv_sqrt_with_warmup: length of the linear end; must be given"),
    KEY("alpha_f_decay", alpha_f_decay, NULL,
        "inv_sqrt_with_warmup: multiplier that the decay tends to; default: 0"),
    KEY("alpha_f_cooldown", alpha_f_cooldown, NULL,
        "inv_sqrt_with_warmup: multiplier at the end; default: 0"),
    KEY("warmup_min_lr", deepspeed.min_lr, NULL, DS_WARMUP "learning rate at the start; default: 0"),
    KEY("warmup_max_lr", deepspeed.max_lr, NULL,
        DS_WARMUP "learning rate after warm-up; default: optimizer.lr"),
    KEY("warmup_num_steps", deepspeed.warmup_steps, NULL, DS_RAMP "updates; default: 1000"),
    KEY("warmup_type", warmup_type, NULL, DS_RAMP "shape of the rise; default: log", .choices = warmup_types),
    KEY("total_num_steps", deepspeed.total_steps, NULL,
        "warmup_decay_lr, " DS_COSINE "updates until the end of the decay; must be given"),
    KEY("warmup_min_ratio", deepspeed.warmup_min_ratio, NULL, DS_COSINE "first multiplier; default: 0"),
    KEY("cos_min_ratio", deepspeed.cos_min_ratio, NULL, DS_COSINE "last multiplier; default: 0.0001"),
    KEY("cycle_min_lr", deepspeed.min_lr, NULL, DS_CYCLE "learning rate at both ends; must be given"),
    KEY("cycle_max_lr", deepspeed.max_lr, NULL, DS_CYCLE "learning rate between; must be given"),
    KEY("cycle_first_step_size", deepspeed.first_steps, NULL, DS_CYCLE "updates upwards; default: 2000"),
    KEY("cycle_second_step_size", deepspeed.second_steps, NULL,
        DS_CYCLE "updates downwards; default: as upwards", .nullable = true),
    KEY("cycle_first_stair_count", deepspeed.first_stairs, NULL, DS_CYCLE "stairs upwards; 0: none",
        .nullable = true),
    KEY("cycle_second_stair_count", deepspeed.second_stairs, NULL,
        DS_CYCLE "stairs downwards; default: as upwards", .nullable = true),
    KEY("decay_step_size", deepspeed.decay_steps, NULL,
        DS_CYCLE "updates of a decay interval after the cycle; default: 0: no decay"),
    KEY("decay_lr_rate", deepspeed.decay_rate, NULL,
        DS_CYCLE "learning rates after the cycle are divided by 1 + this times the interval; default: 0"),
    KEY("cycle_momentum", deepspeed.cycle_momentum, NULL,
        DS_CYCLE
        "betas follow the cycle: beta1 falls while the learning rate rises, beta2 is 0.99; not for sgd "
        "and adagrad; default: false, true in DeepSpeed's file"),
    KEY("cycle_min_mom", deepspeed.min_mom, NULL,
        DS_CYCLE "beta1 at the top and in the first update; default: 0.8"),
    KEY("cycle_max_mom", deepspeed.max_mom, NULL, DS_CYCLE "beta1 at both ends; default: 0.9"),
    KEY("decay_mom_rate", deepspeed.mom_rate, NULL,
        DS_CYCLE
        "beta1 after the cycle is multiplied by 1 + this times the interval, up to 0.999; default: 0"),
    KEY("lr_range_test_min_lr", deepspeed.min_lr, NULL, DS_RANGE "first learning rate; default: 0.001"),
    KEY("lr_range_test_step_size", deepspeed.range_steps, NULL,
        DS_RANGE "updates of an interval; default: 2000"),
    KEY("lr_range_test_step_rate", deepspeed.range_rate, NULL,
        DS_RANGE "learning rates are multiplied by 1 + this times the interval; default: 1"),
    KEY("lr_range_test_staircase", deepspeed.staircase, NULL,
        DS_RANGE "whole intervals only; default: false"),
    CLT_KEY_IGNORED(&clt_kind_bool, "scale_warmup", "false", "false", "the duration of a run is not scaled"),
};
const clt_schema clt_config_scheduler_schema = CLT_SCHEMA(scheduler_keys);

clt_status clt_config_resolve_scheduler(clt_schema_reader *r, clt_config_builder *b) {
    const clt_config_scheduler_raw *raw = &b->scheduler;
    CLT_TRY(clt_config_check_deepspeed_keys(r, b, scheduler_names[raw->kind]));
    enum { CONSTANT = 1, COSINE = 2, LINEAR = 4, INV_SQRT = 8, TIMM = 16 };
    bool scale = raw->t_scale.value >= 0, cooldown = raw->t_cooldown.value >= 0; /* preset to -1 */
    const struct {
        const char *key;
        bool given;
        int kinds;
    } own[] = {{"alpha", !isnan(raw->alpha), CONSTANT},
               {"alpha_i", !isnan(raw->alpha_i), LINEAR | TIMM},
               {"alpha_f", !isnan(raw->alpha_f), COSINE | LINEAR | TIMM},
               {"t_scale", scale, INV_SQRT},
               {"t_cooldown", cooldown, INV_SQRT},
               {"alpha_f_decay", !isnan(raw->alpha_f_decay), INV_SQRT},
               {"alpha_f_cooldown", !isnan(raw->alpha_f_cooldown), INV_SQRT}};
    for (size_t i = 0; i < CLT_COUNT_OF(own); i++) {
        if (!own[i].given || (own[i].kinds & (1 << raw->kind))) continue;
        char *path = clt_format("scheduler.%s", own[i].key);
        clt_status st = clt_schema_fail(r, path, "does not belong to %s", scheduler_names[raw->kind]);
        clt_free(path);
        return st;
    }
    if (raw->kind >= CLT_SCHEDULE_DEEPSPEED) return clt_config_resolve_deepspeed_rate(r, b);
    if (raw->t_warmup.value < 0)
        return clt_schema_fail(r, "scheduler.t_warmup",
                               "is missing: it must be given (length of the linear rise)");
    bool inv_sqrt = raw->kind == CLT_SCHEDULE_INV_SQRT;
    if (inv_sqrt && !(scale && cooldown))
        return clt_schema_fail(r, "scheduler", "needs t_scale and t_cooldown with inv_sqrt_with_warmup");
    b->c.schedule = (clt_schedule_config){
        .kind = (clt_schedule_kind)raw->kind,
        .t_warmup = raw->t_warmup,
        .t_max = raw->t_max,
        .t_scale = inv_sqrt ? raw->t_scale : (clt_time){0},
        .t_cooldown = inv_sqrt ? raw->t_cooldown : (clt_time){0},
        .alpha = isnan(raw->alpha) ? 1 : raw->alpha,
        .alpha_i = isnan(raw->alpha_i) ? raw->kind != CLT_SCHEDULE_TIMM : raw->alpha_i,
        .alpha_f = isnan(raw->alpha_f) ? 0 : raw->alpha_f,
        .alpha_f_decay = isnan(raw->alpha_f_decay) ? 0 : raw->alpha_f_decay,
        .alpha_f_cooldown = isnan(raw->alpha_f_cooldown) ? 0 : raw->alpha_f_cooldown,
    };
    return CLT_OK;
}
