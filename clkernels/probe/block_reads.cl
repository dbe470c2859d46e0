/* Can sub-groups of 16 be requested, and do their block reads and broadcasts work (cl_intel_subgroups)?
 *
 * Asked      Only of a driver that claims sub-groups. Item l of sub-group s reads one word and one 16-bit
 *            half word of a block that starts at in[16 s], and the word of item 5.
 * Input      64 words, in[i] = i. Launch: one work-group of 64.
 * Right      out[16 s + l] = word + (half word << 8) + (word of item 5 << 16), where the word is 16 s + l,
 *            the half word is the l-th of the 32 half words of the block (odd ones are 0), and item 5 has 16
 *            s + 5.
 * Wrong      The build fails, the sub-group does not have 16 items (then the word is 0xffffffff), or a word
 *            differs.
 * Targets    dg2
 * Sets       block_reads */
#pragma OPENCL FP_CONTRACT OFF
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#pragma OPENCL EXTENSION cl_intel_subgroups_short : enable

__attribute__((intel_reqd_sub_group_size(16))) __attribute__((reqd_work_group_size(64, 1, 1)))
__kernel void probe(__global const uint *in, __global uint *out) {
    uint s = get_sub_group_id(), l = get_sub_group_local_id();
    uint word = intel_sub_group_block_read(in + s * 16);
    ushort half_word = intel_sub_group_block_read_us((__global const ushort *)(in + s * 16));
    float from_5 = sub_group_broadcast((float)word, 5);
    uint sum = word + ((uint)half_word << 8) + ((uint)from_5 << 16);
    out[(s * 16 + l) & 63] = get_sub_group_size() == 16 ? sum : 0xffffffffu;
}
