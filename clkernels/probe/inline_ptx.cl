/* Does the compiler take inline PTX, and are warps 32 consecutive work-items?
 *
 * Asked      Only where the quirk takes_inline_asm is in effect: another compiler may end the process over
 *            the instruction. Each item reads its lane number in its warp.
 * Input      64 words, in[i] = i. Launch: one work-group of 64.
 * Right      lane + (i & 32) = i for every i.
 * Wrong      The build fails, or a word differs.
 * Targets    sm_90
 * Sets       inline_ptx */
#pragma OPENCL FP_CONTRACT OFF

__kernel void probe(__global const uint *in, __global uint *out) {
    size_t i = get_global_id(0);
    uint lane;
    __asm__ volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    out[i] = lane + (in[i] & 32u);
}
