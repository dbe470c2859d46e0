/* Does a static local array of WORDS words fit, and does it keep what is written?
 *
 * Asked      For several sizes (runtime/device/clt_probe_measure.c searches the largest that works). Item i
 *            writes the words i, i + 64, ... of the array; after a barrier item i sums the words of item 63 -
 *            i.
 * Options    -DWORDS=N
 * Input      64 words, in[i] = i. Launch: one work-group of 64.
 * Right      out[i] = the sum of j over all j < WORDS with j % 64 = 63 - i, modulo 2^32.
 * Wrong      The build or the launch fails because the array is too large, or a word differs.
 * Sets       local_mem, the largest size in bytes */
#pragma OPENCL FP_CONTRACT OFF

#ifndef WORDS
#define WORDS 256
#endif

__kernel void probe(__global const uint *in, __global uint *out) {
    __local uint t[WORDS];
    uint i = (uint)get_local_id(0), sum = 0;
    for (uint j = i; j < WORDS; j += 64) t[j] = j + in[i] - i;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j = 63 - i; j < WORDS; j += 64) sum += t[j];
    out[i] = sum;
}
