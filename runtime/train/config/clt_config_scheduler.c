/* scheduler: the shape of the learning rate. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define KEY(name, field, def, help, ...)                                                                     \
    CLT_KEY(clt_config_scheduler_raw, name, field, def, help, __VA_ARGS__)
#define TIME(name, field, def, help)                                                                         \
    CLT_KEY_OF(&clt_kind_schedule_time, clt_config_scheduler_raw, name, field, def, help)

/* In the order of clt_schedule_kind. */
static const char *const scheduler_names[] = {
    "constant_with_warmup", "cosine_with_warmup", "linear_decay_with_warmup",
    "inv_sqrt_with_warmup", "timm_cosine",        NULL};
static const clt_key scheduler_keys[] = {
    KEY("name", kind, CLT_KEY_REQUIRED, "shape of the learning rate", .choices = scheduler_names),
    TIME("t_warmup", t_warmup, CLT_KEY_REQUIRED, "length of the linear rise"),
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
    CLT_KEY_IGNORED(&clt_kind_bool, "scale_warmup", "false", "false", "the duration of a run is not scaled"),
};
const clt_schema clt_config_scheduler_schema = CLT_SCHEMA(scheduler_keys);

clt_status clt_config_resolve_scheduler(clt_schema_reader *r, clt_config_builder *b) {
    const clt_config_scheduler_raw *raw = &b->scheduler;
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
