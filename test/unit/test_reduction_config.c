/* Which configurations let ranks exchange gradients in bf16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_log.h"
#include "runtime/train/config/clt_config.h"

#define BASE "test/golden/mpt-learned/train.yaml"

/* BASE is fp32 without fsdp_config. */
static void reduction_type(void **state) {
    static const char *const amp = "precision=amp_bf16", *const exact = "cltrain.numerics=exact",
                             *const pure = "fsdp_config={mixed_precision: PURE}";
    static const struct {
        const char *over[3];
        int n;
        bool bf16;
    } cases[] = {{{amp}, 1, false},
                 {{pure}, 1, false},
                 {{pure, amp}, 2, true},
                 {{pure, amp, exact}, 3, false},
                 {{pure, "precision=amp_fp16"}, 2, false},
                 {{amp, "fsdp_config={mixed_precision: DEFAULT}"}, 2, false},
                 {{amp, "fsdp_config={mixed_precision: {param_dtype: bf16, reduce_dtype: fp32}}"}, 2, false},
                 {{amp, "fsdp_config={mixed_precision: {param_dtype: bf16}}"}, 2, false},
                 {{amp, "fsdp_config={mixed_precision: {param_dtype: fp32, reduce_dtype: bf16}}"}, 2, true}};
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        clt_config *c = NULL;
        if (clt_config_load(BASE, cases[i].over, (size_t)cases[i].n, &c) != CLT_OK)
            fail_msg("case %zu: %s", i, clt_last_error());
        if (c->reduce_bf16 != cases[i].bf16) fail_msg("case %zu: %d", i, c->reduce_bf16);
        clt_config_free(c);
    }
}

static void what_is_refused(void **state) {
    static const struct {
        const char *over, *word;
    } cases[] = {{"fsdp_config={mixed_precision: HALF}", "PURE"},
                 {"fsdp_config={mixed_precision: fp32}", "PURE"},
                 {"fsdp_config={mixed_precision: 1}", "PURE"},
                 {"fsdp_config={mixed_precision: {reduce_dtype: fp8}}", "bf16"},
                 {"fsdp_config={mixed_precision: {reduce_dtype: PURE}}", "bf16"},
                 {"fsdp_config={mixed_precision: {reduce_type: bf16}}", "reduce_type"}};
    (void)state;
    clt_error_quiet(true);
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        clt_config *c = NULL;
        if (clt_config_load(BASE, &cases[i].over, 1, &c) != CLT_BAD_CONFIG)
            fail_msg("%s loads", cases[i].over);
        assert_non_null(strstr(clt_last_error(), "fsdp_config.mixed_precision"));
        assert_non_null(strstr(clt_last_error(), cases[i].word));
    }
    clt_error_quiet(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reduction_type), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
