/* Logits of spans of a batch of texts are bit-identical to those of each text alone, on every device. */
#include <string.h>

#include "test/test_util.h"

enum { T = 24, VOCAB = 50, TEXTS = 3, MOST = TEXTS * T * VOCAB };

static const char *const models[] = {
    "{'n_layers': 2, 'd_model': 64, 'n_heads': 4, 'max_seq_len': 24, 'vocab_size': 50, 'attn_config': "
    "{'alibi': true}}",
    "{'n_layers': 1, 'd_model': 64, 'n_heads': 4, 'max_seq_len': 24, 'vocab_size': 50, "
    "'tie_word_embeddings': false, 'attn_config': {'attn_type': 'grouped_query_attention', 'kv_n_heads': "
    "2}}"};

typedef struct {
    clt_model_config *cfg;
    clt_slab_table table;
    clt_slab *weights;
    clt_model *many, *one;
    float *got, *want;
} pair;

static void open_pair(pair *p, const char *text, int device) {
    p->cfg = tu_model(text);
    tu_assert_ok(clt_model_table(p->cfg, &p->table), "table");
    tu_assert_ok(clt_slab_create(tu_device(device), &p->table, 0, "weights", &p->weights), "weights");
    for (int i = 0; i < p->table.n; i++) {
        const clt_slab_entry *e = &p->table.entry[i];
        float *x = tu_random(e->count, 100 + (uint64_t)i, 0.4f);
        tu_assert_ok(clt_slab_write(p->weights, e->offset, x, e->count), e->name);
        clt_free(x);
    }
    clt_model_shape shape = {.microbatch = TEXTS, .seq = T, .logits_bytes = T * VOCAB * sizeof(float)};
    tu_assert_ok(clt_model_create(p->cfg, &shape, tu_ops(device), p->weights, NULL, &p->many), "model");
    shape.microbatch = 1;
    tu_assert_ok(clt_model_create(p->cfg, &shape, tu_ops(device), p->weights, NULL, &p->one), "model");
    p->got = clt_malloc(MOST * sizeof(float));
    p->want = clt_malloc(MOST * sizeof(float));
}

static void close_pair(pair *p) {
    clt_model_destroy(p->many);
    clt_model_destroy(p->one);
    clt_slab_destroy(p->weights);
    clt_slab_table_free(&p->table);
    clt_model_config_free(p->cfg);
    clt_free(p->got);
    clt_free(p->want);
}

/* clt_model_logits_fn */
static clt_status take(void *ctx, int64_t first, int64_t rows, const float *logits) {
    memcpy((float *)ctx + first * VOCAB, logits, (size_t)(rows * VOCAB) * sizeof *logits);
    return CLT_OK;
}

/* Text s has length[s] tokens; behind them are others, which must not matter. */
static void compare(pair *p, int64_t texts, const int64_t *length, const clt_model_span *span) {
    int32_t tokens[TEXTS * T];
    int64_t len = 0, rows = 0;
    for (int64_t s = 0; s < texts; s++) len = CLT_MAX(len, length[s]);
    for (int i = 0; i < TEXTS * T; i++) tokens[i] = (int32_t)tu_random_below(5, (uint64_t)i, VOCAB);
    tu_assert_ok(clt_model_span_logits(p->many, tokens, texts, len, span, take, p->got), "spans");
    for (int64_t s = 0; s < texts; s++) {
        const int64_t n = span[s].end - span[s].first;
        if (n)
            tu_assert_ok(clt_model_logits(p->one, tokens + s * len, length[s], span[s].first, n,
                                          p->want + rows * VOCAB),
                         "alone");
        rows += n;
    }
    tu_assert_words("logits", p->got, p->want, (size_t)(rows * VOCAB));
}

static void spans_equal_single_texts(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++)
        for (size_t i = 0; i < CLT_COUNT_OF(models); i++) {
            pair p = {0};
            open_pair(&p, models[i], d);
            compare(&p, 3, (int64_t[]){T, 7, 13}, (clt_model_span[]){{20, T}, {0, 1}, {5, 13}});
            compare(&p, 2, (int64_t[]){9, 4}, (clt_model_span[]){{0, 9}, {0, 4}});
            compare(&p, 3, (int64_t[]){T, T, T}, (clt_model_span[]){{0, T}, {3, 3}, {0, T}});
            int32_t token = 0;
            assert_int_equal(clt_model_span_logits(p.many, &token, 1, T + 1, NULL, take, p.got),
                             CLT_BAD_CONFIG);
            assert_int_equal(clt_model_span_logits(p.many, &token, 4, 1, NULL, take, p.got), CLT_BAD_CONFIG);
            close_pair(&p);
        }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(spans_equal_single_texts)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
