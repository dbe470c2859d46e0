/* The model's configuration as JSON: config.json of LLM Foundry and of transformers, and the one that cltrain
 * writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/model/mpt/clt_mpt_config.h"
#include "runtime/train/config/clt_config.h"

/* config.json of the golden sets, read directly and after a round trip through cltrain's writer, describes
 * the same model as the YAML. */
static void model_json_reads_back(void **state) {
    (void)state;
    static const char *const sets[] = {"mpt-alibi", "mpt-learned", "mpt-rope", "mpt-variants"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        char *yaml = clt_format("test/golden/%s/train.yaml", sets[i]);
        char *hf = clt_format("test/golden/%s/hf/config.json", sets[i]);
        clt_config *c = NULL;
        if (clt_config_load(yaml, NULL, 0, &c) != CLT_OK) fail_msg("%s: %s", yaml, clt_last_error());
        clt_model_config *a, *b;
        json_t *file, *j;
        assert_int_equal(clt_json_load(hf, 1 << 20, 32, &file), CLT_OK);
        assert_int_equal(clt_model_config_from_json(file, true, hf, &a), CLT_OK);
        assert_memory_equal(a, c->model, sizeof(clt_mpt_config));
        j = clt_model_config_to_json(a);
        assert_non_null(j);
        assert_int_equal(clt_model_config_from_json(j, false, "written back", &b), CLT_OK);
        assert_memory_equal(a, b, sizeof(clt_mpt_config));
        json_decref(file);
        json_decref(j);
        clt_model_config_free(a);
        clt_model_config_free(b);
        clt_config_free(c);
        clt_free(yaml);
        clt_free(hf);
    }
}

/* transformers writes layer_norm_epsilon to config.json. LLM Foundry's norm_eps takes precedence, and a YAML
 * knows only that. */
static void transformers_names_the_eps(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool hf;
        double eps; /* 0: refused */
    } c[] = {{"{\"layer_norm_epsilon\": 0.001}", true, 0.001},
             {"{\"norm_eps\": 1e-6, \"layer_norm_epsilon\": 0.001}", true, 1e-6},
             {"{\"layer_norm_epsilon\": 0.001}", false, 0}};
    for (size_t i = 0; i < CLT_COUNT_OF(c); i++) {
        clt_model_config *m = NULL;
        clt_status st = clt_model_config_parse(c[i].text, c[i].hf, "config", &m);
        assert_int_equal(st, c[i].eps > 0 ? CLT_OK : CLT_BAD_CONFIG);
        if (st == CLT_OK) assert_true(((const clt_mpt_config *)m)->norm_eps == c[i].eps);
        clt_model_config_free(m);
    }
}

/* An unknown family is refused with the list of known names and a suggestion. */
static void unknown_families_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *facts[3];
    } c[] = {
        {"{\"name\": \"mpt_casual_lm\"}", {"name", "known: mpt_causal_lm", "did you mean mpt_causal_lm"}},
        {"{\"model_type\": \"llama9\"}", {"model_type", "llama9", "known: mpt"}}};
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(c); i++) {
        clt_model_config *m = NULL;
        assert_int_equal(clt_model_config_parse(c[i].text, false, "config", &m), CLT_BAD_CONFIG);
        for (size_t k = 0; k < CLT_COUNT_OF(c[i].facts); k++)
            if (!strstr(clt_last_error(), c[i].facts[k])) fail_msg("the message is: %s", clt_last_error());
    }
    clt_error_quiet(false);
}

#define BASE "test/golden/mpt-learned/train.yaml"

static clt_config *load(const char *path) {
    clt_config *c = NULL;
    if (clt_config_load(path, NULL, 0, &c) != CLT_OK) fail_msg("%s: %s", path, clt_last_error());
    return c;
}

static const clt_mpt_config *mpt(const clt_config *c) {
    return (const clt_mpt_config *)c->model;
}

static void golden_runs_have_their_models(void **state) {
    (void)state;
    clt_config *c = load("test/golden/mpt-variants/train.yaml");
    const clt_mpt_config *m = mpt(c);
    assert_int_equal(m->kv_n_heads, 2);
    assert_int_equal(m->ffn_hidden, 192);
    assert_true(m->rms_norm && m->qk_ln && !m->tie_word_embeddings);
    assert_true(m->clip_qkv == 2.0 && m->logit_scale == 0.125 && m->softmax_scale == 0.25);
    clt_config_free(c);
    c = load("test/golden/mpt-alibi/train.yaml");
    m = mpt(c);
    assert_true(m->alibi && m->no_bias && !m->learned_pos_emb && !m->attention_bias);
    clt_config_free(c);
    c = load("test/golden/mpt-rope/train.yaml");
    assert_int_equal(mpt(c)->rope, CLT_ROPE_PLAIN);
    assert_false(mpt(c)->learned_pos_emb);
    clt_config_free(c);
}

static clt_config *load_blocks(const char *blocks, int layers) {
    char *over[] = {clt_format("model.block_overrides=%s", blocks), clt_format("model.n_layers=%d", layers)};
    clt_config *c = NULL;
    clt_status st = clt_config_load(BASE, (const char *const *)over, 2, &c);
    clt_free(over[0]);
    clt_free(over[1]);
    return st == CLT_OK ? c : NULL;
}

static void block_overrides_reach_their_layers(void **state) {
    (void)state;
    clt_config *c = load_blocks(
        "{order: [{name: default}, {repeat: 2, order: [{name: w}, {name: wr}, {name: w}, {repeat: 2, name: "
        "wr}, {name: r}]}], overrides: {w: {attn_config: {sliding_window_size: 16}}, wr: {attn_config: "
        "{sliding_window_size: 16, reuse_kv_layer_idx: -1}}, r: {attn_config: {reuse_kv_layer_idx: -6}}}}",
        13);
    if (!c) fail_msg("%s", clt_last_error());
    /*                           0   1   2   3   4   5   6   7   8   9  10  11  12 */
    static const int window[] = {-1, 16, 16, 16, 16, 16, -1, 16, 16, 16, 16, 16, -1};
    static const int reuse[] = {-1, -1, 1, -1, 3, 3, 0, -1, 7, -1, 9, 9, 0};
    for (int i = 0; i < 13; i++) {
        assert_int_equal(mpt(c)->layer[i].window, window[i]);
        assert_int_equal(mpt(c)->layer[i].reuse_kv, reuse[i]);
    }
    clt_config_free(c);
    static const struct {
        const char *blocks, *word;
    } bad[] = {{"{order: [{name: default}], overrides: {}}", "n_layers is 2"},
               {"{order: [{name: default, repeat: 3}], overrides: {}}", "more than 2"},
               {"{order: [{repeat: 1000000000000, order: []}], overrides: {}}", "0 layers"},
               {"{order: [{name: x, repeat: 2}], overrides: {}}", "'x'"},
               {"{order: [{}], overrides: {}}", "either name or order"},
               {"{overrides: {}}", "needs order"},
               {"{order: []}", "needs overrides"},
               {"{order: [], overrides: {default: {}}}", "default"},
               {"{order: [{name: a, repeat: 2}], overrides: {a: {attn_config: {reuse_kv_layer_idx: -1}}}}",
                "inside"},
               {"{order: [{name: a, repeat: 2}], overrides: {a: {attn_config: {nope: true}}}}", "nope"},
               {"{order: [{name: a, repeat: 2}], overrides: {a: {ffn_config: {}}}}", "attn_config"},
               {"{order: [{name: a, repeat: 2}], overrides: {a: {attn_config: {alibi: true}}}}", "alibi"},
               {"{ordre: [], overrides: {}}", "ordre"}};
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) {
        if (load_blocks(bad[i].blocks, 2)) fail_msg("%s was not refused", bad[i].blocks);
        if (!strstr(clt_last_error(), bad[i].word))
            fail_msg("'%s' does not say %s", clt_last_error(), bad[i].word);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_json_reads_back),
        cmocka_unit_test(transformers_names_the_eps),
        cmocka_unit_test(unknown_families_are_refused),
        cmocka_unit_test(golden_runs_have_their_models),
        cmocka_unit_test(block_overrides_reach_their_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
