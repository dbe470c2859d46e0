/* Units: a pass over slabs whose units exist only between need and done (gradients: between grads_need and
 * ready) gives the bits of a pass over whole slabs. Everything else is NaN or has no buffer, and a unit has
 * another place at each use. So a pass that reads a tensor too early, too late or at its former place gives
 * other bits or fails. */
#include <string.h>

#include "runtime/ops/clt_op_elementwise.h"
#include "runtime/ops/ref/clt_ref.h"
#include "test/test_util.h"

enum { T = 24, VOCAB = 40, SAMPLES = 3, MICROBATCHES = 2, NANS = 0x7fc07fc0, MARGIN = 64 };

typedef struct {
    const char *model;
    clt_recompute recompute;
    clt_dtype type;
    clt_numerics numerics;
    int microbatches; /* of the lane */
    bool narrow_embeddings, groups, dropout;
    bool wide_norms; /* the norms' wide row, which postpones sums */
} run_case;

#define BASE "{'d_model': 32, 'n_heads': 4, 'n_layers': 3"
#define UNTIED BASE ", 'tie_word_embeddings': false, 'no_bias': true, 'attn_config': {'alibi': true}}"
#define GLU                                                                                                  \
    BASE ", 'norm_type': 'low_precision_rmsnorm', 'attn_config': {'rope': true, 'rope_impl': 'hf', "         \
         "'qk_ln': true, 'fused_qkv': false}, 'ffn_config': {'ffn_type': 'mptglu'}, 'block_overrides': "     \
         "{'order': [{'name': 'default', 'repeat': 2}, {'name': 'r'}], 'overrides': {'r': {'attn_config': "  \
         "{'reuse_kv_layer_idx': -1}}}}}"
#define DROPOUT                                                                                              \
    BASE ", 'resid_pdrop': 0.1, 'emb_pdrop': 0.1, 'attn_config': {'clip_qkv': 0.5, 'qk_gn': true}}"
#define WIDE "{'d_model': 64, 'n_heads': 2, 'n_layers': 3}"
#define UNTIED_BIAS "{'d_model': 64, 'n_heads': 2, 'n_layers': 1, 'tie_word_embeddings': false}"
#define PARALLEL                                                                                             \
    "{'d_model': 64, 'n_heads': 2, 'n_layers': 3, 'tie_word_embeddings': false, 'parallel_residual': true, " \
    "'attn_config': {'rope': true, 'rope_impl': 'hf', 'rope_fraction': 0.5}}"
#define PARALLEL_DROPS                                                                                       \
    BASE ", 'resid_pdrop': 0.1, 'parallel_residual': true, 'embedding_scale': 3, "                           \
         "'ffn_config': {'ffn_type': 'mptglu'}}"
#define POST_NORMS                                                                                           \
    "{'d_model': 64, 'n_heads': 2, 'n_layers': 3, 'norm_type': 'rmsnorm', 'norm_offset': 1, "                \
    "'post_norms': true, 'embedding_scale': 8, 'final_logit_softcapping': 3, 'attn_config': "                \
    "{'fused_qkv': false, 'attn_logit_softcapping': 2}, 'ffn_config': {'ffn_type': 'mptglu'}}"
#define BOTH BASE ", 'parallel_residual': true, 'post_norms': true, 'norm_offset': 1, 'emb_pdrop': 0.1}"

#define VIT                                                                                                  \
    "{'name': 'vit', 'image_size': 12, 'patch_size': 4, 'width': 32, 'heads': 2, 'depth': 3, 'classes': 7"
#define VIT_AVG VIT ", 'pooling': 'avg', 'drop_path': 0.4, 'pos_dropout': 0.1, 'attn_dropout': 0.1}"

static const run_case cases[] = {
    {.model = BASE "}", .microbatches = 1},
    {.model = BASE "}", .recompute = CLT_RECOMPUTE_NORMS, .microbatches = 2, .groups = true},
    {.model = BASE "}", .recompute = CLT_RECOMPUTE_BLOCKS, .microbatches = 1, .type = CLT_BF16},
    {.model = BASE "}", .microbatches = 1, .type = CLT_BF16, .narrow_embeddings = true, .groups = true},
    {.model = BASE "}", .microbatches = 2, .type = CLT_BF16, .numerics = CLT_FAST},
    {.model = UNTIED, .microbatches = 2, .groups = true},
    {.model = UNTIED, .recompute = CLT_RECOMPUTE_BLOCKS, .microbatches = 2},
    {.model = UNTIED, .recompute = CLT_RECOMPUTE_NORMS, .microbatches = 1, .type = CLT_BF16},
    {.model = UNTIED, .microbatches = 2, .type = CLT_BF16, .narrow_embeddings = true},
    {.model = GLU, .microbatches = 1},
    {.model = GLU, .recompute = CLT_RECOMPUTE_NORMS, .microbatches = 2, .type = CLT_BF16, .groups = true},
    {.model = DROPOUT, .recompute = CLT_RECOMPUTE_BLOCKS, .microbatches = 2, .dropout = true},
    {.model = DROPOUT, .microbatches = 1, .type = CLT_BF16, .dropout = true, .narrow_embeddings = true},
    {.model = UNTIED_BIAS, .microbatches = 2, .recompute = CLT_RECOMPUTE_NORMS},
    {.model = UNTIED_BIAS, .microbatches = 1, .type = CLT_BF16},
    {.model = WIDE, .microbatches = 2, .wide_norms = true},
    {.model = WIDE, .microbatches = 1, .type = CLT_BF16, .wide_norms = true},
    {.model = PARALLEL, .microbatches = 2, .wide_norms = true},
    {.model = PARALLEL, .recompute = CLT_RECOMPUTE_NORMS, .microbatches = 2, .type = CLT_BF16},
    {.model = PARALLEL_DROPS, .recompute = CLT_RECOMPUTE_BLOCKS, .microbatches = 1, .dropout = true},
    {.model = POST_NORMS, .recompute = CLT_RECOMPUTE_NORMS, .microbatches = 2, .type = CLT_BF16},
    {.model = POST_NORMS, .microbatches = 1, .wide_norms = true},
    {.model = POST_NORMS, .microbatches = 2, .type = CLT_BF16, .numerics = CLT_FAST},
    {.model = BOTH, .recompute = CLT_RECOMPUTE_BLOCKS, .microbatches = 2, .type = CLT_BF16, .dropout = true},
    {.model = VIT "}", .microbatches = 2},
    {.model = VIT "}", .microbatches = 2, .type = CLT_BF16, .numerics = CLT_FAST},
    {.model = VIT_AVG, .microbatches = 2, .recompute = CLT_RECOMPUTE_NORMS, .type = CLT_BF16},
    {.model = VIT_AVG, .microbatches = 1, .recompute = CLT_RECOMPUTE_BLOCKS, .dropout = true},
    {.model = VIT_AVG, .microbatches = 2, .type = CLT_BF16, .dropout = true},
};

/* --- whole slabs --- */

typedef struct {
    int device;
    run_case c;
    clt_model_config *config;
    clt_model_shape shape;
    clt_slab_table table;
    clt_model_unit *units;
    int n;                              /* units */
    clt_slab *weights, *narrow, *grads; /* narrow: only with a 16-bit type */
    clt_batch batch[MICROBATCHES];
    void *storage[MICROBATCHES];
} rig;

/* No weight is 0 or 1, so that an absent bias or norm shows. rounded: embeddings are values of the type. */
static void fill_weights(rig *g, bool rounded) {
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *x = tu_random(e->count, (uint64_t)i, 0.3f);
        if (rounded && i < g->units[0].end) clt_ref_round(g->c.type, x, e->count);
        tu_assert_ok(clt_slab_write(g->weights, e->offset, x, e->count), e->name);
        clt_free(x);
    }
    for (int i = 0; g->narrow && i < g->weights->n; i++)
        tu_assert_ok(clt_op_cast(tu_ops(g->device),
                                 clt_tensor_vector((clt_ref){g->weights->piece[i], 0}, CLT_F32),
                                 clt_tensor_vector((clt_ref){g->narrow->piece[i], 0}, g->c.type),
                                 g->weights->start[i + 1] - g->weights->start[i]),
                     "narrow weights");
}

/* Random tokens; the last microbatch is smaller. */
static void make_batches(rig *g) {
    for (int b = 0; b < MICROBATCHES; b++) {
        clt_batch *to = &g->batch[b];
        tu_assert_ok(clt_model_example(g->config, T, SAMPLES, &g->storage[b], to), "example");
        int32_t *tokens = (int32_t *)to->field[CLT_TEXT_TOKENS];
        const bool text =
            clt_model_get_facts(g->config).vocab_size > 0; /* images stay those of the example */
        for (uint64_t i = 0; text && i < SAMPLES * T; i++)
            tokens[i] = (int32_t)tu_random_below(5 + (uint64_t)b, i, VOCAB);
        to->samples = SAMPLES - b;
        to->first = (uint64_t)b * SAMPLES;
    }
}

static void open_rig(rig *g, const run_case *c, int device) {
    char *text = strstr(c->model, "vit")
                     ? clt_strdup(c->model)
                     : clt_format("{'max_seq_len': %d, 'vocab_size': %d, %s", T, VOCAB, c->model + 1);
    clt_device *dev = tu_device(device);
    *g = (rig){.device = device, .c = *c, .config = tu_model(text)};
    clt_free(text);
    g->shape = (clt_model_shape){.microbatch = SAMPLES,
                                 .seq = T,
                                 .training = true,
                                 .recompute = c->recompute,
                                 .numerics = c->numerics,
                                 .type = c->type,
                                 .narrow_embeddings = c->narrow_embeddings,
                                 .logits_bytes = c->groups ? 1 : 0};
    tu_assert_ok(clt_model_table(g->config, &g->table), "table");
    g->n = clt_model_units(g->config, &g->table, &g->units);
    tu_assert_ok(clt_slab_create(dev, &g->table, 0, "weights", &g->weights), "weights");
    tu_assert_ok(clt_slab_create(dev, &g->table, 0, "gradients", &g->grads), "gradients");
    if (c->type != CLT_F32)
        tu_assert_ok(clt_slab_create_narrow(dev, g->weights, "narrow", &g->narrow), "narrow");
    fill_weights(g, false);
    make_batches(g);
}

static void close_rig(rig *g) {
    clt_slab_destroy(g->weights);
    clt_slab_destroy(g->narrow);
    clt_slab_destroy(g->grads);
    clt_free(g->units);
    clt_slab_table_free(&g->table);
    clt_model_config_free(g->config);
    for (int b = 0; b < MICROBATCHES; b++) clt_free(g->storage[b]);
    tu_release();
}

static clt_model_pass pass_of(const rig *g, int microbatch, const clt_slab *grads, clt_ref losses) {
    return (clt_model_pass){.batch = &g->batch[microbatch],
                            .weight = 1.0f / (SAMPLES * T),
                            .step = 3,
                            .seed = 11,
                            .dropout = g->c.dropout,
                            .lane_first = microbatch == 0,
                            .lane_last = microbatch == g->c.microbatches - 1,
                            .grads = grads,
                            .sample_loss = losses};
}

/* What passes make. Gradients are in a slab. */
typedef struct {
    float losses[MICROBATCHES * SAMPLES], eval_losses[SAMPLES], logits[T * VOCAB];
    clt_model_correct correct;
} results;

/* begin and end, if they are not NULL, enclose each pass. */
typedef struct {
    void (*begin)(void *ctx, bool lane_first);
    void (*end)(void *ctx, clt_model_order_kind kind);
    void *ctx;
} around;

static void begin(const around *a, bool lane_first) {
    if (a) a->begin(a->ctx, lane_first);
}

static void end(const around *a, clt_model_order_kind kind) {
    if (a) a->end(a->ctx, kind);
}

static void run_passes(const rig *g, clt_model *m, const clt_slab *grads, const around *a, results *out) {
    clt_ref losses = tu_upload(g->device, (float[SAMPLES]){0}, SAMPLES);
    for (int b = 0; b < g->c.microbatches; b++) {
        const clt_model_pass p = pass_of(g, b, grads, losses);
        begin(a, p.lane_first);
        tu_assert_ok(clt_model_train(m, &p), "train");
        end(a, CLT_ORDER_TRAINING);
        memcpy(out->losses + b * SAMPLES, tu_download(losses, SAMPLES), SAMPLES * sizeof(float));
    }
    clt_model_pass p = pass_of(g, 0, NULL, losses);
    p.dropout = false;
    begin(a, true);
    tu_assert_ok(clt_model_eval(m, &p, &out->correct), "eval");
    end(a, CLT_ORDER_FORWARD);
    memcpy(out->eval_losses, tu_download(losses, SAMPLES), SAMPLES * sizeof(float));
    if (!clt_model_get_facts(g->config).generates) return;
    begin(a, true);
    tu_assert_ok(clt_model_logits(m, g->batch[0].field[CLT_TEXT_TOKENS], T, 0, T, out->logits), "logits");
    end(a, CLT_ORDER_FORWARD);
}

static void run_whole(const rig *g, results *out) {
    clt_model *m;
    tu_fill_nan(g->grads);
    tu_assert_ok(clt_model_create(g->config, &g->shape, tu_ops(g->device), g->weights, g->narrow, &m),
                 "model");
    run_passes(g, m, g->grads, NULL, out);
    clt_model_destroy(m);
}

/* --- slabs with absent units --- */

/* A slab whose pieces are the units. A unit has two places, used in turn, which are NaN while unused. */
typedef struct {
    clt_slab slab;      /* piece[u] NULL: unit u is absent */
    clt_buffer **place; /* [2 * units] */
    int *uses;          /* [units] */
} parts;

static void open_parts(parts *p, const rig *g, uint32_t element_bytes) {
    const size_t n = (size_t)g->n;
    *p = (parts){.slab = {.table = &g->table, .n = g->n, .element_bytes = element_bytes}};
    p->slab.piece = clt_calloc(n, sizeof *p->slab.piece);
    p->slab.start = clt_calloc(n + 1, sizeof *p->slab.start);
    p->slab.origin = clt_calloc(n, sizeof *p->slab.origin);
    p->place = clt_calloc(2 * n, sizeof *p->place);
    p->uses = clt_calloc(n, sizeof *p->uses);
    for (int u = 1; u < g->n; u++) p->slab.start[u] = g->table.entry[g->units[u].first].offset;
    p->slab.start[g->n] = g->table.total;
    for (int i = 0; i < 2 * g->n; i++) {
        const size_t bytes = (p->slab.start[i / 2 + 1] - p->slab.start[i / 2] + 3 * MARGIN) * element_bytes;
        tu_assert_ok(clt_buffer_create(tu_device(g->device), bytes, "unit", &p->place[i]), "unit");
        tu_assert_ok(clt_buffer_fill32(p->place[i], 0, NANS, bytes), "unit");
    }
}

static void close_parts(parts *p) {
    for (int i = 0; i < 2 * p->slab.n; i++) clt_buffer_destroy(p->place[i]);
    clt_free(p->place);
    clt_free(p->slab.piece);
    clt_free(p->slab.start);
    clt_free(p->slab.origin);
    clt_free(p->uses);
}

static void appear(parts *p, int u) {
    assert_null(p->slab.piece[u]);
    const int turn = p->uses[u]++ % 2;
    p->slab.piece[u] = p->place[2 * u + turn];
    p->slab.origin[u] = (uint64_t)(turn + 1) * MARGIN; /* NaN before the unit, too */
}

static void vanish(parts *p, int u) {
    clt_buffer *b = p->slab.piece[u];
    tu_assert_ok(clt_buffer_fill32(b, 0, NANS, clt_buffer_bytes(b)), "vanish");
    p->slab.piece[u] = NULL;
}

static void copy_tensor(const clt_slab *to, const clt_slab *from, int entry) {
    const clt_ref a = clt_slab_ref(to, entry), b = clt_slab_ref(from, entry);
    const size_t bytes = to->element_bytes, count = to->table->entry[entry].count;
    tu_assert_ok(clt_buffer_copy(a.buf, a.off * bytes, b.buf, b.off * bytes, count * bytes), "copy");
}

typedef struct {
    const rig *g;
    parts weights, narrow, grads;
    bool *used, *open;    /* [units] between need and done; between grads_need and ready */
    int *needs, *opens;   /* the calls of a pass, in order */
    int n_needs, n_opens; /* their numbers */
    clt_slab *kept;       /* gradients that left, the same table */
    bool lane_first;
} absent;

static clt_status need(void *ctx, int u) {
    absent *a = ctx;
    const rig *g = a->g;
    if (a->used[u]) fail_msg("unit %d is needed twice", u);
    a->used[u] = true;
    a->needs[a->n_needs++] = u;
    appear(&a->weights, u);
    if (g->narrow) appear(&a->narrow, u);
    for (int i = g->units[u].first; i < g->units[u].end; i++) {
        if (clt_model_reads_wide(g->config, &g->shape, &g->table, i))
            copy_tensor(&a->weights.slab, g->weights, i);
        if (g->narrow && g->table.entry[i].dims > 1) copy_tensor(&a->narrow.slab, g->narrow, i);
    }
    return CLT_OK;
}

static clt_status done(void *ctx, int u) {
    absent *a = ctx;
    if (!a->used[u]) fail_msg("unit %d is done without a need", u);
    a->used[u] = false;
    vanish(&a->weights, u);
    if (a->g->narrow) vanish(&a->narrow, u);
    return CLT_OK;
}

static clt_status grads_need(void *ctx, int u) {
    absent *a = ctx;
    if (a->open[u]) fail_msg("the gradients of unit %d are needed twice", u);
    a->open[u] = true;
    a->opens[a->n_opens++] = u;
    appear(&a->grads, u);
    for (int i = a->g->units[u].first; i < a->g->units[u].end && !a->lane_first; i++)
        copy_tensor(&a->grads.slab, a->kept, i);
    return CLT_OK;
}

static void keep_gradients(absent *a, int u) {
    if (!a->open[u]) fail_msg("the gradients of unit %d are ready but were not needed", u);
    for (int i = a->g->units[u].first; i < a->g->units[u].end; i++) copy_tensor(a->kept, &a->grads.slab, i);
    a->open[u] = false;
    vanish(&a->grads, u);
}

static clt_status ready(void *ctx, int first, int last) {
    absent *a = ctx;
    const rig *g = a->g;
    int u = 0;
    while (u < g->n && g->units[u].first != first) u++;
    if (u == g->n || g->units[u].end != last) fail_msg("[%d, %d) is ready, which is no unit", first, last);
    keep_gradients(a, u);
    return CLT_OK;
}

static void begin_absent(void *ctx, bool lane_first) {
    absent *a = ctx;
    a->lane_first = lane_first;
    a->n_needs = a->n_opens = 0;
}

static void check_order(const absent *a, clt_model_order_kind kind, const int *calls, int n) {
    int *order;
    assert_int_equal(clt_model_order(a->g->config, kind, &order), n);
    for (int i = 0; i < n; i++)
        if (calls[i] != order[i])
            fail_msg("call %d of order %d is for unit %d instead of %d", i, (int)kind, calls[i], order[i]);
    clt_free(order);
}

/* Gradients of a lane that is not complete leave too. */
static void end_absent(void *ctx, clt_model_order_kind kind) {
    absent *a = ctx;
    check_order(a, kind, a->needs, a->n_needs);
    if (kind == CLT_ORDER_TRAINING) check_order(a, CLT_ORDER_GRADIENTS, a->opens, a->n_opens);
    for (int u = 0; u < a->g->n; u++) {
        if (a->used[u]) fail_msg("unit %d is still in use after the pass", u);
        if (a->open[u]) keep_gradients(a, u);
    }
}

static void open_absent(absent *a, const rig *g) {
    const size_t n = (size_t)g->n;
    *a = (absent){.g = g};
    open_parts(&a->weights, g, sizeof(float));
    open_parts(&a->narrow, g, sizeof(uint16_t));
    open_parts(&a->grads, g, sizeof(float));
    a->used = clt_calloc(n, sizeof *a->used);
    a->open = clt_calloc(n, sizeof *a->open);
    a->needs = clt_calloc(2 * n + 1, sizeof *a->needs);
    a->opens = clt_calloc(n, sizeof *a->opens);
    tu_assert_ok(clt_slab_create(tu_device(g->device), &g->table, 0, "kept", &a->kept), "kept");
    tu_fill_nan(a->kept);
}

static void close_absent(absent *a) {
    close_parts(&a->weights);
    close_parts(&a->narrow);
    close_parts(&a->grads);
    clt_slab_destroy(a->kept);
    clt_free(a->used);
    clt_free(a->open);
    clt_free(a->needs);
    clt_free(a->opens);
}

static clt_model *model_of(absent *a) {
    const rig *g = a->g;
    clt_model *m;
    tu_assert_ok(clt_model_create(g->config, &g->shape, tu_ops(g->device), &a->weights.slab,
                                  g->narrow ? &a->narrow.slab : NULL, &m),
                 "model");
    clt_model_set_need(m, need, a);
    clt_model_set_done(m, done, a);
    clt_model_set_grads_need(m, grads_need, a);
    clt_model_set_ready(m, ready, a);
    return m;
}

static void run_absent(absent *a, results *out) {
    const around hooks = {begin_absent, end_absent, a};
    clt_model *m = model_of(a);
    run_passes(a->g, m, &a->grads.slab, &hooks, out);
    clt_model_destroy(m);
}

/* --- comparing --- */

static void assert_same(const results *got, const results *want) {
    tu_assert_words("losses", got->losses, want->losses, MICROBATCHES * SAMPLES);
    tu_assert_words("losses of evaluation", got->eval_losses, want->eval_losses, SAMPLES);
    tu_assert_words("logits", got->logits, want->logits, T * VOCAB);
    assert_memory_equal(&got->correct, &want->correct, sizeof got->correct);
    assert_memory_equal(got, want, sizeof *got); /* also which NaN, and the sign of 0 */
}

static void assert_same_gradients(const rig *g, const clt_slab *got, const float *want) {
    for (int i = 0; i < g->table.n; i++) {
        const clt_slab_entry *e = &g->table.entry[i];
        float *x = clt_malloc(e->count * sizeof *x);
        tu_assert_ok(clt_slab_read(got, e->offset, x, e->count), e->name);
        if (memcmp(x, want + e->offset, e->count * sizeof *x) != 0)
            tu_assert_words(e->name, x, want + e->offset, e->count);
        for (uint64_t k = 0; k < e->count; k++)
            if (x[k] != x[k]) fail_msg("%s: gradient %zu is NaN", e->name, (size_t)k);
        clt_free(x);
    }
}

static float *read_gradients(const rig *g) {
    float *x = clt_calloc(g->table.total, sizeof *x);
    tu_assert_ok(clt_slab_read(g->grads, 0, x, g->table.total), "gradients");
    return x;
}

static void one_case(const run_case *c, int device) {
    rig g;
    absent a;
    results whole = {0}, in_parts = {0};
    open_rig(&g, c, device);
    run_whole(&g, &whole);
    float *want = read_gradients(&g);
    open_absent(&a, &g);
    run_absent(&a, &in_parts);
    assert_same(&in_parts, &whole);
    assert_same_gradients(&g, a.kept, want);
    clt_free(want);
    close_absent(&a);
    close_rig(&g);
}

static bool has_wide_norms(int device) {
    int n;
    const clt_variant *v = clt_ops_variants(tu_ops(device), "norm", &n);
    for (int i = 0; i < n; i++)
        if (strcmp(v[i].id, "wide") == 0 && v[i].usable) return true;
    return false;
}

static void absent_units_change_no_bits(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < (tu_tiny() ? 2 : CLT_COUNT_OF(cases)); i++) {
            const bool wide = cases[i].wide_norms;
            if (wide && !has_wide_norms(d)) continue;
            printf("    case %zu on %s\n", i, tu_device_name(d));
            if (wide) tu_assert_ok(clt_variant_force(tu_ops(d), "norm", "wide"), "wide norms");
            one_case(&cases[i], d);
            if (wide) tu_assert_ok(clt_variant_force(tu_ops(d), "norm", NULL), "any norms");
        }
}

static void units_cover_the_table(void **state) {
    (void)state;
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        clt_model_config *c = tu_model(cases[i].model);
        clt_slab_table t = {0};
        clt_model_unit *u;
        tu_assert_ok(clt_model_table(c, &t), "table");
        const int n = clt_model_units(c, &t, &u);
        for (int k = 0; k < n; k++) {
            assert_int_equal(u[k].first, k ? u[k - 1].end : 0);
            assert_true(u[k].end > u[k].first);
        }
        assert_int_equal(u[n - 1].end, t.n);
        clt_free(u);
        clt_slab_table_free(&t);
        clt_model_config_free(c);
    }
}

/* --- hooks that fail --- */

static clt_status provides_nothing(void *ctx, int unit) {
    (void)ctx;
    (void)unit;
    return CLT_OK;
}

static clt_status stops_at(void *ctx, int unit) {
    return unit == *(int *)ctx ? CLT_STOPPED : CLT_OK;
}

static void hooks_that_fail_stop_the_pass(void **state) {
    (void)state;
    rig g;
    absent a;
    int at = 2;
    open_rig(&g, &cases[0], 0);
    open_absent(&a, &g);
    clt_model *m = model_of(&a);
    const clt_model_pass p = pass_of(&g, 0, &a.grads.slab, tu_blank(0, SAMPLES));
    clt_model_set_need(m, provides_nothing, NULL);
    clt_model_set_done(m, NULL, NULL);
    assert_int_equal(clt_model_train(m, &p), CLT_FAIL);
    assert_non_null(strstr(clt_last_error(), "transformer.wte.weight"));
    clt_model_destroy(m);
    for (int hook = 0; hook < 4; hook++) {
        tu_assert_ok(clt_model_create(g.config, &g.shape, tu_ops(0), g.weights, g.narrow, &m), "model");
        clt_model_pass whole = p;
        whole.grads = g.grads;
        if (hook == 0) clt_model_set_need(m, stops_at, &at);
        if (hook == 1) clt_model_set_done(m, stops_at, &at);
        if (hook == 2) clt_model_set_grads_need(m, stops_at, &at);
        if (hook == 3) {
            clt_model_set_grads_need(m, provides_nothing, NULL);
            whole.grads = &a.grads.slab;
        }
        assert_int_equal(clt_model_train(m, &whole), hook == 3 ? CLT_FAIL : CLT_STOPPED);
        clt_model_destroy(m);
    }
    close_absent(&a);
    close_rig(&g);
}

/* --- narrow embeddings --- */

/* Embeddings that are values of the 16-bit type are the same in both slabs. */
static void narrow_embeddings_read_the_narrow_slab(void **state) {
    (void)state;
    const run_case bf16[] = {{.model = BASE "}", .microbatches = 1, .type = CLT_BF16},
                             {.model = UNTIED, .microbatches = 1, .type = CLT_BF16}};
    for (size_t i = 0; i < CLT_COUNT_OF(bf16); i++)
        for (int rounded = 0; rounded < 2; rounded++) {
            rig g;
            results wide = {0}, narrow = {0};
            open_rig(&g, &bf16[i], 0);
            fill_weights(&g, rounded);
            run_whole(&g, &wide);
            float *want = read_gradients(&g);
            g.shape.narrow_embeddings = true;
            run_whole(&g, &narrow);
            if (rounded) {
                assert_same(&narrow, &wide);
                assert_same_gradients(&g, g.grads, want);
            } else {
                assert_memory_not_equal(narrow.losses, wide.losses, sizeof wide.losses);
            }
            clt_free(want);
            close_rig(&g);
        }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    tu_compile_fast();
    const struct CMUnitTest tests[] = {cmocka_unit_test(units_cover_the_table),
                                       cmocka_unit_test(absent_units_change_no_bits),
                                       cmocka_unit_test(hooks_that_fail_stop_the_pass),
                                       cmocka_unit_test(narrow_embeddings_read_the_narrow_slab)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
