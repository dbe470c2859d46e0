/* The oracle of 8-bit blocks: from numbers to scales and integers, as docs/numerics.md defines them. */
#include "runtime/ops/ref/clt_ref.h"

#include <math.h>

#include "runtime/base/clt_memory.h"

/* Through double, while the kernels work on the bits. */
float clt_ref_scale8(float amax) {
    if (isnan(amax) || isinf(amax)) return NAN;
    if (amax == 0.0f) return 0.0f;
    const float step = amax * 0x1.020408p-7f; /* 1 / 127 */
    if (step <= 0x1p-126f) return 0x1p-126f;
    int e;
    const double m = frexp((double)step, &e); /* 0.5 <= m < 1: m * 256 has 8 bits in front of the point */
    return (float)ldexp(ceil(m * 256.0), e - 8);
}

static int8_t quantised(float x, float scale) {
    if (scale == 0.0f || isnan(scale)) return 0;
    const float inverse = 1.0f / scale;
    return (int8_t)rint((double)x * (double)inverse); /* exact product: ties are ties */
}

/* A rectangle of x that shares a scale. */
typedef struct {
    int64_t row, col, rows, cols;
} patch;

static float largest(const clt_ref_quantize_params *p, patch at) {
    float amax = 0.0f;
    for (int64_t r = at.row; r < at.row + at.rows; r++)
        for (int64_t c = at.col; c < at.col + at.cols; c++) {
            const float x = fabsf(p->x[r * p->ldx + c]);
            if (isnan(x)) return NAN;
            if (x > amax) amax = x;
        }
    return amax;
}

/* One block: `count` elements of `line` (a row of x, with `across` a column) from `first` on, which become
 * q[line][to ...]; the rest of the block is padding. */
static void block_of(const clt_ref_quantize_params *p, bool across, int64_t line, int64_t first,
                     int64_t count, int64_t to) {
    const clt_ref_blocks8 *out = across ? &p->across : &p->along;
    const int64_t lines = across ? p->cols : p->rows, tile = line / out->tile;
    const int64_t line0 = tile * out->tile,
                  height = out->tile < lines - line0 ? (int64_t)out->tile : lines - line0;
    const patch at = across ? (patch){first, line0, count, height} : (patch){line0, first, height, count};
    const float s = clt_ref_scale8(largest(p, at));
    out->scale[to / out->block * out->ld_scale + tile] = s;
    for (int64_t i = 0; i < out->block; i++) {
        const int64_t e = first + i;
        const float x = i >= count ? 0.0f : across ? p->x[e * p->ldx + line] : p->x[line * p->ldx + e];
        out->q[line * out->ld + to + i] = quantised(x, s);
    }
}

static void make_blocks(const clt_ref_quantize_params *p) {
    const int64_t R = p->rows_per_sample, b0 = p->along.block, b1 = p->across.block;
    for (int64_t r = 0; p->along.q && r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c += b0)
            block_of(p, false, r, c, b0 < p->cols - c ? b0 : p->cols - c, c);
    for (int64_t c = 0; p->across.q && c < p->cols; c++)
        for (int64_t sample = 0; sample < p->rows / R; sample++)
            for (int64_t t = 0; t < R; t += b1)
                block_of(p, true, c, sample * R + t, b1 < R - t ? b1 : R - t,
                         sample * ((R + b1 - 1) / b1 * b1) + t);
}

static float value_at(const clt_ref_quantize_params *p, int64_t r, int64_t c) {
    const float x = p->x[r * p->ldx + c];
    if (p->act != CLT_ACT_NONE) return clt_ref_rounded(p->type, clt_ref_act(p->act, x));
    if (p->grad_act == CLT_ACT_NONE) return x;
    return clt_ref_rounded(p->type, x * clt_ref_act_grad(p->grad_act, p->grad_pre[r * p->ldgrad + c]));
}

/* The composition of the activation, its rounding and the blocks. */
void clt_ref_quantize(const clt_ref_quantize_params *p) {
    clt_ref_quantize_params of_y = *p;
    float *y = clt_malloc((size_t)(p->rows * p->cols) * sizeof *y);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c++) {
            y[r * p->cols + c] = value_at(p, r, c);
            if (p->y) p->y[r * p->ldy + c] = y[r * p->cols + c];
        }
    of_y.x = y, of_y.ldx = p->cols;
    make_blocks(&of_y);
    clt_free(y);
}
