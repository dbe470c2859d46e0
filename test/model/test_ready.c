/* The hook that reports gradients as ready during the backward pass: a tensor's gradient at that time must be
 * bit-identical to its final one, and every tensor must be reported exactly once. */
#include <math.h>
#include <string.h>

#include "test/test_util.h"

enum { T = 24, VOCAB = 40, SAMPLES = 3 };

/* Biases, an untied head, a tied embedding with its own accumulator of lookups, grouped keys and values;
 * class tokens and means of patches. */
static const char *const models[] = {
    "{'d_model': 32, 'n_heads': 4, 'n_layers': 3}",
    "{'d_model': 32, 'n_heads': 4, 'n_layers': 2, 'tie_word_embeddings': false, 'no_bias': true, "
    "'attn_config': {'alibi': true}}",
    "{'d_model': 32, 'n_heads': 4, 'n_layers': 3, 'norm_type': 'low_precision_rmsnorm', "
    "'attn_config': {'rope': true, 'rope_impl': 'hf', 'qk_ln': true, 'fused_qkv': false}, 'ffn_config': "
    "{'ffn_type': 'mptglu'}, 'block_overrides': {'order': "
    "[{'name': 'default', 'repeat': 2}, {'name': 'r'}], 'overrides': {'r': {'attn_config': "
    "{'reuse_kv_layer_idx': -1}}}}}",
    "{'name': 'vit', 'image_size': 12, 'patch_size': 4, 'width': 32, 'heads': 2, 'depth': 3, 'classes': 7}",
    "{'name': 'vit', 'image_size': 9, 'patch_size': 3, 'width': 24, 'heads': 3, 'depth': 2, 'classes': 5, "
    "'pooling': 'avg', 'qkv_bias': false}"};

typedef struct {
    const clt_slab_table *table;
    const clt_slab *grads;
    float *at_ready; /* [table->total] */
    int *named;      /* [table->n] how often */
    int calls;
} recorder;

static clt_status record(void *ctx, int first, int end) {
    recorder *r = ctx;
    r->calls++;
    for (int i = first; i < end; i++) {
        const clt_slab_entry *e = &r->table->entry[i];
        r->named[i]++;
        CLT_TRY(clt_slab_read(r->grads, e->offset, r->at_ready + e->offset, e->count));
    }
    return CLT_OK;
}

typedef struct {
    clt_model_config *config;
    clt_slab_table table;
    clt_slab *weights, *grads;
    clt_model *model;
    clt_ref losses;
} rig;

static void open_rig(rig *g, const char *text, int device, clt_recompute recompute) {
    char *with = strstr(text, "vit")
                     ? clt_strdup(text)
                     : clt_format("{'max_seq_len': %d, 'vocab_size': %d, %s", T, VOCAB, text + 1);
    g->config = tu_model(with);
    clt_free(with);
    tu_assert_ok(clt_model_table(g->config, &g->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 0, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 0, "gradients", &g->grads), "gradients");
    tu_assert_ok(clt_model_init_weights(g->config, &g->table, 17, g->weights), "initial weights");
    tu_fill_nan(g->grads); /* what an earlier step left must not count */
    const clt_model_shape shape = {.microbatch = SAMPLES, .seq = T, .training = true, .recompute = recompute};
    tu_assert_ok(clt_model_create(g->config, &shape, tu_ops(device), g->weights, NULL, &g->model), "model");
    g->losses = tu_upload(device, (float[SAMPLES]){0}, SAMPLES);
}

static void close_rig(rig *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->config);
    tu_release();
}

static void train(rig *g, const clt_batch *b, bool first, bool last) {
    const clt_model_pass p = {.batch = b,
                              .weight = 1.0f / (2 * SAMPLES * T),
                              .lane_first = first,
                              .lane_last = last,
                              .grads = g->grads,
                              .sample_loss = g->losses};
    tu_assert_ok(clt_model_train(g->model, &p), "train");
}

static void one_model(const char *text, int device, clt_recompute recompute) {
    rig g = {0};
    void *storage;
    open_rig(&g, text, device, recompute);
    clt_batch b;
    tu_assert_ok(clt_model_example(g.config, T, SAMPLES, &storage, &b), "example");
    recorder r = {.table = &g.table, .grads = g.grads};
    r.at_ready = clt_calloc(g.table.total, sizeof *r.at_ready);
    r.named = clt_calloc((size_t)g.table.n, sizeof *r.named);
    clt_model_set_ready(g.model, record, &r);
    train(&g, &b, true, false); /* the first microbatch of two: nothing is ready */
    assert_int_equal(r.calls, 0);
    train(&g, &b, false, true);
    for (int i = 0; i < g.table.n; i++) {
        const clt_slab_entry *e = &g.table.entry[i];
        float *end = clt_malloc(e->count * sizeof *end);
        if (r.named[i] != 1) fail_msg("%s is reported %d times", e->name, r.named[i]);
        tu_assert_ok(clt_slab_read(g.grads, e->offset, end, e->count), e->name);
        tu_assert_words(e->name, r.at_ready + e->offset, end, e->count);
        for (uint64_t k = 0; k < e->count; k++)
            if (isnan(end[k])) fail_msg("%s: element %zu was added to, not written", e->name, (size_t)k);
        clt_free(end);
    }
    assert_true(r.calls >= 3); /* head, blocks, embedding: not all at the end */
    clt_free(r.at_ready);
    clt_free(r.named);
    clt_free(storage);
    close_rig(&g);
}

static void gradients_are_whole_when_named(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < CLT_COUNT_OF(models); i++)
            one_model(models[i], d, i == 1 ? CLT_RECOMPUTE_NORMS : CLT_RECOMPUTE_NONE);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_whole_when_named)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
