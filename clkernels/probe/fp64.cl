/* Does the device compute in double?
 *
 * Asked      out[i] = ((1 + i * 2^-40) - 1) * 2^40. A float loses i in the first sum.
 * Input      64 words, in[i] = i. Launch: one work-group of 64.
 * Right      out[i] = i for every i.
 * Wrong      The build fails (no cl_khr_fp64), or a word differs: with float arithmetic all are 0.
 * Targets    gfx90a gfx942 gfx1100 gfx1201 sm_90
 * Sets       fp64 */
#pragma OPENCL FP_CONTRACT OFF
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

__kernel void probe(__global const uint *in, __global uint *out) {
    size_t i = get_global_id(0);
    double d = 1.0 + (double)in[i] * 0x1p-40;
    out[i] = (uint)((d - 1.0) * 0x1p40);
}
