/* The model compared with LLM Foundry: logits, loss, activations and every gradient of four small models,
 * computed by LLM Foundry in double (test/golden/mpt-X/README.md). Bounds: LLM Foundry's fp32 run differs
 * from its fp64 run by up to 8e-7 of the largest logit and 1.7e-6 of a tensor's largest gradient. This model
 * adds in another order (one chain per output instead of blocks), so five and ten times that are allowed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/model/mpt/clt_mpt_config.h"
#include "test/test_util.h"

enum { SAMPLES = 4 };
static const double LOGIT_BOUND = 4e-6, GRAD_BOUND = 2e-5, LOSS_BOUND = 2e-6;

typedef struct {
    clt_model_config *cfg;
    clt_slab_table table;
    clt_slab *weights, *grads;
    clt_model *model;
    clt_safetensors *want;
    int64_t T;
    int32_t *tokens, *targets;
} golden;

static char *in_set(const char *set, const char *file) {
    return clt_format("test/golden/mpt-%s/%s", set, file);
}

static float *tensor(clt_safetensors *s, const char *name, size_t *count) {
    int i = clt_safetensors_find(s, name);
    if (i < 0) fail_msg("%s has no tensor %s", clt_safetensors_path(s), name);
    *count = clt_safetensors_at(s, i)->count;
    float *x = clt_malloc(*count * sizeof *x);
    tu_assert_ok(clt_safetensors_read_f32(s, i, 0, x, *count), name);
    return x;
}

static clt_safetensors *open_tensors(const char *set, const char *file) {
    clt_safetensors *s;
    char *path = in_set(set, file);
    tu_assert_ok(clt_safetensors_open(path, &s), path);
    clt_free(path);
    return s;
}

static void load_weights(golden *g, const char *set) {
    clt_safetensors *s = open_tensors(set, "hf/model.safetensors");
    for (int i = 0; i < g->table.n; i++) {
        size_t n;
        float *x = tensor(s, g->table.entry[i].name, &n);
        assert_int_equal(n, g->table.entry[i].count);
        tu_assert_ok(clt_slab_write(g->weights, g->table.entry[i].offset, x, n), "write");
        clt_free(x);
    }
    clt_safetensors_close(s);
}

static void load_tokens(golden *g, const char *set) {
    clt_safetensors *s = open_tensors(set, "tokens.safetensors");
    int i = clt_safetensors_find(s, "input_ids");
    g->T = (int64_t)clt_safetensors_at(s, i)->shape[1];
    size_t n = (size_t)(SAMPLES * g->T);
    g->tokens = clt_malloc(n * 4);
    g->targets = clt_malloc(n * 4);
    tu_assert_ok(clt_safetensors_read(s, i, 0, g->tokens, n * 4), "tokens");
    for (size_t r = 0; r < n; r++) g->targets[r] = (int64_t)(r + 1) % g->T == 0 ? -100 : g->tokens[r + 1];
    clt_safetensors_close(s);
}

static void open_golden(golden *g, const char *set, int device, clt_recompute recompute) {
    char *path = in_set(set, "hf/config.json");
    json_t *j;
    tu_assert_ok(clt_json_load(path, 1 << 20, 16, &j), path);
    tu_assert_ok(clt_model_config_from_json(j, true, path, &g->cfg), path);
    json_decref(j);
    clt_free(path);
    tu_assert_ok(clt_model_table(g->cfg, &g->table), "table");
    /* Pieces of 256 KiB, so that the tensors are in several buffers. */
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 256 << 10, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 256 << 10, "gradients", &g->grads),
                 "gradients");
    tu_fill_nan(g->grads); /* what an earlier step left must not count */
    load_weights(g, set);
    load_tokens(g, set);
    clt_model_shape shape = {.microbatch = SAMPLES, .seq = g->T, .training = true, .recompute = recompute};
    tu_assert_ok(clt_model_create(g->cfg, &shape, tu_ops(device), g->weights, NULL, &g->model), "model");
    g->want = open_tensors(set, "forward.safetensors");
}

static void close_golden(golden *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->cfg);
    clt_safetensors_close(g->want);
    clt_free(g->tokens);
    clt_free(g->targets);
}

static void check_logits(golden *g) {
    size_t n, V = (size_t)clt_model_get_facts(g->cfg).vocab_size, T = (size_t)g->T;
    float *want = tensor(g->want, "logits", &n), *got = clt_malloc(n * sizeof *got);
    for (size_t s = 0; s < SAMPLES; s++)
        tu_assert_ok(clt_model_logits(g->model, g->tokens + s * T, g->T, 0, g->T, got + s * T * V), "logits");
    double d = tu_relative(got, want, n);
    printf("    logits %.2g", d);
    assert_true(d < LOGIT_BOUND);
    clt_free(want);
    clt_free(got);
}

static void check_activations(golden *g) {
    size_t n;
    char name[32];
    const int layers = (int)clt_model_get_facts(g->cfg).layers;
    for (int i = -1; i <= layers; i++) {
        snprintf(name, sizeof name, i < 0 ? "emb" : i < layers ? "block%d" : "norm_f", i);
        char *key = clt_format("act.%s", name);
        float *want = tensor(g->want, key, &n), *got = clt_malloc(n * sizeof *got);
        tu_assert_ok(clt_model_activation(g->model, name, got, n), name);
        double d = tu_relative(got, want, n);
        if (d >= LOGIT_BOUND) fail_msg("%s differs by %g of its largest value", name, d);
        clt_free(want);
        clt_free(got);
        clt_free(key);
    }
}

/* The exact gradient of these is zero: the key part of Wqkv.bias without rope or qk norm, and k_ln.bias. */
static void mask_zero_gradients(const golden *g, const char *name, float *x) {
    const clt_mpt_config *c = (const clt_mpt_config *)g->cfg;
    int64_t q = c->n_heads * c->head_dim, k = c->kv_n_heads * c->head_dim;
    bool bias = strstr(name, "Wqkv.bias") != NULL && c->rope == CLT_ROPE_NONE;
    if (bias)
        for (int64_t i = 0; i < k; i++) x[q + i] = 0;
    if (strstr(name, "k_ln.bias"))
        for (int64_t i = 0; i < k; i++) x[i] = 0;
}

static void check_gradients(golden *g, double want_norm) {
    double worst = 0, sum = 0;
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        size_t n;
        char *key = clt_format("grad.%s", e->name);
        float *want = tensor(g->want, key, &n), *got = clt_malloc(n * sizeof *got);
        assert_int_equal(n, e->count);
        tu_assert_ok(clt_slab_read(g->grads, e->offset, got, n), key);
        for (size_t k = 0; k < n; k++) sum += (double)got[k] * (double)got[k];
        mask_zero_gradients(g, e->name, got);
        mask_zero_gradients(g, e->name, want);
        double d = tu_largest(want, n) > 0 ? tu_relative(got, want, n) : 0;
        if (d >= GRAD_BOUND) fail_msg("gradient of %s differs by %g of its largest value", e->name, d);
        worst = fmax(worst, d);
        clt_free(want);
        clt_free(got);
        clt_free(key);
    }
    printf("  gradients %.2g  norm %.2g\n", worst, fabs(sqrt(sum) / want_norm - 1));
    assert_true(fabs(sqrt(sum) / want_norm - 1) < 1e-5);
}

static void check_set(const char *set, int device, clt_recompute recompute) {
    golden g = {0};
    clt_buffer *loss;
    float sums[SAMPLES];
    char *path = in_set(set, "forward.json");
    json_t *j;
    tu_assert_ok(clt_json_load(path, 1 << 20, 16, &j), path);
    clt_free(path);
    printf("  %s on %s%s\n", set, tu_device_name(device),
           recompute == CLT_RECOMPUTE_BLOCKS  ? ", blocks recomputed"
           : recompute == CLT_RECOMPUTE_NORMS ? ", norms recomputed"
                                              : "");
    open_golden(&g, set, device, recompute);
    tu_assert_ok(clt_buffer_create(tu_device(device), sizeof sums, "losses", &loss), "losses");
    int64_t targets = SAMPLES * (g.T - 1);
    const clt_batch b = {.samples = SAMPLES,
                         .field = {[CLT_TEXT_TOKENS] = g.tokens, [CLT_TEXT_TARGETS] = g.targets}};
    const clt_model_pass pass = {.batch = &b,
                                 .weight = (float)(1.0 / (double)targets),
                                 .lane_first = true,
                                 .lane_last = true,
                                 .grads = g.grads,
                                 .sample_loss = {loss, 0}};
    tu_assert_ok(clt_model_train(g.model, &pass), "train");
    tu_assert_ok(clt_buffer_read(loss, 0, sums, sizeof sums), "losses");
    double got = 0, want = json_real_value(json_object_get(j, "loss"));
    for (int i = 0; i < SAMPLES; i++) got += (double)sums[i];
    got /= (double)targets;
    printf("    loss %.2g", fabs(got - want));
    assert_true(fabs(got - want) < LOSS_BOUND);
    if (!recompute) check_activations(&g);
    check_gradients(&g, json_real_value(json_object_get(j, "grad_global_l2")));
    check_logits(&g);
    printf("\n");
    assert_int_equal(clt_model_param_count(g.cfg), json_integer_value(json_object_get(j, "n_params")));
    clt_buffer_destroy(loss);
    close_golden(&g);
    json_decref(j);
}

static void every_set_agrees(void **state) {
    static const char *const sets[] = {"learned", "alibi", "rope", "variants"};
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < CLT_COUNT_OF(sets); i++)
            for (clt_recompute again = CLT_RECOMPUTE_NONE; again <= CLT_RECOMPUTE_BLOCKS; again++)
                check_set(sets[i], d, again);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_set_agrees)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
