#include "runtime/train/config/clt_gauntlet.h"

#include <math.h>
#include <string.h>

/* --- keys --- */

#define KEY(type, name, field, def, help, ...) CLT_KEY(type, name, field, def, help, __VA_ARGS__)

static const char *const weightings[] = {"EQUAL", "SAMPLE_SZ", "LOG_SAMPLE_SZ", NULL};

static const clt_key benchmark_keys[] = {
    KEY(clt_gauntlet_benchmark, "name", name, CLT_KEY_REQUIRED, "label of a task"),
    KEY(clt_gauntlet_benchmark, "num_fewshot", num_fewshot, CLT_KEY_REQUIRED, "its number of examples"),
    KEY(clt_gauntlet_benchmark, "random_baseline", random_baseline, CLT_KEY_REQUIRED, "accuracy of guessing"),
};
static const clt_schema benchmark_schema = CLT_SCHEMA(benchmark_keys);

static const clt_key category_keys[] = {
    KEY(clt_gauntlet_category, "name", name, CLT_KEY_REQUIRED, "name of the score"),
    CLT_KEY_OF(&clt_kind_list, clt_gauntlet_category, "benchmarks", list, CLT_KEY_REQUIRED, "a list of tasks",
               .section = &benchmark_schema),
};
static const clt_schema category_schema = CLT_SCHEMA(category_keys);

static const clt_key keys[] = {
    KEY(clt_gauntlet, "weighting", weighting, "\"EQUAL\"",
        "weight of a task in its category: the same, its number of items, or the logarithm of that",
        .choices = weightings),
    KEY(clt_gauntlet, "subtract_random_baseline", subtract_random_baseline, "true",
        "subtract random_baseline from accuracies"),
    KEY(clt_gauntlet, "rescale_accuracy", rescale_accuracy, "true",
        "divide by 1 - random_baseline, so that the best score is 1"),
    CLT_KEY_OF(&clt_kind_map, clt_gauntlet, "averages", averages, "null",
               "names of averages, each with a list of categories; null: default_average of all",
               .nullable = true),
    CLT_KEY_OF(&clt_kind_list, clt_gauntlet, "categories", categories, CLT_KEY_REQUIRED,
               "a list of categories", .section = &category_schema),
    CLT_KEY_IGNORED(&clt_kind_str, "destination_dir", "null", NULL, "task files are read where they are"),
};
const clt_schema clt_gauntlet_schema = CLT_SCHEMA(keys);

/* --- reading --- */

static clt_status read_map(clt_schema_reader *r, const clt_schema *s, const char *path, json_t *v,
                           void *out) {
    if (!json_is_object(v)) return clt_schema_fail(r, path, "must be a map, not %s", clt_json_type_name(v));
    return clt_schema_read(r, s, path, v, out);
}

static clt_status read_benchmarks(clt_schema_reader *r, const char *path, clt_gauntlet_category *c) {
    clt_status st = CLT_OK;
    c->n = json_array_size(c->list);
    c->benchmark = clt_calloc(c->n + 1, sizeof *c->benchmark);
    if (c->n == 0) return clt_schema_fail(r, path, "has no benchmarks");
    for (size_t i = 0; i < c->n && st == CLT_OK; i++) {
        char *at = clt_format("%s.benchmarks.%zu", path, i);
        st = read_map(r, &benchmark_schema, at, json_array_get(c->list, i), &c->benchmark[i]);
        const double b = c->benchmark[i].random_baseline;
        if (st == CLT_OK && !(b >= 0 && b < 1))
            st = clt_schema_fail(r, at, "has a random_baseline outside 0 to 1");
        clt_free(at);
    }
    return st;
}

static clt_status read_categories(clt_schema_reader *r, const char *path, clt_gauntlet *g) {
    clt_status st = CLT_OK;
    const size_t n = json_array_size(g->categories);
    g->category = clt_calloc(n + 1, sizeof *g->category);
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        char *at = clt_format("%s.categories.%zu", path, i);
        g->n = i + 1;
        st = read_map(r, &category_schema, at, json_array_get(g->categories, i), &g->category[i]);
        if (st == CLT_OK && g->averages && json_object_get(g->averages, g->category[i].name))
            st = clt_schema_fail(r, at, "has the name of an average: use different names");
        if (st == CLT_OK) st = read_benchmarks(r, at, &g->category[i]);
        clt_free(at);
    }
    return st;
}

static clt_status read_averages(clt_schema_reader *r, const char *path, const clt_gauntlet *g) {
    const char *name;
    json_t *list;
    json_object_foreach(g->averages, name, list) {
        if (json_is_array(list)) continue;
        char *at = clt_format("%s.averages.%s", path, name);
        clt_status st = clt_schema_fail(r, at, "must be a list of categories");
        clt_free(at);
        return st;
    }
    return CLT_OK;
}

clt_status clt_gauntlet_read(clt_schema_reader *r, const char *path, json_t *o, clt_gauntlet *out) {
    *out = (clt_gauntlet){0};
    CLT_TRY(read_map(r, &clt_gauntlet_schema, path, o, out));
    if (out->rescale_accuracy && !out->subtract_random_baseline)
        return clt_schema_fail(r, path,
                               "has rescale_accuracy without subtract_random_baseline: set both or "
                               "none");
    CLT_TRY(read_averages(r, path, out));
    return read_categories(r, path, out);
}

void clt_gauntlet_free(clt_gauntlet *g) {
    for (size_t i = 0; i < g->n; i++) clt_free(g->category[i].benchmark);
    clt_free(g->category);
    *g = (clt_gauntlet){0};
}

/* --- scores --- */

/* Whether a result is of this benchmark, or of one of its categories. */
static bool is_of(const clt_gauntlet_benchmark *b, const char *label) {
    char *name = clt_format("%s/%lld-shot", b->name, (long long)b->num_fewshot);
    const size_t n = strlen(name);
    const bool yes = strncmp(label, name, n) == 0 && (label[n] == 0 || label[n] == '/');
    clt_free(name);
    return yes;
}

static double weight_of(const clt_gauntlet *g, int64_t samples) {
    const double n = (double)CLT_MAX(samples, (int64_t)1);
    return g->weighting == CLT_WEIGHT_EQUAL     ? 1
           : g->weighting == CLT_WEIGHT_SAMPLES ? n
                                                : CLT_MAX(log2(n), 1);
}

/* false: there is no result of it. */
static bool score_benchmark(const clt_gauntlet *g, const clt_gauntlet_benchmark *b,
                            const clt_gauntlet_result *result, size_t n, double *score, double *weight) {
    int64_t samples = 0;
    size_t found = 0;
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_of(b, result[i].label)) continue;
        sum += result[i].accuracy;
        samples += result[i].samples;
        found++;
    }
    if (found == 0) {
        clt_warn("eval_gauntlet: there is no result of %s/%lld-shot", b->name, (long long)b->num_fewshot);
        return false;
    }
    *score = sum / (double)found;
    if (g->subtract_random_baseline) *score -= b->random_baseline;
    if (g->rescale_accuracy) *score /= 1 - b->random_baseline;
    *weight = weight_of(g, samples);
    return true;
}

static bool score_category(const clt_gauntlet *g, const clt_gauntlet_category *c,
                           const clt_gauntlet_result *result, size_t n, double *out) {
    double sum = 0, weights = 0, score, weight;
    bool complete = true;
    for (size_t i = 0; i < c->n; i++) {
        if (!score_benchmark(g, &c->benchmark[i], result, n, &score, &weight)) {
            complete = false;
            continue;
        }
        sum += score * weight;
        weights += weight;
    }
    if (!complete) clt_warn("eval_gauntlet: category %s is left out, because results are missing", c->name);
    *out = complete ? sum / weights : 0;
    return complete;
}

static bool lists(const json_t *names, const char *name) {
    json_t *v;
    size_t i;
    json_array_foreach(names, i,
                       v) if (json_is_string(v) && strcmp(json_string_value(v), name) == 0) return true;
    return false;
}

/* The mean of the first `n` scores that `members` names; NULL: of all; 0 if there is none. */
static double average(const json_t *members, size_t n, const char **name, const double *score) {
    double sum = 0;
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (members && !lists(members, name[i])) continue;
        sum += score[i];
        found++;
    }
    return found ? sum / (double)found : 0;
}

size_t clt_gauntlet_scores(const clt_gauntlet *g, const clt_gauntlet_result *result, size_t n,
                           const char ***name, double **score) {
    const size_t averages = g->averages ? json_object_size(g->averages) : 1;
    const char *key;
    json_t *members;
    size_t k = 0, categories = 0;
    *name = clt_calloc(averages + g->n + 1, sizeof **name);
    *score = clt_calloc(averages + g->n + 1, sizeof **score);
    const char **category = *name + averages;
    double *value = *score + averages;
    for (size_t i = 0; i < g->n; i++)
        if (score_category(g, &g->category[i], result, n, &value[categories]))
            category[categories++] = g->category[i].name;
    if (!g->averages) {
        (*score)[0] = average(NULL, categories, category, value);
        (*name)[0] = "default_average";
    }
    json_object_foreach(g->averages, key, members) {
        (*score)[k] = average(members, categories, category, value);
        (*name)[k++] = key;
    }
    return averages + categories;
}
