/* Gradients against finite differences: along the gradient of one tensor the loss must change by its norm.
 * Every combination of a block's form (both branches from the block's input, norms after branches, norms that
 * multiply by 1 + weight, scaled embeddings, partly rotated heads, dropout) has biases, so that each way in
 * which a bias gradient is made is covered. So are both poolings of a Vision Transformer.
 *
 * Bound: the losses are sums of fp32 terms with errors of about 1e-6 of their mean, and the step changes them
 * by at least 1e-3 where the gradient's norm is not tiny; a central difference is off by the square of the
 * step. 2e-3 of the norm covers both; a missing term changes it by far more. */
#include <math.h>
#include <string.h>

#include "test/test_util.h"

enum { T = 16, VOCAB = 40, SAMPLES = 2, TARGETS = SAMPLES * T };
static const double BOUND = 2e-3, STEP = 0.01, SMALLEST = 0.02;

#define BASE "{'d_model': 32, 'n_heads': 2, 'n_layers': 2, 'max_seq_len': 16, 'vocab_size': 40"
#define ROPE "'rope': true, 'rope_impl': 'hf', 'rope_fraction': 0.5"
#define GLU ", 'ffn_config': {'ffn_type': 'mptglu', 'ffn_act_fn': {'name': 'gelu', 'approximate': 'tanh'}}"

#define VIT                                                                                                  \
    "{'name': 'vit', 'image_size': 13, 'patch_size': 5, 'width': 32, 'heads': 2, 'depth': 2, 'classes': 7"

static const struct {
    const char *model;
    bool dropout;
} cases[] = {
    {BASE "}", false},
    {BASE ", 'parallel_residual': true, 'embedding_scale': 3, 'attn_config': {" ROPE "}}", false},
    {BASE ", 'parallel_residual': true, 'resid_pdrop': 0.2, 'emb_pdrop': 0.1" GLU "}", true},
    {BASE ", 'post_norms': true, 'attn_config': {" ROPE ", 'fused_qkv': false}" GLU "}", false},
    {BASE ", 'post_norms': true, 'norm_offset': 1, 'norm_type': 'rmsnorm', 'embedding_scale': 2,"
          " 'final_logit_softcapping': 3, 'tie_word_embeddings': false,"
          " 'attn_config': {'attn_logit_softcapping': 2, 'sliding_window_size': 5}}",
     false},
    {BASE ", 'post_norms': true, 'parallel_residual': true, 'norm_offset': 1, 'emb_pdrop': 0.1}", true},
    {VIT "}", false},
    {VIT ", 'pooling': 'avg', 'drop_path': 0.3, 'pos_dropout': 0.1, 'attn_dropout': 0.1}", true},
};

typedef struct {
    clt_model_config *config;
    clt_slab_table table;
    clt_slab *weights, *grads;
    clt_model *model;
    clt_batch batch;
    void *storage;
    clt_ref losses;
    bool dropout;
    int targets;
} rig;

static void open_rig(rig *g, size_t number, clt_recompute recompute) {
    *g = (rig){.config = tu_model(cases[number].model), .dropout = cases[number].dropout};
    tu_assert_ok(clt_model_table(g->config, &g->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(0), &g->table, 0, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(0), &g->table, 0, "gradients", &g->grads), "gradients");
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *x = tu_random(e->count, (uint64_t)i, 0.4f);
        tu_assert_ok(clt_slab_write(g->weights, e->offset, x, e->count), e->name);
        clt_free(x);
    }
    tu_assert_ok(clt_model_example(g->config, T, SAMPLES, &g->storage, &g->batch), "example");
    int32_t *tokens = (int32_t *)g->batch.field[CLT_TEXT_TOKENS];
    int32_t *targets = (int32_t *)g->batch.field[CLT_TEXT_TARGETS];
    const bool text = clt_model_get_facts(g->config).vocab_size > 0; /* images stay those of the example */
    g->targets = text ? TARGETS : SAMPLES;
    for (uint64_t i = 0; text && i < TARGETS; i++) {
        tokens[i] = (int32_t)tu_random_below(5, i, VOCAB);
        targets[i] = (int32_t)tu_random_below(6, i, VOCAB);
    }
    g->batch.samples = SAMPLES;
    g->losses = tu_upload(0, (float[SAMPLES]){0}, SAMPLES);
    const clt_model_shape shape = {.microbatch = SAMPLES, .seq = T, .training = true, .recompute = recompute};
    tu_assert_ok(clt_model_create(g->config, &shape, tu_ops(0), g->weights, NULL, &g->model), "model");
}

static void close_rig(rig *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->config);
    clt_free(g->storage);
    tu_release();
}

/* The loss of a pass, which also makes the gradients. */
static double loss_of(const rig *g) {
    const clt_model_pass p = {.batch = &g->batch,
                              .weight = 1.0f / (float)g->targets,
                              .step = 3,
                              .seed = 11,
                              .dropout = g->dropout,
                              .lane_first = true,
                              .lane_last = true,
                              .grads = g->grads,
                              .sample_loss = g->losses};
    double sum = 0;
    float losses[SAMPLES];
    tu_assert_ok(clt_model_train(g->model, &p), "train");
    tu_assert_ok(clt_ref_read_f32(g->losses, losses, SAMPLES), "losses");
    for (int i = 0; i < SAMPLES; i++) sum += (double)losses[i];
    return sum / g->targets;
}

/* The loss with x + length * direction as tensor e. */
static double moved(const rig *g, const clt_slab_entry *e, const float *x, const float *direction,
                    double length) {
    float *y = clt_malloc(e->count * sizeof *y);
    for (uint64_t i = 0; i < e->count; i++) y[i] = (float)((double)x[i] + length * (double)direction[i]);
    tu_assert_ok(clt_slab_write(g->weights, e->offset, y, e->count), e->name);
    clt_free(y);
    return loss_of(g);
}

/* Returns whether the gradient is large enough to be compared. */
static bool check_tensor(const rig *g, const clt_slab_entry *e, float *gradient, double *worst) {
    double norm = 0;
    for (uint64_t i = 0; i < e->count; i++) norm += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(norm);
    assert_true(isfinite(norm));
    if (norm < SMALLEST) return false;
    for (uint64_t i = 0; i < e->count; i++) gradient[i] = (float)((double)gradient[i] / norm);
    float *x = clt_malloc(e->count * sizeof *x);
    tu_assert_ok(clt_slab_read(g->weights, e->offset, x, e->count), e->name);
    const double slope = (moved(g, e, x, gradient, STEP) - moved(g, e, x, gradient, -STEP)) / (2 * STEP);
    tu_assert_ok(clt_slab_write(g->weights, e->offset, x, e->count), e->name);
    clt_free(x);
    const double off = fabs(slope / norm - 1);
    if (!(off < BOUND)) fail_msg("%s: the norm is %g, the slope %g", e->name, norm, slope);
    *worst = fmax(*worst, off);
    return true;
}

static void check_case(size_t number, clt_recompute recompute) {
    rig g;
    int compared = 0;
    double worst = 0;
    open_rig(&g, number, recompute);
    loss_of(&g);
    float *all = clt_malloc(g.table.total * sizeof *all);
    for (int i = 0; i < g.table.n; i++)
        tu_assert_ok(clt_slab_read(g.grads, g.table.entry[i].offset, all + g.table.entry[i].offset,
                                   g.table.entry[i].count),
                     "gradients");
    for (int i = 0; i < g.table.n; i++)
        compared += check_tensor(&g, &g.table.entry[i], all + g.table.entry[i].offset, &worst);
    printf("  case %zu, recompute %d: %d of %d tensors, %.2g of the norm\n", number, (int)recompute, compared,
           g.table.n, worst);
    assert_true(3 * compared > 2 * g.table.n);
    clt_free(all);
    close_rig(&g);
}

static void gradients_are_slopes(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++)
        check_case(i, (clt_recompute)(i % (CLT_RECOMPUTE_BLOCKS + 1)));
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_slopes)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
