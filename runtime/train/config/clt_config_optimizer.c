/* optimizer and scheduler, and which tensor belongs to which parameter group. */
#include <math.h>
#include <regex.h>
#include <string.h>

#include "runtime/train/config/clt_config_internal.h"

#define NOWHERE CLT_KEY_NOWHERE

/* --- optimizer --- */

#define AT(field) offsetof(clt_config_optimizer_raw, field)

static clt_status read_betas(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                             void *field) {
    (void)k;
    double *beta = field;
    for (size_t i = 0; i < 2; i++) {
        json_t *x = json_array_get(v, i);
        if (json_array_size(v) != 2 || !json_is_number(x))
            return clt_schema_fail(r, path, "must be a list of two numbers");
        beta[i] = json_number_value(x);
        if (!(beta[i] >= 0 && beta[i] < 1))
            return clt_schema_fail(r, path, "holds %g: a decay rate is at least 0 and below 1", beta[i]);
    }
    return CLT_OK;
}

static const char *const optimizer_names[] = {"decoupled_adamw", "decoupled_lionw", "clip_lion",
                                              "adalr_lion",      "no_op",           NULL};
#define HYPER_KEYS(A)                                                                                        \
    {"lr",  CLT_KEY_FLOAT, CLT_KEY_HONOURED,                                                                 \
     false, NULL,          "learning rate; adamw 1e-3, lionw 1e-4 unless given",                             \
     A(lr), NULL,          NULL,                                                                             \
     NULL},                                                                                                  \
        {"betas",   CLT_KEY_CUSTOM, CLT_KEY_HONOURED,                                                        \
         false,     NULL,           "adamw [0.9, 0.95], lionw [0.9, 0.99] unless given",                     \
         A(beta1),  NULL,           NULL,                                                                    \
         read_betas},                                                                                        \
        {"eps", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL, "adamw, 1e-8 unless given", A(eps), NULL,      \
         NULL,  NULL},                                                                                       \
    {                                                                                                        \
        "weight_decay", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL,                                        \
            "decoupled: weights are multiplied by 1 - lr_t/lr * this; adamw 1e-5, lionw 0 unless given",     \
            A(weight_decay), NULL, NULL, NULL                                                                \
    }

static const clt_key optimizer_keys[] = {
    {"name", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, CLT_KEY_REQUIRED,
     "clip_lion, adalr_lion and no_op are known and refused: they are not computed here", AT(kind),
     optimizer_names, NULL, NULL},
    HYPER_KEYS(AT),
    {"disable_grad", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "regular expressions: tensors whose name matches are frozen", AT(disable_grad), NULL, NULL,
     clt_config_keep},
    {"param_groups", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, true, "null",
     "list of {param_str_match, lr, betas, eps, weight_decay}; groups claim tensors in this order",
     AT(param_groups), NULL, NULL, clt_config_keep},
};
const clt_schema clt_config_optimizer_schema = CLT_SCHEMA(optimizer_keys);

#define GROUP_AT(field) offsetof(clt_param_group, field)
static const clt_key group_keys[] = {
    {"param_str_match", CLT_KEY_STR, CLT_KEY_HONOURED, false, CLT_KEY_REQUIRED,
     "regular expression searched in tensor names", GROUP_AT(match), NULL, NULL, NULL},
    HYPER_KEYS(GROUP_AT),
};
static const clt_schema group_schema = CLT_SCHEMA(group_keys);

/* Python's \d is spelled out; what POSIX has no word for is refused instead of meaning something else. */
static clt_status compile_regex(const char *pattern, regex_t *out) {
    clt_str posix = {0};
    clt_str_add(&posix, "");
    for (const char *p = pattern; *p; p++) {
        if (p[0] == '\\' && p[1] == 'd')
            clt_str_add(&posix, "[0-9]"), p++;
        else if (p[0] == '\\' && p[1])
            clt_str_addn(&posix, p, 2), p++;
        else
            clt_str_addn(&posix, p, 1);
    }
    bool perl =
        strstr(pattern, "(?") || strstr(pattern, "*?") || strstr(pattern, "+?") || strstr(pattern, "??");
    int code = perl ? REG_BADRPT : regcomp(out, posix.s, REG_EXTENDED | REG_NOSUB);
    char why[128] = "look-around and lazy repetition are not supported";
    if (code && !perl) regerror(code, out, why, sizeof why);
    clt_str_free(&posix);
    return code ? clt_error(CLT_BAD_CONFIG, "optimizer: the regular expression '%.200s' cannot be used: %s",
                            pattern, why)
                : CLT_OK;
}

static clt_status check_regex(const char *pattern) {
    regex_t re;
    CLT_TRY(compile_regex(pattern, &re));
    regfree(&re);
    return CLT_OK;
}

static clt_status check_group(clt_schema_reader *r, const char *path, const clt_param_group *g) {
    if (!(g->lr >= 0)) return clt_schema_fail(r, path, "has a learning rate below 0");
    if (!(g->eps >= 0)) return clt_schema_fail(r, path, "has an eps below 0");
    if (!(g->weight_decay >= 0)) return clt_schema_fail(r, path, "has a weight_decay below 0");
    return CLT_OK;
}

static clt_status read_groups(clt_schema_reader *r, clt_optimizer_config *o, json_t *list) {
    if (!json_is_array(list)) return clt_schema_fail(r, "optimizer.param_groups", "must be a list");
    if (json_array_size(list) >= CLT_MAX_PARAM_GROUPS)
        return clt_schema_fail(r, "optimizer.param_groups", "has more than %d groups",
                               CLT_MAX_PARAM_GROUPS - 1);
    for (size_t i = 0; i < json_array_size(list); i++) {
        clt_param_group *g = &o->groups[o->n_groups];
        *g = o->groups[0];
        char *path = clt_format("optimizer.param_groups.%zu", i);
        json_t *v = json_array_get(list, i);
        clt_status st = json_is_object(v) ? clt_schema_read(r, &group_schema, path, v, g)
                                          : clt_schema_fail(r, path, "must be a map with param_str_match");
        if (st == CLT_OK) st = check_regex(g->match);
        if (st == CLT_OK) st = check_group(r, path, g);
        clt_free(path);
        CLT_TRY(st);
        o->n_groups++;
    }
    return CLT_OK;
}

static clt_status read_disable_grad(clt_schema_reader *r, clt_optimizer_config *o, json_t *v) {
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const char *pattern = json_string_value(json_is_array(v) ? json_array_get(v, i) : v);
        if (!pattern)
            return clt_schema_fail(r, "optimizer.disable_grad", "must be a string or a list of strings");
        CLT_TRY(check_regex(pattern));
        clt_strv_add(&o->disable_grad, pattern);
    }
    return CLT_OK;
}

/* Foundry searches the names of its wrapped model, "model.transformer...": patterns written for it match, and
 * so do those written for names without the prefix. */
static bool matches(const regex_t *re, const char *name) {
    char *wrapped = clt_format("model.%s", name);
    bool hit = regexec(re, wrapped, 0, NULL, 0) == 0 || regexec(re, name, 0, NULL, 0) == 0;
    clt_free(wrapped);
    return hit;
}

/* A pattern that was checked before. */
static void warn_if_unmatched(clt_config *c, const clt_slab_table *t, const char *key, const char *pattern) {
    regex_t re;
    bool hit = false;
    if (compile_regex(pattern, &re) != CLT_OK) return;
    for (int i = 0; i < t->n && !hit; i++) hit = matches(&re, t->entry[i].name);
    regfree(&re);
    if (!hit)
        clt_strv_add_owned(&c->warnings,
                           clt_format("%s: '%.200s' matches no tensor of this model", key, pattern));
}

static clt_status warn_unmatched(clt_config *c) {
    const clt_optimizer_config *o = &c->optimizer;
    clt_slab_table t = {0};
    CLT_TRY(clt_model_table(c->model, &t));
    for (size_t i = 0; i < o->disable_grad.n; i++)
        warn_if_unmatched(c, &t, "optimizer.disable_grad", o->disable_grad.v[i]);
    for (int g = 1; g < o->n_groups; g++) {
        char *key = clt_format("optimizer.param_groups.%d.param_str_match", g - 1);
        warn_if_unmatched(c, &t, key, o->groups[g].match);
        clt_free(key);
    }
    clt_slab_table_free(&t);
    return CLT_OK;
}

clt_status clt_config_resolve_optimizer(clt_schema_reader *r, clt_config_builder *b) {
    const clt_config_optimizer_raw *raw = &b->optimizer;
    clt_optimizer_config *o = &b->c.optimizer;
    if (raw->kind > CLT_OPTIMIZER_LIONW)
        return clt_schema_fail(r, "optimizer.name",
                               "is %s, which is not supported: use decoupled_adamw or decoupled_lionw",
                               optimizer_names[raw->kind]);
    o->kind = (clt_optimizer_kind)raw->kind;
    bool adam = o->kind == CLT_OPTIMIZER_ADAMW;
    o->groups[0] = (clt_param_group){
        .lr = isnan(raw->lr) ? (adam ? 1e-3 : 1e-4) : raw->lr,
        .beta1 = isnan(raw->beta1) ? 0.9 : raw->beta1,
        .beta2 = isnan(raw->beta2) ? (adam ? 0.95 : 0.99) : raw->beta2,
        .eps = isnan(raw->eps) ? 1e-8 : raw->eps,
        .weight_decay = isnan(raw->weight_decay) ? (adam ? 1e-5 : 0) : raw->weight_decay,
    };
    o->n_groups = 1;
    CLT_TRY(check_group(r, "optimizer", &o->groups[0]));
    if (raw->disable_grad) CLT_TRY(read_disable_grad(r, o, raw->disable_grad));
    if (raw->param_groups) CLT_TRY(read_groups(r, o, raw->param_groups));
    return raw->disable_grad || raw->param_groups ? warn_unmatched(&b->c) : CLT_OK;
}

clt_status clt_optimizer_groups(const clt_optimizer_config *o, const char *const *names, size_t n,
                                uint8_t *group, bool *frozen) {
    for (size_t i = 0; i < n; i++) {
        group[i] = 0;
        frozen[i] = false;
    }
    for (int g = 1; g < o->n_groups; g++) {
        regex_t re;
        CLT_TRY(compile_regex(o->groups[g].match, &re));
        for (size_t i = 0; i < n; i++)
            if (group[i] == 0 && matches(&re, names[i])) group[i] = (uint8_t)g;
        regfree(&re);
    }
    for (size_t p = 0; p < o->disable_grad.n; p++) {
        regex_t re;
        CLT_TRY(compile_regex(o->disable_grad.v[p], &re));
        for (size_t i = 0; i < n; i++)
            if (matches(&re, names[i])) frozen[i] = true;
        regfree(&re);
    }
    return CLT_OK;
}

/* --- scheduler --- */

#undef AT
#define AT(field) offsetof(clt_config_scheduler_raw, field)

static const char *const scheduler_names[] = {"constant_with_warmup", "cosine_with_warmup",
                                              "linear_decay_with_warmup", "inv_sqrt_with_warmup", NULL};

/* Composer's schedulers take no bare numbers: what was meant, batches or epochs, cannot be known. */
static clt_status read_schedule_time(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v,
                                     void *field) {
    const char *s = json_string_value(v);
    double number;
    if (json_is_number(v) || (s && clt_parse_f64(s, &number)))
        return clt_schema_fail(r, path,
                               "has no unit: add one, as in 100ba, 1ep, 2000000tok, 5000sp or 0.1dur");
    return clt_config_read_time(r, k, path, v, field);
}

static const clt_key scheduler_keys[] = {
    {"name", CLT_KEY_CHOICE, CLT_KEY_HONOURED, false, CLT_KEY_REQUIRED, "shape of the learning rate",
     AT(kind), scheduler_names, NULL, NULL},
    {"t_warmup", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, CLT_KEY_REQUIRED, "time of the linear rise",
     AT(t_warmup), NULL, NULL, read_schedule_time},
    {"t_max", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, "\"1dur\"", "end of the schedule", AT(t_max), NULL,
     NULL, read_schedule_time},
    {"alpha", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL,
     "constant_with_warmup: multiplier, 1 unless given", AT(alpha), NULL, NULL, NULL},
    {"alpha_i", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL,
     "linear_decay_with_warmup: first multiplier, 1 unless given", AT(alpha_i), NULL, NULL, NULL},
    {"alpha_f", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL,
     "cosine_with_warmup, linear_decay_with_warmup: last multiplier, 0 unless given", AT(alpha_f), NULL, NULL,
     NULL},
    {"t_scale", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, NULL, "inv_sqrt_with_warmup", AT(t_scale), NULL,
     NULL, read_schedule_time},
    {"t_cooldown", CLT_KEY_CUSTOM, CLT_KEY_HONOURED, false, NULL, "inv_sqrt_with_warmup", AT(t_cooldown),
     NULL, NULL, read_schedule_time},
    {"alpha_f_decay", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL, "inv_sqrt_with_warmup, 0 unless given",
     AT(alpha_f_decay), NULL, NULL, NULL},
    {"alpha_f_cooldown", CLT_KEY_FLOAT, CLT_KEY_HONOURED, false, NULL, "inv_sqrt_with_warmup, 0 unless given",
     AT(alpha_f_cooldown), NULL, NULL, NULL},
    {"scale_warmup", CLT_KEY_BOOL, CLT_KEY_ACCEPTED, false, "false", "the scale schedule ratio is always 1",
     NOWHERE, NULL, NULL, NULL},
};
const clt_schema clt_config_scheduler_schema = CLT_SCHEMA(scheduler_keys);

clt_status clt_config_resolve_scheduler(clt_schema_reader *r, clt_config_builder *b) {
    const clt_config_scheduler_raw *raw = &b->scheduler;
    enum { CONSTANT = 1, COSINE = 2, LINEAR = 4, INV_SQRT = 8 };
    bool scale = raw->t_scale.value >= 0, cooldown = raw->t_cooldown.value >= 0; /* preset to -1 */
    const struct {
        const char *key;
        bool given;
        int kinds;
    } own[] = {{"alpha", !isnan(raw->alpha), CONSTANT},
               {"alpha_i", !isnan(raw->alpha_i), LINEAR},
               {"alpha_f", !isnan(raw->alpha_f), COSINE | LINEAR},
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
        .alpha_i = isnan(raw->alpha_i) ? 1 : raw->alpha_i,
        .alpha_f = isnan(raw->alpha_f) ? 0 : raw->alpha_f,
        .alpha_f_decay = isnan(raw->alpha_f_decay) ? 0 : raw->alpha_f_decay,
        .alpha_f_cooldown = isnan(raw->alpha_f_cooldown) ? 0 : raw->alpha_f_cooldown,
    };
    return CLT_OK;
}
