/* Normalisation and column sums: every kernel variant on every device gives the oracle's words; the oracle is
 * compared with the formulas in double. */
#include "test/test_util.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t samples, per_sample, cols, heads,
        gap; /* gap: elements between a token's rows and the next token */
    bool w, b, rms, extreme, in_place;
} shape;

static const shape tiny[] = {
    {1, 3, 5, 1, 0, true, true, false, false, false},  {2, 5, 64, 1, 3, true, false, false, false, true},
    {1, 2, 70, 2, 1, true, true, false, true, false},  {2, 3, 33, 1, 0, true, false, true, false, true},
    {1, 1, 1, 1, 0, false, false, true, false, false}, {1, 66, 5, 1, 0, true, true, false, false, false},
};
static const shape small[] = {
    {1, 1, 768, 1, 0, true, true, false, false, false},
    {2, 96, 768, 1, 0, true, false, false, false, true},
    {3, 65, 127, 1, 5, true, true, false, false, false},
    {2, 64, 128, 1, 0, false, false, false, false, false},
    {1, 70, 64, 12, 13, true, true, false, false, true},
    {2, 33, 80, 3, 0, true, true, true, false, false},
    {2, 129, 257, 1, 7, true, false, true, false, true},
    {1, 5, 1, 1, 0, true, true, false, false, false},
    {1, 3, 1600, 1, 0, false, true, false, false, false},
    {2, 31, 191, 2, 1, true, true, false, true, false},
    {1, 67, 63, 1, 0, true, true, true, true, false},
    {1, 2, 4099, 1, 0, true, true, false, false, false},
};

/* Multiples of 64, 8 elements apart. */
static const shape wide[] = {
    {2, 96, 768, 1, 0, true, false, false, false, true},
    {3, 65, 128, 1, 8, true, true, false, false, false},
    {1, 70, 64, 12, 64, true, true, false, false, true},
    {2, 33, 192, 3, 0, true, true, true, false, false},
    {2, 129, 256, 1, 8, true, false, true, false, true},
    {1, 3, 1600, 1, 0, false, true, false, false, false},
    {2, 31, 1024, 2, 0, false, false, false, true, false},
    {1, 67, 2048, 1, 0, true, false, false, true, false},
    {1, 9, 4096, 1, 0, true, true, false, false, true},
};

/* Under an interpreter: more than 64 rows of a sample, and rows of several parts. */
static const shape tiny_wide[] = {
    {2, 66, 64, 1, 0, true, false, false, false, true},
    {1, 3, 768, 1, 8, true, true, false, false, false},
};

/* Shapes that norm_ring.cl supports: whole tokens of 512 to 4096. */
static const shape ring[] = {
    {3, 96, 768, 1, 0, true, false, false, false, true},
    {1, 70, 512, 1, 8, true, true, false, false, true},
    {2, 65, 1600, 1, 0, true, true, true, false, false},
    {1, 67, 2048, 1, 0, true, false, false, true, false},
    {1, 130, 2048, 1, 0, false, false, true, false, false},
    {1, 9, 4096, 1, 64, true, true, false, false, true},
};

typedef struct {
    clt_ref_norm_params ref;
    float *x, *w, *b, *dy, *res;
    size_t n, rows;
} problem;

static float *data(const shape *s, size_t n, uint64_t seed) {
    return s->extreme ? tu_extreme(n, seed) : tu_random(n, seed, 2.0f);
}

static problem make(const shape *s) {
    problem q = {0};
    int64_t ld = s->cols * s->heads + s->gap;
    q.rows = (size_t)(s->samples * s->per_sample * s->heads);
    q.n = (size_t)(s->samples * s->per_sample * ld);
    q.x = data(s, q.n, 1), q.w = data(s, (size_t)s->cols, 2), q.b = data(s, (size_t)s->cols, 3);
    q.dy = data(s, q.n, 4), q.res = data(s, q.n, 5);
    q.ref = (clt_ref_norm_params){.rms = s->rms,
                                  .eps = 1e-5f,
                                  .rows = s->samples * s->per_sample,
                                  .cols = s->cols,
                                  .heads = s->heads,
                                  .rows_per_sample = s->per_sample,
                                  .x = q.x,
                                  .w = s->w ? q.w : NULL,
                                  .b = s->b ? q.b : NULL,
                                  .ldx = ld,
                                  .ldy = ld,
                                  .lddy = ld,
                                  .lddx = ld,
                                  .ldres = ld,
                                  .dy = q.dy};
    q.ref.y = clt_calloc(q.n, 4), q.ref.mean = clt_calloc(q.rows, 4), q.ref.rstd = clt_calloc(q.rows, 4);
    q.ref.dx = clt_calloc(q.n, 4), q.ref.dw = clt_calloc((size_t)s->cols, 4);
    q.ref.db = clt_calloc((size_t)s->cols, 4);
    return q;
}

static void done(problem *q) {
    float *all[] = {q->x,        q->w,        q->b,      q->dy,     q->res,   q->ref.y,
                    q->ref.mean, q->ref.rstd, q->ref.dx, q->ref.dw, q->ref.db};
    for (size_t i = 0; i < CLT_COUNT_OF(all); i++) clt_free(all[i]);
}

typedef struct {
    clt_dtype x, y, dy, dx;
} types;
static const types all_types[] = {
    {CLT_F32, CLT_F32, CLT_F32, CLT_F32},     {CLT_F32, CLT_BF16, CLT_BF16, CLT_F32},
    {CLT_BF16, CLT_BF16, CLT_BF16, CLT_BF16}, {CLT_F16, CLT_F16, CLT_F16, CLT_F16},
    {CLT_F32, CLT_F16, CLT_F16, CLT_F32},     {CLT_BF16, CLT_F32, CLT_F32, CLT_BF16}};

/* Rows on the device, rounded to a type, and a vector; blank without data. */
static clt_tensor rows_of(int d, const problem *q, clt_dtype type, float *x) {
    return clt_tensor_of(tu_upload_rounded(d, type, x, q->n), q->ref.ldx, type);
}
static clt_tensor vector(int d, const problem *q, const float *x) {
    const size_t cols = (size_t)q->ref.cols;
    return clt_tensor_vector(x ? tu_upload(d, x, cols) : tu_blank(d, cols), CLT_F32);
}

/* Both calls of a problem, uploaded, without dx, the residual and the optional results. */
static clt_norm_params forward_call(int d, const shape *s, problem *q, types t) {
    const clt_ref_norm_params *r = &q->ref;
    const clt_ref none = clt_ref_none();
    return (clt_norm_params){.rms = s->rms,
                             .eps = r->eps,
                             .rows = r->rows,
                             .cols = r->cols,
                             .heads = r->heads,
                             .x = rows_of(d, q, t.x, q->x),
                             .y = rows_of(d, q, t.y, r->y),
                             .w = s->w ? vector(d, q, q->w) : clt_tensor_none(),
                             .b = s->b ? vector(d, q, q->b) : clt_tensor_none(),
                             .mean = s->rms ? none : tu_blank(d, q->rows),
                             .rstd = tu_blank(d, q->rows)};
}

static clt_norm_grad_params backward_call(int d, const shape *s, problem *q, const clt_norm_params *f,
                                          types t) {
    clt_ref_norm_params *r = &q->ref;
    if (!s->w) clt_free(r->dw), r->dw = NULL;
    if (!s->b) clt_free(r->db), r->db = NULL;
    return (clt_norm_grad_params){.rms = s->rms,
                                  .eps = r->eps,
                                  .rows = r->rows,
                                  .cols = r->cols,
                                  .heads = r->heads,
                                  .rows_per_sample = s->per_sample,
                                  .x = f->x,
                                  .w = f->w,
                                  .mean = f->mean,
                                  .rstd = f->rstd,
                                  .dy = rows_of(d, q, t.dy, q->dy),
                                  .dw = s->w ? vector(d, q, NULL) : clt_tensor_none(),
                                  .db = s->b ? vector(d, q, NULL) : clt_tensor_none()};
}

/* Forward, then backward with dx over dy (in_place, if the types allow it) or elsewhere, twice: the second
 * time dw and db accumulate. */
static void run_shape(int d, const shape *shape_, types t) {
    shape copy = *shape_;
    const shape *s = &copy;
    copy.in_place = copy.in_place && t.dx == t.dy;
    problem q = make(s);
    clt_ref_norm_params *r = &q.ref;
    const size_t cols = (size_t)s->cols;
    const clt_norm_params f = forward_call(d, s, &q, t);
    tu_assert_ok(clt_op_norm_forward(tu_ops(d), &f), "norm forward");
    clt_ref_norm_forward(r);
    clt_ref_round(t.y, r->y, q.n);
    tu_assert_words("y", tu_download_as(f.y.ref, t.y, q.n), r->y, q.n);
    tu_assert_words("rstd", tu_download(f.rstd, q.rows), r->rstd, q.rows);
    if (!s->rms) tu_assert_words("mean", tu_download(f.mean, q.rows), r->mean, q.rows);
    clt_norm_grad_params g = backward_call(d, s, &q, &f, t);
    g.dx = s->in_place ? g.dy : rows_of(d, &q, t.dx, r->dx);
    if (!s->in_place) g.residual = rows_of(d, &q, t.dx, q.res);
    if (s->in_place) memcpy(r->dx, q.dy, q.n * 4), r->dy = r->dx;
    r->residual = s->in_place ? NULL : q.res;
    for (int pass = 0; pass < 2; pass++, g.accumulate = r->accumulate = true) {
        tu_assert_ok(clt_op_norm_backward(tu_ops(d), &g), "norm backward");
        clt_ref_norm_backward(r);
        clt_ref_round(t.dx, r->dx, q.n);
        tu_assert_words("dx", tu_download_as(g.dx.ref, t.dx, q.n), r->dx, q.n);
        if (s->w) tu_assert_words("dw", tu_download(g.dw.ref, cols), r->dw, cols);
        if (s->b) tu_assert_words("db", tu_download(g.db.ref, cols), r->db, cols);
    }
    done(&q);
    tu_release();
}

/* The optional results of the backward pass: dx again in 16 bits, its column sums, and the recomputed output
 * of the forward pass. */
static void run_extras(int d, const shape *s, clt_dtype type) {
    problem q = make(s);
    clt_ref_norm_params *r = &q.ref;
    const size_t cols = (size_t)s->cols;
    float *sum = clt_calloc(cols, 4);
    const types t = {CLT_F32, type, type, CLT_F32};
    const clt_norm_params f = forward_call(d, s, &q, t);
    tu_assert_ok(clt_op_norm_forward(tu_ops(d), &f), "norm forward");
    clt_norm_grad_params g = backward_call(d, s, &q, &f, t);
    g.b = f.b, g.residual = rows_of(d, &q, CLT_F32, q.res), g.dx_sum = vector(d, &q, NULL);
    g.dx = clt_tensor_of(tu_blank(d, q.n), r->ldx, CLT_F32);
    g.dx_copy = rows_of(d, &q, type, r->y), g.y = rows_of(d, &q, type, r->y);
    clt_ref_norm_forward(r);
    r->residual = q.res, r->dx_sum = sum, r->sum_type = type;
    /* The second time sums accumulate; the third time there is no copy and the sums are those of dx. */
    for (int pass = 0; pass < 3; pass++) {
        tu_assert_ok(clt_op_norm_backward(tu_ops(d), &g), "norm backward");
        clt_ref_norm_backward(r);
        tu_assert_words("dx", tu_download(g.dx.ref, q.n), r->dx, q.n);
        tu_assert_words("sums of dx", tu_download(g.dx_sum.ref, cols), sum, cols);
        if (s->w) tu_assert_words("dw", tu_download(g.dw.ref, cols), r->dw, cols);
        if (s->b) tu_assert_words("db", tu_download(g.db.ref, cols), r->db, cols);
        clt_ref_round(type, r->dx, q.n);
        if (pass < 2) tu_assert_words("copy of dx", tu_download_as(g.dx_copy.ref, type, q.n), r->dx, q.n);
        g.accumulate = r->accumulate = true;
        if (pass == 1) g.dx_copy = clt_tensor_none(), r->sum_type = CLT_F32;
    }
    tu_assert_words("y again", tu_download_as(g.y.ref, type, q.n), tu_download_as(f.y.ref, type, q.n), q.n);
    clt_free(sum);
    done(&q);
    tu_release();
}

static bool is_ring(const char *id) {
    return strcmp(id, "ring") == 0;
}

static const shape *shapes_of_row(const char *id, size_t *n) {
    if (is_ring(id)) {
        *n = CLT_COUNT_OF(ring);
        return ring;
    }
    if (tu_wide()) {
        *n = tu_tiny() ? CLT_COUNT_OF(tiny_wide) : CLT_COUNT_OF(wide);
        return tu_tiny() ? tiny_wide : wide;
    }
    *n = tu_tiny() ? CLT_COUNT_OF(tiny) : CLT_COUNT_OF(small);
    return tu_tiny() ? tiny : small;
}

static void each_shape_with_extras(int d, const char *id) {
    size_t n;
    const shape *s = shapes_of_row(id, &n);
    for (size_t i = 0; i < n; i++) {
        if (tu_left_out()) continue;
        shape dense = s[i];
        dense.gap = 0;
        dense.in_place = false;
        run_extras(d, &dense, i % 2 ? CLT_BF16 : CLT_F16);
    }
}

static void norm_makes_extras(void **state) {
    (void)state;
    tu_each_variant("norm", each_shape_with_extras);
}

static void each_shape(int d, const char *id) {
    size_t n;
    const shape *s = shapes_of_row(id, &n);
    for (size_t i = 0; i < n; i++) {
        if (tu_left_out()) continue;
        run_shape(d, &s[i], all_types[0]);
        run_shape(d, &s[i], all_types[1 + i % (CLT_COUNT_OF(all_types) - 1)]);
    }
}

static void norm_gives_the_oracles_words(void **state) {
    (void)state;
    tu_each_variant("norm", each_shape);
}

static void each_column_shape(int d, const char *id) {
    static const int64_t any[][4] = {/* samples, rows per sample, columns, gap */
                                     {1, 3, 5, 0},     {2, 5, 64, 2},   {2, 65, 17, 1}, {2, 130, 768, 0},
                                     {1, 64, 1027, 5}, {2, 7, 3072, 0}, {5, 1, 1, 3}};
    static const int64_t eights[][4] = {{1, 3, 8, 0},      {2, 5, 64, 8},    {2, 65, 24, 8}, {2, 130, 768, 0},
                                        {1, 64, 1032, 16}, {17, 7, 3072, 0}, {9, 70, 40, 24}};
    if (is_ring(id)) return; /* other rows take such calls */
    const int64_t(*shapes)[4] = tu_wide() ? eights : any;
    size_t n = tu_tiny() ? 3 : CLT_COUNT_OF(any);
    for (size_t i = 0; i < 2 * n; i++) {
        const clt_dtype type = i < n ? CLT_F32 : i % 2 ? CLT_BF16 : CLT_F16;
        const int64_t *s = shapes[i % n], rows = s[0] * s[1], ld = s[2] + s[3];
        float *x = i % 2 ? tu_extreme((size_t)(rows * ld), i) : tu_random((size_t)(rows * ld), i, 1.0f);
        float *out = tu_random((size_t)s[2], 100 + i, 1.0f);
        clt_column_sum_params p = {.rows = rows,
                                   .cols = s[2],
                                   .rows_per_sample = s[1],
                                   .x = {.ld = ld, .type = type},
                                   .out = clt_tensor_vector(tu_upload(d, out, (size_t)s[2]), CLT_F32)};
        p.x.ref = tu_upload_rounded(d, type, x, (size_t)(rows * ld));
        for (int pass = 0; pass < 2; pass++, p.accumulate = true) {
            tu_assert_ok(clt_op_column_sum(tu_ops(d), &p), "column sum");
            clt_ref_column_sum(rows, s[2], s[1], x, ld, p.accumulate, out);
            tu_assert_words("column sum", tu_download(p.out.ref, (size_t)s[2]), out, (size_t)s[2]);
        }
        clt_free(x);
        clt_free(out);
        tu_release();
    }
}

static void column_sum_gives_the_oracles_words(void **state) {
    (void)state;
    tu_each_variant("norm", each_column_shape);
}

/* Calls whose sums end together, with more results than one launch takes; one in between has fewer rows, and
 * the last one adds to the result of the first one. */
static void each_later(int d, const char *id) {
    (void)id;
    enum { CALLS = 6 };
    const shape s = {2, 66, tu_tiny() ? 64 : 768, 1, 0, true, true, false, false, false};
    problem q = make(&s);
    clt_ref_norm_params *r = &q.ref;
    const size_t cols = (size_t)s.cols, all = 3 * CALLS * cols;
    float *want = clt_calloc(all, 4);
    const clt_norm_params f = forward_call(d, &s, &q, all_types[0]);
    tu_assert_ok(clt_op_norm_forward(tu_ops(d), &f), "norm forward");
    clt_ref_norm_forward(r);
    clt_norm_grad_params g = backward_call(d, &s, &q, &f, all_types[0]);
    const clt_ref got = tu_blank(d, all);
    clt_free(r->dw), clt_free(r->db);
    clt_op_sums_later(tu_ops(d));
    for (int i = 0; i <= CALLS; i++) {
        const size_t at = 3 * cols * (size_t)(i % CALLS);
        float *dy = tu_random(q.n, 20 + (uint64_t)i, 1.0f);
        g.dy = rows_of(d, &q, CLT_F32, dy), g.dx = clt_tensor_of(tu_blank(d, q.n), r->ldx, CLT_F32);
        g.dw = clt_tensor_vector(clt_ref_at(got, at), CLT_F32);
        g.db = clt_tensor_vector(clt_ref_at(got, at + cols), CLT_F32);
        g.dx_sum = clt_tensor_vector(clt_ref_at(got, at + 2 * cols), CLT_F32);
        r->dy = dy, r->dw = want + at, r->db = want + at + cols, r->dx_sum = want + at + 2 * cols;
        g.rows = r->rows = i == 3 ? 66 : 132;
        g.accumulate = r->accumulate = i == CALLS;
        tu_assert_ok(clt_op_norm_backward(tu_ops(d), &g), "norm backward");
        clt_ref_norm_backward(r);
        clt_free(dy);
    }
    tu_assert_ok(clt_op_sums_now(tu_ops(d)), "clt_op_sums_now");
    tu_assert_words("sums", tu_download(got, all), want, all);
    r->dw = r->db = NULL;
    clt_free(want);
    done(&q);
    tu_release();
}

static void sums_may_end_later(void **state) {
    (void)state;
    tu_each_variant("norm", each_later);
}

/* Two microbatches of one sample each add up to the bits of one microbatch of two. */
static void microbatch_borders_are_invisible(void **state) {
    (void)state;
    const size_t cols = 100, per = 70, n = 2 * per * cols;
    float *x = tu_random(n, 1, 1.0f);
    for (int d = 0; d < tu_device_count(); d++) {
        const clt_tensor dx = clt_tensor_of(tu_upload(d, x, n), cols, CLT_F32),
                         whole = clt_tensor_vector(tu_blank(d, cols), CLT_F32),
                         parts = clt_tensor_vector(tu_blank(d, cols), CLT_F32);
        clt_column_sum_params p = {
            .rows = 2 * per, .cols = cols, .rows_per_sample = per, .x = dx, .out = whole};
        tu_assert_ok(clt_op_column_sum(tu_ops(d), &p), "both samples");
        p.rows = per, p.out = parts;
        tu_assert_ok(clt_op_column_sum(tu_ops(d), &p), "first sample");
        p.x = clt_tensor_at(dx, per, 0), p.accumulate = true;
        tu_assert_ok(clt_op_column_sum(tu_ops(d), &p), "second sample");
        tu_assert_words("sum", tu_download(parts.ref, cols), tu_download(whole.ref, cols), cols);
        tu_release();
    }
    clt_free(x);
}

/* --- the oracle against the formulas in double --- */

typedef struct {
    double *y, *dx, *dw, *db;
} formula;

static void formula_row(const problem *q, int64_t row, formula *o) {
    const clt_ref_norm_params *p = &q->ref;
    const int64_t at = row / p->heads * p->ldx + row % p->heads * p->cols, n = p->cols;
    double mean = 0, var = 0, c1 = 0, c2 = 0;
    for (int64_t i = 0; i < n; i++) mean += p->rms ? 0.0 : (double)q->x[at + i] / (double)n;
    for (int64_t i = 0; i < n; i++) var += pow((double)q->x[at + i] - mean, 2) / (double)n;
    double rstd = 1 / sqrt(var + (double)p->eps);
    for (int64_t i = 0; i < n; i++) {
        double xhat = ((double)q->x[at + i] - mean) * rstd, g = (double)q->dy[at + i] * (double)q->w[i];
        o->y[at + i] = xhat * (double)q->w[i] + (double)q->b[i];
        o->dw[i] += (double)q->dy[at + i] * xhat;
        o->db[i] += (double)q->dy[at + i];
        c1 += p->rms ? 0.0 : g / (double)n;
        c2 += g * xhat / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        double xhat = ((double)q->x[at + i] - mean) * rstd, g = (double)q->dy[at + i] * (double)q->w[i];
        o->dx[at + i] = (double)q->res[at + i] + rstd * (g - c1 - xhat * c2);
    }
}

static void oracle_follows_the_formula(void **state) {
    (void)state;
    const shape shapes[] = {{2, 70, 96, 1, 0, true, true, false, false, false},
                            {2, 9, 40, 3, 0, true, true, false, false, false},
                            {1, 65, 768, 1, 0, true, true, true, false, false}};
    for (size_t i = 0; i < (tu_tiny() ? 1 : CLT_COUNT_OF(shapes)); i++) {
        problem q = make(&shapes[i]);
        size_t cols = (size_t)shapes[i].cols;
        formula o = {clt_calloc(q.n, 8), clt_calloc(q.n, 8), clt_calloc(cols, 8), clt_calloc(cols, 8)};
        q.ref.residual = q.res;
        clt_ref_norm_forward(&q.ref);
        clt_ref_norm_backward(&q.ref);
        for (int64_t row = 0; row < (int64_t)q.rows; row++) formula_row(&q, row, &o);
        /* a few ulp of values up to about 10, sums of up to 140 terms */
        tu_assert_close("y", q.ref.y, o.y, q.n, 2e-6);
        tu_assert_close("dx", q.ref.dx, o.dx, q.n, 4e-6);
        tu_assert_close("dw", q.ref.dw, o.dw, cols, 2e-5);
        tu_assert_close("db", q.ref.db, o.db, cols, 2e-5);
        clt_free(o.y), clt_free(o.dx), clt_free(o.dw), clt_free(o.db);
        done(&q);
    }
}

/* The derivative in the oracle is that of its own forward formula: central differences in double. */
static double objective(const problem *q, const double *x) {
    const clt_ref_norm_params *p = &q->ref;
    double mean = 0, var = 0, sum = 0;
    const double n = (double)p->cols;
    for (int64_t i = 0; i < p->cols; i++) mean += p->rms ? 0.0 : x[i] / n;
    for (int64_t i = 0; i < p->cols; i++) var += (x[i] - mean) * (x[i] - mean) / n;
    for (int64_t i = 0; i < p->cols; i++)
        sum += (double)q->dy[i] *
               ((x[i] - mean) / sqrt(var + (double)p->eps) * (double)q->w[i] + (double)q->b[i]);
    return sum;
}

static void oracle_gradient_is_the_slope(void **state) {
    (void)state;
    for (int rms = 0; rms < 2; rms++) {
        const shape s = {1, 1, 37, 1, 0, true, true, rms, false, false};
        problem q = make(&s);
        double x[37], slope[37];
        for (int i = 0; i < 37; i++) x[i] = (double)q.x[i];
        for (int i = 0; i < 37; i++) {
            double keep = x[i], h = 1e-5;
            x[i] = keep + h;
            double up = objective(&q, x);
            x[i] = keep - h;
            slope[i] = (up - objective(&q, x)) / (2 * h);
            x[i] = keep;
        }
        clt_ref_norm_forward(&q.ref);
        clt_ref_norm_backward(&q.ref);
        tu_assert_close("dx against differences", q.ref.dx, slope, 37, 4e-6);
        done(&q);
    }
}

static void nonsense_sizes_are_refused(void **state) {
    (void)state;
    clt_norm_params f = {.rows = 4, .cols = 0, .heads = 1};
    assert_int_equal(clt_op_norm_forward(tu_ops(0), &f), CLT_FAIL);
    clt_column_sum_params p = {.rows = 5, .cols = 8, .rows_per_sample = 2};
    assert_int_equal(clt_op_column_sum(tu_ops(0), &p), CLT_FAIL);
    clt_norm_grad_params g = {.rows = 5, .cols = 8, .heads = 1, .rows_per_sample = 0};
    assert_int_equal(clt_op_norm_backward(tu_ops(0), &g), CLT_FAIL);
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_follows_the_formula),         cmocka_unit_test(oracle_gradient_is_the_slope),
        cmocka_unit_test(norm_gives_the_oracles_words),       cmocka_unit_test(norm_makes_extras),
        cmocka_unit_test(column_sum_gives_the_oracles_words), cmocka_unit_test(sums_may_end_later),
        cmocka_unit_test(microbatch_borders_are_invisible),   cmocka_unit_test(nonsense_sizes_are_refused),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
