/* optimizer and scheduler of DeepSpeed's file. */
#include <string.h>
#include <strings.h>

#include "runtime/train/config/clt_deepspeed_internal.h"

#define PARAMS "optimizer.params."
static const char type_key[] = "optimizer.type", lr_key[] = PARAMS "lr";

/* A parameter, or DeepSpeed's default where the YAML does not say it either. */
static clt_status map_number(clt_deepspeed *d, const char *name, double otherwise) {
    char *from = clt_format(PARAMS "%s", name), *to = clt_format("optimizer.%s", name);
    clt_status st = clt_deepspeed_get(d, from)
                        ? clt_deepspeed_put(d, from, to, json_real(clt_deepspeed_number(d, from, 0)))
                        : clt_deepspeed_fill(d, from, to, json_real(otherwise));
    clt_free(from);
    clt_free(to);
    return st;
}

static clt_status map_betas(clt_deepspeed *d, double beta1, double beta2) {
    static const char from[] = PARAMS "betas", to[] = "optimizer.betas";
    const json_t *v = clt_deepspeed_get(d, from);
    return v ? clt_deepspeed_put(d, from, to, json_deep_copy(v))
             : clt_deepspeed_fill(d, from, to, json_pack("[ff]", beta1, beta2));
}

/* A switch or number with the same name in the YAML. */
static clt_status map_same_param(clt_deepspeed *d, const char *name) {
    char *from = clt_format(PARAMS "%s", name), *to = clt_format("optimizer.%s", name);
    const json_t *v = clt_deepspeed_get(d, from);
    clt_status st = v ? clt_deepspeed_put(d, from, to, json_deep_copy(v)) : CLT_OK;
    clt_free(from);
    clt_free(to);
    return st;
}

static clt_status map_adam(clt_deepspeed *d, bool always_decoupled) {
    static const char mode[] = PARAMS "adam_w_mode";
    const json_t *v = clt_deepspeed_get(d, mode);
    CLT_TRY(clt_deepspeed_put(d, type_key, "optimizer.name", json_string("adamw")));
    CLT_TRY(map_number(d, "lr", 1e-3));
    CLT_TRY(map_betas(d, 0.9, 0.999));
    CLT_TRY(map_number(d, "eps", 1e-8));
    CLT_TRY(map_same_param(d, "bias_correction"));
    if (!always_decoupled) CLT_TRY(map_same_param(d, "adam_w_mode"));
    /* PyTorch's AdamW has another default. */
    const bool torch = clt_deepspeed_true(d, PARAMS "torch_adam") && (always_decoupled || !json_is_false(v));
    return map_number(d, "weight_decay", torch ? 0.01 : 0);
}

static clt_status map_lamb(clt_deepspeed *d) {
    CLT_TRY(clt_deepspeed_put(d, type_key, "optimizer.name", json_string("lamb")));
    CLT_TRY(map_number(d, "lr", 1e-3));
    CLT_TRY(map_betas(d, 0.9, 0.999));
    CLT_TRY(map_number(d, "eps", 1e-8));
    CLT_TRY(map_number(d, "weight_decay", 0));
    CLT_TRY(map_number(d, "max_coeff", 10));
    CLT_TRY(map_number(d, "min_coeff", 0.01));
    return map_same_param(d, "bias_correction");
}

static clt_status map_adagrad(clt_deepspeed *d) {
    CLT_TRY(clt_deepspeed_put(d, type_key, "optimizer.name", json_string("adagrad")));
    CLT_TRY(map_number(d, "lr", 1e-2));
    CLT_TRY(map_number(d, "eps", 1e-10));
    return map_number(d, "weight_decay", 0);
}

/* decoupled_lionw multiplies weights by 1 - lr_t/lr * weight_decay, DeepSpeed by 1 - lr_t * weight_decay. */
static clt_status map_lion(clt_deepspeed *d) {
    static const char from[] = PARAMS "weight_decay", to[] = "optimizer.weight_decay";
    CLT_TRY(clt_deepspeed_put(d, type_key, "optimizer.name", json_string("decoupled_lionw")));
    /* DeepSpeedCPULion, which is used with offload, has another default than FusedLion. */
    const char *device = clt_deepspeed_text(d, "zero_optimization.offload_optimizer.device", "none");
    const bool host = strcmp(device, "none") != 0 || clt_deepspeed_true(d, "zero_optimization.cpu_offload");
    CLT_TRY(map_number(d, "lr", 1e-3));
    CLT_TRY(map_betas(d, 0.9, host ? 0.999 : 0.99));
    const json_t *own = clt_config_value(d->c, "optimizer.lr");
    const double lr = clt_deepspeed_number(d, lr_key, json_is_number(own) ? json_number_value(own) : 1e-3);
    return clt_deepspeed_get(d, from)
               ? clt_deepspeed_put(d, from, to, json_real(lr * clt_deepspeed_number(d, from, 0)))
               : clt_deepspeed_fill(d, from, to, json_real(0));
}

static clt_status map_sgd(clt_deepspeed *d) {
    static const char nesterov[] = PARAMS "nesterov";
    CLT_TRY(clt_deepspeed_put(d, type_key, "optimizer.name", json_string("sgd")));
    CLT_TRY(map_number(d, "lr", 1e-3));
    CLT_TRY(map_number(d, "momentum", 0));
    CLT_TRY(map_number(d, "weight_decay", 0));
    const json_t *v = clt_deepspeed_get(d, nesterov);
    return v ? clt_deepspeed_put(d, nesterov, "optimizer.nesterov", json_deep_copy(v)) : CLT_OK;
}

clt_status clt_deepspeed_map_optimizer(clt_deepspeed *d) {
    const char *type = clt_deepspeed_text(d, type_key, NULL);
    if (!type) return CLT_OK; /* the YAML's */
    if (!strcasecmp(type, "lion")) return map_lion(d);
    if (!strcasecmp(type, "lamb")) return map_lamb(d);
    if (!strcasecmp(type, "adagrad")) return map_adagrad(d);
    if (!strcmp(type, "SGD")) return map_sgd(d);
    return map_adam(d, !strcasecmp(type, "adamw"));
}

/* --- scheduler --- */

/* Parameters that have the same name in the YAML. */
static const char *const same[] = {"warmup_min_lr",
                                   "warmup_max_lr",
                                   "warmup_num_steps",
                                   "total_num_steps",
                                   "warmup_min_ratio",
                                   "cos_min_ratio",
                                   "cycle_min_lr",
                                   "cycle_max_lr",
                                   "decay_lr_rate",
                                   "cycle_first_step_size",
                                   "cycle_second_step_size",
                                   "cycle_first_stair_count",
                                   "decay_step_size",
                                   "cycle_momentum",
                                   "cycle_min_mom",
                                   "cycle_max_mom",
                                   "decay_mom_rate",
                                   "cycle_second_stair_count",
                                   "lr_range_test_min_lr",
                                   "lr_range_test_step_size",
                                   "lr_range_test_step_rate",
                                   "lr_range_test_staircase"};
#define SCHEDULER "scheduler.params."

static clt_status map_same(clt_deepspeed *d, const char *name) {
    char *from = clt_format(SCHEDULER "%s", name), *to = clt_format("scheduler.%s", name);
    const json_t *v = clt_deepspeed_get(d, from);
    clt_status st = v ? clt_deepspeed_put(d, from, to, json_deep_copy(v)) : CLT_OK;
    clt_free(from);
    clt_free(to);
    return st;
}

/* What "auto" or nothing means. The integrations of transformers fill in the steps of the training. */
static clt_status fill_steps(clt_deepspeed *d) {
    static const char from[] = SCHEDULER "total_num_steps", to[] = "scheduler.total_num_steps";
    const json_t *duration = clt_config_value(d->c, "max_duration");
    clt_time t;
    if (!json_is_string(duration) || !clt_time_parse(json_string_value(duration), &t)) return CLT_OK;
    return t.unit == CLT_TIME_BATCH ? clt_deepspeed_fill(d, from, to, json_integer(t.value)) : CLT_OK;
}

clt_status clt_deepspeed_map_scheduler(clt_deepspeed *d) {
    static const char section[] = "scheduler", from[] = "scheduler.type", ramp[] = SCHEDULER "warmup_type";
    const char *type = clt_deepspeed_text(d, from, NULL), *warmup = clt_deepspeed_text(d, ramp, NULL);
    if (!type && clt_config_given(d->c, section)) return CLT_OK;
    if (!type)
        return clt_deepspeed_fill(d, from, section,
                                  json_pack("{ssss}", "name", "constant_with_warmup", "t_warmup", "0ba"));
    CLT_TRY(clt_deepspeed_put(d, from, "scheduler.name", json_string(clt_deepspeed_scheduler_name(type))));
    for (size_t i = 0; i < CLT_COUNT_OF(same); i++) CLT_TRY(map_same(d, same[i]));
    if (!strcmp(type, "OneCycle"))
        CLT_TRY(clt_deepspeed_fill(d, SCHEDULER "cycle_momentum", "scheduler.cycle_momentum", json_true()));
    if (warmup)
        CLT_TRY(clt_deepspeed_put(d, ramp, "scheduler.warmup_type",
                                  json_string(strcmp(warmup, "linear") ? "log" : "linear")));
    const bool decay = !strcmp(type, "WarmupDecayLR");
    if (decay && !clt_yaml_has(d->file, SCHEDULER "warmup_max_lr")) /* "auto" is optimizer.lr */
        CLT_TRY(clt_deepspeed_fill(d, SCHEDULER "warmup_max_lr", "scheduler.warmup_max_lr", json_real(1e-3)));
    return decay || !strcmp(type, "WarmupCosineLR") ? fill_steps(d) : CLT_OK;
}
