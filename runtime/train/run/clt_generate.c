#include "runtime/train/run/clt_generate.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_philox.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/model/clt_model.h"
#include "runtime/train/config/clt_yaml_tree.h"

clt_generate_params clt_generate_params_default(void) {
    return (clt_generate_params){
        .prompt = "", .max_new_tokens = 128, .temperature = 0.8, .top_k = 40, .seed = 17};
}

/* --- sampling --- */

typedef struct {
    float logit;
    int32_t id;
} candidate;

static int by_logit(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Sifts c[0] down in a heap of k whose root is the smallest: parents come after their children in by_logit's
 * order. */
static void sift(candidate *c, int64_t k) {
    for (int64_t at = 0, child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && by_logit(&c[child + 1], &c[child]) > 0) child++;
        if (by_logit(&c[at], &c[child]) > 0) return;
        candidate t = c[at];
        c[at] = c[child];
        c[child] = t;
    }
}

/* The k largest logits, largest first; the caller frees them. */
static candidate *largest(const float *logits, int64_t vocab, int64_t k) {
    candidate *c = clt_malloc((size_t)k * sizeof *c);
    for (int64_t i = 0; i < k; i++) c[i] = (candidate){logits[i], (int32_t)i};
    qsort(c, (size_t)k, sizeof *c, by_logit);
    for (int64_t i = 0; i < k / 2; i++) { /* in reverse order it is a heap */
        candidate t = c[i];
        c[i] = c[k - 1 - i];
        c[k - 1 - i] = t;
    }
    for (int64_t i = k; i < vocab; i++) {
        candidate x = {logits[i], (int32_t)i};
        if (by_logit(&x, &c[0]) > 0) continue;
        c[0] = x;
        sift(c, k);
    }
    qsort(c, (size_t)k, sizeof *c, by_logit);
    return c;
}

int32_t clt_sample_token(const float *logits, int64_t vocab, double temperature, int64_t top_k, uint64_t seed,
                         uint64_t position) {
    int64_t k = top_k > 0 ? CLT_MIN(top_k, vocab) : vocab;
    candidate *c = largest(logits, vocab, temperature > 0 ? k : 1);
    int32_t chosen = c[0].id;
    if (temperature > 0) {
        double sum = 0, *p = clt_malloc((size_t)k * sizeof *p);
        for (int64_t i = 0; i < k; i++) {
            double z = ((double)c[i].logit - (double)c[0].logit) / temperature;
            sum += p[i] = z < -600 ? 0 : clt_dexp(z);
        }
        uint32_t key[2], w[4];
        clt_philox_key(seed, CLT_RNG_SAMPLE, key);
        clt_philox4x32((uint32_t[]){(uint32_t)position, (uint32_t)(position >> 32), 0, 0}, key, w);
        double u = clt_philox_double(w[0], w[1]) * sum;
        int64_t i = 0;
        for (; i < k - 1 && u >= p[i]; i++) u -= p[i];
        chosen = c[i].id;
        clt_free(p);
    }
    clt_free(c);
    return chosen;
}

/* --- a model and its tokenizer --- */

struct clt_generator {
    clt_device *dev;
    clt_ops *ops;
    clt_weight_source *src;
    clt_slab_table table;
    clt_slab *weights;
    clt_model *model;
    clt_model_config *cfg;
    clt_model_facts facts;
    clt_tokenizer *tok;
    bool cache; /* the model keeps keys and values */
};

static clt_status read_config(clt_generator *g) {
    const char *text = clt_weight_source_model(g->src), *path = clt_weight_source_path(g->src);
    if (!text)
        return clt_error(CLT_BAD_DATA, "%s has no description of its model (config.json is missing)", path);
    CLT_TRY(clt_model_config_parse(text, true, path, &g->cfg));
    g->facts = clt_model_get_facts(g->cfg);
    return CLT_OK;
}

/* A model that was trained on token ids of a tokenizer that is not loaded reads the bytes of a text as other
 * tokens. */
static void warn_of_name(const char *name) {
    if (clt_tokenizer_known(name)) return;
    clt_warn("this model was trained with tokenizer '%s', which is not supported: prompt and text are "
             "converted as bytes, so the output is meaningless",
             name);
}

static void warn_of_tokenizer(const clt_weight_source *src) {
    const clt_ckpt_reader *checkpoint = clt_weight_source_checkpoint(src);
    const char *config = checkpoint ? clt_ckpt_state(checkpoint)->config : NULL;
    clt_yaml *y = NULL;
    if (!config) return;
    clt_error_quiet(true);
    if (clt_yaml_parse(config, strlen(config), clt_weight_source_path(src), &y) == CLT_OK) {
        const clt_yaml_node *name = clt_yaml_node_find(y, "tokenizer.name", NULL);
        if (name && name->kind == CLT_YAML_SCALAR) warn_of_name(name->text);
    }
    clt_error_quiet(false);
    clt_yaml_free(y);
}

static clt_status open_tokenizer(clt_generator *g) {
    CLT_TRY(clt_tokenizer_open("bytes", &g->tok));
    if (clt_tokenizer_vocab_size(g->tok) > g->facts.vocab_size)
        return clt_error(CLT_BAD_CONFIG,
                         "the model has a vocabulary of %lld, too small for the tokenizer 'bytes': text "
                         "generation supports only models of bytes",
                         (long long)g->facts.vocab_size);
    return CLT_OK;
}

static clt_status open_source(clt_generator *g, const char *source) {
    char *path = NULL;
    CLT_TRY(clt_ckpt_resolve(NULL, source, &path));
    clt_status st = clt_weight_source_open(path, &g->src);
    clt_free(path);
    CLT_TRY(st);
    CLT_TRY(read_config(g));
    warn_of_tokenizer(g->src);
    return open_tokenizer(g);
}

static clt_status load_model(clt_generator *g, const char *device) {
    clt_device_params d = clt_device_params_default();
    d.pattern = device;
    d.need_exact = true;
    CLT_TRY(clt_device_open(&d, &g->dev));
    clt_ops_params o = clt_ops_params_default();
    CLT_TRY(clt_ops_create(g->dev, &o, &g->ops));
    CLT_TRY(clt_model_table(g->cfg, &g->table));
    CLT_TRY(clt_slab_create(g->dev, &g->table, 0, "weights", &g->weights));
    const clt_ckpt_part part = {.role = "weight", .slab = g->weights};
    clt_weight_source_use_names(g->src, &g->table, clt_model_hf_name, g->cfg);
    CLT_TRY(clt_weight_source_load(g->src, &g->table, &part, 1, NULL));
    const clt_model_shape shape = {.microbatch = 1, .seq = g->facts.max_seq_len, .cache = g->cache};
    return clt_model_create(g->cfg, &shape, g->ops, g->weights, NULL, &g->model);
}

static clt_status finish_open(clt_generator *g, clt_status st, clt_generator **out) {
    if (st == CLT_OK)
        *out = g;
    else
        clt_generator_close(g);
    return st;
}

clt_status clt_generator_open(const char *source, const char *device, bool cache, clt_generator **out) {
    clt_generator *g = clt_calloc(1, sizeof *g);
    g->cache = cache;
    clt_status st = open_source(g, source);
    if (st == CLT_OK) st = load_model(g, device);
    return finish_open(g, st, out);
}

clt_status clt_generator_of_engine(clt_engine *e, const clt_config *cfg, clt_generator **out) {
    clt_generator *g = clt_calloc(1, sizeof *g);
    g->cache = true;
    g->facts = clt_model_get_facts(cfg->model);
    warn_of_name(cfg->tokenizer);
    clt_status st = open_tokenizer(g);
    if (st == CLT_OK) st = clt_engine_text_model(e, &g->model);
    return finish_open(g, st, out);
}

void clt_generator_close(clt_generator *g) {
    if (!g) return;
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->cfg);
    clt_ops_destroy(g->ops);
    clt_device_close(g->dev);
    clt_weight_source_close(g->src);
    clt_tokenizer_close(g->tok);
    clt_free(g);
}

/* --- text --- */

/* Where decoded text goes. */
typedef struct {
    const clt_tokenizer *tok;
    clt_token_decoder decoder;
    clt_str text;
    clt_text_fn out;
    void *ctx;
    bool foreign; /* whether the warning about an unknown id was given */
} output;

static void flush_text(output *o) {
    if (o->text.len) o->out(o->ctx, o->text.s, o->text.len);
    o->text.len = 0;
}

/* Passes a token's text to the caller. Ids that the tokenizer does not know are skipped, with one warning. */
static clt_status emit(output *o, int32_t id) {
    clt_status st = CLT_OK;
    if (id < clt_tokenizer_vocab_size(o->tok)) {
        st = clt_token_decoder_add(&o->decoder, id, &o->text);
    } else if (!o->foreign) {
        o->foreign = true;
        clt_warn("token %d is unknown to the tokenizer 'bytes'; such tokens are skipped. was the model "
                 "trained on bytes?",
                 id);
    }
    flush_text(o);
    return st;
}

/* Extends ids[n], which has room for max_new_tokens more; logits [V] is scratch memory of the caller. */
static clt_status extend(clt_generator *g, const clt_generate_params *p, int32_t *ids, size_t n,
                         float *logits, output *o) {
    const int64_t T = g->facts.max_seq_len, V = g->facts.vocab_size, eos = clt_tokenizer_eos_id(g->tok);
    for (int64_t i = 0; i < p->max_new_tokens; i++) {
        const int64_t len = CLT_MIN((int64_t)n, T);
        CLT_TRY(clt_model_logits(g->model, ids + ((int64_t)n - len), len, len - 1, 1, logits));
        int32_t id = clt_sample_token(logits, V, p->temperature, p->top_k, (uint64_t)p->seed, n);
        if (id == eos && p->stop_at_eos) break;
        ids[n++] = id;
        CLT_TRY(emit(o, id));
    }
    return CLT_OK;
}

clt_status clt_generator_run(clt_generator *g, const clt_generate_params *p, clt_text_fn out, void *ctx) {
    const int64_t T = g->facts.max_seq_len;
    size_t n = 0, bytes = strlen(p->prompt), most = clt_tokenizer_max_ids(g->tok, bytes) + 1;
    const size_t id_bytes = (most + (size_t)p->max_new_tokens) * sizeof(int32_t),
                 logit_bytes = (size_t)g->facts.vocab_size * sizeof(float);
    int32_t *ids = clt_try_malloc(id_bytes);
    float *logits = clt_try_malloc(logit_bytes);
    clt_status st = ids && logits ? CLT_OK : clt_no_memory("generating text", id_bytes + logit_bytes);
    if (st == CLT_OK) st = clt_tokenizer_encode(g->tok, p->prompt, bytes, 0, ids, most, &n);
    /* An empty prompt starts a new document. */
    if (st == CLT_OK && n == 0) ids[n++] = (int32_t)clt_tokenizer_eos_id(g->tok);
    if (st == CLT_OK && g->cache && (int64_t)n + p->max_new_tokens > T + 1)
        clt_info("the text may exceed max_seq_len (%lld): from there on only its last %lld tokens are the "
                 "context, and every token takes a pass over all of them",
                 (long long)T, (long long)T);
    output o = {.tok = g->tok, .decoder = clt_token_decoder_begin(g->tok, false), .out = out, .ctx = ctx};
    if (st == CLT_OK) st = extend(g, p, ids, n, logits, &o);
    if (st == CLT_OK) clt_token_decoder_end(&o.decoder, &o.text);
    flush_text(&o);
    clt_str_free(&o.text);
    clt_free(ids);
    clt_free(logits);
    return st;
}

clt_status clt_generate(const clt_generate_params *p, clt_text_fn out, void *ctx) {
    clt_generator *g;
    CLT_TRY(clt_generator_open(p->source, p->device, !p->no_cache, &g));
    clt_status st = clt_generator_run(g, p, out, ctx);
    clt_generator_close(g);
    return st;
}
