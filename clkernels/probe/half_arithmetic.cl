/* Does the device multiply and add halves?
 *
 * Asked      out[i] = (half)i * 0.5 + 1, rounded towards zero to an integer. Every value on the way is exact
 *            in a half.
 * Input      64 words, in[i] = i. Launch: one work-group of 64.
 * Right      out[i] = i / 2 + 1 for every i.
 * Wrong      The build fails (no cl_khr_fp16), or a word differs.
 * Targets    gfx90a gfx942 gfx1100 gfx1201 dg2
 * Sets       half_arithmetic */
#pragma OPENCL FP_CONTRACT OFF
#pragma OPENCL EXTENSION cl_khr_fp16 : enable

__kernel void probe(__global const uint *in, __global uint *out) {
    size_t i = get_global_id(0);
    half h = (half)(float)in[i];
    out[i] = (uint)(float)(h * (half)0.5f + (half)1.0f);
}
