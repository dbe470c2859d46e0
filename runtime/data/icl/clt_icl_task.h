/* clt_icl_task: one entry of `icl_tasks`, LLM Foundry's list of evaluation tasks, as a struct. */
#ifndef CLT_ICL_TASK_H
#define CLT_ICL_TASK_H

#include "runtime/base/clt_schema.h"
#include "runtime/data/icl/clt_icl_stops.h"

typedef enum { CLT_ICL_LM, CLT_ICL_CHOICE, CLT_ICL_SCHEMA, CLT_ICL_GENERATION } clt_icl_kind;

/* The metrics; a task has one or several, as bits 1 << CLT_ICL_... */
typedef enum {
    CLT_ICL_LM_ACCURACY,
    CLT_ICL_LM_CALIBRATION,
    CLT_ICL_CHOICE_ACCURACY,
    CLT_ICL_CHOICE_CALIBRATION,
    CLT_ICL_EXACT_MATCH,
    CLT_ICL_METRICS
} clt_icl_metric;
/* "InContextLearningLMAccuracy" ...; a constant. */
const char *clt_icl_metric_name(clt_icl_metric m);
/* Whether its value is an accuracy: these are in the table of results and in the gauntlet's scores. */
bool clt_icl_metric_is_accuracy(clt_icl_metric m);

/* Strings are owned by the schema reader's `strings`; lists are borrowed from the document. */
typedef struct {
    const char *label, *dataset_uri;
    int kind;         /* clt_icl_kind */
    unsigned metrics; /* bits; in the order of metric_names for output: `order` */
    clt_icl_metric order[CLT_ICL_METRICS];
    int n_metrics;
    json_t *num_fewshot, *metric_names; /* lists of integers, of names */
    const char *prompt_string, *prelimiter, *question_prelimiter, *example_delimiter, *continuation_delimiter;
    const char *context_key, *answer_key, *choices_key; /* NULL: the task type's own */
    int64_t fewshot_random_seed;
    bool strip_dataset, has_categories, do_normalization;
    int64_t batch_size, max_seq_len; /* 0: not given; clt_icl_tasks_read replaces it */
    const char *cot_delimiter;
    json_t *early_stopping_criteria, *generation_kwargs;
    const char **stop; /* [n_stop] early_stopping_criteria */
    size_t n_stop;
    clt_icl_stops *stops;   /* all of them */
    int64_t max_new_tokens; /* 0: the longest answer */
} clt_icl_task;

typedef struct {
    clt_icl_task *task;
    size_t n;
} clt_icl_tasks;

/* The keys of an entry. */
extern const clt_schema clt_icl_task_schema;

/* Reads the list at `path` of a document; max_seq_len and batch_size are the values for tasks without their
 * own. The first error is printed and gives r->status. */
clt_status clt_icl_tasks_read(clt_schema_reader *r, const char *path, json_t *list, int64_t max_seq_len,
                              int64_t batch_size, clt_icl_tasks *out);
void clt_icl_tasks_free(clt_icl_tasks *t);

#endif
