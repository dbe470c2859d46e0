/* Blocks that LLM Foundry's MPT lacks, compared with the transformers package in double on the checkpoints of
 * test/golden/families: GPT-NeoX (parallel residual, partial rotary positions) and Gemma 2 (scaled embedding,
 * norms with 1 + weight, norms after branches, softcaps, windows in every other layer). Logits, loss,
 * gradients, and eight training steps, with the package's tensors put under the decoder's names here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "test/golden_util.h"
#include "test/run_util.h"
#include "test/test_util.h"

enum { SAMPLES = 4, EVERY = 3, HEADS = 2, HEAD = 16, STEPS = 8, PLACES = 12 };
static const double LOGIT_BOUND = 5e-6, LOGSUMEXP_BOUND = 1e-5, GRAD_BOUND = 2e-5, LOSS_BOUND = 2e-6;
static const double STEP_LOSS_BOUND = 1e-5, STEP_NORM_BOUND = 1e-4, LR_BOUND = 1e-9, WEIGHT_BOUND = 2e-5;

/* --- the families --- */

typedef struct {
    const char *ours, *theirs; /* after the prefixes below; %d-free: the layer's number stands between */
} name_pair;

typedef struct {
    const char *folder;
    const char *config; /* the model section */
    const char *block;  /* prefix of a block's tensors in the package */
    const name_pair *outer, *inner;
    bool per_head; /* q, k and v of Wqkv lie head by head */
} family;

static const name_pair neox_outer[] = {{"transformer.wte.weight", "gpt_neox.embed_in.weight"},
                                       {"transformer.norm_f.weight", "gpt_neox.final_layer_norm.weight"},
                                       {"transformer.norm_f.bias", "gpt_neox.final_layer_norm.bias"},
                                       {"lm_head.weight", "embed_out.weight"},
                                       {NULL, NULL}};
static const name_pair neox_inner[] = {{"norm_1.", "input_layernorm."},
                                       {"norm_2.", "post_attention_layernorm."},
                                       {"attn.Wqkv.", "attention.query_key_value."},
                                       {"attn.out_proj.", "attention.dense."},
                                       {"ffn.up_proj.", "mlp.dense_h_to_4h."},
                                       {"ffn.down_proj.", "mlp.dense_4h_to_h."},
                                       {NULL, NULL}};
static const name_pair gemma_outer[] = {{"transformer.wte.weight", "model.embed_tokens.weight"},
                                        {"transformer.norm_f.weight", "model.norm.weight"},
                                        {NULL, NULL}};
static const name_pair gemma_inner[] = {
    {"norm_1.", "input_layernorm."},           {"post_norm_1.", "post_attention_layernorm."},
    {"norm_2.", "pre_feedforward_layernorm."}, {"post_norm_2.", "post_feedforward_layernorm."},
    {"attn.Wq.", "self_attn.q_proj."},         {"attn.Wk.", "self_attn.k_proj."},
    {"attn.Wv.", "self_attn.v_proj."},         {"attn.out_proj.", "self_attn.o_proj."},
    {"ffn.gate_proj.", "mlp.gate_proj."},      {"ffn.up_proj.", "mlp.up_proj."},
    {"ffn.down_proj.", "mlp.down_proj."},      {NULL, NULL}};

static const family families[] = {
    {"gpt-neox",
     "{\"d_model\": 32, \"n_heads\": 2, \"n_layers\": 2, \"expansion_ratio\": 3, \"max_seq_len\": 64,"
     " \"vocab_size\": 288, \"norm_type\": \"layernorm\", \"tie_word_embeddings\": false,"
     " \"learned_pos_emb\": false, \"parallel_residual\": true,"
     " \"attn_config\": {\"rope\": true, \"rope_impl\": \"hf\", \"rope_fraction\": 0.25}}",
     "gpt_neox.layers.", neox_outer, neox_inner, true},
    {"gemma2",
     "{\"d_model\": 32, \"n_heads\": 2, \"head_dim\": 16, \"n_layers\": 2, \"max_seq_len\": 64,"
     " \"vocab_size\": 288, \"norm_type\": \"rmsnorm\", \"norm_eps\": 1e-6, \"no_bias\": true,"
     " \"learned_pos_emb\": false, \"norm_offset\": 1, \"post_norms\": true,"
     " \"embedding_scale\": 5.656854249492381, \"final_logit_softcapping\": 3.0,"
     " \"attn_config\": {\"attn_type\": \"grouped_query_attention\", \"kv_n_heads\": 1,"
     "   \"fused_qkv\": false, \"softmax_scale\": 0.22360679774997896,"
     "   \"attn_logit_softcapping\": 2.0, \"rope\": true, \"rope_impl\": \"hf\"},"
     " \"ffn_config\": {\"ffn_type\": \"mptglu\", \"ffn_hidden_size\": 64,"
     "   \"ffn_act_fn\": {\"name\": \"gelu\", \"approximate\": \"tanh\"}},"
     " \"block_overrides\": {\"order\": [{\"name\": \"local\"}, {\"name\": \"default\"}],"
     "   \"overrides\": {\"local\": {\"attn_config\": {\"sliding_window_size\": 8}}}}}",
     "model.layers.", gemma_outer, gemma_inner, false}};

static char *in_set(const family *f, const char *file) {
    return clt_format("test/golden/families/%s/%s", f->folder, file);
}

/* The package's name of one of our tensors; the caller frees it. */
static char *their_name(const family *f, const char *ours) {
    static const char block[] = "transformer.blocks.";
    for (const name_pair *p = f->outer; p->ours; p++)
        if (strcmp(p->ours, ours) == 0) return clt_strdup(p->theirs);
    if (strncmp(ours, block, sizeof block - 1) == 0) {
        const char *layer = ours + sizeof block - 1, *rest = strchr(layer, '.') + 1;
        for (const name_pair *p = f->inner; p->ours; p++)
            if (strncmp(p->ours, rest, strlen(p->ours)) == 0)
                return clt_format("%s%.*s.%s%s", f->block, (int)(rest - 1 - layer), layer, p->theirs,
                                  rest + strlen(p->ours));
    }
    fail_msg("%s: no name for %s", f->folder, ours);
    return NULL;
}

/* Where element i of one of our tensors lies in the package's. */
static size_t their_place(const family *f, const char *ours, size_t count, size_t i) {
    if (!f->per_head || !strstr(ours, ".Wqkv.")) return i;
    const size_t cols = count / (3 * HEADS * HEAD), row = i / cols;
    const size_t part = row / (HEADS * HEAD), head = row / HEAD % HEADS;
    return ((head * 3 + part) * HEAD + row % HEAD) * cols + i % cols;
}

static clt_safetensors *open_tensors(const family *f, const char *file) {
    clt_safetensors *s;
    char *path = in_set(f, file);
    tu_assert_ok(clt_safetensors_open(path, &s), path);
    clt_free(path);
    return s;
}

/* A tensor of the package; NULL: the file does not have it. */
static float *their_tensor(clt_safetensors *s, const char *name, size_t *count) {
    int i = clt_safetensors_find(s, name);
    if (i < 0) return NULL;
    *count = clt_safetensors_at(s, i)->count;
    float *x = clt_malloc(*count * sizeof *x);
    tu_assert_ok(clt_safetensors_read_f32(s, i, 0, x, *count), name);
    return x;
}

/* The package's weight of one of our tensors, in our order. */
static float *weight(const family *f, clt_safetensors *s, const char *ours, size_t want) {
    size_t n = 0;
    char *name = their_name(f, ours);
    float *x = their_tensor(s, name, &n), *y = clt_malloc(want * sizeof *y);
    if (!x || n != want) fail_msg("%s has no tensor %s of %zu elements", f->folder, name, want);
    for (size_t i = 0; i < n; i++) y[i] = x[their_place(f, ours, n, i)];
    clt_free(name);
    clt_free(x);
    return y;
}

static double largest(const float *x, size_t n) {
    double m = 0;
    for (size_t i = 0; i < n; i++) m = fmax(m, fabs((double)x[i]));
    return m;
}

static double l2(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double number(json_t *row, const char *key) {
    json_t *v = json_object_get(row, key);
    if (!json_is_number(v)) fail_msg("a row has no number %s", key);
    return json_number_value(v);
}

/* --- one pass --- */

typedef struct {
    const family *f;
    clt_model_config *cfg;
    clt_slab_table table;
    clt_slab *weights, *grads;
    clt_model *model;
    clt_safetensors *want;
    json_t *forward;
    int64_t T;
    int32_t *tokens, *targets;
} golden;

static void load(golden *g) {
    clt_safetensors *s = open_tensors(g->f, "hf/model.safetensors");
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *x = weight(g->f, s, e->name, e->count);
        tu_assert_ok(clt_slab_write(g->weights, e->offset, x, e->count), "write");
        clt_free(x);
    }
    clt_safetensors_close(s);
    s = open_tensors(g->f, "tokens.safetensors");
    int i = clt_safetensors_find(s, "input_ids");
    g->T = (int64_t)clt_safetensors_at(s, i)->shape[1];
    size_t n = (size_t)(SAMPLES * g->T);
    g->tokens = clt_malloc(n * 4);
    g->targets = clt_malloc(n * 4);
    tu_assert_ok(clt_safetensors_read(s, i, 0, g->tokens, n * 4), "tokens");
    for (size_t r = 0; r < n; r++) g->targets[r] = (int64_t)(r + 1) % g->T == 0 ? -100 : g->tokens[r + 1];
    clt_safetensors_close(s);
}

static clt_model_config *config_of(const family *f) {
    clt_model_config *cfg;
    json_t *o = json_loads(f->config, 0, NULL);
    assert_non_null(o);
    tu_assert_ok(clt_model_config_from_json(o, true, f->folder, &cfg), f->folder);
    json_decref(o);
    return cfg;
}

static void open_golden(golden *g, const family *f, int device, clt_model_shape shape) {
    char *path = in_set(f, "forward.json");
    *g = (golden){.f = f, .cfg = config_of(f), .forward = golden_load(path)};
    clt_free(path);
    tu_assert_ok(clt_model_table(g->cfg, &g->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 64 << 10, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(tu_device(device), &g->table, 64 << 10, "gradients", &g->grads),
                 "gradients");
    tu_fill_nan(g->grads);
    load(g);
    shape.seq = g->T;
    tu_assert_ok(clt_model_create(g->cfg, &shape, tu_ops(device), g->weights, NULL, &g->model), "model");
    g->want = open_tensors(f, "forward.safetensors");
}

static void close_golden(golden *g) {
    clt_model_destroy(g->model);
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->grads);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->cfg);
    clt_safetensors_close(g->want);
    json_decref(g->forward);
    clt_free(g->tokens);
    clt_free(g->targets);
}

static double logsumexp(const float *x, size_t n) {
    double most = (double)x[0], sum = 0;
    for (size_t i = 1; i < n; i++) most = fmax(most, (double)x[i]);
    for (size_t i = 0; i < n; i++) sum += exp((double)x[i] - most);
    return most + log(sum);
}

/* Logits [T, V] of row `row` with the reference's log-sum-exps and, of row 0, its logits. */
static void check_row(golden *g, size_t row, const float *got) {
    const size_t V = (size_t)clt_model_get_facts(g->cfg).vocab_size, T = (size_t)g->T;
    json_t *sums = json_array_get(json_object_get(g->forward, "logsumexp"), row);
    assert_int_equal(json_array_size(sums), T);
    for (size_t t = 0; t < T; t++) {
        double off = fabs(logsumexp(got + t * V, V) - json_number_value(json_array_get(sums, t)));
        if (!(off < LOGSUMEXP_BOUND)) fail_msg("row %zu, position %zu: log-sum-exp off by %g", row, t, off);
    }
    if (row != 0) return;
    size_t n;
    float *want = their_tensor(g->want, "logits", &n);
    assert_int_equal(n, (T + EVERY - 1) / EVERY * V);
    double most = largest(want, n), off = 0;
    for (size_t i = 0; i < n; i++)
        off = fmax(off, fabs((double)got[i / V * EVERY * V + i % V] - (double)want[i]));
    printf("    logits %.2g of the largest\n", off / most);
    assert_true(off / most < LOGIT_BOUND);
    clt_free(want);
}

static void check_logits(golden *g) {
    const size_t V = (size_t)clt_model_get_facts(g->cfg).vocab_size, T = (size_t)g->T;
    float *got = clt_malloc(T * V * sizeof *got);
    for (size_t s = 0; s < SAMPLES; s++) {
        tu_assert_ok(clt_model_logits(g->model, g->tokens + s * T, g->T, 0, g->T, got), "logits");
        check_row(g, s, got);
    }
    clt_free(got);
}

/* One gradient: its norm, and its elements as far as the reference has them (the first rows). Returns the
 * largest difference, relative to the largest element. */
static double check_gradient(golden *g, const clt_slab_entry *e, float *got) {
    char *theirs = their_name(g->f, e->name), *key = clt_format("grad.%s", theirs);
    size_t n = 0;
    double norm = number(json_object_get(g->forward, "grad_l2"), theirs), off = 0;
    float *want = their_tensor(g->want, key, &n);
    assert_true(n <= e->count);
    if (!(fabs(l2(got, e->count) / norm - 1) < GRAD_BOUND)) fail_msg("norm of %s is %g", key, norm);
    const double most = want ? largest(want, n) : 1;
    for (size_t i = 0; want && i < n; i++)
        off = fmax(off, fabs((double)got[i] - (double)want[their_place(g->f, e->name, n, i)]) / most);
    if (!(off < GRAD_BOUND)) fail_msg("%s differs by %g of its largest value", key, off);
    clt_free(want);
    clt_free(key);
    clt_free(theirs);
    return off;
}

static void check_gradients(golden *g) {
    double worst = 0, sum = 0;
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *got = clt_malloc(e->count * sizeof *got);
        tu_assert_ok(clt_slab_read(g->grads, e->offset, got, e->count), e->name);
        worst = fmax(worst, check_gradient(g, e, got));
        sum += l2(got, e->count) * l2(got, e->count);
        clt_free(got);
    }
    const double norm = fabs(sqrt(sum) / number(g->forward, "grad_global_l2") - 1);
    printf("    gradients %.2g, norm %.2g\n", worst, norm);
    assert_true(norm < 1e-5);
}

static void check_pass(const family *f, int device, clt_recompute recompute) {
    golden g;
    clt_buffer *loss;
    float sums[SAMPLES];
    open_golden(&g, f, device,
                (clt_model_shape){.microbatch = SAMPLES, .training = true, .recompute = recompute});
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
    double got = 0;
    for (int i = 0; i < SAMPLES; i++) got += (double)sums[i];
    const double off = fabs(got / (double)targets - number(g.forward, "loss"));
    printf("  %s on %s, recompute %d: loss %.2g\n", f->folder, tu_device_name(device), (int)recompute, off);
    assert_true(off < LOSS_BOUND);
    check_gradients(&g);
    check_logits(&g);
    assert_int_equal(clt_model_param_count(g.cfg), golden_int(g.forward, "n_params"));
    clt_buffer_destroy(loss);
    close_golden(&g);
}

static void passes_agree(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < CLT_COUNT_OF(families); i++)
            for (clt_recompute again = CLT_RECOMPUTE_NONE; again <= CLT_RECOMPUTE_BLOCKS; again++)
                check_pass(&families[i], d, again);
}

/* A text that grows token by token, with kept keys and values, has the logits of one pass. */
static void cached_logits_agree(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++) {
        golden g;
        open_golden(&g, &families[i], 0, (clt_model_shape){.microbatch = 1, .cache = true});
        const size_t V = (size_t)clt_model_get_facts(g.cfg).vocab_size;
        float *got = clt_malloc((size_t)g.T * V * sizeof *got);
        for (int64_t t = 0; t < g.T; t++)
            tu_assert_ok(clt_model_logits(g.model, g.tokens, t + 1, t, 1, got + (size_t)t * V), "logits");
        check_row(&g, 0, got);
        clt_free(got);
        close_golden(&g);
    }
}

/* The configuration that is written back describes the same model. */
static void config_survives_writing(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++) {
        clt_model_config *a = config_of(&families[i]), *b;
        json_t *first = clt_model_config_to_json(a), *second;
        tu_assert_ok(clt_model_config_from_json(first, false, "written", &b), "read again");
        second = clt_model_config_to_json(b);
        assert_true(json_equal(first, second));
        assert_int_equal(clt_model_param_count(a), clt_model_param_count(b));
        json_decref(first);
        json_decref(second);
        clt_model_config_free(a);
        clt_model_config_free(b);
    }
}

/* --- eight steps --- */

typedef struct {
    const family *f;
    clt_slab_table table;
    clt_safetensors *source;
} conversion;

static clt_status fill(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    const conversion *c = ctx;
    const clt_slab_entry *e = &c->table.entry[index];
    float *x = weight(c->f, c->source, e->name, e->count);
    memcpy(dst, x + first, count * sizeof *dst);
    clt_free(x);
    return CLT_OK;
}

/* A Hugging Face folder of ours with the package's weights. */
static void convert(const family *f, const char *folder) {
    conversion c = {.f = f, .source = open_tensors(f, "hf/model.safetensors")};
    clt_model_config *cfg = config_of(f);
    tu_assert_ok(clt_model_table(cfg, &c.table), "table");
    clt_st_spec *spec = clt_calloc((size_t)c.table.n, sizeof *spec);
    for (int i = 0; i < c.table.n; i++) {
        const clt_slab_entry *e = &c.table.entry[i];
        spec[i] = (clt_st_spec){.name = e->name, .dtype = CLT_ST_F32, .dims = e->dims};
        for (int d = 0; d < e->dims; d++) spec[i].shape[d] = (uint64_t)e->shape[d];
    }
    char *weights = clt_path_join(folder, "model.safetensors"),
         *config = clt_path_join(folder, "config.json");
    json_t *o = clt_model_config_to_json(cfg);
    json_object_set_new(o, "model_type", json_string("mpt"));
    tu_assert_ok(clt_io_mkdirs(folder), folder);
    tu_assert_ok(clt_safetensors_write(weights, spec, c.table.n, NULL, 0, fill, &c), weights);
    assert_int_equal(json_dump_file(o, config, 0), 0);
    json_decref(o);
    clt_free(weights);
    clt_free(config);
    clt_free(spec);
    clt_slab_table_free(&c.table);
    clt_model_config_free(cfg);
    clt_safetensors_close(c.source);
}

/* The run of the set's train.yaml, with the model's section written out. */
static const char run_format[] =
    "{\"model\": %s, \"tokenizer\": {\"name\": \"bytes\"}, \"load_path\": \"%s\", \"load_weights_only\": "
    "true, \"seed\": 17, \"max_seq_len\": 40,"
    " \"train_loader\": {\"name\": \"text\", \"dataset\": {\"local\": \"%s\", \"split\": \"train\","
    "   \"shuffle\": false, \"max_seq_len\": 40, \"num_canonical_nodes\": 1}, \"drop_last\": true},"
    " \"global_train_batch_size\": 8, \"device_train_microbatch_size\": 3, \"max_duration\": \"8ba\","
    " \"precision\": \"fp32\", \"optimizer\": {\"name\": \"decoupled_adamw\", \"lr\": 0.004,"
    "   \"betas\": [0.9, 0.95], \"eps\": 1.0e-8, \"weight_decay\": 0.01},"
    " \"scheduler\": {\"name\": \"cosine_with_warmup\", \"t_warmup\": \"1ba\", \"alpha_f\": 0.1,"
    "   \"t_max\": \"8ba\"},"
    " \"algorithms\": {\"gradient_clipping\": {\"clipping_type\": \"norm\", \"clipping_threshold\": 1.0}}}";

static char *write_run(const family *f, const char *weights) {
    char *mds = in_set(f, "mds"), *full = realpath(mds, NULL), *path = clt_format("%s.yaml", weights);
    assert_non_null(full);
    char *text = clt_format(run_format, f->config, weights, full);
    tu_assert_ok(clt_io_write_atomic(path, text, strlen(text)), path);
    clt_free(mds);
    clt_free(text);
    free(full);
    return path;
}

static void check_steps(const family *f, const char *run, json_t *steps) {
    json_t *metrics = ru_metrics(run), *rows = ru_rows_with(metrics, "loss"), *row;
    double worst = 0;
    size_t i;
    assert_int_equal(json_array_size(rows), STEPS);
    json_array_foreach(rows, i, row) {
        json_t *want = json_array_get(steps, i);
        const double loss = fabs(number(row, "loss") - number(want, "loss"));
        const double norm = fabs(number(row, "grad_norm") / number(want, "grad_norm") - 1);
        const double lr = fabs(number(row, "lr") - number(want, "lr"));
        if (!(loss < STEP_LOSS_BOUND) || !(norm < STEP_NORM_BOUND) || !(lr < LR_BOUND))
            fail_msg("%s, step %zu: loss off by %g, norm by %g, lr by %g", f->folder, i + 1, loss, norm, lr);
        worst = fmax(worst, loss);
    }
    printf("  %s: %d steps, loss %.2g\n", f->folder, STEPS, worst);
    json_decref(rows);
    json_decref(metrics);
}

/* The element of x, in our order, that the package has at `place`. */
static double at_their_place(const family *f, const char *ours, const float *x, size_t count, size_t place) {
    for (size_t i = 0; i < count; i++)
        if (their_place(f, ours, count, i) == place) return (double)x[i];
    return NAN;
}

static int by_size(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* A final weight: its norm and the values at twelve places, by what training changed. */
static double check_weight(const family *f, const clt_ckpt_tensor *t, const float *x, json_t *final) {
    char *name = their_name(f, t->name);
    json_t *want = json_object_get(final, name), *values = json_object_get(want, "values");
    const size_t n = (size_t)t->count;
    const double change = number(want, "l2_of_change");
    double worst = fabs(l2(x, n) - number(want, "l2")) / change;
    size_t place[PLACES];
    for (size_t i = 0; i < PLACES; i++) place[i] = (i * 7919 + 13) % n;
    qsort(place, PLACES, sizeof *place, by_size);
    assert_int_equal(json_array_size(values), PLACES);
    for (size_t i = 0; i < PLACES; i++) {
        const double got = at_their_place(f, t->name, x, n, place[i]);
        worst = fmax(worst, fabs(got - json_number_value(json_array_get(values, i))) / change);
    }
    if (!(worst < WEIGHT_BOUND)) fail_msg("%s: %s is off by %g of its change", f->folder, name, worst);
    clt_free(name);
    return worst;
}

/* The keys' part of a bias that no rotation touches has a gradient of zero, which Adam turns into noise. */
static void check_weights(const family *f, const char *run, json_t *final) {
    clt_weight_source *s;
    double worst = 0;
    size_t checked = 0;
    tu_assert_ok(clt_weight_source_open(run, &s), run);
    for (int i = 0; i < clt_weight_source_count(s); i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(s, i, &t);
        if (strcmp(t.role, "weight") != 0 || strstr(t.name, "Wqkv.bias")) continue;
        float *x = clt_malloc(t.count * sizeof *x);
        tu_assert_ok(clt_weight_source_read(s, i, 0, x, t.count), t.name);
        worst = fmax(worst, check_weight(f, &t, x, final));
        checked++;
        clt_free(x);
    }
    printf("  %s: %zu final weights, %.2g of their change\n", f->folder, checked, worst);
    assert_true(checked > 20);
    clt_weight_source_close(s);
}

static void training_agrees(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(families); i++) {
        const family *f = &families[i];
        const char *weights = ru_path(f->folder);
        char *run = clt_format("%s-run", weights), *path = in_set(f, "train.json");
        json_t *want = golden_load(path);
        convert(f, weights);
        char *yaml = write_run(f, weights);
        ru_cltrain_ok(".", NULL, "-q train %s save_folder=%s", yaml, run);
        check_steps(f, run, json_object_get(want, "steps"));
        check_weights(f, run, json_object_get(want, "final"));
        json_decref(want);
        clt_free(yaml);
        clt_free(path);
        clt_free(run);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    ru_begin(argv[0]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes_agree), cmocka_unit_test(cached_logits_agree),
                                       cmocka_unit_test(config_survives_writing),
                                       cmocka_unit_test(training_agrees)};
    const int rc = tu_run(tests, CLT_COUNT_OF(tests));
    ru_end();
    return rc;
}
