/* The oracle of the elementwise operations. The activations compile the kernels' own text (clkernels/include)
 * as C: kernel tests show that a device computes the same bits, test/ops/test_math measures
 * the error. */
#include "runtime/ops/ref/clt_ref.h"

#include "runtime/ops/clt_dropout.h"
#include "runtime/ops/ref/clt_clc.h"
#include "clkernels/include/clt_act.clh"

float clt_ref_act(clt_activation act, float x) {
    switch (act) {
    case CLT_ACT_GELU:
        return clt_gelu(x);
    case CLT_ACT_GELU_TANH:
        return clt_gelu_tanh(x);
    case CLT_ACT_QUICK_GELU:
        return clt_quick_gelu(x);
    case CLT_ACT_RELU:
        return clt_relu(x);
    case CLT_ACT_SILU:
        return clt_silu(x);
    case CLT_ACT_TANH:
        return clt_tanh(x);
    case CLT_ACT_SIGMOID:
        return clt_sigmoid(x);
    case CLT_ACT_RELU2:
        return clt_relu2(x);
    case CLT_ACT_ELU:
        return clt_elu(x);
    case CLT_ACT_LEAKY_RELU:
        return clt_leaky_relu(x);
    case CLT_ACT_SOFTPLUS:
        return clt_softplus(x);
    case CLT_ACT_MISH:
        return clt_mish(x);
    default:
        return clt_none(x);
    }
}

float clt_ref_act_grad(clt_activation act, float x) {
    switch (act) {
    case CLT_ACT_GELU:
        return clt_gelu_grad(x);
    case CLT_ACT_GELU_TANH:
        return clt_gelu_tanh_grad(x);
    case CLT_ACT_QUICK_GELU:
        return clt_quick_gelu_grad(x);
    case CLT_ACT_RELU:
        return clt_relu_grad(x);
    case CLT_ACT_SILU:
        return clt_silu_grad(x);
    case CLT_ACT_TANH:
        return clt_tanh_grad(x);
    case CLT_ACT_SIGMOID:
        return clt_sigmoid_grad(x);
    case CLT_ACT_RELU2:
        return clt_relu2_grad(x);
    case CLT_ACT_ELU:
        return clt_elu_grad(x);
    case CLT_ACT_LEAKY_RELU:
        return clt_leaky_relu_grad(x);
    case CLT_ACT_SOFTPLUS:
        return clt_softplus_grad(x);
    case CLT_ACT_MISH:
        return clt_mish_grad(x);
    default:
        return clt_none_grad(x);
    }
}

double clt_ref_fast_gelu_off(clt_dtype type) {
    return type == CLT_BF16 ? 7.5e-6 : 5e-7;
}

double clt_ref_fast_gelu_grad_off(clt_dtype type) {
    return type == CLT_BF16 ? 8.2e-5 : 5e-7;
}

void clt_ref_offset(uint64_t n, const float *x, float *y, float value) {
    for (uint64_t i = 0; i < n; i++) y[i] = x[i] + value;
}

void clt_ref_rope(int64_t rows, int64_t seq, int64_t heads, int64_t head_dim, int64_t dims, float *x,
                  int64_t ldx, const float *cos_sin, bool inverse) {
    int64_t half = dims / 2;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < half; i++) {
                float *a = x + r * ldx + h * head_dim + i, *b = a + half;
                const float *cs = cos_sin + ((r % seq) * half + i) * 2;
                float c = cs[0], s = inverse ? -cs[1] : cs[1], u = *a, v = *b;
                *a = u * c - v * s;
                *b = v * c + u * s;
            }
}

float clt_ref_dropout_factor(float p, uint64_t seed, uint64_t step, int64_t sample, int32_t layer,
                             int32_t site, uint64_t element) {
    clt_dropout_constants k = clt_dropout_constants_of(p, seed);
    uint64_t quad = element / 4;
    uint32_t place = (uint32_t)(layer * 8 + site) | (uint32_t)(quad >> 32) << 16;
    uint32_t counter[4] = {(uint32_t)step, (uint32_t)sample, place, (uint32_t)quad}, word[4];
    clt_philox4x32(counter, k.key, word);
    return word[element % 4] < k.threshold ? 0.0f : k.scale;
}

void clt_ref_dropout(int64_t rows, int64_t seq, int64_t cols, const float *x, const float *residual, float p,
                     uint64_t seed, uint64_t step, int64_t first_sample, int32_t layer, int32_t site,
                     bool whole_samples, float *y) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const uint64_t element = whole_samples ? 0 : (uint64_t)((r % seq) * cols + c);
            float f = clt_ref_dropout_factor(p, seed, step, first_sample + r / seq, layer, site, element);
            float v = x[r * cols + c] * f;
            y[r * cols + c] = residual ? residual[r * cols + c] + v : v;
        }
}
