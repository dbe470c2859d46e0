#include "runtime/train/run/clt_generate.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/train/run/clt_inference.h"
#include "runtime/train/run/clt_run_tokenizer.h"

clt_generate_params clt_generate_params_default(void) {
    return (clt_generate_params){
        .prompt = "",
        .max_new_tokens = 128,
        .sample = {.temperature = 0.8, .top_k = 40, .top_p = 1, .repetition_penalty = 1, .seed = 17}};
}

/* --- a model and its tokenizer --- */

struct clt_generator {
    clt_inference own; /* of clt_generator_open */
    clt_model *model;  /* its model, or one that the engine's weights have */
    clt_model_facts facts;
    clt_tokenizer *tok;
    char *tok_source; /* what it was opened from */
    bool cache;       /* the model keeps keys and values */
};

/* More ids than the model has logits cannot be read; fewer are usual, because vocabularies are padded. */
static clt_status check_vocabulary(const clt_generator *g) {
    const int64_t has = g->facts.vocab_size, needs = clt_tokenizer_vocab_size(g->tok);
    if (needs <= has) return CLT_OK;
    return clt_error(
        CLT_BAD_CONFIG,
        "the tokenizer has %lld ids and the model a vocabulary of %lld: it is not the tokenizer that "
        "the model was trained with (--tokenizer names another one)",
        (long long)needs, (long long)has);
}

static clt_status open_source(clt_generator *g, const clt_generate_params *p) {
    CLT_TRY(clt_inference_open(&g->own, p->source));
    g->facts = g->own.facts;
    g->tok_source = p->tokenizer ? clt_strdup(p->tokenizer) : clt_run_tokenizer_of(g->own.src);
    CLT_TRY(clt_run_tokenizer_open(g->tok_source, &g->tok));
    return check_vocabulary(g);
}

static clt_status load_model(clt_generator *g, const char *device) {
    CLT_TRY(clt_inference_load(&g->own, device, g->facts.max_seq_len, g->cache));
    g->model = g->own.model;
    return CLT_OK;
}

static clt_status finish_open(clt_generator *g, clt_status st, clt_generator **out) {
    if (st == CLT_OK)
        *out = g;
    else
        clt_generator_close(g);
    return st;
}

/* once: for the prompt of p alone. A model of a long context takes memory for as many tokens as the text can
 * have, not for its longest text. */
static clt_status open_generator(const clt_generate_params *p, bool once, clt_generator **out) {
    clt_generator *g = clt_calloc(1, sizeof *g);
    g->cache = !p->no_cache;
    clt_status st = open_source(g, p);
    if (st == CLT_OK && once) {
        const int64_t most = (int64_t)clt_tokenizer_max_ids(g->tok, strlen(p->prompt)) + 1;
        g->facts.max_seq_len = CLT_MIN(g->facts.max_seq_len, most + p->max_new_tokens);
    }
    if (st == CLT_OK) st = load_model(g, p->device);
    return finish_open(g, st, out);
}

clt_status clt_generator_open(const clt_generate_params *p, clt_generator **out) {
    return open_generator(p, false, out);
}

const char *clt_generator_tokenizer_source(const clt_generator *g) {
    return g->tok_source;
}

clt_status clt_generator_of_engine(clt_engine *e, const clt_config *cfg, clt_generator **out) {
    clt_generator *g = clt_calloc(1, sizeof *g);
    g->cache = true;
    g->facts = clt_model_get_facts(cfg->model);
    g->tok_source = clt_strdup(cfg->tokenizer);
    clt_status st = clt_run_tokenizer_open(g->tok_source, &g->tok);
    if (st == CLT_OK) st = check_vocabulary(g);
    if (st == CLT_OK) st = clt_engine_text_model(e, &g->model);
    return finish_open(g, st, out);
}

void clt_generator_close(clt_generator *g) {
    if (!g) return;
    if (g->model != g->own.model) clt_model_destroy(g->model);
    clt_inference_close(&g->own);
    clt_tokenizer_close(g->tok);
    clt_free(g->tok_source);
    clt_free(g);
}

clt_model *clt_generator_model(const clt_generator *g) {
    return g->model;
}

const clt_tokenizer *clt_generator_tokenizer(const clt_generator *g) {
    return g->tok;
}

clt_model_facts clt_generator_facts(const clt_generator *g) {
    return g->facts;
}

/* --- the output --- */

/* Where decoded text goes. Text that may be the beginning of a stop text is held back. */
typedef struct {
    const clt_tokenizer *tok;
    clt_token_decoder decoder;
    clt_str text; /* decoded and not passed on */
    const clt_strv *stop;
    clt_text_fn out;
    void *ctx;
    bool foreign; /* whether the warning about an unknown id was given */
    bool stopped; /* a stop text was found */
} output;

/* Passes the first n bytes of the text on. */
static void pass(output *o, size_t n) {
    if (n == 0) return;
    o->out(o->ctx, o->text.s, n);
    memmove(o->text.s, o->text.s + n, o->text.len - n);
    o->text.len -= n;
}

/* Where the first stop text begins; o->text.len: there is none. */
static size_t find_stop(const output *o) {
    size_t first = o->text.len;
    for (size_t i = 0; i < o->stop->n; i++) {
        const char *at = memmem(o->text.s, o->text.len, o->stop->v[i], strlen(o->stop->v[i]));
        if (at) first = CLT_MIN(first, (size_t)(at - o->text.s));
    }
    return first;
}

/* How many bytes at the end of the text begin a stop text. */
static size_t begun_stop(const output *o) {
    size_t most = 0;
    for (size_t i = 0; i < o->stop->n; i++) {
        size_t n = CLT_MIN(strlen(o->stop->v[i]) - 1, o->text.len);
        while (n > most && memcmp(o->text.s + o->text.len - n, o->stop->v[i], n) != 0) n--;
        most = CLT_MAX(most, n);
    }
    return most;
}

static void flush_text(output *o) {
    if (o->text.len == 0) return;
    const size_t stop = find_stop(o);
    o->stopped = stop < o->text.len;
    pass(o, o->stopped ? stop : o->text.len - begun_stop(o));
}

/* Passes a token's text to the caller. Ids that the tokenizer does not know have no text, with one warning.
 */
static clt_status emit(output *o, int32_t id) {
    clt_status st = CLT_OK;
    if (id < clt_tokenizer_vocab_size(o->tok)) {
        st = clt_token_decoder_add(&o->decoder, id, &o->text);
    } else if (!o->foreign) {
        o->foreign = true;
        clt_warn("the model chose token %d, which the tokenizer does not have: such tokens have no text", id);
    }
    flush_text(o);
    return st;
}

/* Everything that is held back, at the end of the output. */
static void end_output(output *o) {
    if (o->stopped) return;
    clt_token_decoder_end(&o->decoder, &o->text);
    flush_text(o);
    if (!o->stopped) pass(o, o->text.len);
}

/* --- one text --- */

/* The ids of a text with room for more, and scratch memory. */
typedef struct {
    int32_t *ids;
    size_t n;
    float *logits; /* [V] */
    bool *seen;    /* [V] */
} text_state;

static clt_status create_text(clt_generator *g, const clt_generate_params *p, text_state *t) {
    const size_t bytes = strlen(p->prompt), V = (size_t)g->facts.vocab_size;
    const size_t most = clt_tokenizer_max_ids(g->tok, bytes) + 1, room = most + (size_t)p->max_new_tokens;
    *t = (text_state){clt_try_calloc(room, sizeof *t->ids), 0, clt_try_malloc(V * sizeof *t->logits),
                      clt_try_calloc(V, sizeof *t->seen)};
    if (!t->ids || !t->logits || !t->seen)
        return clt_no_memory("generating text", room * sizeof *t->ids + V * (sizeof *t->logits + 1));
    const unsigned flags = p->prompt_is_chat ? CLT_TOKEN_SPECIAL : clt_tokenizer_default_flags(g->tok);
    size_t after = 0;
    CLT_TRY(clt_tokenizer_encode(g->tok, p->prompt, bytes, flags, t->ids, most, &t->n));
    /* A template may end every text with eos, behind which nothing can be continued. */
    if (flags & CLT_TOKEN_TEMPLATE) (void)clt_tokenizer_template(g->tok, true, &after);
    t->n -= CLT_MIN(after, t->n);
    if (t->n) return CLT_OK;
    /* An empty prompt starts a new document. */
    const int64_t eos = clt_tokenizer_eos_id(g->tok), bos = clt_tokenizer_bos_id(g->tok);
    if (eos < 0 && bos < 0)
        return clt_error(CLT_BAD_CONFIG, "the tokenizer has no token that starts a document: give a prompt");
    t->ids[t->n++] = (int32_t)(bos >= 0 ? bos : eos);
    return CLT_OK;
}

static void free_text(text_state *t) {
    clt_free(t->ids);
    clt_free(t->logits);
    clt_free(t->seen);
}

/* Says how fast tokens followed each other; the first one waits for the prompt and for compilers. */
static void report_speed(const clt_generator *g, int64_t tokens, double seconds) {
    if (tokens < 2 || !(seconds > 0)) return;
    const double rate = (double)(tokens - 1) / seconds;
    double weights = 0;
    for (int i = 0; i < g->own.table.n; i++) weights += (double)g->own.table.entry[i].count;
    if (g->own.weights) /* else the table is the engine's */
        clt_debug(
            "%lld tokens, after the first one %.1f per second; reading all weights for each is %.1f GB/s",
            (long long)tokens, rate, rate * weights * sizeof(float) * 1e-9);
}

static clt_status extend(clt_generator *g, const clt_generate_params *p, text_state *t, output *o) {
    const int64_t T = g->facts.max_seq_len, V = g->facts.vocab_size, eos = clt_tokenizer_eos_id(g->tok);
    double start = 0;
    int64_t i = 0;
    for (; i < p->max_new_tokens && !o->stopped; i++) {
        const int64_t len = CLT_MIN((int64_t)t->n, T);
        CLT_TRY(clt_model_logits(g->model, t->ids + ((int64_t)t->n - len), len, len - 1, 1, t->logits));
        if (p->sample.repetition_penalty != 1)
            clt_sample_penalize(t->logits, t->ids, t->n, p->sample.repetition_penalty, t->seen);
        const int32_t id = clt_sample_token(t->logits, V, &p->sample, t->n);
        if (i == 0) start = clt_now();
        if (id == eos && p->stop_at_eos) break;
        t->ids[t->n++] = id;
        CLT_TRY(emit(o, id));
    }
    report_speed(g, i, clt_now() - start);
    return CLT_OK;
}

clt_status clt_generator_run(clt_generator *g, const clt_generate_params *p, clt_text_fn out, void *ctx) {
    const int64_t T = g->facts.max_seq_len;
    text_state t;
    clt_status st = create_text(g, p, &t);
    if (st == CLT_OK && g->cache && (int64_t)t.n + p->max_new_tokens > T + 1)
        clt_info("the text may exceed max_seq_len (%lld): from there on only its last %lld tokens are the "
                 "context, and every token takes a pass over all of them",
                 (long long)T, (long long)T);
    output o = {.tok = g->tok,
                .decoder = clt_token_decoder_begin(g->tok, false),
                .stop = &p->stop,
                .out = out,
                .ctx = ctx};
    if (st == CLT_OK) st = extend(g, p, &t, &o);
    end_output(&o);
    clt_str_free(&o.text);
    free_text(&t);
    return st;
}

clt_status clt_generate(const clt_generate_params *p, clt_text_fn out, void *ctx) {
    clt_generator *g;
    CLT_TRY(open_generator(p, true, &g));
    clt_status st = clt_generator_run(g, p, out, ctx);
    clt_generator_close(g);
    return st;
}
