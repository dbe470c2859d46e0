/* The families of the transformers package, compared with it in double (test/golden/families): a folder's
 * config.json and weights give its logits, its loss and its gradients, under its names of tensors. Bounds as
 * in test_golden_forward.c: the package's own fp32 run differs by up to 8e-7 of the largest logit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "test/golden_util.h"
#include "test/test_util.h"

enum { SAMPLES = 4, EVERY = 3 };
static const double LOGIT_BOUND = 5e-6, LOSS_BOUND = 2e-6, GRAD_BOUND = 2e-5, NORM_BOUND = 1e-5;

typedef struct {
    const char *set;
    const int32_t *padding; /* pad_token_id in place of the folder's, or NULL */
    clt_model_config *cfg;
    clt_slab_table table;
    clt_slab *weights, *grads;
    clt_weight_map *map;
    clt_model *model;
    json_t *want;
    clt_safetensors *tensors;
    int64_t T, V;
    int32_t *tokens, *targets;
} golden;

static char *in_set(const golden *g, const char *file) {
    return clt_format("test/golden/families/%s/%s", g->set, file);
}

static clt_safetensors *open_tensors(const golden *g, const char *file) {
    clt_safetensors *s;
    char *path = in_set(g, file);
    tu_assert_ok(clt_safetensors_open(path, &s), path);
    clt_free(path);
    return s;
}

static float *tensor(clt_safetensors *s, const char *name, size_t *count) {
    int i = clt_safetensors_find(s, name);
    if (i < 0) return NULL;
    *count = clt_safetensors_at(s, i)->count;
    float *x = clt_malloc(*count * sizeof *x);
    tu_assert_ok(clt_safetensors_read_f32(s, i, 0, x, *count), name);
    return x;
}

/* --- opening --- */

static void load_weights(golden *g, const char *folder) {
    clt_weight_source *s;
    clt_weight_map *map;
    const clt_ckpt_part part = {.role = "weight", .slab = g->weights};
    tu_assert_ok(clt_weight_source_open(folder, &s), folder);
    tu_assert_ok(clt_model_weight_map(g->cfg, &g->table, &map), "map");
    tu_assert_ok(clt_weight_source_use_map(s, &g->table, map, NULL), folder);
    tu_assert_ok(clt_weight_source_load(s, &g->table, &part, 1, NULL), folder);
    clt_weight_source_close(s);
}

static void load_tokens(golden *g) {
    clt_safetensors *s = open_tensors(g, "tokens.safetensors");
    int i = clt_safetensors_find(s, "input_ids");
    g->T = (int64_t)clt_safetensors_at(s, i)->shape[1];
    size_t n = (size_t)(SAMPLES * g->T);
    g->tokens = clt_malloc(n * 4);
    g->targets = clt_malloc(n * 4);
    tu_assert_ok(clt_safetensors_read(s, i, 0, g->tokens, n * 4), "tokens");
    for (size_t r = 0; r < n; r++) g->targets[r] = (int64_t)(r + 1) % g->T == 0 ? -100 : g->tokens[r + 1];
    clt_safetensors_close(s);
}

static void read_config(golden *g, const char *folder) {
    char *path = clt_path_join(folder, "config.json");
    json_t *j = golden_load(path);
    if (g->padding) json_object_set_new(j, "pad_token_id", json_integer(*g->padding));
    tu_assert_ok(clt_model_config_from_json(j, true, path, &g->cfg), path);
    json_decref(j);
    clt_free(path);
    g->V = clt_model_get_facts(g->cfg).vocab_size;
}

/* shape: microbatch and what differs from a plain pass; seq is set here. */
static void open_golden(golden *g, const char *hf, clt_model_shape shape) {
    char *folder = in_set(g, hf), *forward = in_set(g, "forward.json");
    read_config(g, folder);
    g->want = golden_load(forward);
    tu_assert_ok(clt_model_table(g->cfg, &g->table), "table");
    tu_assert_ok(clt_model_weight_map(g->cfg, &g->table, &g->map), "map");
    tu_assert_ok(clt_slab_create(tu_device(0), &g->table, 256 << 10, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(0), &g->table, 256 << 10, "gradients", &g->grads), "gradients");
    tu_fill_nan(g->grads);
    load_weights(g, folder);
    load_tokens(g);
    shape.seq = g->T;
    tu_assert_ok(clt_model_create(g->cfg, &shape, tu_ops(0), g->weights, NULL, &g->model), "model");
    g->tensors = open_tensors(g, "forward.safetensors");
    assert_int_equal(clt_model_param_count(g->cfg), golden_int(g->want, "n_params"));
    clt_free(folder);
    clt_free(forward);
}

static void close_golden(golden *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_weight_map_free(g->map);
    clt_model_config_free(g->cfg);
    clt_safetensors_close(g->tensors);
    json_decref(g->want);
    clt_free(g->tokens);
    clt_free(g->targets);
}

/* --- comparing --- */

static double logsumexp(const float *x, int64_t n) {
    double m = tu_largest(x, (size_t)n), sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - m);
    return m + log(sum);
}

/* Of row 0 every third position's logits, of all rows each position's log-sum-exp. */
static void check_logits(golden *g) {
    const size_t V = (size_t)g->V, T = (size_t)g->T;
    size_t n;
    double worst = 0;
    float *want = tensor(g->tensors, "logits", &n), *got = clt_malloc(T * V * sizeof *got);
    json_t *sums = json_object_get(g->want, "logsumexp");
    for (size_t s = 0; s < SAMPLES; s++) {
        tu_assert_ok(clt_model_logits(g->model, g->tokens + s * T, g->T, 0, g->T, got), "logits");
        for (size_t t = 0; t < T; t++) {
            double sum = json_number_value(json_array_get(json_array_get(sums, s), t));
            worst = fmax(worst, fabs(logsumexp(got + t * V, g->V) / sum - 1));
            if (s == 0 && t % EVERY == 0)
                worst = fmax(worst, tu_relative(got + t * V, want + t / EVERY * V, V));
        }
    }
    printf("  logits %.2g\n", worst);
    assert_true(n == (T + EVERY - 1) / EVERY * V);
    assert_true(worst < LOGIT_BOUND);
    clt_free(want);
    clt_free(got);
}

static void check_loss(golden *g) {
    clt_buffer *loss;
    float sums[SAMPLES];
    const int64_t targets = SAMPLES * (g->T - 1);
    const clt_batch b = {.samples = SAMPLES,
                         .field = {[CLT_TEXT_TOKENS] = g->tokens, [CLT_TEXT_TARGETS] = g->targets}};
    tu_assert_ok(clt_buffer_create(tu_device(0), sizeof sums, "losses", &loss), "losses");
    const clt_model_pass pass = {.batch = &b,
                                 .weight = (float)(1.0 / (double)targets),
                                 .lane_first = true,
                                 .lane_last = true,
                                 .grads = g->grads,
                                 .sample_loss = {loss, 0}};
    tu_assert_ok(clt_model_train(g->model, &pass), "train");
    tu_assert_ok(clt_buffer_read(loss, 0, sums, sizeof sums), "losses");
    double got = 0, want = json_real_value(json_object_get(g->want, "loss"));
    for (int i = 0; i < SAMPLES; i++) got += (double)sums[i];
    got /= (double)targets;
    printf("  %-10s loss %.2g", g->set, fabs(got - want));
    assert_true(fabs(got - want) < LOSS_BOUND);
    clt_buffer_destroy(loss);
}

static clt_status read_gradient(void *ctx, int entry, uint64_t first, float *dst, uint64_t count) {
    const golden *g = ctx;
    return clt_slab_read(g->grads, g->table.entry[entry].offset + first, dst, count);
}

/* Its exact value is zero where keys are not rotated; see README.md of the data. */
static bool has_key_part(const char *name) {
    return strstr(name, "k_proj.bias") || strstr(name, "c_attn.bias") || strstr(name, "query_key_value.bias");
}

/* Every gradient in the layout of the package's files: its norm, and its values where they are stored. */
static void check_gradients(golden *g) {
    clt_weight_mapper mapper = {.map = g->map, .to_file = true, .read = read_gradient, .ctx = g};
    json_t *norms = json_object_get(g->want, "grad_l2");
    double worst = 0, worst_norm = 0;
    assert_int_equal(json_object_size(norms), g->map->files);
    for (int f = 0; f < g->map->files; f++) {
        const clt_map_file *file = &g->map->file[f];
        size_t count = 1, stored = 0;
        for (int d = 0; d < file->dims; d++) count *= (size_t)file->shape[d];
        float *got = clt_malloc(count * sizeof *got);
        tu_assert_ok(clt_weight_mapper_read(&mapper, f, 0, got, count), file->name);
        double sum = 0, norm = json_real_value(json_object_get(norms, file->name));
        for (size_t i = 0; i < count; i++) sum += (double)got[i] * (double)got[i];
        if (!has_key_part(file->name)) worst_norm = fmax(worst_norm, fabs(sqrt(sum) / norm - 1));
        char *key = clt_format("grad.%s", file->name);
        float *want = tensor(g->tensors, key, &stored);
        assert_true(stored <= count);
        if (want && !has_key_part(file->name)) worst = fmax(worst, tu_relative(got, want, stored));
        clt_free(key);
        clt_free(want);
        clt_free(got);
    }
    clt_weight_mapper_free(&mapper);
    printf("  gradients %.2g, their norms %.2g", worst, worst_norm);
    assert_true(worst < GRAD_BOUND);
    assert_true(worst_norm < NORM_BOUND);
}

static void check_set(const char *set, const char *hf, clt_recompute recompute) {
    golden g = {.set = set};
    open_golden(&g, hf, (clt_model_shape){.microbatch = SAMPLES, .training = true, .recompute = recompute});
    check_loss(&g);
    check_gradients(&g);
    check_logits(&g);
    close_golden(&g);
}

/* The embedding's gradient in the layout of the file, and the sum of squares of all others. */
static float *embedding_gradient(const char *set, const int32_t *padding, size_t *count_out, double *others) {
    golden g = {.set = set, .padding = padding};
    open_golden(&g, "hf", (clt_model_shape){.microbatch = SAMPLES, .training = true});
    check_loss(&g);
    clt_weight_mapper mapper = {.map = g.map, .to_file = true, .read = read_gradient, .ctx = &g};
    float *found = NULL;
    *others = 0;
    for (int f = 0; f < g.map->files; f++) {
        const clt_map_file *file = &g.map->file[f];
        size_t count = 1;
        for (int d = 0; d < file->dims; d++) count *= (size_t)file->shape[d];
        float *got = clt_malloc(count * sizeof *got);
        tu_assert_ok(clt_weight_mapper_read(&mapper, f, 0, got, count), file->name);
        if (strcmp(file->name, "model.embed_tokens.weight") == 0) {
            found = got;
            *count_out = count;
            continue;
        }
        for (size_t i = 0; i < count; i++) *others += (double)got[i] * (double)got[i];
        clt_free(got);
    }
    clt_weight_mapper_free(&mapper);
    close_golden(&g);
    return found;
}

/* torch's padding_idx: where the padding id occurs in a text, its lookup has no gradient. Rows of other ids
 * and other tensors have the same bits; a tied row keeps what it has as the head's. */
static void padding_rows_are_not_looked_up(void **state) {
    (void)state;
    static const char *const some[] = {"llama3", "llama-tied", "mistral", "qwen2-bf16", "gemma2"};
    for (size_t i = 0; i < CLT_COUNT_OF(some); i++) {
        golden g = {.set = some[i]};
        open_golden(&g, "hf", (clt_model_shape){.microbatch = SAMPLES, .training = true});
        const size_t V = (size_t)g.V;
        size_t count;
        const int32_t pad = g.tokens[g.T / 2], unused = 1;
        const bool tied = strcmp(some[i], "llama3") != 0 && strcmp(some[i], "mistral") != 0;
        close_golden(&g);
        double others, others_padded;
        float *plain = embedding_gradient(some[i], &unused, &count, &others);
        float *padded = embedding_gradient(some[i], &pad, &count, &others_padded);
        const size_t C = count / V;
        double row = 0;
        for (size_t v = 0; v < V; v++)
            if (v != (size_t)pad) assert_memory_equal(plain + v * C, padded + v * C, C * sizeof *plain);
        for (size_t c = 0; c < C; c++) row += fabs((double)padded[(size_t)pad * C + c]);
        assert_memory_not_equal(plain + (size_t)pad * C, padded + (size_t)pad * C, C * sizeof *plain);
        assert_true(tied ? row > 0 : row == 0);
        assert_true(others == others_padded);
        clt_free(plain);
        clt_free(padded);
    }
}

static const char *const sets[] = {"gpt2",       "llama3",   "llama-tied", "mistral",
                                   "qwen2-bf16", "gpt-neox", "gemma2"};

static void every_family_agrees(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++)
        for (clt_recompute again = CLT_RECOMPUTE_NONE; again <= CLT_RECOMPUTE_BLOCKS; again++)
            check_set(sets[i], "hf", again);
    check_set("gpt2", "hf-hub-names", CLT_RECOMPUTE_NONE);
}

/* A text that grows token by token, with kept keys and values, has the logits of one pass. */
static void cached_logits_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) {
        golden g = {.set = sets[i]};
        open_golden(&g, "hf", (clt_model_shape){.microbatch = 1, .texts = 1});
        const size_t V = (size_t)g.V;
        size_t n;
        double worst = 0;
        float *want = tensor(g.tensors, "logits", &n), *got = clt_malloc(V * sizeof *got);
        for (int64_t t = 0; t < g.T; t++) {
            tu_assert_ok(clt_model_logits(g.model, g.tokens, t + 1, t, 1, got), "logits");
            if (t % EVERY == 0) worst = fmax(worst, tu_relative(got, want + (size_t)(t / EVERY) * V, V));
        }
        printf("  %-10s logits token by token %.2g\n", g.set, worst);
        assert_true(worst < LOGIT_BOUND);
        clt_free(want);
        clt_free(got);
        close_golden(&g);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_family_agrees),
                                       cmocka_unit_test(cached_logits_agree),
                                       cmocka_unit_test(padding_rows_are_not_looked_up)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
