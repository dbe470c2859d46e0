/* clt_gauntlet: LLM Foundry's eval_gauntlet: accuracies of evaluation tasks, averaged to scores of categories
 * and to named averages of those. */
#ifndef CLT_GAUNTLET_H
#define CLT_GAUNTLET_H

#include "runtime/base/clt_schema.h"

typedef enum { CLT_WEIGHT_EQUAL, CLT_WEIGHT_SAMPLES, CLT_WEIGHT_LOG_SAMPLES } clt_gauntlet_weighting;

/* Strings are owned by the schema reader's `strings`. */
typedef struct {
    const char *name;
    int64_t num_fewshot;
    double random_baseline; /* the accuracy of guessing */
} clt_gauntlet_benchmark;

typedef struct {
    const char *name;
    json_t *list; /* borrowed, like all lists and maps here */
    clt_gauntlet_benchmark *benchmark;
    size_t n;
} clt_gauntlet_category;

typedef struct {
    int weighting; /* clt_gauntlet_weighting */
    bool subtract_random_baseline, rescale_accuracy;
    json_t *averages, *categories; /* averages: NULL: one of all categories, "default_average" */
    clt_gauntlet_category *category;
    size_t n;
} clt_gauntlet;

/* The keys of `eval_gauntlet`. */
extern const clt_schema clt_gauntlet_schema;

clt_status clt_gauntlet_read(clt_schema_reader *r, const char *path, json_t *o, clt_gauntlet *out);
void clt_gauntlet_free(clt_gauntlet *g);

/* The result of one set of items. */
typedef struct {
    const char *label; /* "mmlu/5-shot" or "mmlu/5-shot/law" */
    double accuracy;
    int64_t samples;
} clt_gauntlet_result;

/* The scores by name, in order: averages, then categories; both arrays are to be freed with clt_free, the
 * names are borrowed. Returns their number. A benchmark's accuracy is the mean over its categories. A
 * category that lacks a result is left out, with a warning. Source: LLM Foundry's EvalGauntlet. */
size_t clt_gauntlet_scores(const clt_gauntlet *g, const clt_gauntlet_result *result, size_t n,
                           const char ***name, double **score);

#endif
