/* attn_uses_sequence_id: attention treats the documents of a sample as separate samples. LLM Foundry masks
 * everything outside a document and counts positions for attn_temperature_tuning from the document's first
 * token (gen_sequence_id_info); ALiBi, rotary positions and windows depend only on differences of positions.
 * So one sample with two documents must have the losses and gradients of two samples. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test/test_util.h"

enum { T = 22, VOCAB = 40, PAIRS = 2 };

static const char *const models[] = {
    "{'attn_config': {'attn_uses_sequence_id': true, 'rope': true, 'attn_temperature_tuning': "
    "{'floor_scale': 3, 'attn_scale': 0.5}}}",
    "{'attn_config': {'attn_uses_sequence_id': true, 'alibi': true, 'sliding_window_size': 6, 'qk_ln': true, "
    "'attn_temperature_tuning': {'floor_scale': 4, 'attn_scale': 0.3}}}",
    "{'learned_pos_emb': false, 'attn_config': {'attn_uses_sequence_id': true}}"};

static clt_model_config *read_config(const char *text) {
    char *with =
        clt_format("{'d_model': 32, 'n_heads': 4, 'n_layers': 2, 'max_seq_len': %d, 'vocab_size': %d, %s",
                   2 * T, VOCAB, text + 1);
    clt_model_config *c = tu_model(with);
    clt_free(with);
    return c;
}

/* Losses and gradients of the same documents, with `documents` of them per sample. */
static double one_way(const clt_model_config *cfg, int device, int documents, const clt_slab *weights,
                      const clt_slab *grads) {
    enum { ROWS = 2 * PAIRS * T };
    int32_t tokens[ROWS], targets[ROWS], ids[ROWS];
    int samples = 2 * PAIRS / documents;
    for (int r = 0; r < ROWS; r++) {
        tokens[r] = (int32_t)tu_random_below(5, (uint64_t)r, VOCAB);
        ids[r] = r / T % documents;
    }
    for (int r = 0; r < ROWS; r++) targets[r] = (r + 1) % T == 0 ? -100 : tokens[r + 1];
    clt_model_shape shape = {.microbatch = samples, .seq = (int64_t)documents * T, .training = true};
    clt_model *m;
    tu_assert_ok(clt_model_create(cfg, &shape, tu_ops(device), (clt_slab *)weights, NULL, &m), "model");
    clt_ref losses = tu_upload(device, (float[2 * PAIRS]){0}, 2 * PAIRS);
    const clt_batch b = {
        .samples = samples,
        .field = {[CLT_TEXT_TOKENS] = tokens, [CLT_TEXT_TARGETS] = targets, [CLT_TEXT_SEQ_IDS] = ids}};
    const clt_model_pass pass = {.batch = &b,
                                 .weight = 1.0f / (2 * PAIRS * (T - 1)),
                                 .lane_first = true,
                                 .lane_last = true,
                                 .grads = grads,
                                 .sample_loss = losses};
    tu_assert_ok(clt_model_train(m, &pass), "train");
    float got[2 * PAIRS];
    tu_assert_ok(clt_ref_read_f32(losses, got, (size_t)samples), "losses");
    double sum = 0;
    for (int i = 0; i < samples; i++) sum += (double)got[i];
    clt_model_destroy(m);
    return sum;
}

static void compare_gradients(const clt_slab_table *table, const clt_slab *a, const clt_slab *b) {
    for (int i = 0; i < table->n; i++) {
        const clt_slab_entry *e = &table->entry[i];
        float *x = clt_malloc(e->count * sizeof *x), *y = clt_malloc(e->count * sizeof *y);
        tu_assert_ok(clt_slab_read(a, e->offset, x, e->count), e->name);
        tu_assert_ok(clt_slab_read(b, e->offset, y, e->count), e->name);
        double most = 1e-4, off = 0; /* some gradients are only rounding errors (softmax ignores constants) */
        for (uint64_t k = 0; k < e->count; k++) {
            most = fmax(most, fabs((double)y[k]));
            off = fmax(off, fabs((double)x[k] - (double)y[k]));
        }
        if (!(off < 2e-5 * most)) fail_msg("gradient of %s differs by %g of %g", e->name, off, most);
        clt_free(x);
        clt_free(y);
    }
}

static void one_model(const char *text, int device) {
    clt_slab_table table = {0};
    clt_slab *weights, *together, *apart;
    clt_model_config *cfg = read_config(text);
    tu_assert_ok(clt_model_table(cfg, &table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &table, 0, "weights", &weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(device), &table, 0, "gradients", &together), "gradients");
    tu_assert_ok(clt_slab_create(tu_device(device), &table, 0, "gradients", &apart), "gradients");
    for (int i = 0; i < table.n; i++) {
        float *x = tu_random(table.entry[i].count, 100 + (uint64_t)i, 0.5f);
        tu_assert_ok(clt_slab_write(weights, table.entry[i].offset, x, table.entry[i].count), "weights");
        clt_free(x);
    }
    double a = one_way(cfg, device, 2, weights, together), b = one_way(cfg, device, 1, weights, apart);
    if (!(fabs(a - b) < 2e-6 * b)) fail_msg("the loss is %.9g together and %.9g apart", a, b);
    compare_gradients(&table, together, apart);
    clt_slab_destroy(weights);
    clt_slab_destroy(together);
    clt_slab_destroy(apart);
    clt_slab_table_free(&table);
    clt_model_config_free(cfg);
}

static void documents_are_as_samples(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < CLT_COUNT_OF(models); i++) one_model(models[i], d);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(documents_are_as_samples)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
