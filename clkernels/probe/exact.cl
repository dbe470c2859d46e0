/* Is arithmetic in float correctly rounded, as numerics: exact needs it (docs/numerics.md)?
 *
 * Asked      a / b, sqrt(a), fma(a, b, c), a * b and a + b of 4,096 triples (a, b, c): zeros, denormals, the
 *            limits of the exponent, infinities, and random bits, of which every fourth triple is near the
 *            denormals.
 * Options    First with -cl-fp32-correctly-rounded-divide-sqrt, then without where that does not build.
 * Input      3 words for each triple: the bits of a, b and c. Launch: 4,096 items in work-groups of 64.
 * Right      5 floats for each triple, with the bits that the host's own operations give; a NaN equals any
 *            NaN.
 * Wrong      The build fails, or a result differs. Where an operand or the right result is denormal,
 *            denormals are flushed. The pragma matters: contracted, a * b and a + b are not rounded each.
 * Sets       exact and exact_reason, exact_div, exact_sqrt, exact_fma, denormals, correct_rounding_option */
#pragma OPENCL FP_CONTRACT OFF

__kernel void probe(__global const float *in, __global float *out) {
    size_t i = get_global_id(0);
    float a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    out[5 * i] = a / b;
    out[5 * i + 1] = sqrt(a);
    out[5 * i + 2] = fma(a, b, c);
    out[5 * i + 3] = a * b;
    out[5 * i + 4] = a + b;
}
