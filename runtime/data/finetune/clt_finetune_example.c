#include "runtime/data/finetune/clt_finetune_example.h"

#include <string.h>

#include "runtime/base/clt_schema.h"

void clt_finetune_turns_free(clt_finetune_turns *t) {
    clt_free(t->ids);
    clt_free(t->turn);
    *t = (clt_finetune_turns){0};
}

/* --- ids --- */

static clt_status reserve(clt_finetune_turns *out, size_t more, const char *where) {
    if (more <= out->cap - out->n) return CLT_OK;
    const size_t cap = out->n + more;
    int32_t *grown = clt_try_realloc(out->ids, cap * sizeof *grown);
    if (!grown) return clt_no_memory(where, cap * sizeof *grown);
    out->ids = grown;
    out->cap = cap;
    return CLT_OK;
}

static clt_status add_text(const clt_finetune_text *text, const char *s, size_t bytes, unsigned flags,
                           const char *where, clt_finetune_turns *out, int32_t *count) {
    size_t n = 0;
    CLT_TRY(reserve(out, clt_tokenizer_max_ids(text->tokenizer, bytes), where));
    CLT_TRY(clt_tokenizer_encode(text->tokenizer, s, bytes, flags, out->ids + out->n, out->cap - out->n, &n));
    out->n += n;
    *count = (int32_t)n;
    return CLT_OK;
}

static clt_finetune_turn *add_turn(clt_finetune_turns *out) {
    if (out->turns == out->turn_cap) {
        out->turn_cap = CLT_MAX(4, 2 * out->turn_cap);
        out->turn = clt_realloc(out->turn, out->turn_cap * sizeof *out->turn);
    }
    return &out->turn[out->turns++];
}

static void start(clt_finetune_turns *out) {
    out->n = out->turns = 0;
}

clt_status clt_finetune_encode_pair(const clt_finetune_text *text, const char *prompt, size_t prompt_bytes,
                                    const char *response, size_t response_bytes, const char *where,
                                    clt_finetune_turns *out) {
    const unsigned flags = clt_tokenizer_default_flags(text->tokenizer);
    const int64_t bos = clt_tokenizer_bos_id(text->tokenizer);
    start(out);
    clt_finetune_turn *t = add_turn(out);
    CLT_TRY(add_text(text, prompt, prompt_bytes, flags, where, out, &t->prompt));
    CLT_TRY(add_text(text, response, response_bytes, flags, where, out, &t->response));
    int32_t *r = out->ids + t->prompt;
    if (bos >= 0 && t->prompt && t->response && out->ids[0] == bos && r[0] == bos) {
        memmove(r, r + 1, (size_t)(t->response - 1) * sizeof *r);
        t->response--;
        out->n--;
    }
    return CLT_OK;
}

/* --- a prompt and a response --- */

static clt_status not_text(const char *where, const char *key, const json_t *v) {
    return clt_error(CLT_BAD_DATA, "%s: %s must be a string, not %s", where, key, clt_json_type_name(v));
}

static clt_status unknown_keys(const char *where, const json_t *example) {
    clt_str names = {0};
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)example, key, v)
        clt_str_addf(&names, "%s%.60s", names.len ? ", " : "", key);
    clt_status st =
        clt_error(CLT_BAD_DATA,
                  "%s: the keys are %s; a line has either prompt and response (or completion), or "
                  "messages, and nothing else; dataset.preprocessing_fn can name other columns",
                  where, names.len ? names.s : "none");
    clt_str_free(&names);
    return st;
}

static clt_status encode_pair_of(const clt_finetune_text *text, const json_t *example, const char *where,
                                 clt_finetune_turns *out) {
    const char *key = json_object_get(example, "response") ? "response" : "completion";
    const json_t *prompt = json_object_get(example, "prompt"), *response = json_object_get(example, key);
    if (!prompt || !response || json_object_size(example) != 2) return unknown_keys(where, example);
    if (!json_is_string(prompt)) return not_text(where, "prompt", prompt);
    if (!json_is_string(response)) return not_text(where, key, response);
    return clt_finetune_encode_pair(text, json_string_value(prompt), json_string_length(prompt),
                                    json_string_value(response), json_string_length(response), where, out);
}

/* --- a chat --- */

static clt_status read_message(const json_t *v, const char *where, size_t i, clt_chat_message *m) {
    static const char *const roles[] = {"user", "assistant", "system", "tool"};
    if (!json_is_object(v))
        return clt_error(CLT_BAD_DATA, "%s: message %zu must be an object, not %s", where, i + 1,
                         clt_json_type_name(v));
    const json_t *role = json_object_get(v, "role"), *content = json_object_get(v, "content");
    if (!role || !content || json_object_size(v) != 2)
        return clt_error(CLT_BAD_DATA, "%s: message %zu must have the keys role and content and no other one",
                         where, i + 1);
    if (!json_is_string(role)) return not_text(where, "role", role);
    if (!json_is_string(content)) return not_text(where, "content", content);
    *m = (clt_chat_message){json_string_value(role), json_string_value(content), json_string_length(content)};
    for (size_t k = 0; k < CLT_COUNT_OF(roles); k++)
        if (strcmp(m->role, roles[k]) == 0 && json_string_length(role) == strlen(roles[k])) return CLT_OK;
    return clt_error(CLT_BAD_DATA,
                     "%s: message %zu has the role '%.40s'; roles are user, assistant, system and tool",
                     where, i + 1, m->role);
}

static clt_status check_roles(const clt_chat_message *m, size_t n, const char *where) {
    if (strcmp(m[n - 1].role, "assistant") != 0)
        return clt_error(CLT_BAD_DATA, "%s: the last message has the role %s; it must be assistant's", where,
                         m[n - 1].role);
    if (strcmp(m[0].role, "assistant") == 0)
        return clt_error(CLT_BAD_DATA, "%s: the first message is assistant's; it answers no message", where);
    for (size_t i = 1; i < n; i++)
        if (strcmp(m[i].role, m[i - 1].role) == 0)
            return clt_error(CLT_BAD_DATA, "%s: messages %zu and %zu both have the role %s; roles alternate",
                             where, i, i + 1, m[i].role);
    return CLT_OK;
}

/* Every turn repeats the text before it, so the work grows with turns times text. */
static clt_status check_length(const clt_chat_message *m, size_t n, const char *where) {
    const uint64_t most = (uint64_t)1 << 34;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes += m[i].bytes + 32;
    if (bytes <= most / n) return CLT_OK;
    return clt_error(CLT_BAD_DATA, "%s: a chat of %zu messages with %llu bytes is too long: divide it", where,
                     n, (unsigned long long)bytes);
}

static bool begins_with(const clt_str *s, const clt_str *begin) {
    return begin->len == 0 || (s->len >= begin->len && memcmp(s->s, begin->s, begin->len) == 0);
}

/* The turn that message `last` ends: what the template adds to the text of all turns before, up to the answer
 * and with it. *before becomes the text up to here. */
static clt_status encode_turn(const clt_finetune_text *text, const clt_chat_message *m, size_t last,
                              const char *where, clt_str *before, clt_finetune_turns *out) {
    const unsigned flags = clt_tokenizer_default_flags(text->tokenizer) & ~(unsigned)CLT_TOKEN_TEMPLATE;
    clt_str question = {0}, whole = {0};
    clt_chat_render(text->chat, m, last, true, &question);
    clt_chat_render(text->chat, m, last + 1, false, &whole);
    clt_status st = CLT_OK;
    if (!begins_with(&question, before) || !begins_with(&whole, &question)) {
        st =
            clt_error(CLT_BAD_DATA,
                      "%s: with the chat template '%s' the text of this chat does not begin with the text of "
                      "its first messages",
                      where, clt_chat_name(text->chat));
    } else {
        clt_finetune_turn t;
        st = add_text(text, question.s + before->len, question.len - before->len, flags, where, out,
                      &t.prompt);
        if (st == CLT_OK)
            st = add_text(text, whole.s + question.len, whole.len - question.len, flags, where, out,
                          &t.response);
        if (st == CLT_OK) *add_turn(out) = t;
    }
    clt_str_free(&question);
    clt_str_free(before);
    *before = whole;
    return st;
}

static clt_status encode_messages(const clt_finetune_text *text, const clt_chat_message *m, size_t n,
                                  const char *where, clt_finetune_turns *out) {
    clt_str before = {0};
    clt_status st = CLT_OK;
    for (size_t i = 0; i < n && st == CLT_OK; i++)
        if (strcmp(m[i].role, "assistant") == 0) st = encode_turn(text, m, i, where, &before, out);
    clt_str_free(&before);
    return st;
}

clt_status clt_finetune_encode_chat(const clt_finetune_text *text, const json_t *messages, const char *where,
                                    clt_finetune_turns *out) {
    const size_t n = json_array_size(messages);
    start(out);
    if (!json_is_array(messages))
        return clt_error(CLT_BAD_DATA, "%s: messages must be a list, not %s", where,
                         clt_json_type_name(messages));
    if (n < 2) return clt_error(CLT_BAD_DATA, "%s: a chat has at least two messages, not %zu", where, n);
    if (!text->chat) return clt_error(CLT_BAD_CONFIG, "%s is a chat: %s", where, text->chat_error);
    clt_chat_message *m = clt_try_calloc(n, sizeof *m);
    if (!m) return clt_no_memory(where, n * sizeof *m);
    clt_status st = CLT_OK;
    for (size_t i = 0; i < n && st == CLT_OK; i++)
        st = read_message(json_array_get(messages, i), where, i, &m[i]);
    if (st == CLT_OK) st = check_roles(m, n, where);
    if (st == CLT_OK) st = check_length(m, n, where);
    if (st == CLT_OK) st = encode_messages(text, m, n, where, out);
    clt_free(m);
    return st;
}

/* --- turns that are ids --- */

/* Appends the ids at a key of turn i. */
static clt_status read_ids(const json_t *turn, const char *key, const char *where, size_t i,
                           clt_finetune_turns *out, int32_t *count) {
    const json_t *list = json_object_get(turn, key), *v;
    size_t k;
    if (!json_is_array(list))
        return clt_error(CLT_BAD_DATA, "%s: turn %zu must be an object with the lists input_ids and labels",
                         where, i + 1);
    CLT_TRY(reserve(out, json_array_size(list), where));
    json_array_foreach(list, k, v) {
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
            return clt_error(CLT_BAD_DATA, "%s: %s of turn %zu: entry %zu is no token id", where, key, i + 1,
                             k + 1);
        out->ids[out->n++] = (int32_t)json_integer_value(v);
    }
    *count = (int32_t)json_array_size(list);
    return CLT_OK;
}

clt_status clt_finetune_read_turns(const json_t *turns, const char *where, clt_finetune_turns *out) {
    const json_t *turn;
    size_t i;
    start(out);
    if (json_array_size(turns) == 0)
        return clt_error(CLT_BAD_DATA, "%s: turns must be a list with at least 1 turn", where);
    json_array_foreach(turns, i, turn) {
        clt_finetune_turn t;
        CLT_TRY(read_ids(turn, "input_ids", where, i, out, &t.prompt));
        CLT_TRY(read_ids(turn, "labels", where, i, out, &t.response));
        *add_turn(out) = t;
    }
    return CLT_OK;
}

/* --- lines --- */

clt_status clt_finetune_encode(const clt_finetune_text *text, const json_t *example, const char *where,
                               clt_finetune_turns *out) {
    const json_t *messages = json_object_get(example, "messages");
    start(out);
    if (messages && json_object_size(example) > 1) return unknown_keys(where, example);
    return messages ? clt_finetune_encode_chat(text, messages, where, out)
                    : encode_pair_of(text, example, where, out);
}
