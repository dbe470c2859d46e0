/* Products in 8 bits inside a model (shape.eight_bits, shape.eight_attention): each form has the words of the
 * oracle's quantisation and product, and a training pass has the same gradients on every device and however
 * its samples are cut into microbatches. */
#include <math.h>
#include <string.h>

#include "runtime/model/mpt/clt_mpt_internal.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

enum { T = 40, VOCAB = 200, SAMPLES = 3, C = 72, TARGETS = SAMPLES * T, BLOCK = 128 };

/* Sizes that are no multiples of a block, biases, and a gated MLP with projections of their own. */
static const char *const models[] = {
    "{'d_model': 72, 'n_heads': 3, 'n_layers': 2, 'max_seq_len': 40, 'vocab_size': 200}",
    "{'d_model': 144, 'n_heads': 2, 'n_layers': 1, 'max_seq_len': 40, 'vocab_size': 200, 'norm_type': "
    "'rmsnorm', "
    "'no_bias': true, 'tie_word_embeddings': false, 'ffn_config': {'ffn_type': 'mptglu', 'ffn_hidden_size': "
    "304, "
    "'ffn_act_fn': {'name': 'silu'}}, 'attn_config': {'rope': true, 'rope_impl': 'hf', 'fused_qkv': false}}"};

typedef struct {
    clt_model_config *config;
    clt_slab_table table;
    clt_slab *weights, *narrow, *grads;
    clt_model *model;
    clt_batch batch;
    void *storage;
    clt_ref losses;
} rig;

static void make_batch(rig *g) {
    tu_assert_ok(clt_model_example(g->config, T, SAMPLES, &g->storage, &g->batch), "example");
    int32_t *tokens = (int32_t *)g->batch.field[CLT_TEXT_TOKENS];
    int32_t *targets = (int32_t *)g->batch.field[CLT_TEXT_TARGETS];
    for (uint64_t i = 0; i < TARGETS; i++) {
        tokens[i] = (int32_t)tu_random_below(5, i, VOCAB);
        targets[i] = (int32_t)tu_random_below(6, i, i % 3 ? VOCAB : 4); /* a few often */
        if (i % 7 == 0) targets[i] = -100;
    }
}

/* The 16-bit weights are those of the fp32 slab. */
static void narrow_weights(const rig *g, int device) {
    tu_assert_ok(clt_op_cast(tu_ops(device), clt_tensor_vector(clt_slab_part(g->weights, 0), CLT_F32),
                             clt_tensor_vector(clt_slab_part(g->narrow, 0), CLT_BF16), g->table.total),
                 "cast");
}

/* What a model has in 8 bits; COPIES: of the weights, too. */
typedef enum { PLAIN, EIGHT, COPIES, ATTENTION_TOO } products;

static void open_rig(rig *g, int device, const char *text, products kind, int64_t microbatch,
                     clt_recompute recompute) {
    *g = (rig){.config = tu_model(text)};
    tu_assert_ok(clt_model_table(g->config, &g->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 0, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 0, "gradients", &g->grads), "gradients");
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *x = tu_random(e->count, (uint64_t)i, 0.2f);
        tu_assert_ok(clt_slab_write(g->weights, e->offset, x, e->count), e->name);
        clt_free(x);
    }
    tu_assert_ok(clt_slab_create_narrow(tu_device(device), g->weights, "narrow", &g->narrow), "narrow");
    narrow_weights(g, device);
    make_batch(g);
    g->losses = tu_upload(device, (float[SAMPLES]){0}, SAMPLES);
    const clt_model_shape shape = {.microbatch = microbatch,
                                   .seq = T,
                                   .training = true,
                                   .recompute = recompute,
                                   .type = CLT_BF16,
                                   .eight_bits = kind != PLAIN,
                                   .eight_weights = kind == COPIES,
                                   .eight_attention = kind == ATTENTION_TOO,
                                   .logits_bytes = kind == COPIES}; /* too few: groups of one sample */
    tu_assert_ok(clt_model_create(g->config, &shape, tu_ops(device), g->weights, g->narrow, &g->model),
                 "model");
}

static void close_rig(rig *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->narrow);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->config);
    clt_free(g->storage);
    tu_release();
}

/* --- a product --- */

/* A matrix of random bf16 numbers on the host and the device. */
typedef struct {
    float *host;
    clt_tensor t;
    int64_t rows, cols;
} matrix;

static matrix random_matrix(int device, int64_t rows, int64_t cols, uint64_t seed) {
    matrix x = {.host = tu_random((size_t)(rows * cols), seed, 1.0f), .rows = rows, .cols = cols};
    x.t = clt_tensor_of(tu_upload_rounded(device, CLT_BF16, x.host, (size_t)(rows * cols)), cols, CLT_BF16);
    return x;
}

/* The oracle's operand: k along x's rows or down its columns in samples of rows_per_sample. */
static clt_ref_blocks8 operand(const matrix *x, bool across, int64_t rows_per_sample, int32_t tile) {
    const int64_t k = across ? clt_blocks8_across_k(x->rows, rows_per_sample, BLOCK)
                             : clt_blocks8_along_k(x->cols, BLOCK),
                  lines = across ? x->cols : x->rows, scales = CLT_CEIL_DIV(lines, (int64_t)tile);
    clt_ref_quantize_params p = {
        .rows = x->rows, .cols = x->cols, .rows_per_sample = rows_per_sample, .x = x->host, .ldx = x->cols};
    clt_ref_blocks8 *out = across ? &p.across : &p.along;
    *out = (clt_ref_blocks8){.q = clt_malloc((size_t)(lines * k)),
                             .ld = k,
                             .scale = clt_malloc((size_t)(k / BLOCK * scales) * sizeof(float)),
                             .ld_scale = scales,
                             .block = BLOCK,
                             .tile = tile};
    clt_ref_quantize(&p);
    return *out;
}

static void free_operand(clt_ref_blocks8 *x) {
    clt_free(x->q);
    clt_free(x->scale);
}

/* c = a * b in one of the forms, with m, n and k of a layer: k counts tokens in TN. */
static void one_product(int device, clt_mpt *m, clt_gemm_form form, int64_t rows, int64_t cols, int64_t k) {
    const bool tn = form == CLT_GEMM_TN, nn = form == CLT_GEMM_NN;
    matrix a = random_matrix(device, tn ? k : rows, tn ? rows : k, 1),
           b = random_matrix(device, form == CLT_GEMM_NT ? cols : k, form == CLT_GEMM_NT ? k : cols, 2);
    const size_t n = (size_t)(rows * cols);
    float *want = tu_random(n, 3, 1.0f);
    const clt_gemm_params g = {.form = form,
                               .m = rows,
                               .n = cols,
                               .k = k,
                               .k_group = T,
                               .a = a.t,
                               .b = b.t,
                               .c = clt_tensor_of(tu_upload(device, want, n), cols, CLT_F32),
                               .accumulate = true};
    tu_assert_ok(clt_mpt_product(m, &g), "product");
    clt_ref_gemm8_params p = {.form = tn ? CLT_GEMM8_CHAIN : CLT_GEMM8_PRODUCT,
                              .to = clt_ref_gemm_of(&g),
                              .a = operand(&a, tn, T, 1),
                              .b = operand(&b, tn || nn, tn ? T : k, tn ? 1 : BLOCK)};
    p.to.c = want;
    p.to.k = p.a.ld;
    clt_ref_gemm8(&p);
    tu_assert_words("product in 8 bits", tu_download(g.c.ref, n), want, n);
    free_operand(&p.a);
    free_operand(&p.b);
    clt_free(a.host);
    clt_free(b.host);
    clt_free(want);
}

static void products_are_the_oracle_s(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        rig g;
        open_rig(&g, d, models[0], EIGHT, SAMPLES, CLT_RECOMPUTE_NONE);
        clt_mpt *m = (clt_mpt *)g.model;
        one_product(d, m, CLT_GEMM_NT, TARGETS, 4 * C, C);
        one_product(d, m, CLT_GEMM_NT, TARGETS, C, 4 * C);
        one_product(d, m, CLT_GEMM_NN, TARGETS, 4 * C, C);
        one_product(d, m, CLT_GEMM_NN, TARGETS, C, VOCAB);
        one_product(d, m, CLT_GEMM_TN, VOCAB, C, TARGETS);
        one_product(d, m, CLT_GEMM_TN, C, 4 * C, TARGETS);
        close_rig(&g);
    }
}

/* --- a pass --- */

/* Loss and gradients of the batch in microbatches of so many samples. */
static double pass(rig *g, int64_t microbatch, float *grads) {
    double sum = 0;
    for (int64_t first = 0; first < SAMPLES; first += microbatch) {
        clt_batch part = g->batch;
        const int64_t n = CLT_MIN(microbatch, SAMPLES - first);
        float losses[SAMPLES];
        part.first += first;
        part.samples = n;
        for (int f = 0; f < CLT_BATCH_MAX_FIELDS; f++)
            if (part.field[f]) part.field[f] = (const int32_t *)part.field[f] + first * T;
        const clt_model_pass p = {.batch = &part,
                                  .weight = 1.0f / TARGETS,
                                  .lane_first = first == 0,
                                  .lane_last = first + n == SAMPLES,
                                  .grads = g->grads,
                                  .sample_loss = g->losses};
        tu_assert_ok(clt_model_train(g->model, &p), "train");
        tu_assert_ok(clt_ref_read_f32(g->losses, losses, (size_t)n), "losses");
        for (int64_t i = 0; i < n; i++) sum += (double)losses[i];
    }
    tu_assert_ok(clt_slab_read(g->grads, 0, grads, g->table.total), "gradients");
    return sum / TARGETS;
}

/* The cosine of the angle between two gradients. */
static double cosine(const float *a, const float *b, uint64_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (uint64_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

/* The same words on every device and with every microbatch and recomputation; about those of bf16. */
static void one_model(const char *text, products kind) {
    rig g;
    float *want = NULL, *got = NULL;
    double loss = 0;
    for (int d = 0; d < tu_device_count(); d++)
        for (int64_t microbatch = 1; microbatch <= SAMPLES; microbatch += 2)
            for (int again = CLT_RECOMPUTE_NONE; again <= CLT_RECOMPUTE_BLOCKS; again++) {
                open_rig(&g, d, text, again == CLT_RECOMPUTE_BLOCKS && kind == EIGHT ? COPIES : kind,
                         microbatch, (clt_recompute)again);
                assert_int_equal(((clt_mpt *)g.model)->n_kept > 0, again == CLT_RECOMPUTE_NONE);
                const uint64_t n = g.table.total;
                if (!want) {
                    want = clt_malloc(n * sizeof *want);
                    got = clt_malloc(n * sizeof *got);
                    loss = pass(&g, microbatch, want);
                    assert_true(isfinite(loss) && loss > 0);
                } else {
                    assert_true(pass(&g, microbatch, got) == loss);
                    tu_assert_words("gradients", got, want, n);
                }
                close_rig(&g);
            }
    open_rig(&g, 0, text, PLAIN, SAMPLES, CLT_RECOMPUTE_NONE);
    const double plain = pass(&g, SAMPLES, got), angle = cosine(got, want, g.table.total);
    if (!(fabs(loss / plain - 1) < 0.02) || !(angle > 0.999) || loss == plain)
        fail_msg("loss %g, in bf16 %g; cosine of the gradients %g", loss, plain, angle);
    close_rig(&g);
    clt_free(want);
    clt_free(got);
}

static void passes_have_the_same_words(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(models); i++) {
        one_model(models[i], EIGHT);
        one_model(models[i], ATTENTION_TOO);
    }
}

/* --- the head's gradients: the oracle's words, and nearer to the formula than with the ones inside --- */

/* What a pass makes on its way, as floats. */
typedef struct {
    float *logits, *input, *dx, *dw;
} head_tensors;

static clt_status keep_head(void *ctx, const char *what, clt_dtype type, clt_ref made, uint64_t count) {
    head_tensors *h = ctx;
    const struct {
        const char *what;
        float **to;
    } all[] = {{"logits", &h->logits},
               {"norm_f", &h->input},
               {"gradient of the head's input", &h->dx},
               {"gradient of the head's weight with the targets' ones", &h->dw}};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) {
        if (strcmp(what, all[i].what) != 0) continue;
        assert_null(*all[i].to); /* one group of rows */
        *all[i].to = clt_malloc(count * sizeof(float));
        CLT_TRY(clt_ref_read_as(made, type, *all[i].to, count));
    }
    return CLT_OK;
}

/* A head's tensors on the host: d(logits) [TARGETS, VOCAB], input [TARGETS, cols], weight [VOCAB, cols]. */
typedef struct {
    matrix d, x, w;
    const int32_t *target;
    float each[SAMPLES]; /* weight of a sample's tokens, times the scale of the logits: 1 here */
} head;

/* The oracle's gradients of the products of d, whose ones are apart: the rest is added as numerics.md says.
 */
static void oracle_head(const head *h, bool apart, clt_dtype dx_type, float *dx, float *dw) {
    const int64_t cols = h->x.cols;
    const size_t in = (size_t)(TARGETS * cols), all = (size_t)(VOCAB * cols);
    float *residual = clt_calloc(in, sizeof *residual), *sum = clt_calloc(all, sizeof *sum);
    bool named[VOCAB] = {false};
    for (int r = 0; r < TARGETS && apart; r++)
        for (int64_t c = 0; c < cols && h->target[r] >= 0; c++) {
            const float f = -h->each[r / T];
            named[h->target[r]] = true;
            residual[r * cols + c] = f * h->w.host[h->target[r] * cols + c];
            sum[h->target[r] * cols + c] = sum[h->target[r] * cols + c] + f * h->x.host[r * cols + c];
        }
    clt_ref_gemm8_params p = {
        .form = CLT_GEMM8_PRODUCT, .a = operand(&h->d, false, 1, 1), .b = operand(&h->w, true, VOCAB, BLOCK)};
    p.to =
        (clt_ref_gemm_params){.m = TARGETS, .n = cols, .k = p.a.ld, .c = dx, .ldc = cols, .c_type = dx_type};
    if (apart) p.to.residual = residual, p.to.ldres = cols;
    clt_ref_gemm8(&p);
    free_operand(&p.a), free_operand(&p.b);
    p = (clt_ref_gemm8_params){
        .form = CLT_GEMM8_CHAIN, .a = operand(&h->d, true, T, 1), .b = operand(&h->x, true, T, 1)};
    p.to = (clt_ref_gemm_params){.m = VOCAB, .n = cols, .k = p.a.ld, .k_group = p.a.ld, .c = dw, .ldc = cols};
    clt_ref_gemm8(&p);
    free_operand(&p.a), free_operand(&p.b);
    for (size_t i = 0; i < all; i++)
        if (named[i / (size_t)cols]) dw[i] = dw[i] + sum[i];
    clt_free(residual), clt_free(sum);
}

/* The same in double from the logits. */
static void exact_head(const head *h, const float *logits, float *dx, float *dw) {
    const int64_t cols = h->x.cols;
    double *x = clt_calloc((size_t)(TARGETS * cols), sizeof *x),
           *w = clt_calloc((size_t)(VOCAB * cols), sizeof *w);
    for (int r = 0; r < TARGETS; r++) {
        double total = 0;
        for (int v = 0; v < VOCAB; v++) total += exp((double)logits[r * VOCAB + v]);
        for (int v = 0; v < VOCAB && h->target[r] >= 0; v++) {
            const double d =
                (exp((double)logits[r * VOCAB + v]) / total - (v == h->target[r])) * (double)h->each[r / T];
            for (int64_t c = 0; c < cols; c++) {
                x[r * cols + c] += d * (double)h->w.host[v * cols + c];
                w[v * cols + c] += d * (double)h->x.host[r * cols + c];
            }
        }
    }
    for (int64_t i = 0; i < TARGETS * cols; i++) dx[i] = (float)x[i];
    for (int64_t i = 0; i < VOCAB * cols; i++) dw[i] = (float)w[i];
    clt_free(x), clt_free(w);
}

static double distance(const float *a, const float *b, size_t n) {
    double sum = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(sum / all);
}

/* Compares a pass's gradients with both oracles and the formula. */
static void compare_head(head *h, const head_tensors *got, clt_dtype dx_type) {
    const size_t in = (size_t)(TARGETS * h->x.cols), all = (size_t)(VOCAB * h->x.cols), n = TARGETS * VOCAB;
    float *dx[3], *dw[3], loss[TARGETS], weight[TARGETS]; /* inside, apart, exact */
    for (int i = 0; i < 3; i++)
        dx[i] = clt_malloc(in * sizeof(float)), dw[i] = clt_calloc(all, sizeof(float));
    for (int r = 0; r < TARGETS; r++) weight[r] = h->each[r / T];
    for (int apart = 0; apart < 2; apart++) {
        h->d.host = clt_memdup(got->logits, n * sizeof(float));
        clt_ref_loss(TARGETS, VOCAB, VOCAB, h->d.host, h->target, 1.0f, 0.0f, true, apart, 0.0f, weight, loss,
                     NULL);
        clt_ref_round(CLT_BF16, h->d.host, n);
        oracle_head(h, apart, dx_type, dx[apart], dw[apart]);
        clt_free(h->d.host);
    }
    exact_head(h, got->logits, dx[2], dw[2]);
    tu_assert_words("gradient of the head's input", got->dx, dx[1], in);
    tu_assert_words("gradient of the head's weight", got->dw, dw[1], all);
    const double x[] = {distance(dx[0], dx[2], in), distance(dx[1], dx[2], in)},
                 w[] = {distance(dw[0], dw[2], all), distance(dw[1], dw[2], all)};
    if (!(x[1] < x[0] / 4) || !(w[1] < w[0] / 4))
        fail_msg("errors of the input's gradient: %g, with the ones inside %g; of the weight's: %g, %g", x[1],
                 x[0], w[1], w[0]);
    for (int i = 0; i < 3; i++) clt_free(dx[i]), clt_free(dw[i]);
}

static void one_head(int device, const char *text) {
    rig g;
    head_tensors made = {0};
    head h = {.each = {1.0f / TARGETS, 1.0f / 37.0f, 1.0f / 59.0f}};
    open_rig(&g, device, text, EIGHT, SAMPLES, CLT_RECOMPUTE_NORMS);
    const clt_mpt *m = (const clt_mpt *)g.model;
    const clt_slab_entry *e = &g.table.entry[m->index.lm_head];
    const int64_t cols = e->shape[1];
    clt_model_set_watch(g.model, keep_head, &made);
    const clt_model_pass p = {.batch = &g.batch,
                              .weight = 1.0f,
                              .sample_weight = h.each,
                              .lane_first = true,
                              .lane_last = true,
                              .grads = g.grads,
                              .sample_loss = g.losses};
    tu_assert_ok(clt_model_train(g.model, &p), "train");
    assert_true(made.logits && made.input && made.dx && made.dw);
    float *w = clt_malloc(e->count * sizeof *w);
    tu_assert_ok(clt_ref_read_as(clt_slab_ref(g.narrow, m->index.lm_head), CLT_BF16, w, e->count), "weights");
    h.target = g.batch.field[CLT_TEXT_TARGETS];
    h.d = (matrix){.rows = TARGETS, .cols = VOCAB};
    h.x = (matrix){.host = made.input, .rows = TARGETS, .cols = cols};
    h.w = (matrix){.host = w, .rows = VOCAB, .cols = cols};
    compare_head(&h, &made, m->dnorm_type);
    close_rig(&g);
    clt_free(made.logits), clt_free(made.input), clt_free(made.dx), clt_free(made.dw), clt_free(w);
}

/* A softcap's slope belongs to the whole element, so the ones stay inside. */
static void a_softcap_keeps_the_ones(void **state) {
    (void)state;
    const char *const text = "{'d_model': 72, 'n_heads': 3, 'n_layers': 1, 'max_seq_len': 40, 'vocab_size': "
                             "200, 'final_logit_softcapping': 5}";
    rig g;
    head_tensors made = {0};
    open_rig(&g, 0, text, EIGHT, SAMPLES, CLT_RECOMPUTE_NORMS);
    float *grads = clt_malloc(g.table.total * sizeof *grads);
    clt_model_set_watch(g.model, keep_head, &made);
    assert_true(pass(&g, SAMPLES, grads) > 0);
    assert_true(made.logits && made.input && made.dx && !made.dw);
    close_rig(&g);
    clt_free(made.logits), clt_free(made.input), clt_free(made.dx), clt_free(grads);
}

static void ones_are_apart(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < CLT_COUNT_OF(models); i++) one_head(d, models[i]);
}

/* Copies of weights are used until a change is reported, and then made again. */
static void copies_follow_the_weights(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(models); i++) {
        rig g, fresh;
        open_rig(&g, 0, models[i], COPIES, SAMPLES, CLT_RECOMPUTE_NORMS);
        open_rig(&fresh, 0, models[i], EIGHT, 1, CLT_RECOMPUTE_NORMS);
        const uint64_t n = g.table.total;
        float *old = clt_malloc(n * sizeof *old), *got = clt_malloc(n * sizeof *got),
              *want = clt_malloc(n * sizeof *want), *x = tu_random(n, 9, 0.2f);
        const double before = pass(&g, SAMPLES, old);
        assert_true(pass(&fresh, 1, want) == before);
        tu_assert_words("the first weights", old, want, n);
        tu_assert_ok(clt_slab_write(g.weights, 0, x, n), "weights");
        tu_assert_ok(clt_slab_write(fresh.weights, 0, x, n), "weights");
        narrow_weights(&g, 0), narrow_weights(&fresh, 0);
        const double after = pass(&fresh, 1, want);
        assert_true(after != before && pass(&g, SAMPLES, got) != after);
        clt_model_weights_changed(g.model);
        assert_true(pass(&g, SAMPLES, got) == after);
        tu_assert_words("the next weights", got, want, n);
        close_rig(&g), close_rig(&fresh);
        clt_free(old), clt_free(got), clt_free(want), clt_free(x);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_oracle_s), cmocka_unit_test(passes_have_the_same_words),
        cmocka_unit_test(ones_are_apart), cmocka_unit_test(a_softcap_keeps_the_ones),
        cmocka_unit_test(copies_follow_the_weights)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
