/* The oracle of normalisation and of sums down a column. clkernels/norm/README.md has the formulas. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_base.h"

/* Row `row` of a tensor whose token rows are `ld` apart. */
static int64_t row_at(const clt_ref_norm_params *p, int64_t row, int64_t ld) {
    return row / p->heads * ld + row % p->heads * p->cols;
}

/* The row rule over lane sums of fma chains. */
static float tree(const float lane[64]) {
    return clt_ref_row_sum(lane, 64);
}

void clt_ref_norm_forward(const clt_ref_norm_params *p) {
    const float n = (float)p->cols;
    for (int64_t row = 0; row < p->rows * p->heads; row++) {
        const float *x = p->x + row_at(p, row, p->ldx);
        float *y = p->y + row_at(p, row, p->ldy);
        float mean = p->rms ? 0.0f : clt_ref_row_sum(x, p->cols) / n;
        float lane[64] = {0};
        for (int64_t i = 0; i < p->cols; i++) {
            float d = p->rms ? x[i] : x[i] - mean;
            lane[i % 64] = fmaf(d, d, lane[i % 64]);
        }
        float rstd = 1.0f / sqrtf(tree(lane) / n + p->eps);
        if (p->mean && !p->rms) p->mean[row] = mean;
        if (p->rstd) p->rstd[row] = rstd;
        for (int64_t i = 0; i < p->cols; i++) {
            float v = (p->rms ? x[i] : x[i] - mean) * rstd;
            if (p->w && p->b)
                y[i] = fmaf(v, p->w[i], p->b[i]);
            else
                y[i] = p->w ? v * p->w[i] : p->b ? v + p->b[i] : v;
        }
    }
}

static float xhat_at(const clt_ref_norm_params *p, int64_t row, int64_t i) {
    float x = p->x[row_at(p, row, p->ldx) + i];
    return p->rms ? x * p->rstd[row] : (x - p->mean[row]) * p->rstd[row];
}

static float dy_at(const clt_ref_norm_params *p, int64_t row, int64_t i) {
    return p->dy[row_at(p, row, p->lddy) + i];
}

/* dw[col] (xhat true: sum of dy * xhat) or db[col] (sum of dy) of one block of 64 rows. */
static float block_sum(const clt_ref_norm_params *p, int64_t begin, int64_t end, int64_t col, bool xhat) {
    float acc = 0.0f;
    for (int64_t row = begin; row < end; row++)
        acc = xhat ? fmaf(dy_at(p, row, col), xhat_at(p, row, col), acc) : acc + dy_at(p, row, col);
    return acc;
}

static float column(const clt_ref_norm_params *p, int64_t col, bool xhat, float start) {
    const int64_t per_sample = p->rows_per_sample * p->heads, all = p->rows * p->heads;
    for (int64_t s = 0; s < all; s += per_sample) {
        float sum = 0.0f;
        for (int64_t b = s; b < s + per_sample; b += 64)
            sum = sum + block_sum(p, b, CLT_MIN(b + 64, s + per_sample), col, xhat);
        start = start + sum;
    }
    return start;
}

static void row_backward(const clt_ref_norm_params *p, int64_t row, float *dx) {
    const float n = (float)p->cols, rstd = p->rstd[row];
    float lane1[64] = {0}, lane2[64] = {0};
    for (int64_t i = 0; i < p->cols; i++) {
        float g = p->w ? dy_at(p, row, i) * p->w[i] : dy_at(p, row, i);
        lane1[i % 64] = lane1[i % 64] + g;
        lane2[i % 64] = fmaf(g, xhat_at(p, row, i), lane2[i % 64]);
    }
    float c1 = tree(lane1) / n, c2 = tree(lane2) / n;
    for (int64_t i = 0; i < p->cols; i++) {
        float g = p->w ? dy_at(p, row, i) * p->w[i] : dy_at(p, row, i);
        float v = p->rms ? g - xhat_at(p, row, i) * c2 : (g - c1) - xhat_at(p, row, i) * c2;
        v = rstd * v;
        dx[i] = p->residual ? p->residual[row_at(p, row, p->ldres) + i] + v : v;
    }
}

/* The gradient of a bias whose output's gradient is dx, rounded. */
static void sum_of_dx(const clt_ref_norm_params *p) {
    const size_t n = (size_t)(p->rows * p->lddx);
    float *rounded = clt_malloc(n * sizeof *rounded);
    memcpy(rounded, p->dx, n * sizeof *rounded);
    clt_ref_round(p->sum_type, rounded, n);
    for (int64_t c = 0; c < p->cols; c++) {
        const clt_ref_norm_params q = {.rows = p->rows,
                                       .heads = p->heads,
                                       .cols = p->cols,
                                       .rows_per_sample = p->rows_per_sample,
                                       .dy = rounded,
                                       .lddy = p->lddx};
        p->dx_sum[c] = column(&q, c, false, p->accumulate ? p->dx_sum[c] : 0.0f);
    }
    clt_free(rounded);
}

void clt_ref_norm_backward(const clt_ref_norm_params *p) {
    for (int64_t c = 0; c < p->cols; c++) {
        if (p->dw) p->dw[c] = column(p, c, true, p->accumulate ? p->dw[c] : 0.0f);
        if (p->db) p->db[c] = column(p, c, false, p->accumulate ? p->db[c] : 0.0f);
    }
    if (!p->dx) return;
    /* dx may be dy or the residual. */
    float *dx = clt_malloc((size_t)p->cols * sizeof *dx);
    for (int64_t row = 0; row < p->rows * p->heads; row++) {
        row_backward(p, row, dx);
        for (int64_t i = 0; i < p->cols; i++) p->dx[row_at(p, row, p->lddx) + i] = dx[i];
    }
    clt_free(dx);
    if (p->dx_sum) sum_of_dx(p);
}

void clt_ref_column_sum(int64_t rows, int64_t cols, int64_t rows_per_sample, const float *x, int64_t ldx,
                        bool accumulate, float *out) {
    clt_ref_norm_params p = {.rows = rows,
                             .cols = cols,
                             .heads = 1,
                             .rows_per_sample = rows_per_sample,
                             .dy = x,
                             .lddy = ldx,
                             .db = out,
                             .accumulate = accumulate};
    clt_ref_norm_backward(&p);
}
