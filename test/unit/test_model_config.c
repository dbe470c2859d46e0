/* The model's configuration as JSON: Foundry's and transformers' config.json, and what is written back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/model/clt_mpt.h"
#include "runtime/train/config/clt_config.h"

/* config.json of the golden sets, and the round trip through our own writer, describe the same model as the
 * YAML. */
static void model_json_reads_back(void **state) {
    (void)state;
    static const char *const sets[] = {"mpt-alibi", "mpt-learned", "mpt-rope", "mpt-variants"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        char *yaml = clt_format("test/golden/%s/train.yaml", sets[i]);
        char *hf = clt_format("test/golden/%s/hf/config.json", sets[i]);
        clt_config *c = NULL;
        if (clt_config_load(yaml, NULL, 0, &c) != CLT_OK) fail_msg("%s: %s", yaml, clt_last_error());
        clt_mpt_config *a = clt_calloc(2, sizeof *a), *b = a + 1;
        assert_int_equal(clt_mpt_config_load_hf(hf, a), CLT_OK);
        assert_memory_equal(a, &c->model, sizeof *a);
        json_t *j = clt_mpt_config_to_json(a);
        assert_non_null(j);
        assert_int_equal(clt_mpt_config_from_json(j, false, NULL, NULL, b), CLT_OK);
        assert_memory_equal(a, b, sizeof *a);
        json_decref(j);
        clt_free(a);
        clt_config_free(c);
        clt_free(yaml);
        clt_free(hf);
    }
}

/* A config.json that transformers wrote says layer_norm_epsilon; Foundry's own word wins, and a YAML has only
 * that. */
static void transformers_names_the_eps(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool hf;
        double eps; /* 0: refused */
    } c[] = {{"{\"layer_norm_epsilon\": 0.001}", true, 0.001},
             {"{\"norm_eps\": 1e-6, \"layer_norm_epsilon\": 0.001}", true, 1e-6},
             {"{\"layer_norm_epsilon\": 0.001}", false, 0}};
    clt_mpt_config *m = clt_calloc(1, sizeof *m);
    for (size_t i = 0; i < CLT_COUNT_OF(c); i++) {
        json_t *j;
        assert_int_equal(clt_json_parse(c[i].text, strlen(c[i].text), 8, "config", &j), CLT_OK);
        clt_status st = clt_mpt_config_from_json(j, c[i].hf, NULL, NULL, m);
        assert_int_equal(st, c[i].eps > 0 ? CLT_OK : CLT_BAD_CONFIG);
        if (st == CLT_OK) assert_true(m->norm_eps == c[i].eps);
        json_decref(j);
    }
    clt_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_json_reads_back),
        cmocka_unit_test(transformers_names_the_eps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
