/* What a run of so many ranks makes of its configuration, as one JSON object. */
#include <math.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

static json_t *number_or_null(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

/* 0: the memory plan decides, which is null. */
static json_t *count_or_null(int64_t v) {
    return v > 0 ? json_integer(v) : json_null();
}

static json_t *batch_of(const clt_config *c, int ranks) {
    const int64_t micro = c->device_train_microbatch_size, share = micro * ranks;
    return json_pack("{sI so so si}", "train_batch_size", (json_int_t)c->global_train_batch_size,
                     "micro_batch_size", count_or_null(micro), "gradient_accumulation_steps",
                     micro ? json_integer(CLT_CEIL_DIV(c->global_train_batch_size, share)) : json_null(),
                     "ranks", ranks);
}

static json_t *optimizer_of(const clt_config *c) {
    const clt_optimizer_config *o = &c->optimizer;
    const clt_param_group *g = &o->groups[0];
    json_t *out = json_pack("{ss sf sf}", "name", clt_optimizer_of(o->kind)->name, "lr", g->lr,
                            "weight_decay", g->weight_decay);
    if (o->kind == CLT_OPTIMIZER_SGD) {
        json_object_set_new(out, "momentum", json_real(g->beta1));
        json_object_set_new(out, "nesterov", json_boolean(o->nesterov));
        return out;
    }
    if (o->kind != CLT_OPTIMIZER_LIONW) json_object_set_new(out, "eps", json_real(g->eps));
    if (o->kind == CLT_OPTIMIZER_ADAGRAD) return out;
    json_object_set_new(out, "betas", json_pack("[ff]", g->beta1, g->beta2));
    const bool adam = o->kind == CLT_OPTIMIZER_TORCH_ADAMW, lamb = o->kind == CLT_OPTIMIZER_LAMB;
    if (adam) json_object_set_new(out, "adam_w_mode", json_boolean(!o->l2));
    if (adam || lamb) json_object_set_new(out, "bias_correction", json_boolean(!o->uncorrected));
    if (!lamb || o->max_coeff == 0) return out;
    json_object_set_new(out, "max_coeff", json_real(o->max_coeff));
    json_object_set_new(out, "min_coeff", json_real(o->min_coeff));
    return out;
}

static json_t *scheduler_of(const clt_config *c) {
    if (c->schedule.kind >= CLT_SCHEDULE_DEEPSPEED) return clt_config_rate_values(&c->schedule);
    const json_t *own = clt_config_value(c, "scheduler");
    return own ? json_deep_copy(own) : json_null();
}

static json_t *scale_of(const clt_config *c) {
    static const char *const rules[] = {"pytorch", "deepspeed", "deepspeed_0", "static"};
    const clt_loss_scale_config *s = &c->loss_scale;
    if (c->precision != CLT_F16) return json_null();
    json_t *out = json_pack("{ss sf}", "rule", rules[s->kind], "initial", s->initial);
    if (s->kind == CLT_SCALE_STATIC) return out;
    json_object_set_new(out, "window", json_integer(s->window));
    json_object_set_new(out, "min", json_real(s->min));
    if (s->kind != CLT_SCALE_DEEPSPEED) return out;
    json_object_set_new(out, "hysteresis", json_integer(s->hysteresis));
    json_object_set_new(out, "consecutive_hysteresis", json_boolean(s->consecutive_hysteresis));
    return out;
}

static json_t *clipping_of(const clt_config *c) {
    static const char *const types[] = {NULL, "norm", "value"};
    if (c->clip_type == CLT_CLIP_NONE) return json_null();
    return json_pack("{ss so}", "type", types[c->clip_type], "threshold", number_or_null(c->clip_threshold));
}

/* Keys without effect, and everything else that a run prints about its configuration. */
static json_t *warnings_of(const clt_config *c) {
    json_t *out = json_array();
    for (size_t i = 0; i < c->notices.n; i++) {
        char *text = clt_format("%s: %s", c->notices.v[i].path, c->notices.v[i].why);
        json_array_append_new(out, json_string(text));
        clt_free(text);
    }
    for (size_t i = 0; i < c->remarks.n; i++) json_array_append_new(out, json_string(c->remarks.v[i]));
    for (size_t i = 0; i < c->warnings.n; i++) json_array_append_new(out, json_string(c->warnings.v[i]));
    return out;
}

static json_t *valid_ranks_of(const clt_config *c) {
    json_t *out = c->n_elastic ? json_array() : json_null();
    for (int i = 0; i < c->n_elastic; i++) json_array_append_new(out, json_integer(c->elastic[i][0]));
    return out;
}

json_t *clt_config_summary(const clt_config *c, int ranks) {
    const json_t *precision = clt_config_value(c, "precision");
    json_t *out = batch_of(c, ranks);
    json_object_set_new(out, "valid_ranks", valid_ranks_of(c));
    json_object_set_new(out, "optimizer", optimizer_of(c));
    json_object_set_new(out, "scheduler", scheduler_of(c));
    json_object_set_new(out, "precision",
                        json_is_string(precision) ? json_string(json_string_value(precision))
                                                  : json_string("amp_bf16"));
    json_object_set_new(out, "loss_scale", scale_of(c));
    json_object_set_new(out, "clipping", clipping_of(c));
    json_object_set_new(out, "zero_stage",
                        c->shard.zero_stage == CLT_STAGE_AUTO ? json_string("auto")
                                                              : json_integer(c->shard.zero_stage));
    json_object_set_new(out, "offload", json_string(clt_offload_names[c->shard.offload]));
    json_object_set_new(out, "offload_folder",
                        clt_config_has_files(c) ? json_string(c->shard.offload_folder) : json_null());
    json_object_set_new(out, "offload_parameters", json_string(clt_offload_names[c->shard.parameters]));
    json_object_set_new(out, "offload_gradients", json_string(clt_offload_names[c->shard.gradients]));
    json_object_set_new(out, "offload_update", json_string(c->shard.host_update ? "host" : "device"));
    json_object_set_new(out, "warnings", warnings_of(c));
    return out;
}
