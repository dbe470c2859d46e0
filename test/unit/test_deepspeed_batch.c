/* The batch triangle of DeepSpeed's ds_config.json: what DeepSpeed itself makes of given and missing sizes
 * (test/golden/deepspeed). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "runtime/base/clt_json.h"
#include "runtime/train/config/clt_deepspeed.h"

#define GOLDEN "test/golden/deepspeed/"
#define NEW "0.19.8"

static json_t *load_json(const char *path) {
    json_t *o;
    if (clt_json_load(path, 1 << 24, 32, &o) != CLT_OK) fail_msg("%s", clt_last_error());
    return o;
}

static bool take(const json_t *given, const char *key, int64_t *out) {
    const json_t *v = json_object_get(given, key);
    if (!v) return false;
    *out = (int64_t)json_number_value(v);
    return true;
}

static void batches_are_deepspeeds(void **state) {
    (void)state;
    json_t *all = load_json(GOLDEN "batch.json"), *one;
    size_t i, good = 0;
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        const json_t *given = json_object_get(one, "given"), *want = json_object_get(one, NEW);
        const int64_t ranks = json_integer_value(json_object_get(one, "world_size"));
        clt_deepspeed_batch b = {0};
        b.has_train = take(given, "train_batch_size", &b.train);
        b.has_micro = take(given, "train_micro_batch_size_per_gpu", &b.micro);
        b.has_accumulation = take(given, "gradient_accumulation_steps", &b.accumulation);
        bool odd = false;
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)given, key, v) odd |=
            !json_is_number(v) || json_number_value(v) != (double)(int64_t)json_number_value(v);
        if (odd) continue; /* the table of keys refuses text, truth values and fractions */
        const char *why = clt_deepspeed_complete(&b, ranks);
        if ((json_object_get(want, "error") != NULL) != (why != NULL))
            fail_msg("case %zu: %s", i, why ? why : "accepted");
        if (why) continue;
        const int64_t got[3] = {b.train, b.micro, b.accumulation};
        for (size_t k = 0; k < 3; k++)
            if (got[k] != (int64_t)json_number_value(json_array_get(want, k)))
                fail_msg("case %zu, %zu: %lld", i, k, (long long)got[k]);
        good++;
    }
    assert_true(good > 20);
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(batches_are_deepspeeds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
