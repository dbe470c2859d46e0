/* optimizer, and which tensor belongs to which parameter group. */
#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/train/config/clt_config_internal.h"

/* clt_optimizer_kind, then LLM Foundry's update that changes nothing, which is one with rates of 0. */
static const char *const optimizer_names[] = {"decoupled_adamw", "decoupled_lionw", "adamw", "sgd", "lamb",
                                              "adagrad",         "no_op",           NULL};
enum { NO_OP = CLT_OPTIMIZER_ADAGRAD + 1 };

const clt_optimizer_traits *clt_optimizer_of(clt_optimizer_kind kind) {
    static const clt_optimizer_traits all[] = {
        [CLT_OPTIMIZER_ADAMW] = {"decoupled_adamw", "DecoupledAdamW", 2},
        [CLT_OPTIMIZER_LIONW] = {"decoupled_lionw", "DecoupledLionW", 1},
        [CLT_OPTIMIZER_TORCH_ADAMW] = {"adamw", "AdamW", 2},
        [CLT_OPTIMIZER_SGD] = {"sgd", "SGD", 1},
        [CLT_OPTIMIZER_LAMB] = {"lamb", "Lamb", 2},
        [CLT_OPTIMIZER_ADAGRAD] = {"adagrad", "Adagrad", 2}};
    return &all[kind];
}

#define NOT_COMPUTED                                                                                         \
    "it is not computed here: use decoupled_adamw, decoupled_lionw, adamw, sgd, lamb or adagrad"
static const clt_refusal refused_optimizers[] = {
    {"clip_lion", NOT_COMPUTED}, {"adalr_lion", NOT_COMPUTED}, {NULL, NULL}};

#define HYPER_ROWS(type)                                                                                     \
    CLT_KEY(type, "lr", hyper.lr, NULL, "learning rate; default: 1e-3, decoupled_lionw 1e-4, adagrad 1e-2"), \
        CLT_KEY_OF(&clt_kind_betas, type, "betas", hyper.betas, NULL,                                        \
                   "decay rates; default: decoupled_adamw [0.9, 0.95], decoupled_lionw [0.9, 0.99], "        \
                   "adamw and lamb [0.9, 0.999]; not for sgd and adagrad"),                                  \
        CLT_KEY(type, "eps", hyper.eps, NULL,                                                                \
                "decoupled_adamw, adamw, lamb, adagrad; default: 1e-8, lamb 1e-6, adagrad 1e-10"),           \
        CLT_KEY(type, "weight_decay", hyper.weight_decay, NULL,                                              \
                "decoupled_*: weights are multiplied by 1 - lr_t/lr * this, adamw: by 1 - lr_t * this; "     \
                "sgd, adagrad: weights times this are added to gradients; lamb: to the step's direction, "   \
                "and groups without it have no trust ratio; default: decoupled_adamw 1e-5, adamw 0.01, "     \
                "others 0"),                                                                                 \
        CLT_KEY(type, "momentum", hyper.momentum, NULL, "sgd; default: 0")

static const clt_key group_keys[] = {
    CLT_KEY(clt_config_group_raw, "param_str_match", match, CLT_KEY_REQUIRED,
            "regular expression that is searched in tensor names"),
    HYPER_ROWS(clt_config_group_raw),
};
const clt_schema clt_config_group_schema = CLT_SCHEMA(group_keys);

static const clt_key optimizer_keys[] = {
    CLT_KEY(clt_config_optimizer_raw, "name", kind, CLT_KEY_REQUIRED,
            "the update rule; no_op: weights stay as they are", .choices = optimizer_names,
            .refused = refused_optimizers),
    HYPER_ROWS(clt_config_optimizer_raw),
    CLT_KEY(clt_config_optimizer_raw, "nesterov", nesterov, "false", "sgd: Nesterov's momentum"),
    CLT_KEY(clt_config_optimizer_raw, "adam_w_mode", adam_w_mode, "true",
            "adamw; false: weights times weight_decay are added to gradients (PyTorch's Adam)"),
    CLT_KEY(clt_config_optimizer_raw, "bias_correction", bias_correction, "true",
            "adamw, lamb; false: moments that started at 0 are used as they are"),
    CLT_KEY(clt_config_optimizer_raw, "max_coeff", max_coeff, "null",
            "lamb: most of the trust ratio; with it LAMB has DeepSpeed's rule: groups without weight_decay "
            "have a ratio, too, and the correction of moments multiplies the step, not the direction",
            .nullable = true),
    CLT_KEY(clt_config_optimizer_raw, "min_coeff", min_coeff, "null",
            "lamb with max_coeff: least of the trust ratio; default: 0", .nullable = true),
    CLT_KEY(clt_config_optimizer_raw, "layer_decay", layer_decay, "1.0",
            "vit: the learning rate of a layer is that of the next layer times this, as timm's layer_decay; "
            "layers are the embedding, each block and the head"),
    CLT_KEY_OF(&clt_kind_patterns, clt_config_optimizer_raw, "disable_grad", disable_grad, "null",
               "regular expressions: tensors whose name matches are frozen", .nullable = true),
    CLT_KEY_OF(&clt_kind_list, clt_config_optimizer_raw, "param_groups", param_groups, "null",
               "groups of tensors with values of their own; they claim tensors in this order",
               .section = &clt_config_group_schema, .nullable = true),
};
const clt_schema clt_config_optimizer_schema = CLT_SCHEMA(optimizer_keys);

/* --- regular expressions --- */

/* How often the repetitions {n}, {n,} and {n,m} of a pattern, nested at worst, can copy what they repeat. */
static double copies(const char *pattern) {
    double product = 1;
    for (const char *p = strchr(pattern, '{'); p; p = strchr(p + 1, '{')) {
        double most = 1;
        for (const char *d = p + 1; *d && *d != '}'; d++) {
            double n = strtod(d, NULL);
            d += strspn(d, "0123456789");
            most = CLT_MAX(most, n);
            if (*d != ',') break;
        }
        product *= most;
    }
    return product;
}

/* What POSIX has no word for, or what takes more time and memory than a pattern is worth; NULL: nothing. */
static const char *unsupported(const char *pattern) {
    enum { LONGEST = 500, MOST_COPIES = 1000 };
    if (strlen(pattern) > LONGEST) return "it has more than 500 characters";
    if (copies(pattern) > MOST_COPIES) return "it repeats more than 1,000 times";
    if (strstr(pattern, "(?") || strstr(pattern, "*?") || strstr(pattern, "+?") || strstr(pattern, "??"))
        return "look-around and lazy repetition are not supported";
    for (const char *p = strchr(pattern, '\\'); p && p[1]; p = strchr(p + 2, '\\'))
        if (p[1] >= '1' && p[1] <= '9') return "back-references are not supported";
    return NULL;
}

/* Python's \d is spelled out. 0, or what is wrong in `why`. */
static int compile_regex(const char *pattern, regex_t *out, char *why, size_t size) {
    const char *refused = unsupported(pattern);
    if (refused) {
        snprintf(why, size, "%s", refused);
        return REG_BADPAT;
    }
    clt_str posix = {0};
    clt_str_add(&posix, "");
    for (const char *p = pattern; *p; p++) {
        bool pair = p[0] == '\\' && p[1];
        if (pair && p[1] == 'd')
            clt_str_add(&posix, "[0-9]");
        else
            clt_str_addn(&posix, p, pair ? 2 : 1);
        p += pair;
    }
    int code = regcomp(out, posix.s, REG_EXTENDED | REG_NOSUB);
    if (code) regerror(code, out, why, size);
    clt_str_free(&posix);
    return code;
}

static clt_status check_regex(clt_schema_reader *r, const char *path, const char *pattern) {
    regex_t re;
    char why[128];
    if (compile_regex(pattern, &re, why, sizeof why))
        return clt_schema_fail(r, path, "holds the regular expression '%.200s', which cannot be used: %s",
                               pattern, why);
    regfree(&re);
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

/* A pattern that check_regex has passed. */
static clt_status compile_checked(const char *pattern, regex_t *out) {
    char why[128];
    if (compile_regex(pattern, out, why, sizeof why) == 0) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "the regular expression '%.200s' cannot be used: %s", pattern, why);
}

static clt_status warn_if_unmatched(clt_config *c, const clt_slab_table *t, const char *key,
                                    const char *pattern) {
    regex_t re;
    bool hit = false;
    CLT_TRY(compile_checked(pattern, &re));
    for (int i = 0; i < t->n && !hit; i++) hit = matches(&re, t->entry[i].name);
    regfree(&re);
    if (!hit)
        clt_strv_add_owned(&c->warnings,
                           clt_format("%s: '%.200s' matches no tensor of this model", key, pattern));
    return CLT_OK;
}

static clt_status warn_unmatched(clt_config *c) {
    const clt_optimizer_config *o = &c->optimizer;
    clt_slab_table t = {0};
    CLT_TRY(clt_model_table(c->model, &t));
    clt_status st = CLT_OK;
    for (size_t i = 0; i < o->disable_grad.n && st == CLT_OK; i++)
        st = warn_if_unmatched(c, &t, "optimizer.disable_grad", o->disable_grad.v[i]);
    for (int g = 1; g < o->n_groups && st == CLT_OK; g++) {
        char *key = clt_format("optimizer.param_groups.%d.param_str_match", g - 1);
        st = warn_if_unmatched(c, &t, key, o->groups[g].match);
        clt_free(key);
    }
    clt_slab_table_free(&t);
    return st;
}

/* --- groups --- */

static double or_else(double v, double otherwise) {
    return isnan(v) ? otherwise : v;
}

/* The values that are given, the others from `base`. */
static clt_param_group make_group(const clt_config_hyper *h, const clt_param_group *base) {
    return (clt_param_group){.lr = or_else(h->lr, base->lr),
                             .beta1 = or_else(or_else(h->betas[0], h->momentum), base->beta1),
                             .beta2 = or_else(h->betas[1], base->beta2),
                             .eps = or_else(h->eps, base->eps),
                             .weight_decay = or_else(h->weight_decay, base->weight_decay)};
}

/* A value that the update rule has no place for is said to have no effect, and dropped. */
static void unused(clt_schema_reader *r, const char *path, const char *key, const clt_optimizer_config *o,
                   double *value) {
    if (isnan(*value)) return;
    char *whole = clt_format("%s.%s", path, key),
         *why = clt_format("%s has no %s", clt_optimizer_of(o->kind)->name, key);
    clt_notices_add(r->notices, whole, why);
    clt_free(whole);
    clt_free(why);
    *value = NAN;
}

static void drop_unused(clt_schema_reader *r, const char *path, const clt_optimizer_config *o,
                        clt_config_hyper *h) {
    const bool sgd = o->kind == CLT_OPTIMIZER_SGD;
    if (sgd || o->kind == CLT_OPTIMIZER_LIONW) unused(r, path, "eps", o, &h->eps);
    if (sgd || o->kind == CLT_OPTIMIZER_ADAGRAD) unused(r, path, "betas", o, &h->betas[0]);
    if (!sgd) unused(r, path, "momentum", o, &h->momentum);
}

static clt_status check_group(clt_schema_reader *r, const char *path, const clt_optimizer_config *o,
                              clt_config_hyper *h) {
    if (h->lr < 0) return clt_schema_fail(r, path, "has a learning rate below 0");
    if (h->eps < 0) return clt_schema_fail(r, path, "has an eps below 0");
    if (h->weight_decay < 0) return clt_schema_fail(r, path, "has a weight_decay below 0");
    if (h->momentum < 0) return clt_schema_fail(r, path, "has a momentum below 0");
    drop_unused(r, path, o, h);
    return CLT_OK;
}

static clt_status read_group(clt_schema_reader *r, clt_optimizer_config *o, const char *path, json_t *v) {
    clt_config_group_raw raw = {.hyper = {NAN, {NAN, NAN}, NAN, NAN, NAN}};
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map with param_str_match");
    CLT_TRY(clt_schema_read(r, &clt_config_group_schema, path, v, &raw));
    CLT_TRY(check_regex(r, path, raw.match));
    CLT_TRY(check_group(r, path, o, &raw.hyper));
    o->groups[o->n_groups] = make_group(&raw.hyper, &o->groups[0]);
    o->groups[o->n_groups++].match = raw.match;
    return CLT_OK;
}

static clt_status read_groups(clt_schema_reader *r, clt_optimizer_config *o, json_t *list) {
    if (json_array_size(list) >= CLT_MAX_PARAM_GROUPS)
        return clt_schema_fail(r, "optimizer.param_groups", "has more than %d groups",
                               CLT_MAX_PARAM_GROUPS - 1);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char *path = clt_format("optimizer.param_groups.%zu", i);
        clt_status st = read_group(r, o, path, json_array_get(list, i));
        clt_free(path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

static clt_status read_disable_grad(clt_schema_reader *r, clt_optimizer_config *o, json_t *v) {
    clt_kind_strings.store(r, NULL, v, &o->disable_grad);
    for (size_t i = 0; i < o->disable_grad.n; i++)
        CLT_TRY(check_regex(r, "optimizer.disable_grad", o->disable_grad.v[i]));
    return CLT_OK;
}

static void stand_still(clt_optimizer_config *o) {
    for (int i = 0; i < o->n_groups; i++) o->groups[i].lr = o->groups[i].weight_decay = 0;
}

/* As PyTorch: Nesterov's rule needs a momentum. */
static clt_status resolve_nesterov(clt_schema_reader *r, const clt_config_optimizer_raw *raw,
                                   clt_optimizer_config *o) {
    if (!raw->nesterov) return CLT_OK;
    if (o->kind != CLT_OPTIMIZER_SGD) {
        clt_notices_add(r->notices, "optimizer.nesterov", "only sgd has it");
        return CLT_OK;
    }
    for (int i = 0; i < o->n_groups; i++)
        if (o->groups[i].beta1 == 0)
            return clt_schema_fail(r, "optimizer.nesterov", "needs a momentum above 0%s",
                                   i ? " in every group" : "");
    o->nesterov = true;
    return CLT_OK;
}

/* Keys of single rules, which others ignore with a notice. */
static clt_status resolve_variants(clt_schema_reader *r, const clt_config_optimizer_raw *raw,
                                   clt_optimizer_config *o) {
    const bool adam = o->kind == CLT_OPTIMIZER_TORCH_ADAMW, lamb = o->kind == CLT_OPTIMIZER_LAMB;
    if (!raw->adam_w_mode && !adam) clt_notices_add(r->notices, "optimizer.adam_w_mode", "only adamw has it");
    if (!raw->bias_correction && !adam && !lamb)
        clt_notices_add(r->notices, "optimizer.bias_correction", "only adamw and lamb have it");
    if (isfinite(raw->max_coeff) && !lamb)
        clt_notices_add(r->notices, "optimizer.max_coeff", "only lamb has it");
    if (isfinite(raw->min_coeff) && !(lamb && isfinite(raw->max_coeff)))
        clt_notices_add(r->notices, "optimizer.min_coeff", "it belongs to lamb with max_coeff");
    o->l2 = adam && !raw->adam_w_mode;
    o->uncorrected = (adam || lamb) && !raw->bias_correction;
    if (!lamb || isnan(raw->max_coeff)) return CLT_OK;
    o->max_coeff = raw->max_coeff;
    o->min_coeff = or_else(raw->min_coeff, 0);
    if (!(o->max_coeff > 0))
        return clt_schema_fail(r, "optimizer.max_coeff", "is %g: it must be above 0", o->max_coeff);
    if (!(o->min_coeff >= 0 && o->min_coeff <= o->max_coeff))
        return clt_schema_fail(r, "optimizer.min_coeff", "is %g: it must be 0 to max_coeff (%g)",
                               o->min_coeff, o->max_coeff);
    return CLT_OK;
}

/* The learning rates of a model's layers, which must be few enough for the device's table. */
static clt_status resolve_layer_decay(clt_schema_reader *r, const clt_config_optimizer_raw *raw,
                                      clt_config *c) {
    static const char key[] = "optimizer.layer_decay";
    clt_scaled_group group[CLT_MAX_SCALED_GROUPS];
    clt_slab_table t = {0};
    int n;
    c->optimizer.layer_decay = raw->layer_decay;
    if (!(raw->layer_decay > 0 && raw->layer_decay <= 1))
        return clt_schema_fail(r, key, "is %g: it must be above 0 and at most 1", raw->layer_decay);
    if (raw->layer_decay == 1) return CLT_OK;
    CLT_TRY(clt_model_table(c->model, &t));
    uint8_t *of = clt_calloc((size_t)t.n, sizeof *of);
    bool *frozen = clt_calloc((size_t)t.n, sizeof *frozen);
    clt_status st = clt_model_layer_of(c->model, &t, 0, &n) < 0
                        ? clt_schema_fail(r, key, "is %g: only models of the family vit have layers for it",
                                          raw->layer_decay)
                        : clt_optimizer_scaled_groups(c, &t, group, &n, of, frozen);
    clt_free(of);
    clt_free(frozen);
    clt_slab_table_free(&t);
    return st;
}

clt_status clt_config_resolve_optimizer(clt_schema_reader *r, clt_config_builder *b) {
    static const clt_param_group defaults[] = {
        [CLT_OPTIMIZER_ADAMW] = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 1e-5},
        [CLT_OPTIMIZER_LIONW] = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0},
        [CLT_OPTIMIZER_TORCH_ADAMW] =
            {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01},
        [CLT_OPTIMIZER_SGD] = {.lr = 1e-3},
        [CLT_OPTIMIZER_LAMB] = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6},
        [CLT_OPTIMIZER_ADAGRAD] = {.lr = 1e-2, .eps = 1e-10}};
    clt_config_optimizer_raw *raw = &b->optimizer;
    clt_optimizer_config *o = &b->c.optimizer;
    o->kind = raw->kind == NO_OP ? CLT_OPTIMIZER_LIONW : (clt_optimizer_kind)raw->kind;
    CLT_TRY(check_group(r, "optimizer", o, &raw->hyper));
    o->groups[0] = make_group(&raw->hyper, &defaults[o->kind]);
    o->n_groups = 1;
    if (raw->disable_grad) CLT_TRY(read_disable_grad(r, o, raw->disable_grad));
    if (raw->param_groups) CLT_TRY(read_groups(r, o, raw->param_groups));
    CLT_TRY(resolve_nesterov(r, raw, o));
    CLT_TRY(resolve_variants(r, raw, o));
    clt_config_freeze_layers(b);
    if (raw->kind == NO_OP) stand_still(o);
    CLT_TRY(resolve_layer_decay(r, raw, &b->c));
    return o->disable_grad.n > 0 || raw->param_groups ? warn_unmatched(&b->c) : CLT_OK;
}

clt_status clt_optimizer_groups(const clt_optimizer_config *o, const char *const *names, size_t n,
                                uint8_t *group, bool *frozen) {
    for (size_t i = 0; i < n; i++) {
        group[i] = 0;
        frozen[i] = false;
    }
    for (int g = 1; g < o->n_groups; g++) {
        regex_t re;
        CLT_TRY(compile_checked(o->groups[g].match, &re));
        for (size_t i = 0; i < n; i++)
            if (group[i] == 0 && matches(&re, names[i])) group[i] = (uint8_t)g;
        regfree(&re);
    }
    for (size_t p = 0; p < o->disable_grad.n; p++) {
        regex_t re;
        CLT_TRY(compile_checked(o->disable_grad.v[p], &re));
        for (size_t i = 0; i < n; i++)
            if (matches(&re, names[i])) frozen[i] = true;
        regfree(&re);
    }
    return CLT_OK;
}

/* Adds {group, scale} unless it is there; its place, or -1: the table is full. */
static int place_of(clt_scaled_group *list, int *n, int group, double scale) {
    for (int i = 0; i < *n; i++)
        if (list[i].group == group && list[i].scale == scale) return i;
    if (*n == CLT_MAX_SCALED_GROUPS) return -1;
    list[*n] = (clt_scaled_group){group, scale};
    return (*n)++;
}

/* of[i] is tensor i's group of the configuration at first. */
static clt_status scale_layers(const clt_config *c, const clt_slab_table *t, clt_scaled_group *list, int *n,
                               uint8_t *of) {
    for (int i = 0; i < t->n; i++) {
        int layers;
        const int layer = clt_model_layer_of(c->model, t, i, &layers),
                  at = place_of(list, n, of[i], clt_dpowi(c->optimizer.layer_decay, layers - 1 - layer));
        if (at < 0)
            return clt_error(CLT_BAD_CONFIG,
                             "optimizer.layer_decay: layers and parameter groups make more than %d "
                             "combinations: use fewer param_groups",
                             CLT_MAX_SCALED_GROUPS);
        of[i] = (uint8_t)at;
    }
    return CLT_OK;
}

clt_status clt_optimizer_scaled_groups(const clt_config *c, const clt_slab_table *t,
                                       clt_scaled_group group[CLT_MAX_SCALED_GROUPS], int *n, uint8_t *of,
                                       bool *frozen) {
    const clt_optimizer_config *o = &c->optimizer;
    const char **names = clt_calloc((size_t)t->n, sizeof *names);
    for (int i = 0; i < t->n; i++) names[i] = t->entry[i].name;
    clt_status st = clt_optimizer_groups(o, names, (size_t)t->n, of, frozen);
    clt_free(names);
    *n = 0;
    if (st == CLT_OK && o->layer_decay != 1) return scale_layers(c, t, group, n, of);
    for (; *n < o->n_groups; (*n)++) group[*n] = (clt_scaled_group){*n, 1};
    return st;
}
