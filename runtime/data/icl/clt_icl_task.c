#include "runtime/data/icl/clt_icl_task.h"

#include <string.h>

/* --- names --- */

static const struct {
    const char *name;
    unsigned kinds; /* bits of clt_icl_kind */
} metrics[CLT_ICL_METRICS] = {
    [CLT_ICL_LM_ACCURACY] = {"InContextLearningLMAccuracy", 1 << CLT_ICL_LM},
    [CLT_ICL_LM_CALIBRATION] = {"InContextLearningLMExpectedCalibrationError", 1 << CLT_ICL_LM},
    [CLT_ICL_CHOICE_ACCURACY] = {"InContextLearningMultipleChoiceAccuracy",
                                 1 << CLT_ICL_CHOICE | 1 << CLT_ICL_SCHEMA},
    [CLT_ICL_CHOICE_CALIBRATION] = {"InContextLearningMCExpectedCalibrationError",
                                    1 << CLT_ICL_CHOICE | 1 << CLT_ICL_SCHEMA},
    [CLT_ICL_EXACT_MATCH] = {"InContextLearningGenerationExactMatchAccuracy", 1 << CLT_ICL_GENERATION},
};

const char *clt_icl_metric_name(clt_icl_metric m) {
    return metrics[m].name;
}

bool clt_icl_metric_is_accuracy(clt_icl_metric m) {
    return strstr(metrics[m].name, "Accuracy") != NULL;
}

static const char *const kinds[] = {"language_modeling", "multiple_choice", "schema",
                                    "generation_task_with_answers", NULL};
static const clt_refusal refused_kinds[] = {
    {"code_evaluation", "generated programs are not run: remove the task"},
    {"question_answering", "an old name: use generation_task_with_answers"},
    {NULL, NULL}};
static const clt_icl_metric own_metric[] = {CLT_ICL_LM_ACCURACY, CLT_ICL_CHOICE_ACCURACY,
                                            CLT_ICL_CHOICE_ACCURACY, CLT_ICL_EXACT_MATCH};

/* --- keys --- */

#define KEY(name, field, def, help, ...) CLT_KEY(clt_icl_task, name, field, def, help, __VA_ARGS__)
#define LIST(name, field, def, help, ...)                                                                    \
    CLT_KEY_OF(&clt_kind_list, clt_icl_task, name, field, def, help, __VA_ARGS__)
#define NO_HUB "data of the Hugging Face hub is not fetched: use a JSONL file as dataset_uri"

static const clt_key keys[] = {
    KEY("label", label, CLT_KEY_REQUIRED, "name of the task in metrics"),
    KEY("dataset_uri", dataset_uri, CLT_KEY_REQUIRED, "JSONL file with one item per line"),
    KEY("icl_task_type", kind, CLT_KEY_REQUIRED, "how items are scored", .choices = kinds,
        .refused = refused_kinds),
    LIST("num_fewshot", num_fewshot, CLT_KEY_REQUIRED,
         "numbers of examples before an item; each number is an evaluation"),
    LIST("metric_names", metric_names, "null", "metrics; null: the accuracy of the task type",
         .nullable = true),
    KEY("prompt_string", prompt_string, "\"\"", "text before everything else"),
    KEY("prelimiter", prelimiter, "\"\"", "text before every item and example"),
    KEY("question_prelimiter", question_prelimiter, "null", "an older name of prelimiter", .nullable = true),
    KEY("example_delimiter", example_delimiter, "\"\\n\"",
        "text before an item or example that is not the first text"),
    KEY("continuation_delimiter", continuation_delimiter, "\" \"", "text between context and answer"),
    KEY("fewshot_random_seed", fewshot_random_seed, "1234", "seed of the choice of examples"),
    KEY("strip_dataset", strip_dataset, "true", "remove white space at both ends of the file's strings"),
    KEY("has_categories", has_categories, "false", "evaluate the items of each `category` separately"),
    KEY("batch_size", batch_size, "null", "rows of a batch; null: device_eval_batch_size", .nullable = true),
    KEY("max_seq_len", max_seq_len, "null", "tokens of a row; null: max_seq_len", .nullable = true),
    KEY("context_key", context_key, "null", "key of the context in the file; null: the task type's",
        .nullable = true),
    KEY("answer_key", answer_key, "null", "key of the answer in the file; null: the task type's",
        .nullable = true),
    KEY("choices_key", choices_key, "null", "key of the choices in the file; null: the task type's",
        .nullable = true),
    KEY("cot_delimiter", cot_delimiter, "\"\"", "generation: text between chain of thought and answer"),
    LIST("early_stopping_criteria", early_stopping_criteria, "null",
         "generation: strings at which a text ends; it is cut at their first match as regular expressions",
         .nullable = true),
    KEY("do_normalization", do_normalization, "true", "generation: compare normalised answers"),
    CLT_KEY_OF(&clt_kind_map, clt_icl_task, "generation_kwargs", generation_kwargs, "null",
               "generation: max_new_tokens is honoured", .nullable = true),
    CLT_KEY_REFUSE("hf_loading_vars", "null", NO_HUB),
    CLT_KEY_REFUSE("hf_parsing_map", "null", NO_HUB),
    CLT_KEY_REFUSE("num_beams", "null", "texts are generated greedily"),
    CLT_KEY_REFUSE("pass_at_k", "null", "generated programs are not run"),
    CLT_KEY_REFUSE("padding_size", "null", "rows are padded to max_seq_len"),
};
const clt_schema clt_icl_task_schema = CLT_SCHEMA(keys);

/* --- checks --- */

typedef struct {
    clt_schema_reader *r;
    const char *path; /* of the task */
    clt_icl_task *t;
} task_reader;

static clt_status fail(task_reader *k, const char *key, const char *text) {
    char *path = clt_format("%s.%s", k->path, key);
    clt_status st = clt_schema_fail(k->r, path, "%s", text);
    clt_free(path);
    return st;
}

static clt_status read_shots(task_reader *k) {
    enum { MOST = 1000 };
    json_t *v;
    size_t i;
    if (json_array_size(k->t->num_fewshot) == 0)
        return fail(k, "num_fewshot", "is empty: give at least one number");
    json_array_foreach(k->t->num_fewshot, i, v) {
        const int64_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < 0 || n > MOST)
            return fail(k, "num_fewshot", "must have numbers from 0 to 1000");
    }
    return CLT_OK;
}

static clt_status add_metric(task_reader *k, const char *name) {
    clt_icl_task *t = k->t;
    for (int m = 0; m < CLT_ICL_METRICS && name; m++) {
        if (strcmp(name, metrics[m].name) != 0) continue;
        if (!(metrics[m].kinds >> t->kind & 1))
            return fail(k, "metric_names", "has a metric of another icl_task_type");
        if (!(t->metrics >> m & 1)) t->order[t->n_metrics++] = (clt_icl_metric)m;
        t->metrics |= 1u << m;
        return CLT_OK;
    }
    return fail(k, "metric_names", "has an unknown metric (docs/evaluation.md lists them)");
}

static clt_status read_metrics(task_reader *k) {
    json_t *v;
    size_t i;
    if (json_array_size(k->t->metric_names) == 0) return add_metric(k, metrics[own_metric[k->t->kind]].name);
    json_array_foreach(k->t->metric_names, i, v) CLT_TRY(add_metric(k, json_string_value(v)));
    return CLT_OK;
}

static clt_status read_stops(task_reader *k) {
    json_t *v;
    size_t i;
    k->t->stop = clt_calloc(json_array_size(k->t->early_stopping_criteria) + 1, sizeof *k->t->stop);
    json_array_foreach(k->t->early_stopping_criteria, i, v) {
        const char *s = json_string_value(v);
        if (!s || !*s) return fail(k, "early_stopping_criteria", "must have strings that are not empty");
        if (clt_icl_stop_is_pattern(s))
            clt_warn("%s: early_stopping_criteria '%s' is searched for as a text while tokens are generated, "
                     "and as a regular expression where the text is cut, as LLM Foundry does",
                     k->t->label, s);
        k->t->stop[k->t->n_stop++] = s;
    }
    clt_error_quiet(true);
    const clt_status st = clt_icl_stops_create(k->t->stop, k->t->n_stop, &k->t->stops);
    clt_error_quiet(false);
    if (st == CLT_BAD_CONFIG) return fail(k, "early_stopping_criteria", clt_last_error());
    return st;
}

/* Values that ask for greedy generation are accepted. */
static clt_status read_generation(task_reader *k) {
    static const char *const beams[] = {"num_beams", "num_return_sequences"};
    const char *key;
    json_t *v;
    json_object_foreach(k->t->generation_kwargs, key, v) {
        bool known = strcmp(key, "use_cache") == 0 || (strcmp(key, "do_sample") == 0 && !json_is_true(v));
        for (size_t i = 0; i < CLT_COUNT_OF(beams); i++)
            known = known || (strcmp(key, beams[i]) == 0 && json_integer_value(v) == 1);
        if (strcmp(key, "max_new_tokens") == 0) {
            enum { MOST = 1 << 20 };
            k->t->max_new_tokens = json_integer_value(v);
            known = k->t->max_new_tokens > 0 && k->t->max_new_tokens <= MOST;
        }
        char *path = clt_format("generation_kwargs.%.40s", key);
        clt_status st = known ? CLT_OK : fail(k, path, "is not supported: texts are generated greedily");
        clt_free(path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

static clt_status check_task(task_reader *k) {
    clt_icl_task *t = k->t;
    if (t->question_prelimiter && *t->prelimiter)
        return fail(k, "question_prelimiter", "and prelimiter are the same setting: use one of them");
    if (t->question_prelimiter) t->prelimiter = t->question_prelimiter;
    if (strstr(t->dataset_uri, "://")) return fail(k, "dataset_uri", "must be a local JSONL file");
    if (t->batch_size < 1) return fail(k, "batch_size", "must be at least 1");
    if (t->max_seq_len < 2) return fail(k, "max_seq_len", "must be at least 2");
    CLT_TRY(read_shots(k));
    CLT_TRY(read_metrics(k));
    CLT_TRY(read_stops(k));
    return read_generation(k);
}

static clt_status read_task(task_reader *k, json_t *v, int64_t max_seq_len, int64_t batch_size) {
    if (!json_is_object(v))
        return clt_schema_fail(k->r, k->path, "must be a map, not %s", clt_json_type_name(v));
    CLT_TRY(clt_schema_read(k->r, &clt_icl_task_schema, k->path, v, k->t));
    if (!k->t->batch_size) k->t->batch_size = batch_size;
    if (!k->t->max_seq_len) k->t->max_seq_len = max_seq_len;
    return check_task(k);
}

/* Two tasks with one label would write the same metrics. */
static clt_status check_label(task_reader *k, const clt_icl_tasks *all) {
    for (size_t i = 0; i < all->n; i++)
        if (strcmp(all->task[i].label, k->t->label) == 0)
            return fail(k, "label", "is that of an earlier task, too: use different labels");
    return CLT_OK;
}

clt_status clt_icl_tasks_read(clt_schema_reader *r, const char *path, json_t *list, int64_t max_seq_len,
                              int64_t batch_size, clt_icl_tasks *out) {
    const size_t n = json_array_size(list);
    *out = (clt_icl_tasks){.task = clt_calloc(n + 1, sizeof *out->task)};
    clt_status st = CLT_OK;
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        char *at = clt_format("%s.%zu", path, i);
        task_reader k = {r, at, &out->task[i]};
        st = read_task(&k, json_array_get(list, i), max_seq_len, batch_size);
        if (st == CLT_OK) st = check_label(&k, out);
        clt_free(at);
        out->n = i + 1;
    }
    if (st != CLT_OK) clt_icl_tasks_free(out);
    return st;
}

void clt_icl_tasks_free(clt_icl_tasks *t) {
    for (size_t i = 0; i < t->n; i++) {
        clt_free(t->task[i].stop);
        clt_icl_stops_destroy(t->task[i].stops);
    }
    clt_free(t->task);
    *t = (clt_icl_tasks){0};
}
