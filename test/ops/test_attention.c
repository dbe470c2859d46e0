/* Attention: every body on every device against the oracle, to the last bit. */
#include <string.h>

#include "runtime/ops/clt_op_attention_internal.h"
#include "test/attention_util.h"

typedef attention_shape shape;
typedef attention_problem problem;
typedef attention_uploaded uploaded;

/* Work-group bodies differ only by their tile. `rows` selects the one that runs a case; 0: the smallest and,
 * from 65 elements, the one for long heads; -1: none. */
static const shape cases[] = {
    {1, 1, 1, 1, 4},
    {2, 7, 2, 2, 4},
    {1, 63, 2, 1, 16, .fused = true},
    {2, 64, 2, 2, 16},
    {1, 65, 3, 3, 24},
    {1, 66, 1, 1, 5},
    {2, 127, 4, 2, 64, .fused = true, .rows = 64},
    {1, 256, 2, 2, 64, .fused = true, .rows = 64},
    {1, 200, 4, 1, 64, .accumulate = true, .rows = 64},
    {1, 70, 2, 1, 64, .extreme = true, .rows = 64},
    {1, 130, 2, 1, 64, .amplitude = 40.0f, .rows = 64},
    {1, 129, 2, 2, 80},
    {1, 192, 2, 2, 128, .fused = true},
    {2, 65, 2, 1, 80, .fused = true, .rows = 32},
    {1, 70, 2, 1, 201, .type = CLT_BF16, .alibi = true, .ids = true, .accumulate = true},
    {2, 150, 2, 1, 16, .window = 34},
    {1, 200, 2, 1, 16, .window = 1},
    {1, 300, 1, 1, 16, .window = 130, .accumulate = true},
    {2, 150, 4, 2, 16, .alibi = true, .softcap = 1.5f, .window = 71, .ids = true, .dropout = 0.1f,
     .fused = true, .accumulate = true},
    {2, 131, 2, 1, 16, .dropout = 0.25f, .rows = -1},
    {1, 66, 1, 1, 5, .type = CLT_BF16, .accumulate = true},
    {1, 130, 4, 1, 64, .type = CLT_BF16, .fused = true, .rows = 64},
    {1, 200, 4, 1, 64, .type = CLT_F16, .accumulate = true, .rows = 64},
    {1, 70, 2, 1, 64, .type = CLT_BF16, .extreme = true, .rows = 64},
    {1, 130, 2, 1, 64, .type = CLT_F16, .amplitude = 40.0f, .rows = 64},
    {1, 129, 2, 2, 80, .type = CLT_BF16, .fused = true, .rows = 32},
    {2, 149, 4, 2, 16, .type = CLT_BF16, .alibi = true, .softcap = 1.5f, .window = 71, .ids = true,
     .dropout = 0.1f, .fused = true, .accumulate = true},
    {2, 65, 2, 1, 4, .unmasked = true},
    {1, 1, 1, 1, 4, .unmasked = true},
    {1, 197, 4, 2, 64, .unmasked = true, .fused = true, .rows = 64},
    {2, 257, 2, 1, 80, .unmasked = true, .accumulate = true},
    {1, 197, 2, 2, 80, .unmasked = true, .type = CLT_BF16, .fused = true, .rows = 32},
    {1, 70, 2, 1, 64, .unmasked = true, .extreme = true, .rows = 64},
    {1, 300, 1, 1, 16, .unmasked = true, .window = 71, .accumulate = true},
    {1, 200, 2, 2, 16, .unmasked = true, .window = 1},
    {1, 150, 2, 2, 16, .unmasked = true, .window = 500},
    {2, 150, 4, 2, 16, .unmasked = true, .alibi = true, .softcap = 1.5f, .window = 41, .ids = true,
     .dropout = 0.1f, .fused = true, .accumulate = true},
    {1, 300, 1, 1, 16, .unmasked = true, .type = CLT_F16, .window = 130, .accumulate = true},
};
/* Options that other cases have together with others, and more head sizes: only with TEST_COMPLETE, since
 * most of the time is the compilers'. */
static const shape more_cases[] = {
    {2, 65, 2, 1, 96, .fused = true, .rows = 32},
    {2, 65, 3, 3, 24, .unmasked = true},
    {2, 150, 3, 1, 16, .alibi = true, .fused = true, .rows = -1},
    {2, 150, 2, 2, 16, .softcap = 2.5f, .ids = true, .rows = -1},
    {2, 7, 2, 2, 4, .type = CLT_BF16},
    {1, 65, 3, 3, 24, .type = CLT_F16},
    {1, 300, 1, 1, 16, .type = CLT_F16, .window = 130, .accumulate = true},
    {2, 150, 2, 1, 16, .unmasked = true, .alibi = true, .ids = true, .rows = -1},
    {2, 132, 2, 1, 16, .unmasked = true, .dropout = 0.25f, .rows = -1},
    {1, 257, 2, 1, 80, .unmasked = true, .type = CLT_F16, .window = 34},
};
/* Three blocks of rows with one head, two with several: an interpreter's time grows with pairs of rows. */
static const shape tiny_cases[] = {
    {1, 1, 1, 1, 4},
    {1, 20, 2, 1, 4, .fused = true, .accumulate = true},
    {1, 67, 1, 1, 4},
    {1, 35, 2, 1, 4, .alibi = true, .softcap = 1.5f, .window = 17, .ids = true, .dropout = 0.1f,
     .fused = true},
    {1, 67, 1, 1, 4, .type = CLT_BF16, .window = 31, .fused = true, .accumulate = true},
    {1, 9, 1, 1, 130, .accumulate = true},
    {1, 35, 1, 1, 4, .unmasked = true, .accumulate = true},
    {1, 35, 2, 1, 4, .unmasked = true, .alibi = true, .softcap = 1.5f, .window = 17, .ids = true,
     .dropout = 0.1f, .fused = true},
    {1, 67, 1, 1, 4, .unmasked = true, .type = CLT_BF16, .window = 31, .fused = true, .accumulate = true},
};

/* --- devices against the oracle --- */

enum { MOST = CLT_COUNT_OF(cases) + CLT_COUNT_OF(more_cases) };
static problem *solved[MOST]; /* starts with the start values; the oracle overwrites them */
static problem *fresh[MOST];
static size_t n_cases;

static void solve_all(void) {
    n_cases = tu_tiny() ? CLT_COUNT_OF(tiny_cases) : tu_complete() ? MOST : CLT_COUNT_OF(cases);
    for (size_t c = 0; c < n_cases && !solved[c]; c++) {
        const shape *s = tu_tiny()                 ? &tiny_cases[c]
                         : c < CLT_COUNT_OF(cases) ? &cases[c]
                                                   : &more_cases[c - CLT_COUNT_OF(cases)];
        fresh[c] = attention_problem_create(s, 50 * c + 1);
        solved[c] = attention_problem_create(s, 50 * c + 1);
        clt_ref_attention_forward(&solved[c]->p);
        attention_problem_round(solved[c]); /* the stored output, which the backward pass reads */
        clt_ref_attention_backward(&solved[c]->p);
        attention_problem_round(solved[c]);
    }
}

static void run_case(int device, const char *id, size_t c) {
    static const char *const name[] = {"dq", "dk", "dv"};
    if (tu_left_out()) return;
    const problem *x = solved[c];
    uploaded u = attention_upload(device, fresh[c]);
    char what[96];
    tu_next_case();
    tu_assert_ok(clt_op_attention_forward(tu_ops(device), &u.g.fwd), "forward");
    snprintf(what, sizeof what, "%s, case %zu: o", id, c);
    tu_assert_words(what, tu_download_as(u.o, x->s.type, x->n_o), x->o, x->n_o);
    snprintf(what, sizeof what, "%s, case %zu: lse", id, c);
    tu_assert_words(what, tu_download(u.lse, x->n_lse), x->lse, x->n_lse);
    tu_assert_ok(clt_op_attention_backward(tu_ops(device), &u.g), "backward");
    for (int i = 0; i < (x->s.fused ? 1 : 3); i++) {
        snprintf(what, sizeof what, "%s, case %zu: %s", id, c, x->s.fused ? "dqkv" : name[i]);
        tu_assert_words(what, tu_download_as(u.dqkv[i], x->s.type, x->n_qkv[i]), x->dqkv[i], x->n_qkv[i]);
    }
    tu_release();
}

static bool takes_head(int device, const char *id, int64_t head_dim) {
    int n = 0;
    const clt_variant *v = clt_ops_variants(tu_ops(device), "attention", &n);
    while (n > 0 && strcmp(v->id, id) != 0) v++, n--;
    assert_true(n > 0);
    return head_dim >= clt_variant_param(v, "MIN_D", 1) &&
           head_dim <= clt_variant_param(v, "MAX_D", INT32_MAX);
}

/* Every case runs on one or two of the work-group bodies and on all others: compiling takes longer than
 * running. */
static bool wanted(int device, const char *id, const shape *s) {
    if (!takes_head(device, id, s->head_dim)) return false;
    if (tu_tiny()) return true;
    if (!strcmp(id, "group_64")) return s->rows == 64;
    if (!strcmp(id, "group_32")) return s->rows == 32;
    return (strcmp(id, "portable") != 0 && strcmp(id, "long_32") != 0) || s->rows == 0;
}

/* A second CPU takes every sixth case; rows that a CPU does not use by default take every third one. */
static void run_variant(int device, const char *id) {
    const int step = tu_tiny() ? 1 : tu_second_cpu() ? 6 : tu_brief() ? 3 : 1;
    int n = 0;
    tu_assert_ok(clt_variant_force(tu_ops(device), "attention_backward", id), "clt_variant_force");
    for (size_t c = 0; c < n_cases; c++)
        if (wanted(device, id, &solved[c]->s) && n++ % step == 0) run_case(device, id, c);
    tu_assert_ok(clt_variant_force(tu_ops(device), "attention_backward", NULL), "clt_variant_force");
    assert_true(n > 0);
}

static void variants_match_oracle(void **state) {
    (void)state;
    solve_all();
    tu_each_variant("attention", run_variant);
    for (size_t c = 0; c < n_cases; c++) {
        attention_problem_destroy(fresh[c]);
        attention_problem_destroy(solved[c]);
        fresh[c] = solved[c] = NULL;
    }
}

/* Bodies for CPUs keep blocks of whole heads on a thread's stack, usually 8 MiB: longer heads go to rows in
 * work-groups. */
static void long_heads_fit_a_stack(void **state) {
    (void)state;
    static const char *const table[] = {"attention", "attention_backward"};
    const int64_t bytes_an_element = 1792, stack = 8 << 20, longest = 1 << 16;
    for (size_t t = 0; t < CLT_COUNT_OF(table); t++) {
        clt_variant *row;
        const int n = clt_variant_rows(table[t], &row);
        for (int i = 0; i < n; i++) {
            clt_attention_grad_params g = {
                .fwd = {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = longest}};
            if (strcmp(row[i].body, "cpu") == 0) g.fwd.head_dim = stack / bytes_an_element;
            const bool takes =
                t ? clt_attention_takes_backward(&row[i], &g) : clt_attention_takes_forward(&row[i], &g.fwd);
            if (strcmp(row[i].body, "cpu") == 0) assert_false(takes);
            if (i == n - 1) assert_true(takes);
        }
        clt_free(row);
    }
}

/* Rows for Hopper's matrix units that take calls of 300 positions without the causal mask: forward one has
 * blocks of 112 keys, which leave the least of the last block empty. The others take them with the mask, as
 * do rows that store ds; all other rows take both. */
static bool takes_mask(const clt_variant *row, bool backward, clt_attention_mask mask) {
    if (strcmp(row->body, "kept") == 0) return mask == CLT_MASK_CAUSAL;
    if (strcmp(row->body, "wgmma") != 0) return true;
    if (backward) return mask == CLT_MASK_CAUSAL || strcmp(row->id, "wgmma") == 0;
    if (mask == CLT_MASK_NONE) return strcmp(row->id, "full_112") == 0;
    return strncmp(row->id, "full_", 5) != 0;
}

static void rows_take_the_masks_that_they_do(void **state) {
    (void)state;
    static const char *const table[] = {"attention", "attention_backward"};
    const float word = 0.0f;
    const clt_ref place = tu_upload_at(0, &word, 1, 0); /* rows only check its alignment */
    for (size_t t = 0; t < CLT_COUNT_OF(table); t++) {
        clt_variant *row;
        const int n = clt_variant_rows(table[t], &row);
        for (int i = 0; i < n; i++) {
            const int64_t size = clt_variant_param(&row[i], "MIN_D", 1) > 64 ? 128 : 64;
            const bool takes_bf16 = clt_variant_param(&row[i], "TYPES", 7) & 1 << CLT_BF16;
            const clt_tensor x = clt_tensor_of(place, 2 * size, takes_bf16 ? CLT_BF16 : CLT_F16);
            clt_attention_params p = {.batch = 1, .seq = 300, .heads = 2, .kv_heads = 2, .head_dim = size};
            p.scale = 0.125f, p.window = -1, p.q = p.k = p.v = p.o = x;
            clt_attention_grad_params g = {.fwd = p, .dout = x, .dq = x, .dk = x, .dv = x};
            for (clt_attention_mask mask = CLT_MASK_CAUSAL; mask <= CLT_MASK_NONE; mask++) {
                g.fwd.mask = p.mask = mask;
                assert_int_equal(t ? clt_attention_takes_backward(&row[i], &g)
                                   : clt_attention_takes_forward(&row[i], &p),
                                 takes_mask(&row[i], t == 1, mask));
            }
        }
        clt_free(row);
    }
}

/* A sample's results do not depend on its batch: sample 1 of 2 alone, with dropout counted by its global
 * number. */
static void batches_are_invisible(void **state) {
    (void)state;
    const shape s = {2, tu_tiny() ? 20 : 70, 2, 1, tu_tiny() ? 4 : 16, .dropout = 0.25f};
    problem *x = attention_problem_create(&s, 4242);
    for (int d = 0; d < tu_device_count(); d++) {
        uploaded u = attention_upload(d, x);
        tu_assert_ok(clt_op_attention_forward(tu_ops(d), &u.g.fwd), "forward");
        float *both = tu_download(u.o, x->n_o);
        uploaded w = attention_upload(d, x);
        clt_attention_params p = w.g.fwd;
        p.batch = 1;
        p.first_sample++;
        p.q = clt_tensor_at(p.q, s.seq, 0);
        p.k = clt_tensor_at(p.k, s.seq, 0);
        p.v = clt_tensor_at(p.v, s.seq, 0);
        p.o = clt_tensor_at(p.o, s.seq, 0);
        tu_assert_ok(clt_op_attention_forward(tu_ops(d), &p), "forward");
        float *alone = tu_download(w.o, x->n_o);
        size_t half = x->n_o / 2;
        tu_assert_words("second sample", alone + half, both + half, half);
        tu_release();
    }
    attention_problem_destroy(x);
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    clt_attention_params p = {.batch = 1, .seq = 8, .heads = 3, .kv_heads = 2, .head_dim = 4, .window = -1};
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    p.kv_heads = 3;
    p.mask = (clt_attention_mask)(CLT_MASK_NONE + 1);
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    assert_string_equal(clt_last_error(), "attention: unknown mask 2");
    p.mask = CLT_MASK_NONE;
    p.q = clt_tensor_of(tu_blank(0, 96), 12, (clt_dtype)CLT_DTYPE_COUNT);
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    p.q.type = CLT_F32, p.k = p.q, p.k.type = CLT_BF16;
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    assert_string_equal(clt_last_error(),
                        "attention: q is of type fp32, but k of type bf16; they must have one type");
    p.k.type = CLT_F32;
    p.dropout = 1.0f;
    assert_int_not_equal(clt_op_attention_forward(tu_ops(0), &p), CLT_OK);
    tu_release();
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variants_match_oracle),
        cmocka_unit_test(batches_are_invisible),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(long_heads_fit_a_stack),
        cmocka_unit_test(rows_take_the_masks_that_they_do),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
