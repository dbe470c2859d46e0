/* The oracles of AdamW, Adam, Adagrad and Lion against DeepSpeed's own operators: 12 steps of three tensors
 * (test/golden/deepspeed). DeepSpeed 0.19.8's are within 4.5e-7 of the formulas in double. The bound of the
 * weights here is 2e-6: 12 steps, each with a few roundings, on either side. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/golden_util.h"

#define GOLDEN "test/golden/deepspeed/optimizers"
enum { STEPS = 12, MOST = 64 };

static uint64_t read_tensor(clt_safetensors *s, const char *name, float out[MOST]) {
    const int i = clt_safetensors_find(s, name);
    if (i < 0) fail_msg("no tensor %s", name);
    const clt_st_tensor *t = clt_safetensors_at(s, i);
    uint64_t n = 1;
    for (int k = 0; k < t->dims; k++) n *= t->shape[k];
    assert_true(n <= MOST);
    tu_assert_ok(clt_safetensors_read_f32(s, i, 0, out, n), name);
    return n;
}

typedef struct {
    const char *name;
    bool lion, l2, adagrad;
} rule;

/* As clt_engine_update.c fills it for adamw and adagrad, and for decoupled_lionw with weight_decay times lr.
 */
static clt_optimizer_group make_group(const rule *of, const json_t *d, double factor, int step) {
    const json_t *betas = json_object_get(d, "betas");
    const double lr = json_number_value(json_object_get(d, "lr")) * factor,
                 b1 = json_number_value(json_array_get(betas, 0)),
                 b2 = of->adagrad ? 1 : json_number_value(json_array_get(betas, 1)),
                 wd = json_number_value(json_object_get(d, "weight_decay"));
    clt_optimizer_group g = tu_adam_group(lr, b1, b2, json_number_value(json_object_get(d, "eps")), step);
    const bool corrected = !of->adagrad && !json_is_false(json_object_get(d, "bias_correction"));
    if (!corrected) g.step_size = (float)lr, g.bias_correction = 1.0f;
    if (of->adagrad) g.one_minus_beta2 = 1.0f;
    g.decay = of->l2 ? 1.0f : (float)(1.0 - lr * wd);
    g.l2 = of->l2 ? (float)wd : 0.0f;
    return g;
}

static double follow(clt_safetensors *s, const rule *of, const json_t *c, const char *tensor) {
    float p[MOST], g[MOST], m[MOST] = {0}, v[MOST] = {0}, want[MOST];
    double worst = 0;
    char *key = clt_format("start.%s", tensor);
    const uint64_t n = read_tensor(s, key, p);
    clt_free(key);
    for (int i = 0; i < STEPS; i++) {
        const double factor = json_number_value(json_array_get(json_object_get(c, "lr_factor"), (size_t)i));
        const clt_optimizer_group group = make_group(of, json_object_get(c, "defaults"), factor, i + 1);
        key = clt_format("grad.%d.%s", i, tensor);
        read_tensor(s, key, g);
        clt_free(key);
        if (of->lion)
            clt_ref_lion(n, p, g, m, &group, 1.0f);
        else
            clt_ref_adamw(n, p, g, m, v, &group, 1.0f);
        key = clt_format("%s.%d.%s", of->name, i, tensor);
        const bool known = clt_safetensors_find(s, key) >= 0; /* steps 0, 1, 7, 11 */
        if (known) read_tensor(s, key, want);
        clt_free(key);
        for (uint64_t k = 0; k < n && known; k++) worst = fmax(worst, fabs((double)p[k] - (double)want[k]));
    }
    return worst;
}

static void weights_follow_deepspeed(void **state) {
    (void)state;
    static const rule rules[] = {{.name = "adamw"},
                                 {.name = "adam-defaults"},
                                 {.name = "fused-adamw"},
                                 {.name = "adamw-no-bias-correction"},
                                 {.name = "adam-l2", .l2 = true},
                                 {.name = "fused-adam-l2", .l2 = true},
                                 {.name = "adagrad", .l2 = true, .adagrad = true},
                                 {.name = "lion", .lion = true},
                                 {.name = "lion-defaults", .lion = true}};
    static const char *const tensors[] = {"w", "b", "s"};
    clt_safetensors *s;
    json_t *all = golden_load(GOLDEN ".json");
    tu_assert_ok(clt_safetensors_open(GOLDEN ".safetensors", &s), "golden steps");
    for (size_t i = 0; i < CLT_COUNT_OF(rules); i++) {
        const json_t *c = json_object_get(json_object_get(all, "cases"), rules[i].name);
        assert_true(json_is_object(c));
        for (size_t k = 0; k < CLT_COUNT_OF(tensors); k++) {
            const double worst = follow(s, &rules[i], c, tensors[k]);
            print_message("%s, %s: %.3g\n", rules[i].name, tensors[k], worst);
            if (!(worst <= 2e-6)) fail_msg("%s, %s: %.3g from DeepSpeed's", rules[i].name, tensors[k], worst);
        }
    }
    clt_safetensors_close(s);
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_follow_deepspeed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
