/* Callbacks and loggers that are another way to write other keys, and what they refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test/config_util.h"

static void layer_freezing_freezes_these_tensors_alone(void **state) {
    (void)state;
    static const char *const names[] = {"transformer.wte.weight", "transformer.wte.weight2",
                                        "transformer.blocks.1.norm_1.weight",
                                        "transformer.blocks.11norm_1.weight"};
    uint8_t group[4];
    bool frozen[4];
    clt_config *c = cu_load_with("callbacks={layer_freezing: {layer_names: [model.transformer.wte.weight, "
                                 "transformer.blocks.1.norm_1.weight]}}");
    assert_int_equal(clt_optimizer_groups(&c->optimizer, names, 4, group, frozen), CLT_OK);
    assert_true(frozen[0] && !frozen[1] && frozen[2] && !frozen[3]);
    clt_config_free(c);
}

static void no_op_has_rates_of_zero(void **state) {
    (void)state;
    clt_config *c = cu_load_with("optimizer={name: no_op, lr: 1.0, weight_decay: 0.5, "
                                 "param_groups: [{param_str_match: wte, lr: 2.0}]}");
    for (int i = 0; i < 2; i++)
        assert_true(c->optimizer.groups[i].lr == 0 && c->optimizer.groups[i].weight_decay == 0);
    clt_config_free(c);
}

static void global_lr_scaling_scales_every_group(void **state) {
    (void)state;
    static const char *const over[] = {
        "optimizer={lr: 0.01, weight_decay: 0.5, param_groups: [{param_str_match: wte, lr: 0.1}]}",
        "callbacks={global_lr_scaling: {lr_scale: 0.5, wd_pct: 0.1}}"};
    clt_config *c;
    assert_int_equal(clt_config_load(CU_BASE, over, 2, &c), CLT_OK);
    assert_true(c->optimizer.groups[0].lr == 0.01 * 0.5 && c->optimizer.groups[1].lr == 0.1 * 0.5);
    assert_true(c->optimizer.groups[0].weight_decay == 0.01 * 0.5 * 0.1);
    assert_true(c->optimizer.groups[1].weight_decay == 0.1 * 0.5 * 0.1);
    clt_config_free(c);
}

static void load_checkpoint_is_load_path(void **state) {
    (void)state;
    static const char *const over[] = {
        "load_path=null",
        "callbacks={load_checkpoint: {load_path: 'x-rank{rank}', load_weights_only: true}}"};
    clt_config *c;
    assert_int_equal(clt_config_load(CU_BASE, over, 2, &c), CLT_OK);
    assert_string_equal(c->load_path, "x-rank0");
    assert_true(c->load_weights_only && c->load_strict_model_weights);
    clt_config_free(c);
}

static void mlflow_writes_to_folders_alone(void **state) {
    (void)state;
    static const struct {
        const char *uri, *folder;
    } t[] = {{"null", "mlruns"},       {"a/b", "a/b"},       {"file:a", "a"},
             {"file:///a/b", "/a/b"},  {"file://h/b", NULL}, {"http://h:5000", NULL},
             {"databricks://p", NULL}, {"databricks", NULL}, {"sqlite:///x.db", NULL}};
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++) {
        char *over = clt_format("loggers={mlflow: {tracking_uri: %s}}", t[i].uri);
        clt_config *c = cu_load_with(over);
        const char *folder = c->loggers.mlflow.folder;
        assert_true(folder ? t[i].folder && strcmp(folder, t[i].folder) == 0 : !t[i].folder);
        assert_int_equal(!folder,
                         c->remarks.n > 0 && strstr(c->remarks.v[c->remarks.n - 1], "mlflow") != NULL);
        clt_config_free(c);
        clt_free(over);
    }
}

static void what_cannot_be_done_is_named(void **state) {
    (void)state;
    static const char eval[] = "eval_loader={name: text, dataset: {local: x}}";
    static const struct {
        const char *over, *says;
    } t[] = {
        {"callbacks={load_checkpoint: {load_path: other}}", "a run starts from one checkpoint"},
        {"callbacks={global_lr_scaling: {lr_scale: -1}}", "lr_scale' is -1"},
        {"callbacks={early_stopper: {monitor: Accuracy, dataloader_label: eval}}", "monitor"},
        {"callbacks={early_stopper: {monitor: TokenAccuracy, dataloader_label: train}}", "is no label"},
        {"callbacks={early_stopper: {monitor: TokenAccuracy, dataloader_label: eval, patience: 5tok}}",
         "epochs or batches"},
        {"loggers={tensorboard: {flush_interval: 0}}", "at least 1"},
        {"callbacks={dataset_swap: {}}", "changing the data during a run"},
    };
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++) {
        const char *over[] = {eval, "load_path=one", t[i].over};
        clt_config *c;
        assert_int_equal(clt_config_load(CU_BASE, over, 3, &c), CLT_BAD_CONFIG);
        if (!strstr(clt_last_error(), t[i].says)) fail_msg("%s: '%s'", t[i].over, clt_last_error());
    }
    clt_error_quiet(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_freezing_freezes_these_tensors_alone),
        cmocka_unit_test(no_op_has_rates_of_zero),
        cmocka_unit_test(global_lr_scaling_scales_every_group),
        cmocka_unit_test(load_checkpoint_is_load_path),
        cmocka_unit_test(mlflow_writes_to_folders_alone),
        cmocka_unit_test(what_cannot_be_done_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
