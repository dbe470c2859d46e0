#include "runtime/train/run/clt_generate.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_env.h"
#include "runtime/train/run/clt_inference.h"
#include "runtime/train/run/clt_run_tokenizer.h"

clt_generate_params clt_generate_params_default(void) {
    return (clt_generate_params){
        .prompt = "",
        .max_new_tokens = 128,
        .texts = 1,
        .sample = {.temperature = 0.8, .top_k = 40, .top_p = 1, .repetition_penalty = 1, .seed = 17}};
}

/* --- a model and its tokenizer --- */

struct clt_generator {
    clt_inference own; /* of clt_generator_open */
    clt_model *model;  /* its model, or one that the engine's weights have */
    clt_model_facts facts;
    clt_tokenizer *tok;
    char *tok_source; /* what it was opened from */
    int64_t texts;    /* places of the model for texts that grow; 0: it keeps no keys and values */
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
    if (!g->facts.generates)
        return clt_error(CLT_BAD_CONFIG, "%s: this model generates no text: name one of a language model",
                         p->source);
    g->tok_source = p->tokenizer ? clt_strdup(p->tokenizer) : clt_run_tokenizer_of(g->own.src);
    CLT_TRY(p->tokenizer ? clt_tokenizer_open(g->tok_source, &g->tok)
                         : clt_run_tokenizer_open(g->tok_source, &g->tok));
    return check_vocabulary(g);
}

static clt_status load_model(clt_generator *g, const clt_generate_params *p) {
    const clt_inference_params load = {
        .device = p->device, .seq = g->facts.max_seq_len, .texts = g->texts, .type = p->type};
    CLT_TRY(clt_inference_load(&g->own, &load));
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
    g->texts = p->no_cache ? 0 : CLT_MAX(p->texts, 1);
    clt_status st = open_source(g, p);
    if (st == CLT_OK && once) {
        const int64_t most = (int64_t)clt_tokenizer_max_ids(g->tok, strlen(p->prompt)) + 1;
        g->facts.max_seq_len = CLT_MIN(g->facts.max_seq_len, most + p->max_new_tokens);
    }
    if (st == CLT_OK) st = load_model(g, p);
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
    g->texts = 1;
    g->facts = clt_model_get_facts(cfg->model);
    g->tok_source = clt_strdup(cfg->tokenizer);
    clt_status st = clt_run_tokenizer_open(g->tok_source, &g->tok);
    if (st == CLT_OK) st = check_vocabulary(g);
    if (st == CLT_OK) st = clt_engine_text_model(e, g->texts, &g->model);
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
    clt_texts_fn out;
    void *ctx;
    size_t number; /* of the prompt */
    bool foreign;  /* whether the warning about an unknown id was given */
    bool stopped;  /* a stop text was found */
} output;

/* Passes the first n bytes of the text on. */
static void pass(output *o, size_t n) {
    if (n == 0) return;
    o->out(o->ctx, o->number, o->text.s, n);
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

/* Adds what the decoder holds back if a stop text is in it: the text ends here. */
static void look_ahead(output *o) {
    const size_t known = o->text.len;
    if (o->decoder.n_held == 0 || o->stop->n == 0) return;
    clt_token_decoder_peek(&o->decoder, &o->text);
    if (find_stop(o) == o->text.len) o->text.len = known;
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
    if (st == CLT_OK) look_ahead(o);
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

/* The ids of a text with room for more, and what becomes of them. */
typedef struct {
    int32_t *ids;
    size_t n;
    int64_t made; /* tokens behind the prompt */
    output o;
} text_state;

static clt_status begin_text(clt_generator *g, const clt_generate_params *p, const char *prompt,
                             text_state *t) {
    const size_t bytes = strlen(prompt);
    const size_t most = clt_tokenizer_max_ids(g->tok, bytes) + 1, room = most + (size_t)p->max_new_tokens;
    t->ids = clt_try_calloc(room, sizeof *t->ids);
    if (!t->ids) return clt_no_memory("generating text", room * sizeof *t->ids);
    const unsigned flags = p->prompt_is_chat ? CLT_TOKEN_SPECIAL : clt_tokenizer_default_flags(g->tok);
    size_t after = 0;
    CLT_TRY(clt_tokenizer_encode(g->tok, prompt, bytes, flags, t->ids, most, &t->n));
    /* A template may end every text with eos, behind which nothing can be continued. */
    if (flags & CLT_TOKEN_TEMPLATE) (void)clt_tokenizer_template(g->tok, true, &after);
    t->n -= CLT_MIN(after, t->n);
    const int64_t T = g->facts.max_seq_len;
    if (g->texts && (int64_t)t->n + p->max_new_tokens > T + 1)
        clt_info("the text may exceed max_seq_len (%lld): from there on only its last %lld tokens are the "
                 "context, and every token takes a pass over all of them",
                 (long long)T, (long long)T);
    if (t->n) return CLT_OK;
    /* An empty prompt starts a new document. */
    const int64_t eos = clt_tokenizer_eos_id(g->tok), bos = clt_tokenizer_bos_id(g->tok);
    if (eos < 0 && bos < 0)
        return clt_error(CLT_BAD_CONFIG, "the tokenizer has no token that starts a document: give a prompt");
    t->ids[t->n++] = (int32_t)(bos >= 0 ? bos : eos);
    return CLT_OK;
}

static void free_text(text_state *t) {
    clt_str_free(&t->o.text);
    clt_free(t->ids);
    *t = (text_state){0};
}

/* Adds and emits the next token; *ended: it was the last one. */
static clt_status continue_text(const clt_generator *g, const clt_generate_params *p, text_state *t,
                                int32_t id, bool *ended) {
    *ended = p->stop_at_eos && id == clt_tokenizer_eos_id(g->tok);
    if (*ended) return CLT_OK;
    t->ids[t->n++] = id;
    t->made++;
    CLT_TRY(emit(&t->o, id));
    *ended = t->made >= p->max_new_tokens || t->o.stopped;
    return CLT_OK;
}

/* --- several texts --- */

/* The texts that are being continued; place i of the model has text i. */
typedef struct {
    clt_generator *g;
    const clt_generate_params *p;
    const char *const *prompt;
    size_t prompts, next; /* all, and the first that has not begun */
    clt_texts_fn out;
    clt_text_end_fn end;
    void *ctx;
    text_state *text; /* [places]; ids NULL: free */
    size_t places;
    float *logits; /* [places, V] */
    int32_t *id;   /* [places]: greedy: the next tokens */
    bool *seen;    /* [V] */
    bool greedy;   /* the likeliest token is always the next one: the model chooses it */
    int64_t made;  /* tokens behind the first one of each text */
    double start;
} batch;

/* Says how fast tokens followed each other; the first one waits for the prompt and for compilers. */
static void report_speed(const batch *b) {
    const clt_generator *g = b->g;
    const double seconds = clt_now() - b->start;
    if (g->own.dev && clt_env_long(CLT_ENV_PROFILE, 0)) clt_device_print_profile(g->own.dev);
    if (b->made < 2 || !(seconds > 0)) return;
    const double rate = (double)(b->made - 1) / seconds;
    double weights = 0;
    for (int i = 0; i < g->own.table.n; i++) weights += (double)g->own.table.entry[i].count;
    if (!g->own.model) return; /* the table and the device are the engine's */
    clt_debug("%lld tokens, after the first one %.1f per second; reading all weights for each is %.1f GB/s",
              (long long)b->made, rate, rate * weights * (double)clt_dtype_bytes(g->own.type) * 1e-9);
}

/* Gives a free place the next prompt that has tokens to generate. */
static clt_status fill_place(batch *b, text_state *t) {
    while (!t->ids && b->next < b->prompts) {
        const size_t number = b->next++;
        t->o = (output){.tok = b->g->tok,
                        .decoder = clt_token_decoder_begin(b->g->tok, false),
                        .stop = &b->p->stop,
                        .out = b->out,
                        .ctx = b->ctx,
                        .number = number};
        CLT_TRY(begin_text(b->g, b->p, b->prompt[number], t));
        if (b->p->max_new_tokens > 0) return CLT_OK;
        if (b->end) b->end(b->ctx, number);
        free_text(t);
    }
    return CLT_OK;
}

/* The logits, or the next tokens, of all texts that are being continued, at their places. */
static clt_status run_model(batch *b) {
    const int64_t T = b->g->facts.max_seq_len, V = b->g->facts.vocab_size;
    clt_model_text *text = clt_calloc(b->places, sizeof *text);
    int64_t n = 0;
    for (size_t i = 0; i < b->places; i++) {
        const text_state *t = &b->text[i];
        if (!t->ids) continue;
        const int64_t len = CLT_MIN((int64_t)t->n, T);
        text[n++] = (clt_model_text){(int64_t)i, t->ids + ((int64_t)t->n - len), len};
    }
    clt_status st = CLT_OK;
    if (n && !b->g->texts)
        st = clt_model_logits(b->g->model, text[0].tokens, text[0].len, text[0].len - 1, 1, b->logits);
    else if (n && b->greedy)
        st = clt_model_next_greedy(b->g->model, text, n, b->logits, b->id);
    else if (n)
        st = clt_model_next(b->g->model, text, n, b->logits);
    for (int64_t k = n - 1; k >= 0 && st == CLT_OK; k--) { /* row k belongs to place text[k].place >= k */
        const int64_t place = text[k].place;
        b->id[place] = b->id[k];
        if (place > k && !b->greedy)
            memcpy(b->logits + place * V, b->logits + k * V, (size_t)V * sizeof *b->logits);
    }
    clt_free(text);
    return st;
}

/* The next token of the text in place i. */
static int32_t token_of(const batch *b, size_t i) {
    const clt_sample_params *sample = &b->p->sample;
    const text_state *t = &b->text[i];
    const int64_t V = b->g->facts.vocab_size;
    float *logits = b->logits + (int64_t)i * V;
    if (b->greedy) return b->id[i];
    if (sample->repetition_penalty != 1)
        clt_sample_penalize(logits, t->ids, t->n, sample->repetition_penalty, b->seen);
    return clt_sample_token(logits, V, sample, t->n);
}

/* One token for each text. *more: there is a text to continue. */
static clt_status round_of(batch *b, bool *more) {
    *more = false;
    for (size_t i = 0; i < b->places; i++) {
        CLT_TRY(fill_place(b, &b->text[i]));
        *more |= b->text[i].ids != NULL;
    }
    if (!*more) return CLT_OK;
    CLT_TRY(run_model(b));
    for (size_t i = 0; i < b->places; i++) {
        text_state *t = &b->text[i];
        bool ended = false;
        if (!t->ids) continue;
        if (b->made == 0 && b->g->own.dev) clt_device_profile_reset(b->g->own.dev);
        if (b->made == 0) b->start = clt_now();
        CLT_TRY(continue_text(b->g, b->p, t, token_of(b, i), &ended));
        b->made++;
        if (!ended) continue;
        end_output(&t->o);
        if (b->end) b->end(b->ctx, t->o.number);
        free_text(t);
    }
    return CLT_OK;
}

clt_status clt_generator_run_all(clt_generator *g, const clt_generate_params *p, const char *const *prompt,
                                 size_t n, clt_texts_fn out, clt_text_end_fn end, void *ctx) {
    const size_t V = (size_t)g->facts.vocab_size, places = (size_t)CLT_MAX(CLT_MIN(g->texts, (int64_t)n), 1);
    batch b = {
        .g = g, .p = p, .prompt = prompt, .prompts = n, .out = out, .end = end, .ctx = ctx, .places = places};
    bool more = true;
    b.text = clt_calloc(places, sizeof *b.text);
    b.id = clt_calloc(places, sizeof *b.id);
    b.greedy = g->texts && !(p->sample.temperature > 0) && p->sample.repetition_penalty == 1;
    b.logits = clt_try_malloc(places * V * sizeof *b.logits);
    b.seen = clt_try_calloc(V, sizeof *b.seen);
    clt_status st =
        b.logits && b.seen ? CLT_OK : clt_no_memory("generating text", V * (places * sizeof *b.logits + 1));
    while (st == CLT_OK && more) st = round_of(&b, &more);
    if (st == CLT_OK) report_speed(&b);
    for (size_t i = 0; i < places; i++) {
        if (b.text[i].ids) end_output(&b.text[i].o); /* after an error */
        free_text(&b.text[i]);
    }
    clt_free(b.text);
    clt_free(b.id);
    clt_free(b.logits);
    clt_free(b.seen);
    return st;
}

typedef struct {
    clt_text_fn out;
    void *ctx;
} single;

static void pass_single(void *ctx, size_t i, const char *text, size_t bytes) {
    const single *s = ctx;
    (void)i;
    s->out(s->ctx, text, bytes);
}

clt_status clt_generator_run(clt_generator *g, const clt_generate_params *p, clt_text_fn out, void *ctx) {
    single s = {out, ctx};
    return clt_generator_run_all(g, p, &p->prompt, 1, pass_single, NULL, &s);
}

clt_status clt_generate(const clt_generate_params *p, clt_text_fn out, void *ctx) {
    clt_generator *g;
    CLT_TRY(open_generator(p, true, &g));
    clt_status st = clt_generator_run(g, p, out, ctx);
    clt_generator_close(g);
    return st;
}
