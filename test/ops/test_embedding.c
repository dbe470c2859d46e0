/* Lookups and their gradients: every variant on every device gives the oracle's words, for any division into
 * microbatches. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t samples, seq, cols, vocab;
    float fraction;
    bool wpe, same; /* same: every row looks up one id */
} shape;

static const shape tiny[] = {{2, 3, 5, 7, 1.0f, true, false}, {1, 5, 33, 4, 0.5f, false, true}};
static const shape small[] = {{1, 1, 1, 1, 1.0f, true, false},       {2, 16, 768, 5003, 1.0f, true, false},
                              {3, 33, 127, 40, 0.3f, true, false},   {4, 64, 256, 11, 1.0f, false, false},
                              {2, 31, 1030, 100, 1.0f, false, true}, {7, 2, 17, 3, 0.9f, true, false}};

/* For wide rows: multiples of 8; an id with a long chain. */
static const shape tiny_wide[] = {{2, 3, 8, 7, 1.0f, true, false}, {1, 5, 40, 4, 0.5f, false, true}};
static const shape wide[] = {{1, 1, 8, 1, 1.0f, true, false},       {2, 16, 768, 5003, 1.0f, true, false},
                             {3, 33, 128, 40, 0.3f, true, false},   {4, 64, 256, 11, 1.0f, false, false},
                             {2, 31, 1032, 100, 1.0f, false, true}, {7, 2, 24, 3, 0.9f, true, false}};

static int32_t *make_ids(const shape *s) {
    int64_t rows = s->samples * s->seq;
    int32_t *ids = clt_malloc((size_t)rows * 4);
    for (int64_t r = 0; r < rows; r++)
        ids[r] = s->same ? (int32_t)(s->vocab - 1) : (int32_t)tu_random_below(7, (uint64_t)r, s->vocab);
    return ids;
}

static clt_tensor rows_of(const shape *s, clt_ref r) {
    return clt_tensor_of(r, s->cols, CLT_F32);
}

static void forward(int d, const shape *s, const int32_t *ids, clt_dtype type) {
    int64_t rows = s->samples * s->seq;
    size_t n = (size_t)(rows * s->cols), table = (size_t)(s->vocab * s->cols),
           pos = (size_t)(s->seq * s->cols);
    float *wte = tu_random(table, 1, 1.0f), *wpe = tu_random(pos, 2, 1.0f), *want = clt_calloc(n, 4);
    clt_embedding_params p = {.rows = rows,
                              .seq = s->seq,
                              .cols = s->cols,
                              .vocab = s->vocab,
                              .ids = tu_upload_i32(d, ids, (size_t)rows),
                              .wte = clt_tensor_of(tu_upload_rounded(d, type, wte, table), s->cols, type),
                              .wpe = clt_tensor_of(tu_upload_rounded(d, type, wpe, pos), s->cols, type),
                              .out = rows_of(s, tu_blank(d, n)),
                              .fraction = s->fraction};
    if (!s->wpe) p.wpe = clt_tensor_none();
    tu_assert_ok(clt_op_embedding_forward(tu_ops(d), &p), "embedding forward");
    clt_ref_embedding_forward(rows, s->seq, s->cols, ids, wte, s->wpe ? wpe : NULL, s->fraction, want);
    tu_assert_words("embedding", tu_download(p.out.ref, n), want, n);
    clt_free(wte), clt_free(wpe), clt_free(want);
}

/* The row lists of one microbatch as the model makes them. */
typedef struct {
    int32_t *ids, *first, *begin, *row_of;
    int64_t unique;
} lists;

static lists make_lists(const int32_t *ids, int64_t rows, int64_t vocab, bool *seen) {
    lists l = {clt_calloc((size_t)rows, 4), clt_calloc((size_t)rows, 4), clt_calloc((size_t)rows + 1, 4),
               clt_calloc((size_t)rows, 4), 0};
    int32_t n = 0;
    for (int64_t id = 0; id < vocab; id++) {
        int32_t start = n;
        for (int64_t r = 0; r < rows; r++)
            if (ids[r] == id) l.row_of[n++] = (int32_t)r;
        if (n == start) continue;
        l.ids[l.unique] = (int32_t)id;
        l.first[l.unique] = !seen[id];
        seen[id] = true;
        l.begin[++l.unique] = n;
    }
    return l;
}

/* Backward over microbatches of `micro` samples; tables start with garbage if the first lookup writes +0. */
static void backward(int d, const shape *s, const int32_t *ids, int64_t micro, const float *dx,
                     const float *want, const float *want_pos) {
    size_t table = (size_t)(s->vocab * s->cols), pos = (size_t)(s->seq * s->cols);
    const clt_tensor dwte = rows_of(s, tu_blank(d, table)),
                     dwpe = s->wpe ? rows_of(s, tu_blank(d, pos)) : clt_tensor_none();
    bool *seen = clt_calloc((size_t)s->vocab, sizeof *seen);
    for (int64_t at = 0; at < s->samples; at += micro) {
        int64_t rows = CLT_MIN(micro, s->samples - at) * s->seq;
        lists l = make_lists(ids + at * s->seq, rows, s->vocab, seen);
        const clt_ref part = tu_upload(d, dx + at * s->seq * s->cols, (size_t)(rows * s->cols));
        clt_embedding_grad_params p = {.rows = rows,
                                       .seq = s->seq,
                                       .cols = s->cols,
                                       .unique = l.unique,
                                       .dx = rows_of(s, part),
                                       .ids = tu_upload_i32(d, l.ids, (size_t)l.unique),
                                       .first = tu_upload_i32(d, l.first, (size_t)l.unique),
                                       .row_begin = tu_upload_i32(d, l.begin, (size_t)l.unique + 1),
                                       .row_of = tu_upload_i32(d, l.row_of, (size_t)rows),
                                       .dwte = dwte,
                                       .dwpe = dwpe,
                                       .accumulate_wpe = at > 0,
                                       .fraction = s->fraction};
        tu_assert_ok(clt_op_embedding_backward(tu_ops(d), &p), "embedding backward");
        clt_free(l.ids), clt_free(l.first), clt_free(l.begin), clt_free(l.row_of);
    }
    const float *got = tu_download(dwte.ref, table);
    for (int64_t id = 0; id < s->vocab; id++)
        if (seen[id])
            tu_assert_words("dwte", got + id * s->cols, want + id * s->cols, (size_t)s->cols);
        else
            assert_true(isnan(got[id * s->cols])); /* rows without a lookup do not change */
    if (s->wpe) tu_assert_words("dwpe", tu_download(dwpe.ref, pos), want_pos, pos);
    clt_free(seen);
}

static void each_shape(int d, const char *id) {
    (void)id;
    const shape *list = tu_wide() ? tu_tiny() ? tiny_wide : wide : tu_tiny() ? tiny : small;
    for (size_t i = 0; i < (tu_tiny() ? CLT_COUNT_OF(tiny) : CLT_COUNT_OF(small)); i++) {
        const shape *s = &list[i];
        int64_t rows = s->samples * s->seq;
        int32_t *ids = make_ids(s);
        for (int type = 0; type < CLT_DTYPE_COUNT; type++)
            if (clt_dtype_in((clt_dtype)type, CLT_DTYPE_PLAIN)) forward(d, s, ids, (clt_dtype)type);
        float *dx =
            i % 2 ? tu_extreme((size_t)(rows * s->cols), i) : tu_random((size_t)(rows * s->cols), i, 1.0f);
        float *want = clt_calloc((size_t)(s->vocab * s->cols), 4),
              *pos = clt_calloc((size_t)(s->seq * s->cols), 4);
        clt_ref_embedding_backward(rows, s->seq, s->cols, ids, dx, s->fraction, want, s->wpe ? pos : NULL);
        backward(d, s, ids, s->samples, dx, want, pos);
        backward(d, s, ids, 1, dx, want, pos);
        clt_free(ids), clt_free(dx), clt_free(want), clt_free(pos);
        tu_release();
    }
}

static void lookups_give_the_oracles_words(void **state) {
    (void)state;
    tu_each_variant("embedding", each_shape);
}

static void each_add(int d, const char *id) {
    (void)id;
    enum { VOCAB = 9, MOST = 72, N = VOCAB * MOST };
    const int cols = tu_wide() ? MOST : 65;
    const int32_t ids[] = {8, 0, 3};
    float *a = tu_random(N, 1, 1.0f), *b = tu_random(N, 2, 1.0f);
    const clt_embedding_add_params p = {.unique = 3,
                                        .cols = cols,
                                        .ids = tu_upload_i32(d, ids, 3),
                                        .src = clt_tensor_of(tu_upload(d, b, N), cols, CLT_F32),
                                        .dst = clt_tensor_of(tu_upload(d, a, N), cols, CLT_F32)};
    tu_assert_ok(clt_op_embedding_add_rows(tu_ops(d), &p), "add rows");
    for (int u = 0; u < 3; u++)
        for (int c = 0; c < cols; c++) a[ids[u] * cols + c] += b[ids[u] * cols + c];
    tu_assert_words("add rows", tu_download(p.dst.ref, N), a, N);
    clt_free(a), clt_free(b);
}

static void rows_are_added(void **state) {
    (void)state;
    tu_each_variant("embedding", each_add);
}

/* Ids outside the table read nothing and give NaN; the other rows are correct. */
static void each_hostile(int d, const char *id) {
    (void)id;
    const int32_t ids[] = {0, -1, 2, 3, INT32_MAX, INT32_MIN};
    float *wte = tu_random(3 * 24, 1, 1.0f);
    clt_embedding_params p = {.rows = 6,
                              .seq = 6,
                              .cols = 24,
                              .vocab = 3,
                              .ids = tu_upload_i32(d, ids, 6),
                              .wte = clt_tensor_of(tu_upload(d, wte, 72), 24, CLT_F32),
                              .out = clt_tensor_of(tu_blank(d, 144), 24, CLT_F32),
                              .fraction = 1.0f};
    tu_assert_ok(clt_op_embedding_forward(tu_ops(d), &p), "embedding forward");
    const float *out = tu_download(p.out.ref, 144);
    for (int r = 0; r < 6; r++) {
        if (ids[r] >= 0 && ids[r] < 3)
            tu_assert_words("row", out + r * 24, wte + ids[r] * 24, 24);
        else
            for (int c = 0; c < 24; c++) assert_true(isnan(out[r * 24 + c]));
    }
    clt_free(wte);
}

static void ids_outside_the_table_give_nan(void **state) {
    (void)state;
    tu_each_variant("embedding", each_hostile);
}

static void tables_of_two_types_are_refused(void **state) {
    (void)state;
    const float wte[8] = {0}, wpe[8] = {0};
    const clt_embedding_params p = {.rows = 1,
                                    .seq = 1,
                                    .cols = 8,
                                    .vocab = 1,
                                    .ids = tu_upload_i32(0, (int32_t[]){0}, 1),
                                    .wte = clt_tensor_of(tu_upload_as(0, CLT_BF16, wte, 8), 8, CLT_BF16),
                                    .wpe = clt_tensor_of(tu_upload(0, wpe, 8), 8, CLT_F32),
                                    .out = clt_tensor_of(tu_blank(0, 8), 8, CLT_F32),
                                    .fraction = 1.0f};
    assert_int_equal(clt_op_embedding_forward(tu_ops(0), &p), CLT_FAIL);
    assert_non_null(strstr(clt_last_error(), "wpe"));
    tu_release();
}

/* More rows, and more words, than a launch's second dimension takes. */
static void many_rows_are_looked_up(void **state) {
    (void)state;
    enum { ROWS = CLT_LAUNCH_MOST_ROWS + 5, COLS = 3, SEQ = 7 };
    if (tu_tiny()) return;
    int32_t *ids = clt_malloc((ROWS + 1) * sizeof *ids), *first = clt_malloc(ROWS * sizeof *first);
    float *wte = tu_random(ROWS * COLS, 1, 1.0f), *wpe = tu_random(SEQ * COLS, 2, 1.0f);
    float *want = clt_malloc(ROWS * COLS * sizeof *want);
    for (int r = 0; r <= ROWS; r++) ids[r] = r;
    for (int r = 0; r < ROWS; r++) first[r] = 1;
    for (int d = 0; d < tu_device_count(); d++) {
        const clt_ref words = tu_upload_i32(d, ids, ROWS + 1);
        const clt_tensor out = clt_tensor_of(tu_blank(d, ROWS * COLS), COLS, CLT_F32);
        const clt_embedding_params f = {.rows = ROWS,
                                        .seq = SEQ,
                                        .cols = COLS,
                                        .vocab = ROWS,
                                        .ids = words,
                                        .wte = clt_tensor_of(tu_upload(d, wte, ROWS * COLS), COLS, CLT_F32),
                                        .wpe = clt_tensor_of(tu_upload(d, wpe, SEQ * COLS), COLS, CLT_F32),
                                        .out = out,
                                        .fraction = 1.0f};
        tu_assert_ok(clt_op_embedding_forward(tu_ops(d), &f), "forward");
        clt_device_counters before, after;
        clt_device_get_counters(tu_device(d), &before);
        tu_assert_ok(clt_op_embedding_forward(tu_ops(d), &f), "forward");
        clt_device_get_counters(tu_device(d), &after);
        assert_int_equal(after.launches - before.launches, 2);
        clt_ref_embedding_forward(ROWS, SEQ, COLS, ids, wte, wpe, 1.0f, want);
        tu_assert_words("rows", tu_download(out.ref, ROWS * COLS), want, ROWS * COLS);
        const clt_embedding_grad_params g = {.rows = ROWS,
                                             .seq = SEQ,
                                             .cols = COLS,
                                             .unique = ROWS,
                                             .dx = f.wte,
                                             .ids = words,
                                             .first = tu_upload_i32(d, first, ROWS),
                                             .row_begin = words,
                                             .row_of = words,
                                             .dwte = out,
                                             .fraction = 1.0f};
        tu_assert_ok(clt_op_embedding_backward(tu_ops(d), &g), "backward");
        tu_assert_words("gradients", tu_download(out.ref, ROWS * COLS), wte, ROWS * COLS);
        tu_release();
    }
    clt_free(ids), clt_free(first), clt_free(wte), clt_free(wpe), clt_free(want);
}

/* The oracle in double: sums of the dx rows of each id. */
static void oracle_follows_the_formula(void **state) {
    (void)state;
    enum { ROWS = 40, COLS = 3, VOCAB = 4, SEQ = 10 };
    int32_t ids[ROWS];
    double dwte[VOCAB * COLS] = {0}, dwpe[SEQ * COLS] = {0};
    float got[VOCAB * COLS] = {0}, got_pos[SEQ * COLS] = {0};
    float *dx = tu_random(ROWS * COLS, 3, 1.0f);
    for (int r = 0; r < ROWS; r++) {
        ids[r] = (int32_t)tu_random_below(1, (uint64_t)r, VOCAB);
        for (int c = 0; c < COLS; c++) {
            dwte[ids[r] * COLS + c] += (double)0.25f * (double)dx[r * COLS + c];
            dwpe[r % SEQ * COLS + c] += (double)0.25f * (double)dx[r * COLS + c];
        }
    }
    clt_ref_embedding_backward(ROWS, SEQ, COLS, ids, dx, 0.25f, got, got_pos);
    tu_assert_close("dwte", got, dwte, VOCAB * COLS, 1e-6);
    tu_assert_close("dwpe", got_pos, dwpe, SEQ * COLS, 1e-6);
    clt_free(dx);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(oracle_follows_the_formula),
                                       cmocka_unit_test(lookups_give_the_oracles_words),
                                       cmocka_unit_test(rows_are_added),
                                       cmocka_unit_test(ids_outside_the_table_give_nan),
                                       cmocka_unit_test(tables_of_two_types_are_refused),
                                       cmocka_unit_test(many_rows_are_looked_up)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
