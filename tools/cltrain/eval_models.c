#include "tools/cltrain/eval_models.h"

#include "collectives/clt_group.h"
#include "tools/cltrain/eval_table.h"

static void free_models(clt_config **model, size_t n) {
    for (size_t i = 0; i < n; i++) clt_config_free(model[i]);
    clt_free(model);
}

clt_status eval_models(const char *path, const char *const *overrides, size_t n,
                       const eval_models_options *o) {
    clt_config **model;
    size_t models;
    clt_status st = clt_config_load_eval(path, overrides, n, &model, &models);
    for (size_t i = 0; i < models && st == CLT_OK; i++) st = clt_config_check_weights(model[i]);
    if (st != CLT_OK) {
        free_models(model, models);
        return clt_group_refuse(st);
    }
    eval_table *table = eval_table_create();
    const clt_eval_report report = {.json = o->json || o->items,
                                    .items = o->items,
                                    .accuracy = eval_table_accuracy,
                                    .score = eval_table_score,
                                    .ctx = table};
    for (size_t i = 0; i < models && st == CLT_OK; i++) {
        const clt_run_options opt = {.device = o->device, .started = clt_now(), .eval = &report};
        if (model[i]->model_name) clt_info("evaluating model %s", model[i]->model_name);
        st = clt_evaluate(model[i], &opt);
    }
    clt_str text = {0};
    if (st == CLT_OK && !report.json) eval_table_print(table, &text);
    if (text.len) fputs(text.s, stdout);
    clt_str_free(&text);
    eval_table_free(table);
    free_models(model, models);
    return st;
}
