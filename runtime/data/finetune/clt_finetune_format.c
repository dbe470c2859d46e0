#include "runtime/data/finetune/clt_finetune_format.h"

#include <string.h>

#include "runtime/base/clt_schema.h"

/* A line that is being changed; `function` is preprocessing_fn, for messages. */
typedef struct {
    const json_t *line;
    const char *where, *function;
} source;

/* --- columns --- */

static clt_status get_value(const source *s, const json_t *o, const char *key, const json_t **out) {
    *out = json_object_get(o, key);
    return *out ? CLT_OK
                : clt_error(CLT_BAD_DATA, "%s: the key '%s' is missing, which preprocessing_fn %s reads",
                            s->where, key, s->function);
}

static clt_status wrong_type(const source *s, const char *key, const char *type, const json_t *v) {
    return clt_error(CLT_BAD_DATA, "%s: '%s' must be %s for preprocessing_fn %s, not %s", s->where, key, type,
                     s->function, clt_json_type_name(v));
}

static clt_status get_text(const source *s, const json_t *o, const char *key, const char **out) {
    const json_t *v;
    CLT_TRY(get_value(s, o, key, &v));
    *out = json_string_value(v);
    return *out ? CLT_OK : wrong_type(s, key, "a string", v);
}

static clt_status get_list(const source *s, const char *key, const json_t **out) {
    CLT_TRY(get_value(s, s->line, key, out));
    return json_is_array(*out) ? CLT_OK : wrong_type(s, key, "a list", *out);
}

/* --- results --- */

static clt_status made(const source *s, json_t *o, json_t **out) {
    *out = o;
    return o ? CLT_OK : clt_no_memory(s->where, 0);
}

static clt_status make_pair(const source *s, const char *prompt, const char *response, json_t **out) {
    return made(s, json_pack("{s:s, s:s}", "prompt", prompt, "response", response), out);
}

static json_t *message(const char *role, const char *content) {
    return json_pack("{s:s, s:s}", "role", role, "content", content);
}

/* --- LLM Foundry's functions --- */

static clt_status alpaca(const source *s, json_t **out) {
    static const char mark[] = "### Response:";
    const char *text, *at;
    CLT_TRY(get_text(s, s->line, "text", &text));
    at = strstr(text, mark);
    if (!at || strstr(at + strlen(mark), mark))
        return clt_error(CLT_BAD_DATA, "%s: 'text' must have '%s' once for preprocessing_fn %s", s->where,
                         mark, s->function);
    at += strlen(mark);
    char *prompt = clt_strndup(text, (size_t)(at - text));
    clt_status st = make_pair(s, prompt, at, out);
    clt_free(prompt);
    return st;
}

static clt_status dolly(const source *s, json_t **out) {
    const char *input, *instruction, *output;
    CLT_TRY(get_text(s, s->line, "input", &input));
    CLT_TRY(get_text(s, s->line, "instruction", &instruction));
    CLT_TRY(get_text(s, s->line, "output", &output));
    char *prompt = clt_format("Below is an instruction that describes a task. Write a response that "
                              "appropriately completes the request.\n\n### Instruction:\n%s%s%s\n\n"
                              "### Response:\n",
                              instruction, *input ? "\n" : "", input);
    clt_status st = make_pair(s, prompt, output, out);
    clt_free(prompt);
    return st;
}

static clt_status p3(const source *s, json_t **out) {
    const char *inputs, *targets;
    CLT_TRY(get_text(s, s->line, "inputs", &inputs));
    CLT_TRY(get_text(s, s->line, "targets", &targets));
    char *prompt = clt_format("%s:", inputs);
    clt_status st = make_pair(s, prompt, targets, out);
    clt_free(prompt);
    return st;
}

/* A space between both, unless there is white space. */
static clt_status muennighoff(const source *s, json_t **out) {
    static const char spaces[] = " \n\t";
    const char *inputs, *targets;
    CLT_TRY(get_text(s, s->line, "inputs", &inputs));
    CLT_TRY(get_text(s, s->line, "targets", &targets));
    const size_t n = strlen(inputs);
    const bool spaced = (n && strchr(spaces, inputs[n - 1])) || (*targets && strchr(spaces, *targets));
    char *response = clt_format("%s%s", spaced ? "" : " ", targets);
    clt_status st = make_pair(s, inputs, response, out);
    clt_free(response);
    return st;
}

static clt_status share_gpt(const source *s, json_t **out) {
    const json_t *list;
    CLT_TRY(get_list(s, "conversations", &list));
    json_t *messages = json_array();
    clt_status st = CLT_OK;
    for (size_t i = 0; i < json_array_size(list) && st == CLT_OK; i++) {
        const json_t *one = json_array_get(list, i);
        const char *from, *value;
        st = get_text(s, one, "from", &from);
        if (st == CLT_OK) st = get_text(s, one, "value", &value);
        if (st != CLT_OK) break;
        if (strcmp(from, "human") == 0) from = "user";
        if (strcmp(from, "gpt") == 0) from = "assistant";
        json_array_append_new(messages, message(from, value));
    }
    if (st == CLT_OK) return made(s, json_pack("{s:o}", "messages", messages), out);
    json_decref(messages);
    return st;
}

static clt_status question(const source *s, json_t **out) {
    const char *q, *a;
    CLT_TRY(get_text(s, s->line, "Q", &q));
    CLT_TRY(get_text(s, s->line, "A", &a));
    return made(s, json_pack("{s:[o, o]}", "messages", message("user", q), message("assistant", a)), out);
}

static clt_status messages_alone(const source *s, json_t **out) {
    const json_t *messages;
    CLT_TRY(get_value(s, s->line, "messages", &messages));
    return made(s, json_pack("{s:O}", "messages", messages), out);
}

static clt_status multiple_choice(const source *s, json_t **out) {
    const char *query, *choice = NULL, *right = NULL;
    const json_t *choices, *gold;
    clt_str prompt = {0};
    CLT_TRY(get_text(s, s->line, "query", &query));
    CLT_TRY(get_list(s, "choices", &choices));
    CLT_TRY(get_value(s, s->line, "gold", &gold));
    if (!json_is_integer(gold)) return wrong_type(s, "gold", "a whole number", gold);
    clt_str_addf(&prompt, "%s\nOptions:", query);
    clt_status st = CLT_OK;
    for (size_t i = 0; i < json_array_size(choices) && st == CLT_OK; i++) {
        const json_t *one = json_array_get(choices, i);
        choice = json_string_value(one);
        if (!choice) st = wrong_type(s, "choices", "a list of strings", one);
        if (choice) clt_str_addf(&prompt, "\n - %s", choice);
        if ((json_int_t)i == json_integer_value(gold)) right = choice;
    }
    clt_str_add(&prompt, "\nAnswer: ");
    if (st == CLT_OK && !right)
        st = clt_error(CLT_BAD_DATA, "%s: 'gold' is %lld, and there are %zu choices", s->where,
                       (long long)json_integer_value(gold), json_array_size(choices));
    if (st == CLT_OK) st = make_pair(s, prompt.s, right, out);
    clt_str_free(&prompt);
    return st;
}

/* --- the table --- */

/* registered: NULL for a function that is only imported. */
static const struct {
    const char *registered, *path;
    clt_status (*make)(const source *s, json_t **out);
} functions[] = {
#define TASKS "llmfoundry.data.finetuning.tasks:"
    {"tatsu-lab/alpaca", TASKS "alpaca_preprocessing_function", alpaca},
    {"HuggingFaceH4/databricks_dolly_15k", TASKS "dolly_preprocessing_function", dolly},
    {"bigscience/P3", TASKS "p3_preprocessing_function", p3},
    {"Muennighoff/P3", TASKS "muennighoff_tokenize_function", muennighoff},
    {"Muennighoff/flan", TASKS "muennighoff_tokenize_function", muennighoff},
    {"teknium/OpenHermes-2.5", TASKS "shareGPT_format_preprocessor", share_gpt},
    {"math-ai/StackMathQA", TASKS "QA_format_preprocessor", question},
    {"AI-MO/NuminaMath-CoT", TASKS "messages_format_preprocessor", messages_alone},
    {NULL, "finetune_example.preprocessing:multiple_choice", multiple_choice},
};

/* Its place in the table; the table's length: unknown. */
static size_t find(const char *name) {
    size_t i = 0;
    while (i < CLT_COUNT_OF(functions) && strcmp(name, functions[i].path) != 0 &&
           !(functions[i].registered && strcmp(name, functions[i].registered) == 0))
        i++;
    return i;
}

bool clt_finetune_function_exists(const char *name) {
    return name && find(name) < CLT_COUNT_OF(functions);
}

char *clt_finetune_function_names(void) {
    clt_str s = {0};
    for (size_t i = 0; i < CLT_COUNT_OF(functions); i++)
        clt_str_addf(&s, "%s%s", i ? ", " : "",
                     functions[i].registered ? functions[i].registered : functions[i].path);
    return s.s;
}

clt_status clt_finetune_reformat(const clt_finetune_format *f, json_t *line, const char *where,
                                 json_t **out) {
    const char *prompt, *response;
    if (f->function) return functions[find(f->function)].make(&(source){line, where, f->function}, out);
    if (f->prompt_column) {
        const source s = {line, where, "{prompt, response}"};
        CLT_TRY(get_text(&s, line, f->prompt_column, &prompt));
        CLT_TRY(get_text(&s, line, f->response_column, &response));
        return make_pair(&s, prompt, response, out);
    }
    *out = json_incref(line);
    return CLT_OK;
}
