#include "runtime/model/mpt/clt_positions.h"

#include <math.h>

#include "runtime/base/clt_dmath.h"

void clt_alibi_slopes(int64_t heads, double bias_max, float *slopes) {
    int64_t n2 = 1;
    while (n2 < heads) n2 *= 2;
    for (int64_t h = 0; h < heads; h++) {
        int64_t place = h; /* 0-based place among the n2 slopes */
        if (n2 != heads) place = h < n2 / 2 ? 2 * h + 1 : 2 * (h - n2 / 2);
        slopes[h] = (float)clt_dpow(2.0, -(double)(place + 1) * bias_max / (double)n2);
    }
}

static const double PI = 3.14159265358979323846;

/* Inverse frequency of pair i after the scaling that Hugging Face calls "llama3". */
static double llama3_scaled(const clt_mpt_config *c, double inv_freq) {
    double old = (double)c->rope_original_max_positions;
    double wavelength = 2 * PI / inv_freq, low = old / c->rope_low_freq_factor,
           high = old / c->rope_high_freq_factor;
    if (wavelength > low) return inv_freq / c->rope_factor;
    if (wavelength < high) return inv_freq;
    double smooth =
        (old / wavelength - c->rope_low_freq_factor) / (c->rope_high_freq_factor - c->rope_low_freq_factor);
    return (1 - smooth) * inv_freq / c->rope_factor + smooth * inv_freq;
}

void clt_rope_table(const clt_mpt_config *c, int64_t seq, float *cos_sin) {
    int64_t half = c->rope_dims / 2;
    double dim = (double)c->rope_dims, theta = c->rope_theta;
    /* "dynamic" stretches the base once the sequence is longer than the model was made for. */
    if (c->rope == CLT_ROPE_DYNAMIC && seq > c->max_seq_len)
        theta *= clt_dpow(c->rope_factor * (double)seq / (double)c->max_seq_len - (c->rope_factor - 1),
                          dim / (dim - 2));
    for (int64_t i = 0; i < half; i++) {
        double inv = 1.0 / clt_dpow(theta, 2.0 * (double)i / dim);
        if (c->rope == CLT_ROPE_LLAMA3) inv = llama3_scaled(c, inv);
        for (int64_t t = 0; t < seq; t++) {
            double pos = c->rope == CLT_ROPE_LINEAR ? (double)t / c->rope_factor : (double)t;
            cos_sin[(t * half + i) * 2] = (float)clt_dcos(pos * inv);
            cos_sin[(t * half + i) * 2 + 1] = (float)clt_dsin(pos * inv);
        }
    }
}

void clt_temperature_factors(const clt_mpt_config *c, int64_t seq, float *factor) {
    for (int64_t t = 0; t < seq; t++) {
        double steps = floor((double)(t + 1) / c->temperature_floor_scale);
        factor[t] = (float)(clt_dlog(steps + 1) * c->temperature_attn_scale + 1);
    }
}
