/* Do sub-groups work, and how wide are they?
 *
 * Asked      A sum of ones over the sub-group, compared with the size that the sub-group reports.
 * Input      64 words, in[i] = i: a compiler that does not know them cannot fold the sum. Launch: one
 *            work-group of 64.
 * Options    -DKHR enables cl_khr_subgroups (OpenCL C 1.2 and 2.0); OpenCL C 3.0 has the functions without
 *            it.
 * Right      Every word is the same and not 0: the largest size of a sub-group.
 * Wrong      No option set builds and runs, or a word is 0 because a sum differs from the reported size.
 * Targets    dg2
 * Sets       subgroup_size (0: no sub-groups), subgroups */
#pragma OPENCL FP_CONTRACT OFF
#ifdef KHR
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif

__kernel void probe(__global const uint *in, __global uint *out) {
    size_t i = get_global_id(0);
    uint all = sub_group_reduce_add(1u) * (in[i] == i);
    out[i] = all == get_sub_group_size() ? get_max_sub_group_size() : 0;
}
