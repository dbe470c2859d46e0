/* A model with a cache of keys and values gives logits that are bit-identical to those of a model without, on
 * every device: while a text grows, when it changes, and when it becomes shorter. */
#include <math.h>
#include <string.h>

#include "runtime/device/clt_device_test.h"
#include "runtime/model/mpt/clt_mpt_internal.h"
#include "runtime/ops/clt_variant.h"
#include "runtime/ops/ref/clt_ref.h"
#include "runtime/train/run/clt_generate.h"
#include "test/test_util.h"

enum { T = 72, PROMPT = 61, VOCAB = 50 };

enum { WINDOWED = 2 };
static const char *const models[] = {
    "{'n_layers': 2, 'attn_config': {'alibi': true}}",
    "{'n_layers': 2, 'attn_config': {'attn_type': 'grouped_query_attention', 'kv_n_heads': 2, 'qk_ln': true, "
    "'clip_qkv': 1.0}}", /* learned positions */
    "{'n_layers': 3, 'attn_config': {'rope': true, 'rope_impl': 'hf', 'attn_type': "
    "'grouped_query_attention', 'kv_n_heads': 2, 'sliding_window_size': 9, 'attn_temperature_tuning': "
    "{'floor_scale': 16, 'attn_scale': 0.1}}, 'block_overrides': {'order': [{'name': 'default', 'repeat': "
    "2}, {'name': 'r'}], 'overrides': {'r': {'attn_config': {'reuse_kv_layer_idx': -2}}}}}"};

typedef struct {
    clt_model_config *cfg;
    clt_slab_table table;
    clt_slab *weights;
    clt_model *keeps, *again;
    float *got, *want;
} pair;

/* The text of a model's configuration, with the sizes that all of them have. */
static clt_model_config *read_config(const char *text) {
    char *with = clt_format("{'d_model': 64, 'n_heads': 4, 'max_seq_len': %d, 'vocab_size': %d, %s", T, VOCAB,
                            text + 1);
    clt_model_config *c = tu_model(with);
    clt_free(with);
    return c;
}

static void fill_weights(pair *p) {
    for (int i = 0; i < p->table.n; i++) {
        const clt_slab_entry *e = &p->table.entry[i];
        float *x = tu_random(e->count, 100 + (uint64_t)i, 0.4f);
        tu_assert_ok(clt_slab_write(p->weights, e->offset, x, e->count), e->name);
        clt_free(x);
    }
}

static void open_pair(pair *p, const char *text, int device) {
    p->cfg = read_config(text);
    tu_assert_ok(clt_model_table(p->cfg, &p->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &p->table, 0, "weights", &p->weights), "weights");
    fill_weights(p);
    clt_model_shape shape = {.microbatch = 1, .seq = T};
    tu_assert_ok(clt_model_create(p->cfg, &shape, tu_ops(device), p->weights, NULL, &p->again), "model");
    shape.texts = 1;
    tu_assert_ok(clt_model_create(p->cfg, &shape, tu_ops(device), p->weights, NULL, &p->keeps), "model");
    p->got = clt_malloc(T * VOCAB * sizeof(float));
    p->want = clt_malloc(T * VOCAB * sizeof(float));
}

static void close_pair(pair *p) {
    clt_model_destroy(p->keeps);
    clt_model_destroy(p->again);
    clt_slab_destroy(p->weights);
    clt_slab_table_free(&p->table);
    clt_model_config_free(p->cfg);
    clt_free(p->got);
    clt_free(p->want);
}

static void compare(pair *p, const int32_t *tokens, int64_t len, int64_t first) {
    const int64_t rows = len - first;
    tu_assert_ok(clt_model_logits(p->again, tokens, len, first, rows, p->want), "every position");
    tu_assert_ok(clt_model_logits(p->keeps, tokens, len, first, rows, p->got), "with kept keys and values");
    if (memcmp(p->got, p->want, (size_t)(rows * VOCAB) * sizeof(float)) != 0)
        tu_assert_words("logits", p->got, p->want, (size_t)(rows * VOCAB));
}

static void one_model(const char *text, int device) {
    pair p = {0};
    int32_t tokens[T];
    for (int i = 0; i < T; i++) tokens[i] = (int32_t)tu_random_below(5, (uint64_t)i, VOCAB);
    open_pair(&p, text, device);
    compare(&p, tokens, PROMPT, PROMPT - 1);
    for (int64_t len = PROMPT + 1; len < T - 1; len++) compare(&p, tokens, len, len - 1);
    compare(&p, tokens, T, T - 1);         /* two new positions at once */
    compare(&p, tokens, T, T - 5);         /* rows that are cached already */
    compare(&p, tokens, 30, 29);           /* a prefix of it */
    tokens[10] = (tokens[10] + 1) % VOCAB; /* the cache is valid up to the changed token only */
    compare(&p, tokens, 40, 39);
    compare(&p, tokens + 1, T - 1, T - 2); /* every position moves */
    compare(&p, tokens, 1, 0);
    close_pair(&p);
}

/* Most of the time is the compilers'. Kernels for CPUs are not optimized where a device is compared with
 * itself, because its host code decides, and where they are rows for GPUs. */
static void optimize(int device, bool yes) {
    const bool cpu = clt_device_get_facts(tu_device(device))->type == CLT_DEVICE_CPU;
    clt_device_compile_fast(tu_device(device), !yes && cpu && !tu_complete());
}

static void logits_are_the_same_words(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        optimize(d, false);
        for (size_t i = 0; i < CLT_COUNT_OF(models); i++) {
            /* with a window one driver compiles the CPU variant for seconds, and no other test uses it */
            const char *row = i == WINDOWED ? "portable" : NULL;
            if (i > 0 && tu_spare_cpu(d)) break;
            tu_assert_ok(clt_variant_force(tu_ops(d), "attention", row), "clt_variant_force");
            one_model(models[i], d);
        }
        optimize(d, true);
    }
}

/* Texts that grow together, each from its own length on, one of them by two tokens at a time; `places` of one
 * model against a model without a cache. Compares the logits of all of them with `same`. */
enum { TEXTS = 5 };
typedef void (*compare_fn)(const float *got, const float *want);

static void grow_together(pair *p, clt_model *together, compare_fn same) {
    int32_t tokens[TEXTS][T];
    clt_model_text text[TEXTS];
    for (int i = 0; i < TEXTS; i++) {
        for (int t = 0; t < T; t++)
            tokens[i][t] = (int32_t)tu_random_below(50 + (uint64_t)i, (uint64_t)t, VOCAB);
        text[i] = (clt_model_text){(i + 2) % TEXTS, tokens[i], 1 + 11 * i};
    }
    for (int round = 0; round < 12; round++) {
        const int64_t n = round == 7 ? 2 : TEXTS; /* then the others are a token behind */
        tu_assert_ok(clt_model_next(together, text, n, p->got), "together");
        for (int64_t i = 0; i < n; i++) {
            tu_assert_ok(clt_model_logits(p->again, text[i].tokens, text[i].len, text[i].len - 1, 1, p->want),
                         "alone");
            same(p->got + i * VOCAB, p->want);
        }
        for (int i = 0; i < TEXTS; i++) text[i].len += i == 3 ? 2 : 1;
    }
}

static void same_words(const float *got, const float *want) {
    if (memcmp(got, want, VOCAB * sizeof *got) != 0) tu_assert_words("logits", got, want, VOCAB);
}

static void texts_grow_together(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        if (tu_spare_cpu(d)) continue;
        optimize(d, false);
        for (size_t i = 0; i < CLT_COUNT_OF(models); i++) {
            pair p = {0};
            clt_model *together;
            tu_assert_ok(clt_variant_force(tu_ops(d), "attention", i == WINDOWED ? "portable" : NULL),
                         "force");
            open_pair(&p, models[i], d);
            const clt_model_shape shape = {.microbatch = 1, .seq = T, .texts = TEXTS};
            tu_assert_ok(clt_model_create(p.cfg, &shape, tu_ops(d), p.weights, NULL, &together), "model");
            grow_together(&p, together, same_words);
            clt_model_destroy(together);
            close_pair(&p);
        }
        optimize(d, true);
    }
}

/* Numerics fast with the kernels for steps (clt_mpt_step.c), forced on CPUs: logits within a part of their
 * size of the exact ones, for weights that both types can hold. */
static const char *const fast_models[] = {
    "{'n_layers': 2, 'attn_config': {'alibi': true, 'softmax_scale': 0.3}}",
    "{'n_layers': 3, 'norm_type': 'rmsnorm', 'no_bias': true, 'ffn_config': {'ffn_type': 'mptglu', "
    "'ffn_hidden_size': "
    "96, 'ffn_act_fn': {'name': 'silu'}}, 'attn_config': {'rope': true, 'rope_impl': "
    "'hf', "
    "'fused_qkv': false, 'attn_type': 'grouped_query_attention', 'kv_n_heads': 2, 'sliding_window_size': "
    "40}}",
    "{'n_layers': 3, 'parallel_residual': true, 'attn_config': {'rope': true, 'rope_impl': 'hf', "
    "'rope_fraction': 0.5, 'attn_logit_softcapping': 20, 'attn_temperature_tuning': {'floor_scale': 16, "
    "'attn_scale': 0.1}}, 'block_overrides': {'order': [{'name': 'default', 'repeat': 2}, {'name': 'r'}], "
    "'overrides': {'r': {'attn_config': {'reuse_kv_layer_idx': -2}}}}}"};

static double tolerance;
static void about_same(const float *got, const float *want) {
    double most = 0;
    for (int i = 0; i < VOCAB; i++) most = fmax(most, fabs((double)want[i]));
    for (int i = 0; i < VOCAB; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * most))
            fail_msg("logit %d is %g instead of %g (largest %g)", i, (double)got[i], (double)want[i], most);
}

/* Greedy continuation against the search of the logits of a second model, whose bits are the same: a step
 * that was queued ahead is used where the texts continue with the choice, and not where they continue
 * otherwise, a text is missing or another begins in its place, or the logits are asked for in between. */
static void choose_together(clt_model *chooses, clt_model *searches, pair *p) {
    const clt_mpt *m = (const clt_mpt *)chooses;
    int32_t tokens[TEXTS][T], token[TEXTS];
    clt_model_text text[TEXTS];
    bool ahead = false;
    for (int i = 0; i < TEXTS; i++) {
        for (int t = 0; t < T; t++)
            tokens[i][t] = (int32_t)tu_random_below(70 + (uint64_t)i, (uint64_t)t, VOCAB);
        text[i] = (clt_model_text){(i + 3) % TEXTS, tokens[i], 1 + 9 * i};
    }
    for (int round = 0; text[TEXTS - 1].len < T; round++) {
        const int64_t n = round % 7 == 5 ? 3 : TEXTS;
        if (round == 9) text[1].len = 4; /* another text */
        tu_assert_ok(clt_model_next_greedy(chooses, text, n, p->got, token), "greedy");
        ahead |= m->ahead.step.rows > 0;
        tu_assert_ok(clt_model_next(searches, text, n, p->want), "logits");
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(token[i], clt_ref_greedy(p->want + i * VOCAB, VOCAB));
            const bool obeys = round % 5 != 3 || i != 2;
            tokens[i][text[i].len++] = obeys ? token[i] : (token[i] + 1) % VOCAB;
        }
        if (round % 6 == 4) tu_assert_ok(clt_model_next(chooses, text, TEXTS, p->got), "in between");
    }
    assert_int_equal(ahead, m->fused > 0);
}

static void fast_text(clt_ops *fast, const char *text, int device, clt_dtype type) {
    pair p = {0};
    clt_model *together, *second;
    clt_slab *narrow = NULL;
    open_pair(&p, text, device);
    const uint64_t total = p.table.total;
    float *x = clt_malloc(total * sizeof *x);
    tu_assert_ok(clt_slab_read(p.weights, 0, x, total), "weights");
    clt_ref_round(CLT_BF16, x, total);
    tu_assert_ok(clt_slab_write(p.weights, 0, x, total), "weights");
    if (type) {
        tu_assert_ok(clt_slab_create_narrow(tu_device(device), p.weights, "narrow", &narrow), "narrow");
        tu_assert_ok(clt_op_cast(fast, clt_tensor_vector(clt_slab_part(p.weights, 0), CLT_F32),
                                 clt_tensor_vector(clt_slab_part(narrow, 0), type), total),
                     "cast");
    }
    const clt_model_shape shape = {.microbatch = 1,
                                   .seq = T,
                                   .texts = TEXTS,
                                   .numerics = CLT_FAST,
                                   .type = type,
                                   .narrow_embeddings = type != 0};
    tu_assert_ok(clt_model_create(p.cfg, &shape, fast, p.weights, narrow, &together), "model");
    tolerance = type ? 0.04 : 1e-5;
    grow_together(&p, together, about_same);
    assert_int_equal(((clt_mpt *)together)->fused, 1);
    tu_assert_ok(clt_model_create(p.cfg, &shape, fast, p.weights, narrow, &second), "model");
    choose_together(together, second, &p);
    clt_model_destroy(together);
    clt_model_destroy(second);
    clt_slab_destroy(narrow);
    clt_free(x);
    close_pair(&p);
}

static void fast_steps_agree(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        if (tu_spare_cpu(d)) continue;
        optimize(d, strstr(tu_device_name(d), "Portable") !=
                        NULL); /* whose forced rows fail their checks then */
        clt_ops *fast = tu_fast_ops(d);
        tu_assert_ok(clt_variant_force(fast, "linear", "rows"), "force");
        tu_assert_ok(clt_variant_force(fast, "attention_step", "step"), "force");
        tu_assert_ok(clt_variant_force(tu_ops(d), "attention", "portable"), "force");
        tu_assert_ok(clt_variant_force(fast, "attention", "portable"), "force");
        for (size_t i = 0; i < CLT_COUNT_OF(fast_models); i++) {
            /* compiling takes most of the time, and the types share all but loads */
            if (i == 0 || tu_complete()) fast_text(fast, fast_models[i], d, CLT_F32);
            fast_text(fast, fast_models[i], d, CLT_BF16);
        }
        optimize(d, true);
        clt_ops_destroy(fast);
    }
}

/* The plan counts the cache: keys and values of 4 heads of 16 elements, 72 positions, 2 blocks. */
static void the_plan_counts_it(void **state) {
    (void)state;
    clt_model_memory with, without;
    clt_model_shape shape = {.microbatch = 1, .seq = T, .texts = 1};
    clt_model_config *cfg = read_config(models[0]);
    tu_assert_ok(clt_model_plan(cfg, &shape, CLT_DEVICE_CPU, &without), "plan");
    shape.texts = 2;
    tu_assert_ok(clt_model_plan(cfg, &shape, CLT_DEVICE_CPU, &with), "plan");
    assert_int_equal(with.total - without.total, 2 * T * 2 * 4 * 16 * sizeof(float));
    clt_model_config_free(cfg);
}

/* Few different logits, so that many are equal. */
static void equal_logits(float *x, uint64_t seed) {
    for (int i = 0; i < VOCAB; i++) x[i] = 0.5f * (float)tu_random_below(seed, (uint64_t)i, 7) - 2.0f;
}

/* How many logits come before number i: larger ones, and equal ones with lower ids. */
static int64_t rank_of(const float *x, int i) {
    int64_t before = 0;
    for (int j = 0; j < VOCAB; j++) before += x[j] > x[i] || (x[j] == x[i] && j < i);
    return before;
}

/* Sampling from the k largest equals sampling from all with the others at -inf. */
static void the_largest_are_drawn_from(void **state) {
    (void)state;
    float x[VOCAB], masked[VOCAB];
    bool several = false;
    for (uint64_t at = 0; at < 400; at++) {
        const int64_t k = 1 + tu_random_below(1, at, VOCAB + 3);
        int32_t first = 0;
        equal_logits(x, 2 + at);
        for (int i = 0; i < VOCAB; i++) {
            masked[i] = rank_of(x, i) < k ? x[i] : -INFINITY;
            if (rank_of(x, i) == 0) first = i;
        }
        clt_sample_params p = {.temperature = 0.8, .top_k = k, .top_p = 1, .seed = 17}, all = p, sure = p;
        all.top_k = 0;
        sure.temperature = 0;
        int32_t got = clt_sample_token(x, VOCAB, &p, at);
        assert_int_equal(got, clt_sample_token(masked, VOCAB, &all, at));
        assert_true(masked[got] > -INFINITY);
        assert_int_equal(clt_sample_token(x, VOCAB, &sure, at), first);
        several |= got != first;
    }
    assert_true(several);
}

/* Sampling with top_p equals sampling from the tokens whose predecessors together have less than that
 * probability. */
static void the_nucleus_is_drawn_from(void **state) {
    (void)state;
    float x[VOCAB], masked[VOCAB];
    bool fewer = false;
    for (uint64_t at = 0; at < 400; at++) {
        const double top_p = (1 + (double)tu_random_below(1, at, 99)) / 100;
        double sum = 0;
        equal_logits(x, 500 + at);
        for (int i = 0; i < VOCAB; i++) sum += exp((double)x[i] / 0.8);
        for (int i = 0; i < VOCAB; i++) {
            double before = 0;
            for (int j = 0; j < VOCAB; j++)
                if (rank_of(x, j) < rank_of(x, i)) before += exp((double)x[j] / 0.8);
            if (fabs(before / sum - top_p) < 1e-9) goto next; /* the last bit would decide */
            masked[i] = before < top_p * sum ? x[i] : -INFINITY;
            fewer |= before >= top_p * sum;
        }
        clt_sample_params p = {.temperature = 0.8, .top_p = top_p, .seed = 17}, all = p;
        all.top_p = 1;
        assert_int_equal(clt_sample_token(x, VOCAB, &p, at), clt_sample_token(masked, VOCAB, &all, at));
    next:;
    }
    assert_true(fewer);
}

static void repetition_is_penalized_once(void **state) {
    (void)state;
    float x[4] = {3, -3, 5, -5};
    bool seen[4] = {false};
    clt_sample_penalize(x, (const int32_t[]){1, 0, 1, 0, 0}, 5, 1.5, seen);
    const float want[4] = {2, -4.5f, 5, -5};
    assert_memory_equal(x, want, sizeof x);
    for (int i = 0; i < 4; i++) assert_false(seen[i]);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_the_same_words),
                                       cmocka_unit_test(texts_grow_together),
                                       cmocka_unit_test(fast_steps_agree),
                                       cmocka_unit_test(the_plan_counts_it),
                                       cmocka_unit_test(the_largest_are_drawn_from),
                                       cmocka_unit_test(the_nucleus_is_drawn_from),
                                       cmocka_unit_test(repetition_is_penalized_once)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
