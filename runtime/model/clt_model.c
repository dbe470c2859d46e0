/* The registry of model families, and the calls through their tables. */
#include "runtime/model/clt_model_family.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"

/* --- families --- */

/* The first one is the default of configurations that name no family. */
static const clt_model_family *const families[] = {&clt_mpt_family, &clt_hf_model_family, &clt_vit_family};

const clt_refusal clt_model_refused[] = {{"hf_t5", "encoder-decoder models are not supported"}, {NULL, NULL}};

static bool is_among(const char *name, const char *const *list) {
    for (; *list; list++)
        if (strcmp(name, *list) == 0) return true;
    return false;
}

static const clt_model_family *find_yaml(const char *name) {
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++)
        if (is_among(name, families[i]->yaml_names)) return families[i];
    for (const clt_refusal *r = clt_model_refused; r->value; r++)
        if (strcmp(name, r->value) == 0) return families[0]; /* whose table says why it is refused */
    return NULL;
}

static const clt_model_family *find_hf(const char *type) {
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++)
        if (is_among(type, families[i]->hf_types)) return families[i];
    return NULL;
}

enum { MOST_NAMES = 16 };

/* Lists the valid values of model.name (hf: of model_type); returns their number. */
static size_t list_names(bool hf, const char *names[MOST_NAMES]) {
    size_t n = 0;
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++)
        for (const char *const *at = hf ? families[i]->hf_types : families[i]->yaml_names;
             *at && n < MOST_NAMES; at++)
            names[n++] = *at;
    return n;
}

/* For a config.json without model_type; NULL: none. */
static const clt_model_family *find_recognising(const json_t *o) {
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++)
        if (families[i]->recognises && families[i]->recognises(o)) return families[i];
    return NULL;
}

/* NULL: the object names an unknown family. Both keys are optional. */
static const clt_model_family *family_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "model_type")),
               *name = json_string_value(json_object_get(o, "name"));
    return type ? find_hf(type) : name ? find_yaml(name) : families[0];
}

const clt_schema *clt_model_schema(const json_t *section) {
    const clt_model_family *f = family_of(section);
    return (f ? f : families[0])->schema;
}

const clt_schema *clt_model_schema_at(int i) {
    return i < (int)CLT_COUNT_OF(families) ? families[i]->schema : NULL;
}

/* --- configuration --- */

static clt_status unknown_family(clt_schema_reader *r, const char *path, const char *name, bool hf) {
    const char *names[MOST_NAMES];
    const size_t n = list_names(hf, names);
    const char *near = clt_nearest(name, names, n);
    clt_str known = {0};
    for (size_t i = 0; i < n; i++) clt_str_addf(&known, "%s%s", i ? ", " : "", names[i]);
    clt_status st = clt_schema_fail(r, path, "is '%.40s', an unknown model (known: %s)%s%s%s", name, known.s,
                                    near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    clt_str_free(&known);
    return st;
}

/* Values of a wrong type count as absent here; the schema reports them. */
static clt_status choose_family(clt_schema_reader *r, const char *path, json_t *o,
                                const clt_model_family **out) {
    const char *type = json_string_value(json_object_get(o, "model_type")),
               *name = json_string_value(json_object_get(o, "name"));
    const bool hf = type != NULL, named = json_object_get(o, "model_type") || name;
    if (!named && r->ignore_unknown && (*out = find_recognising(o))) return CLT_OK;
    /* Without both keys it is an MPT, which has no such widths. */
    if (!named && (json_object_get(o, "hidden_size") || json_object_get(o, "n_embd")) && r->ignore_unknown)
        return clt_schema_fail(r, "model_type", "is missing: it must be given");
    *out = family_of(o);
    if (*out) return CLT_OK;
    char *key = clt_format("%s%s%s", path, *path ? "." : "", hf ? "model_type" : "name");
    clt_status st = unknown_family(r, key, hf ? type : name, hf);
    clt_free(key);
    return st;
}

clt_status clt_model_config_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config **out) {
    const clt_model_family *f;
    CLT_TRY(choose_family(r, path, o, &f));
    clt_model_config *c = clt_calloc(1, f->config_bytes);
    c->family = f;
    clt_status st = f->read(r, path, o, c);
    const json_t *source = json_object_get(o, CLT_MODEL_SOURCE_KEY);
    if (json_is_object(source) && !c->source) c->source = json_deep_copy(source);
    if (st == CLT_OK)
        *out = c;
    else
        clt_model_config_free(c);
    return st;
}

static char *place_of(void *ctx, const char *path) {
    (void)path;
    return clt_strdup(ctx);
}

/* For families that read no other keys of this form. */
static const char *harmless(void *ctx, const char *path) {
    (void)ctx;
    return strcmp(path, CLT_MODEL_SOURCE_KEY) == 0 ? "it says where the weights come from" : NULL;
}

clt_status clt_model_config_from_json(json_t *o, bool hf, const char *what, clt_model_config **out) {
    clt_strv strings = {0};
    clt_schema_reader r = {.what = what,
                           .place = place_of,
                           .harmless = harmless,
                           .ctx = (void *)what,
                           .status = CLT_BAD_CONFIG,
                           .ignore_unknown = hf,
                           .strings = &strings};
    clt_status st = json_is_object(o) ? clt_model_config_read(&r, "", o, out)
                                      : clt_error(CLT_BAD_CONFIG, "%s: not a JSON object", what);
    clt_strv_free(&strings);
    return st;
}

clt_status clt_model_config_parse(const char *text, bool hf, const char *what, clt_model_config **out) {
    enum { MAX_DEPTH = 32 };
    json_t *o;
    CLT_TRY(clt_json_parse(text, strlen(text), MAX_DEPTH, what, &o));
    clt_status st = clt_model_config_from_json(o, hf, what, out);
    json_decref(o);
    return st;
}

/* The family's keys behind the one that names the family. */
static json_t *with_type(const clt_model_config *c, json_t *keys) {
    json_t *o = json_pack("{s:s}", "model_type", c->family->hf_types[0]);
    json_object_update(o, keys);
    json_decref(keys);
    return o;
}

json_t *clt_model_config_to_json(const clt_model_config *c) {
    json_t *o = with_type(c, c->family->to_json(c));
    if (c->source) json_object_set(o, CLT_MODEL_SOURCE_KEY, c->source);
    return o;
}

clt_model_config *clt_model_config_copy(const clt_model_config *c) {
    clt_model_config *copy = clt_memdup(c, c->family->config_bytes);
    json_incref(copy->hf);
    json_incref(copy->pretrained);
    json_incref(copy->source);
    return copy;
}

void clt_model_config_free(clt_model_config *c) {
    if (!c) return;
    json_decref(c->hf);
    json_decref(c->pretrained);
    json_decref(c->source);
    clt_free(c);
}

clt_model_facts clt_model_get_facts(const clt_model_config *c) {
    clt_model_facts f = c->family->facts(c);
    f.generates = c->family->logits != NULL;
    f.classifies = c->family->predictions != NULL;
    return f;
}

const clt_model_terms *clt_model_get_terms(const clt_model_config *c) {
    static const clt_model_terms text = {.unit = "token",
                                         .rate = "tok/s",
                                         .cross_entropy = "LanguageCrossEntropy",
                                         .perplexity = "LanguagePerplexity",
                                         .accuracy = "TokenAccuracy"};
    return c->family->terms ? c->family->terms : &text;
}

char *clt_model_describe(const clt_model_config *c) {
    return c->family->describe(c);
}

clt_model_config *clt_model_config_with_layers(const clt_model_config *c, int64_t layers) {
    clt_model_config *with = clt_model_config_copy(c);
    with->family->set_layers(with, layers);
    return with;
}

/* --- parameters --- */

clt_status clt_model_table(const clt_model_config *c, clt_slab_table *table) {
    return c->family->table(c, table);
}

uint64_t clt_model_param_count(const clt_model_config *c) {
    clt_slab_table t = {0};
    uint64_t n = 0;
    if (c->family->table(c, &t) == CLT_OK)
        for (int i = 0; i < t.n; i++) n += t.entry[i].count;
    clt_slab_table_free(&t);
    return n;
}

double clt_model_train_flops_per_token(const clt_model_config *c, int64_t seq) {
    return c->family->train_flops_per_token(c, seq);
}

void clt_model_init_range(const clt_model_config *c, const clt_slab_table *table, int entry, uint64_t seed,
                          uint64_t first, uint64_t count, float *out) {
    c->family->init_range(c, table, entry, seed, first, count, out);
}

clt_status clt_model_weight_map(const clt_model_config *c, const clt_slab_table *table,
                                clt_weight_map **out) {
    *out = NULL;
    return c->family->weight_map ? c->family->weight_map(c, table, out) : CLT_OK;
}

const char *clt_model_pretrained(const clt_model_config *c) {
    return json_string_value(c->pretrained);
}

void clt_model_config_note_source(clt_model_config *c, const char *folder, const char *torch_dtype) {
    char *whole = realpath(folder, NULL);
    json_t *source = json_pack("{s:s}", "folder", whole ? whole : folder);
    if (torch_dtype) json_object_set_new(source, "torch_dtype", json_string(torch_dtype));
    json_decref(c->source);
    c->source = source;
    clt_free(whole);
}

static const char *noted(const clt_model_config *c, const char *key) {
    return json_string_value(json_object_get(c->source, key));
}

const char *clt_model_source_folder(const clt_model_config *c) {
    return noted(c, "folder");
}

const char *clt_model_source_dtype(const clt_model_config *c) {
    return noted(c, "torch_dtype");
}

json_t *clt_model_hf_config(const clt_model_config *c, const char *torch_dtype) {
    json_t *o = with_type(c, c->family->hf_config(c));
    json_object_set_new(o, "torch_dtype", json_string(torch_dtype));
    /* Newer versions write this name, and prefer it when both are there. */
    if (json_object_get(o, "dtype")) json_object_set_new(o, "dtype", json_string(torch_dtype));
    return o;
}

const char *clt_model_hf_differs(const clt_model_config *c) {
    return c->family->hf_differs(c);
}

int clt_model_units(const clt_model_config *c, const clt_slab_table *table, clt_model_unit **units) {
    return c->family->units(c, table, units);
}

int clt_model_order(const clt_model_config *c, clt_model_order_kind kind, int **order) {
    return c->family->order(c, kind, order);
}

int clt_model_layer_of(const clt_model_config *c, const clt_slab_table *table, int entry, int *layers) {
    *layers = 0;
    return c->family->layer_of ? c->family->layer_of(c, table, entry, layers) : -1;
}

/* --- memory and batches --- */

clt_status clt_model_plan(const clt_model_config *c, const clt_model_shape *shape, clt_device_type type,
                          clt_model_memory *out) {
    return c->family->plan(c, shape, type, out);
}

bool clt_model_reads_wide(const clt_model_config *c, const clt_model_shape *shape,
                          const clt_slab_table *table, int entry) {
    return shape->type == CLT_F32 || c->family->reads_wide(c, shape, table, entry);
}

bool clt_model_resample(const clt_model_config *c, int entry, const int64_t *shape, const float *from,
                        float *to) {
    return c->family->resample && c->family->resample(c, entry, shape, from, to);
}

clt_batch_layout clt_model_layout(const clt_model_config *c, int64_t seq) {
    return c->family->layout ? c->family->layout(c, seq)
                             : clt_text_layout(seq, clt_model_get_facts(c).seq_ids);
}

/* Tokens 0, 1, 2 ... over and over, each its own target; one sequence. */
static void text_example(const clt_model_config *c, int64_t seq, int64_t samples, void *const field[],
                         int32_t *sample_targets) {
    const int64_t V = clt_model_get_facts(c).vocab_size;
    int32_t *tokens = field[CLT_TEXT_TOKENS];
    for (int64_t i = 0; i < samples * seq; i++) tokens[i] = (int32_t)(i % V);
    memcpy(field[CLT_TEXT_TARGETS], tokens, (size_t)(samples * seq) * sizeof *tokens);
    for (int64_t s = 0; s < samples; s++) sample_targets[s] = (int32_t)seq;
}

clt_status clt_model_example(const clt_model_config *c, int64_t seq, int64_t samples, void **storage,
                             clt_batch *out) {
    const clt_batch_layout layout = clt_model_layout(c, seq);
    const size_t bytes = clt_batch_bytes(&layout, samples);
    void *field[CLT_BATCH_MAX_FIELDS] = {NULL};
    int32_t *targets = clt_try_calloc((size_t)samples, sizeof *targets);
    clt_batch b = {.samples = samples, .global_samples = samples, .sample_targets = targets};
    *storage = clt_try_malloc(bytes);
    bool room = targets && *storage;
    for (int i = 0; i < layout.n && room; i++) {
        if (!layout.field[i].bytes) continue;
        b.field[i] = field[i] = clt_try_calloc((size_t)samples, layout.field[i].bytes);
        room = field[i] != NULL;
    }
    if (room) {
        (c->family->example ? c->family->example : text_example)(c, seq, samples, field, targets);
        for (int64_t s = 0; s < samples; s++) b.targets += targets[s];
        b.global_targets = b.targets;
        clt_batch_copy(&layout, &b, *storage, out);
    } else {
        clt_free(*storage);
        *storage = NULL;
    }
    for (int i = 0; i < layout.n; i++) clt_free(field[i]);
    clt_free(targets);
    return room ? CLT_OK : clt_no_memory("a synthetic batch", 2 * (uint64_t)bytes);
}

/* --- on a device --- */

clt_status clt_model_create(const clt_model_config *c, const clt_model_shape *shape, clt_ops *ops,
                            clt_slab *weights, clt_slab *narrow, clt_model **out) {
    CLT_TRY(c->family->create(c, shape, ops, weights, narrow, out));
    (*out)->family = c->family;
    return CLT_OK;
}

void clt_model_destroy(clt_model *m) {
    if (m) m->family->destroy(m);
}

void clt_model_weights_changed(clt_model *m) {
    m->weights_version++;
}

clt_status clt_model_train(clt_model *m, const clt_model_pass *p) {
    CLT_TRY(clt_model_turns(m, false));
    return m->family->train(m, p);
}

size_t clt_model_fp8_formats(const clt_model *m, const clt_fp8 **out) {
    *out = NULL;
    return m->family->fp8_formats ? m->family->fp8_formats(m, out) : 0;
}

clt_status clt_model_fp8_amax(clt_model *m, float *amax) {
    return m->family->fp8_amax(m, amax);
}

clt_status clt_model_fp8_set_scales(clt_model *m, const float *scale) {
    return m->family->fp8_set_scales(m, scale);
}

clt_status clt_model_eval(clt_model *m, const clt_model_pass *p, clt_model_correct *correct) {
    return m->family->eval(m, p, correct);
}

clt_status clt_model_predictions(clt_model *m, int64_t samples, clt_model_prediction *out) {
    return m->family->predictions(m, samples, out);
}

clt_status clt_model_logits(clt_model *m, const int32_t *tokens, int64_t len, int64_t first, int64_t rows,
                            float *logits) {
    if (!m->family->logits)
        return clt_error(CLT_BAD_CONFIG, "models of the family '%s' do not generate text", m->family->name);
    return m->family->logits(m, tokens, len, first, rows, logits);
}

clt_status clt_model_next(clt_model *m, const clt_model_text *text, int64_t n, float *logits) {
    if (!m->family->next)
        return clt_error(CLT_BAD_CONFIG, "models of the family '%s' do not generate text", m->family->name);
    return m->family->next(m, text, n, logits);
}

clt_status clt_model_next_greedy(clt_model *m, const clt_model_text *text, int64_t n, float *logits,
                                 int32_t *token) {
    if (!m->family->next_greedy)
        return clt_error(CLT_BAD_CONFIG, "models of the family '%s' do not generate text", m->family->name);
    return m->family->next_greedy(m, text, n, logits, token);
}

clt_status clt_model_span_logits(clt_model *m, const int32_t *tokens, int64_t samples, int64_t len,
                                 const clt_model_span *span, clt_model_logits_fn fn, void *ctx) {
    if (!m->family->span_logits)
        return clt_error(CLT_BAD_CONFIG, "models of the family '%s' do not score text", m->family->name);
    return m->family->span_logits(m, tokens, samples, len, span, fn, ctx);
}

clt_status clt_model_activation(clt_model *m, const char *name, float *out, size_t count) {
    if (!m->family->activation)
        return clt_error(CLT_BAD_CONFIG, "activations of the family '%s' have no names", m->family->name);
    return m->family->activation(m, name, out, count);
}

void clt_model_set_turn(clt_model *m, clt_model_turn turn, void *ctx) {
    m->turn = turn;
    m->turn_ctx = ctx;
}

clt_status clt_model_turns(clt_model *m, bool backward) {
    return m->turn ? m->turn(m->turn_ctx, backward) : CLT_OK;
}

void clt_model_set_watch(clt_model *m, clt_model_watch watch, void *ctx) {
    m->watch = watch;
    m->watch_ctx = ctx;
}

clt_status clt_model_made(clt_model *m, clt_dtype type, clt_ref made, uint64_t count, const char *fmt, ...) {
    if (!m->watch) return CLT_OK;
    char what[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return m->watch(m->watch_ctx, what, type, made, count);
}

void clt_model_set_ready(clt_model *m, clt_model_ready ready, void *ctx) {
    m->ready = ready;
    m->ready_ctx = ctx;
}

clt_status clt_model_gradients_ready(clt_model *m, const clt_model_pass *p, int first, int end) {
    return m->ready && p->lane_last && first < end ? m->ready(m->ready_ctx, first, end) : CLT_OK;
}

void clt_model_set_need(clt_model *m, clt_model_unit_hook need, void *ctx) {
    m->need = need;
    m->need_ctx = ctx;
}

void clt_model_set_done(clt_model *m, clt_model_unit_hook done, void *ctx) {
    m->done = done;
    m->done_ctx = ctx;
}

void clt_model_set_grads_need(clt_model *m, clt_model_unit_hook grads_need, void *ctx) {
    m->grads_need = grads_need;
    m->grads_need_ctx = ctx;
}

clt_status clt_model_unit_need(clt_model *m, int unit) {
    return m->need ? m->need(m->need_ctx, unit) : CLT_OK;
}

clt_status clt_model_unit_done(clt_model *m, int unit) {
    return m->done ? m->done(m->done_ctx, unit) : CLT_OK;
}

clt_status clt_model_gradients_need(clt_model *m, int unit) {
    return m->grads_need ? m->grads_need(m->grads_need_ctx, unit) : CLT_OK;
}
