/* Requests for completions: keys, ranges and prompts. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/run/clt_completion.h"

#define WHAT "request"

/* --- values --- */

static clt_status fail(const char *key, const char *text) {
    return clt_error(CLT_BAD_DATA, WHAT ": '%.40s' %s", key, text);
}

static clt_status take_int(const char *key, json_t *v, int64_t least, int64_t most, int64_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < least || json_integer_value(v) > most)
        return clt_error(CLT_BAD_DATA, WHAT ": '%s' must be a whole number from %lld to %lld", key,
                         (long long)least, (long long)most);
    *out = json_integer_value(v);
    return CLT_OK;
}

static clt_status take_number(const char *key, json_t *v, double least, double most, double *out) {
    const double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= least) || !(x <= most))
        return clt_error(CLT_BAD_DATA, WHAT ": '%s' must be a number from %g to %g", key, least, most);
    *out = x;
    return CLT_OK;
}

/* --- prompts --- */

static clt_status check_ids(const json_t *list) {
    json_t *v;
    size_t i;
    if (json_array_size(list) > CLT_COMPLETION_TOKENS) return fail("prompt", "has too many token ids");
    json_array_foreach(
        list, i, v) if (!json_is_integer(v) || json_integer_value(v) < 0 ||
                        json_integer_value(v) >
                            INT32_MAX) return fail("prompt",
                                                   "has a token id that is not a whole number from 0 on");
    return CLT_OK;
}

/* A text, a list of texts, a list of ids, or a list of such lists, as a list of texts or of lists. */
static clt_status take_prompt(json_t *v, clt_completion_request *r) {
    const json_t *first = json_array_get(v, 0);
    if (json_is_string(v) || json_is_integer(first)) {
        r->prompt = json_array();
        json_array_append(r->prompt, v);
    } else {
        r->prompt = json_incref(v);
    }
    if (!json_is_array(r->prompt) || json_array_size(r->prompt) == 0)
        return fail("prompt",
                    "must be a text, a list of texts, a list of token ids, or a list of such lists");
    if (json_array_size(r->prompt) > CLT_COMPLETION_PROMPTS)
        return clt_error(CLT_BAD_DATA, WHAT ": 'prompt' has more than %d prompts", CLT_COMPLETION_PROMPTS);
    const bool texts = json_is_string(json_array_get(r->prompt, 0));
    size_t i;
    json_array_foreach(r->prompt, i, v) {
        if (texts ? !json_is_string(v) : !json_is_array(v))
            return fail("prompt", "must not mix texts and lists of token ids");
        if (!texts) CLT_TRY(check_ids(v));
    }
    return CLT_OK;
}

/* --- other keys --- */

static clt_status take_stop(json_t *v, clt_completion_request *r) {
    json_t *list = json_is_string(v) ? json_array() : json_incref(v), *text;
    clt_status st = CLT_OK;
    size_t i;
    if (json_is_string(v)) json_array_append(list, v);
    if (!json_is_array(list) || json_array_size(list) > CLT_COMPLETION_STOPS)
        st = fail("stop", "must be a text or a list of at most 16 texts");
    json_array_foreach(list, i, text) {
        if (st != CLT_OK) break;
        if (json_is_string(text) && json_string_length(text) > 0)
            clt_strv_add(&r->stop, json_string_value(text));
        else
            st = fail("stop", "must have texts that are not empty");
    }
    json_decref(list);
    return st;
}

/* Keys whose only supported value asks for what is done anyway. */
static clt_status check_default(const char *key, json_t *v) {
    static const struct {
        const char *key;
        double value;
    } numbers[] = {{"n", 1}, {"best_of", 1}, {"presence_penalty", 0}, {"frequency_penalty", 0}};
    for (size_t i = 0; i < CLT_COUNT_OF(numbers); i++)
        if (strcmp(key, numbers[i].key) == 0)
            return json_is_number(v) && json_number_value(v) == numbers[i].value
                       ? CLT_OK
                       : clt_error(CLT_BAD_DATA, WHAT ": '%s' must be %g", key, numbers[i].value);
    if (strcmp(key, "stream") == 0 && json_is_false(v)) return CLT_OK;
    if (strcmp(key, "logit_bias") == 0 && json_is_object(v) && json_object_size(v) == 0) return CLT_OK;
    if (strcmp(key, "model") == 0 || strcmp(key, "user") == 0)
        return json_is_string(v) ? CLT_OK : fail(key, "must be a text");
    static const char *const refused[] = {"stream", "logit_bias", "suffix", "stream_options"};
    for (size_t i = 0; i < CLT_COUNT_OF(refused); i++)
        if (strcmp(key, refused[i]) == 0) return fail(key, "is not supported");
    return fail(key, "is unknown");
}

static clt_status take_key(const char *key, json_t *v, clt_completion_request *r) {
    int64_t n;
    if (json_is_null(v)) return CLT_OK;
    if (strcmp(key, "prompt") == 0) return take_prompt(v, r);
    if (strcmp(key, "stop") == 0) return take_stop(v, r);
    if (strcmp(key, "max_tokens") == 0) return take_int(key, v, 0, CLT_COMPLETION_TOKENS, &r->max_tokens);
    if (strcmp(key, "logprobs") == 0) return take_int(key, v, 0, CLT_COMPLETION_LOGPROBS, &r->logprobs);
    if (strcmp(key, "top_k") == 0) return take_int(key, v, 0, INT32_MAX, &r->sample.top_k);
    if (strcmp(key, "temperature") == 0) return take_number(key, v, 0, 100, &r->sample.temperature);
    if (strcmp(key, "top_p") == 0) return take_number(key, v, 1e-9, 1, &r->sample.top_p);
    if (strcmp(key, "echo") == 0) {
        r->echo = json_is_true(v);
        return json_is_boolean(v) ? CLT_OK : fail(key, "must be true or false");
    }
    if (strcmp(key, "seed") == 0) {
        CLT_TRY(take_int(key, v, INT64_MIN, INT64_MAX, &n));
        r->sample.seed = (uint64_t)n;
        r->seeded = true;
        return CLT_OK;
    }
    return check_default(key, v);
}

/* --- requests --- */

clt_status clt_completion_parse(const char *text, size_t bytes, clt_completion_request *out) {
    enum { MAX_DEPTH = 8, DEFAULT_TOKENS = 16 };
    json_t *o, *v;
    const char *key;
    *out = (clt_completion_request){.max_tokens = DEFAULT_TOKENS,
                                    .logprobs = -1,
                                    .sample = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}};
    CLT_TRY(clt_json_parse(text, bytes, MAX_DEPTH, WHAT, &o));
    clt_status st = json_is_object(o) ? CLT_OK : clt_error(CLT_BAD_DATA, WHAT ": must be a JSON object");
    json_object_foreach(o, key, v) if (st == CLT_OK) st = take_key(key, v, out);
    if (st == CLT_OK && !out->prompt) st = fail("prompt", "is missing");
    json_decref(o);
    return st;
}

void clt_completion_free(clt_completion_request *r) {
    json_decref(r->prompt);
    clt_strv_free(&r->stop);
    *r = (clt_completion_request){0};
}
