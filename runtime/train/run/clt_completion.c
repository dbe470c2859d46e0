#include "runtime/train/run/clt_completion.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_json.h"
#include "runtime/data/clt_utf8.h"

/* One prompt while it is answered. */
typedef struct {
    const clt_completion_server *s;
    const clt_completion_request *r;
    const clt_tokenizer *tok;
    int64_t vocab, longest;
    int32_t *ids; /* prompt, then what is generated */
    size_t prompt, n;
    size_t begin, end; /* tokens of the prompt that are part of its text: not those of the template */
    clt_str text;      /* generated */
    bool stopped;
    float *logits;                            /* [rows of a chunk, vocab] */
    int32_t *best;                            /* [logprobs] */
    json_t *tokens, *values, *tops, *offsets; /* lists of `logprobs`; NULL: not asked for */
    clt_token_decoder shown;                  /* of the tokens in the lists that the text has */
    int64_t offset;                           /* characters of them so far */
} completion;

/* Positions of a prompt whose logits are in memory at once. */
enum { CHUNK = 64 };

/* --- tokens as text --- */

static size_t count_chars(const char *s, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)s[i] & 0xc0) != 0x80;
    return n;
}

/* The token's text; one that is no UTF-8 of its own is written as bytes, so that different tokens have
 * different texts. */
static char *token_text(const completion *c, int32_t id) {
    size_t bytes = 0;
    if (id >= clt_tokenizer_vocab_size(c->tok)) return clt_format("token_id:%d", id);
    const char *s = clt_tokenizer_piece(c->tok, id, &bytes), *name = clt_tokenizer_text(c->tok, id);
    if (clt_tokenizer_is_special(c->tok, id) && name) return clt_strdup(name);
    if (bytes && clt_utf8_valid(s, bytes) && !memchr(s, 0, bytes)) return clt_strndup(s, bytes);
    clt_str out = {0};
    clt_str_add(&out, "bytes:");
    for (size_t i = 0; i < bytes; i++) clt_str_addf(&out, "\\x%02x", (unsigned char)s[i]);
    return out.s;
}

/* --- log-probabilities --- */

/* The logarithm of the sum of the exponentials. */
static double log_sum(const float *x, int64_t n) {
    double most = (double)x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) most = CLT_MAX(most, (double)x[i]);
    for (int64_t i = 0; i < n; i++) {
        const double z = (double)x[i] - most;
        sum += z < -600 ? 0 : clt_dexp(z);
    }
    return most + clt_dlog(sum);
}

/* The k largest, most likely first; of equal ones the lower ids. */
static void find_best(const float *x, int64_t n, int64_t k, int32_t *best) {
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = have;
        while (at > 0 && x[i] > x[best[at - 1]]) at--;
        if (at == k) continue;
        have = CLT_MIN(have + 1, k);
        for (int64_t j = have - 1; j > at; j--) best[j] = best[j - 1];
        best[at] = (int32_t)i;
    }
}

/* JSON has no NaN, which a model with damaged weights gives. */
static json_t *number_or_null(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

/* The next token begins after this one, if the text has it. */
static clt_status advance(completion *c, int32_t id, bool in_text) {
    clt_str more = {0};
    if (!in_text || id >= clt_tokenizer_vocab_size(c->tok)) return CLT_OK;
    const clt_status st = clt_token_decoder_add(&c->shown, id, &more);
    c->offset += (int64_t)count_chars(more.s, more.len);
    clt_str_free(&more);
    return st;
}

/* Adds a token to the lists; logits NULL: nothing stands before it, so it has no probability. */
static clt_status note_token(completion *c, int32_t id, const float *logits, bool in_text) {
    if (!c->tokens) return CLT_OK;
    char *text = token_text(c, id);
    json_array_append_new(c->tokens, json_string(text));
    json_array_append_new(c->offsets, json_integer(c->offset));
    if (logits) {
        const double sum = log_sum(logits, c->vocab);
        const int64_t k = CLT_MIN(c->r->logprobs, c->vocab);
        json_t *top = json_object();
        find_best(logits, c->vocab, k, c->best);
        json_array_append_new(c->values, number_or_null((double)logits[id] - sum));
        for (int64_t i = 0; i < k; i++) {
            char *name = token_text(c, c->best[i]);
            if (!json_object_get(top, name)) /* the more likely one of two tokens with one text */
                json_object_set_new(top, name, number_or_null((double)logits[c->best[i]] - sum));
            clt_free(name);
        }
        json_array_append_new(c->tops, top);
    } else {
        json_array_append_new(c->values, json_null());
        json_array_append_new(c->tops, json_null());
    }
    clt_free(text);
    return advance(c, id, in_text);
}

/* --- one prompt --- */

static clt_status check_stop(const completion *c) {
    return c->s->stop && c->s->stop(c->s->ctx) ? CLT_STOPPED : CLT_OK;
}

static clt_status take_ids(completion *c, const json_t *list) {
    json_t *v;
    size_t i;
    json_array_foreach(list, i, v) {
        if (json_integer_value(v) >= c->vocab)
            return clt_error(CLT_BAD_DATA, "request: token id %lld is outside the model's vocabulary of %lld",
                             (long long)json_integer_value(v), (long long)c->vocab);
        c->ids[c->n++] = (int32_t)json_integer_value(v);
    }
    return CLT_OK;
}

static clt_status read_prompt(completion *c, const json_t *v) {
    const bool is_text = json_is_string(v);
    const unsigned flags = clt_tokenizer_default_flags(c->tok);
    size_t before = 0, after = 0;
    if (is_text && flags & CLT_TOKEN_TEMPLATE) {
        clt_tokenizer_template(c->tok, false, &before);
        clt_tokenizer_template(c->tok, true, &after);
    }
    const size_t most = is_text ? clt_tokenizer_max_ids(c->tok, json_string_length(v)) : json_array_size(v);
    const size_t room = most + (size_t)c->r->max_tokens + 2;
    c->ids = clt_try_malloc(room * sizeof *c->ids);
    if (!c->ids) return clt_no_memory("a prompt", room * sizeof *c->ids);
    CLT_TRY(is_text ? clt_tokenizer_encode(c->tok, json_string_value(v), json_string_length(v), flags, c->ids,
                                           most + 1, &c->n)
                    : take_ids(c, v));
    if (c->n == 0 && clt_tokenizer_eos_id(c->tok) >= 0)
        c->ids[c->n++] = (int32_t)clt_tokenizer_eos_id(c->tok);
    c->prompt = c->n;
    c->begin = before;
    c->end = c->n - CLT_MIN(after, c->n);
    if (c->n == 0) return clt_error(CLT_BAD_DATA, "request: a prompt has no tokens");
    if ((int64_t)c->n > c->longest || (int64_t)c->n + c->r->max_tokens > c->longest + 1)
        return clt_error(CLT_BAD_DATA,
                         "request: a prompt of %zu tokens and max_tokens %lld exceed the model's %lld", c->n,
                         (long long)c->r->max_tokens, (long long)c->longest);
    return CLT_OK;
}

static clt_status note_prompt(completion *c, size_t i, const float *logits) {
    return note_token(c, c->ids[i], logits, i >= c->begin && i < c->end);
}

/* The prompt's own tokens. */
static clt_status score_prompt(completion *c) {
    c->shown = clt_token_decoder_begin(c->tok, false);
    if (!c->r->echo || !c->tokens) return CLT_OK;
    CLT_TRY(note_prompt(c, 0, NULL));
    for (size_t at = 0; at + 1 < c->prompt; at += CHUNK) {
        const size_t n = CLT_MIN((size_t)CHUNK, c->prompt - 1 - at);
        CLT_TRY(check_stop(c));
        CLT_TRY(clt_model_logits(clt_generator_model(c->s->g), c->ids, (int64_t)(at + n), (int64_t)at,
                                 (int64_t)n, c->logits));
        for (size_t i = 0; i < n; i++) CLT_TRY(note_prompt(c, at + i + 1, c->logits + (int64_t)i * c->vocab));
    }
    return CLT_OK;
}

/* Cuts the text at the first stop text, which may be in bytes that the decoder holds back. */
static void look_for_stop(completion *c, const clt_token_decoder *decoder) {
    const size_t known = c->text.len;
    clt_token_decoder_peek(decoder, &c->text);
    for (size_t i = 0; i < c->r->stop.n && c->text.s; i++) {
        char *at = strstr(c->text.s, c->r->stop.v[i]);
        if (!at) continue;
        *at = 0;
        c->text.len = (size_t)(at - c->text.s);
        c->stopped = true;
    }
    if (c->stopped || !c->text.s) return;
    c->text.len = known;
    c->text.s[known] = 0;
}

static clt_status continue_text(completion *c) {
    const int64_t eos = clt_tokenizer_eos_id(c->tok);
    clt_sample_params sample = c->r->sample;
    clt_token_decoder decoder = clt_token_decoder_begin(c->tok, true);
    if (!c->r->seeded) sample.seed = (uint64_t)c->s->number;
    for (int64_t i = 0; i < c->r->max_tokens && !c->stopped; i++) {
        CLT_TRY(check_stop(c));
        CLT_TRY(clt_model_logits(clt_generator_model(c->s->g), c->ids, (int64_t)c->n, (int64_t)c->n - 1, 1,
                                 c->logits));
        const int32_t id = clt_sample_token(c->logits, c->vocab, &sample, c->n);
        c->ids[c->n++] = id;
        c->stopped = id == eos;
        CLT_TRY(note_token(c, id, c->logits, !c->stopped && !clt_tokenizer_is_special(c->tok, id)));
        if (!c->stopped && id < clt_tokenizer_vocab_size(c->tok))
            CLT_TRY(clt_token_decoder_add(&decoder, id, &c->text));
        look_for_stop(c, &decoder);
    }
    if (!c->stopped) clt_token_decoder_end(&decoder, &c->text);
    return CLT_OK;
}

/* --- responses --- */

static clt_status full_text(const completion *c, const json_t *prompt, clt_str *out) {
    const size_t n = c->r->echo && !json_is_string(prompt) ? c->prompt : 0;
    clt_token_decoder decoder = clt_token_decoder_begin(c->tok, false);
    clt_str_add(out, c->r->echo && json_is_string(prompt) ? json_string_value(prompt) : "");
    for (size_t i = 0; i < n; i++)
        if (c->ids[i] < clt_tokenizer_vocab_size(c->tok))
            CLT_TRY(clt_token_decoder_add(&decoder, c->ids[i], out));
    clt_token_decoder_end(&decoder, out);
    if (c->text.s) clt_str_addn(out, c->text.s, c->text.len);
    return CLT_OK;
}

static clt_status choice_of(completion *c, const json_t *prompt, size_t index, json_t **out) {
    clt_str text = {0};
    CLT_TRY(full_text(c, prompt, &text));
    json_t *o = json_object(), *logprobs = c->tokens ? json_object() : json_null();
    json_object_set_new(o, "index", json_integer((json_int_t)index));
    json_object_set_new(o, "text", json_string(text.s));
    if (c->tokens) {
        json_object_set(logprobs, "tokens", c->tokens);
        json_object_set(logprobs, "token_logprobs", c->values);
        json_object_set(logprobs, "top_logprobs", c->tops);
        json_object_set(logprobs, "text_offset", c->offsets);
    }
    json_object_set_new(o, "logprobs", logprobs);
    json_object_set_new(o, "finish_reason", json_string(c->stopped ? "stop" : "length"));
    clt_str_free(&text);
    *out = o;
    return CLT_OK;
}

static completion make_completion(const clt_completion_server *s, const clt_completion_request *r) {
    const clt_model_facts facts = clt_generator_facts(s->g);
    return (completion){.s = s,
                        .r = r,
                        .tok = clt_generator_tokenizer(s->g),
                        .vocab = facts.vocab_size,
                        .longest = facts.max_seq_len};
}

static clt_status begin_completion(completion *c, const clt_completion_server *s,
                                   const clt_completion_request *r) {
    *c = make_completion(s, r);
    const size_t bytes = (size_t)(CHUNK * c->vocab) * sizeof *c->logits;
    c->logits = clt_try_malloc(bytes);
    c->best = clt_malloc((CLT_COMPLETION_LOGPROBS + 1) * sizeof *c->best);
    if (!c->logits) return clt_no_memory("logits", bytes);
    if (r->logprobs < 0) return CLT_OK;
    c->tokens = json_array();
    c->values = json_array();
    c->tops = json_array();
    c->offsets = json_array();
    return CLT_OK;
}

static void end_completion(completion *c) {
    json_decref(c->tokens);
    json_decref(c->values);
    json_decref(c->tops);
    json_decref(c->offsets);
    clt_str_free(&c->text);
    clt_free(c->ids);
    clt_free(c->logits);
    clt_free(c->best);
}

typedef struct {
    json_t *choices;
    int64_t prompt, made; /* tokens */
} answers;

static clt_status answer_prompt(const clt_completion_server *s, const clt_completion_request *r,
                                const json_t *prompt, answers *a) {
    completion c;
    json_t *choice;
    clt_status st = begin_completion(&c, s, r);
    if (st == CLT_OK) st = read_prompt(&c, prompt);
    if (st == CLT_OK) st = score_prompt(&c);
    if (st == CLT_OK) st = continue_text(&c);
    if (st == CLT_OK) st = choice_of(&c, prompt, json_array_size(a->choices), &choice);
    if (st == CLT_OK) json_array_append_new(a->choices, choice);
    a->prompt += (int64_t)c.prompt;
    a->made += (int64_t)(c.n - c.prompt);
    end_completion(&c);
    return st;
}

/* Refuses a request whose response would be too large, before anything is computed. */
static clt_status check_size(const clt_completion_server *s, const clt_completion_request *r) {
    int64_t tokens = 0;
    const json_t *prompt;
    size_t i;
    json_array_foreach(r->prompt, i, prompt) {
        completion c = make_completion(s, r);
        clt_status st = check_stop(&c);
        if (st == CLT_OK) st = read_prompt(&c, prompt);
        tokens += (r->echo ? (int64_t)c.prompt : 0) + r->max_tokens;
        clt_free(c.ids);
        CLT_TRY(st);
    }
    const int64_t entries = tokens * (1 + CLT_MAX(r->logprobs, 0));
    return entries <= s->max_entries
               ? CLT_OK
               : clt_error(CLT_BAD_DATA,
                           "request: the response would have %lld tokens and alternatives, at most %lld are "
                           "allowed; send fewer prompts, or lower logprobs or max_tokens",
                           (long long)entries, (long long)s->max_entries);
}

clt_status clt_completion_answer(const clt_completion_server *s, const clt_completion_request *r,
                                 char **out) {
    answers a = {.choices = json_array()};
    clt_status st = check_size(s, r);
    const json_t *prompt;
    size_t i;
    json_array_foreach(r->prompt, i, prompt) if (st == CLT_OK) st = answer_prompt(s, r, prompt, &a);
    if (st == CLT_OK) {
        char *id = clt_format("cmpl-%lld", (long long)s->number);
        json_t *o = json_pack("{s:s,s:s,s:I,s:s,s:O,s:{s:I,s:I,s:I}}", "id", id, "object", "text_completion",
                              "created", (json_int_t)time(NULL), "model", s->name, "choices", a.choices,
                              "usage", "prompt_tokens", (json_int_t)a.prompt, "completion_tokens",
                              (json_int_t)a.made, "total_tokens", (json_int_t)(a.prompt + a.made));
        st = clt_json_dump(o, "the response", out);
        json_decref(o);
        clt_free(id);
    }
    json_decref(a.choices);
    return st;
}

static char *dump(json_t *o) {
    char *text = NULL;
    if (clt_json_dump(o, "the response", &text) != CLT_OK) text = clt_strdup("{}");
    json_decref(o);
    return text;
}

char *clt_completion_models(const char *name) {
    return dump(json_pack("{s:s,s:[{s:s,s:s,s:i,s:s}]}", "object", "list", "data", "id", name, "object",
                          "model", "created", 0, "owned_by", "cltrain"));
}

char *clt_completion_error(const char *message, const char *type) {
    json_t *text = json_string(message);
    if (!text) text = json_string("the request is not valid UTF-8");
    return dump(json_pack("{s:{s:o,s:s}}", "error", "message", text, "type", type));
}
