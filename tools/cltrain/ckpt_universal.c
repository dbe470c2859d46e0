/* DeepSpeed's universal checkpoints in `cltrain ckpt import` and `cltrain ckpt export`. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_universal.h"
#include "runtime/train/config/clt_config.h"
#include "tools/cltrain/ckpt_tool.h"

/* --- import --- */

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static clt_status config_of_yaml(const char *path, clt_model_config **out) {
    clt_config *c;
    CLT_TRY(clt_config_load(path, NULL, 0, &c));
    *out = clt_model_config_copy(c->model);
    clt_config_free(c);
    return CLT_OK;
}

clt_status ckpt_import_config(const ckpt_import_options *opt, clt_model_config **out) {
    enum { LIMIT = 1 << 20 };
    char *text;
    *out = NULL;
    if (!opt->config) return CLT_OK;
    if (ends_with(opt->config, ".yaml") || ends_with(opt->config, ".yml"))
        return config_of_yaml(opt->config, out);
    CLT_TRY(clt_io_read_all(opt->config, LIMIT, &text, NULL));
    clt_status st = clt_model_config_parse(text, true, opt->config, out);
    clt_free(text);
    return st;
}

/* The optimizer whose moments these are. */
static clt_status choose_optimizer(const char *given, int moments, const char **out) {
    *out = clt_optimizer_of(moments == 2 ? CLT_OPTIMIZER_TORCH_ADAMW : CLT_OPTIMIZER_LIONW)->name;
    if (!given) return CLT_OK;
    for (int k = CLT_OPTIMIZER_ADAMW; k <= CLT_OPTIMIZER_LAMB; k++) {
        const clt_optimizer_traits *t = clt_optimizer_of((clt_optimizer_kind)k);
        if (strcmp(t->name, given) != 0) continue;
        *out = t->name;
        if (t->moments == moments) return CLT_OK;
        return clt_error(CLT_USAGE, "--optimizer %s has %d moment%s, the checkpoint has %d", given,
                         t->moments, t->moments == 1 ? "" : "s", moments);
    }
    return clt_error(CLT_USAGE, "--optimizer: '%s' is no optimizer.name", given);
}

static void weights_alone(const ckpt_weights *w, const ckpt_import_options *opt) {
    if (clt_weight_source_universal(w->source))
        clt_info("%s: weights only%s; load them with load_weights_only: true",
                 clt_weight_source_path(w->source),
                 opt->weights_only ? "" : ", because the checkpoint has no moments");
}

clt_status ckpt_import_state(const ckpt_weights *w, const ckpt_import_options *opt,
                             clt_checkpoint_state *state, int *parts) {
    const clt_universal *u = clt_weight_source_universal(w->source);
    if (!u &&
        (opt->optimizer || opt->weights_only || opt->steps >= 0 || opt->samples >= 0 || opt->tokens >= 0))
        return clt_error(CLT_USAGE,
                         "%s is no universal checkpoint of DeepSpeed: --optimizer, --steps, --samples, "
                         "--tokens and --weights-only have no meaning",
                         clt_weight_source_path(w->source));
    state->model = w->model;
    state->ranks = 1;
    *parts = u && !opt->weights_only ? w->parts : 1;
    if (*parts == 1) {
        weights_alone(w, opt);
        return CLT_OK;
    }
    const int64_t steps = opt->steps >= 0 ? opt->steps : clt_universal_steps(u);
    const int64_t samples = opt->samples >= 0 ? opt->samples : clt_universal_samples(u);
    if (steps < 0)
        return clt_error(CLT_BAD_DATA,
                         "%s: its files do not tell the number of optimizer steps: give it (--steps), or "
                         "import the weights alone (--weights-only)",
                         clt_weight_source_path(w->source));
    CLT_TRY(choose_optimizer(opt->optimizer, *parts - 1, &state->optimizer));
    state->optimizer_step = state->batch = steps;
    state->sample = CLT_MAX(samples, (int64_t)0);
    state->token = CLT_MAX(opt->tokens, (int64_t)0);
    clt_info("%s: weights and %d moment%s of %s after %lld steps, %lld samples, %lld tokens; a run that "
             "resumes from it reads its data from the first sample",
             clt_weight_source_path(w->source), *parts - 1, *parts == 2 ? "" : "s", state->optimizer,
             (long long)steps, (long long)state->sample, (long long)state->token);
    return CLT_OK;
}

/* --- export --- */

typedef struct {
    ckpt_weights *w;
    clt_weight_mapper mapper[CKPT_ROLES];
} exporter;

static clt_status fill(void *ctx, int i, clt_universal_state s, uint64_t first, float *dst, uint64_t count) {
    exporter *x = ctx;
    if (!x->w->map) return ckpt_role_read(&x->w->role[s], i, first, dst, count);
    return clt_weight_mapper_read(&x->mapper[s], i, first, dst, count);
}

/* Names and shapes of the files: those of the model, or of its family in the transformers package. */
static clt_universal_param *list_params(const ckpt_weights *w, const char *prefix, int *n) {
    *n = w->map ? w->map->files : w->table.n;
    clt_universal_param *params = clt_calloc((size_t)*n, sizeof *params);
    for (int i = 0; i < *n; i++) {
        const clt_slab_entry *e = w->map ? NULL : &w->table.entry[i];
        const clt_map_file *f = w->map ? &w->map->file[i] : NULL;
        clt_universal_param *p = &params[i];
        p->name = clt_format("%s%s", prefix ? prefix : "", e ? e->name : f->name);
        p->dims = e ? e->dims : f->dims;
        p->count = 1;
        for (int d = 0; d < p->dims; d++) p->count *= p->shape[d] = (uint64_t)(e ? e->shape[d] : f->shape[d]);
    }
    return params;
}

/* An older checkpoint is replaced only if it is allowed and looks like one. */
static clt_status make_room(const char *out, int64_t steps, bool overwrite) {
    char *tag = clt_universal_tag(steps), *folder = clt_path_join(out, tag), *found = NULL;
    clt_status st = CLT_OK;
    if (clt_io_is_dir(folder)) {
        st = clt_universal_find(folder, &found);
        if (st == CLT_OK && (!overwrite || !found))
            st = clt_error(CLT_IO, "%s exists already and is not overwritten; choose another folder%s",
                           folder, found ? ", or allow it (--overwrite)" : "");
        if (st == CLT_OK) st = clt_io_remove_tree(folder);
    }
    clt_free(found);
    clt_free(folder);
    clt_free(tag);
    return st;
}

clt_status ckpt_export_universal(ckpt_weights *w, const char *out, const char *prefix, bool overwrite) {
    clt_ckpt_reader *ckpt = clt_weight_source_checkpoint(w->source);
    const clt_checkpoint_state *state = ckpt ? clt_ckpt_state(ckpt) : NULL;
    exporter x = {.w = w};
    clt_universal_spec spec = {.folder = out, .fill = fill, .ctx = &x};
    spec.steps = state ? state->optimizer_step : 0;
    spec.samples = state ? state->sample : 0;
    for (int i = 0; i < w->parts; i++) {
        spec.moments[i] = true;
        x.mapper[i] =
            (clt_weight_mapper){.map = w->map, .to_file = true, .read = ckpt_role_read, .ctx = &w->role[i]};
    }
    CLT_TRY(make_room(out, spec.steps, overwrite));
    clt_universal_param *params = list_params(w, prefix, &spec.n);
    spec.param = params;
    clt_status st = clt_universal_write(&spec);
    if (st == CLT_OK && w->parts < CKPT_ROLES)
        clt_warn("%s has %s; DeepSpeed's Adam needs exp_avg and exp_avg_sq", out,
                 w->parts == 1 ? "weights and no moments" : "weights and exp_avg");
    for (int i = 0; i < spec.n; i++) clt_free(params[i].name);
    clt_free(params);
    for (int i = 0; i < CKPT_ROLES; i++) clt_weight_mapper_free(&x.mapper[i]);
    return st;
}
