/* Decides whether a step may change the weights in cases that the gradient's norm does not cover: g[0]
 * becomes NaN if an element of x[0..count) is not finite or flag[0] is not 1; otherwise nothing is written.
 * The NaN then acts like any other bad gradient: it passes through the sum over ranks and the norm to the
 * flag that the optimizer reads.
 *
 *   WG   work-items of the only work-group
 *
 * Global size: WG. Requires nothing. */
#include "../include/clt_types.clh"

#ifndef WG
#define WG 64
#endif

__kernel void guard(ulong count, __global const float *x, ulong x_off, __global const float *flag, ulong flag_off,
                    __global float *g, ulong g_off) {
    __local int bad[WG];
    size_t me = get_local_id(0);
    int mine = 0;
    for (size_t i = me; i < count; i += WG)
        if ((as_uint(x[x_off + i]) & 0x7f800000u) == 0x7f800000u) mine = 1;
    bad[me] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me == 0) {
        int any = flag[flag_off] != 1.0f;
        for (size_t i = 0; i < WG; i++) any |= bad[i];
        if (any) g[g_off] = as_float(0x7fc00000u);
    }
}
