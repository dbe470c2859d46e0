/* peak_matrix: only products on matrix units, to measure their rate in 16-bit numbers (runtime/device/clt_peak.c).
 *
 *   -DWGMMA=1  Hopper's, by warpgroups: n times four products of 64 x 128 x 16 from local memory
 *   -DWGMMA=0  mma.sync: n times eight products of 16 x 8 x 16 from registers, by warps; with -DTURING=1 of
 *              fp16, as sm_75 has them
 *
 * Launch: global {any number of groups * 256}, local {256}. Requires: PTX with the instructions named. */
#ifndef WGMMA
#define WGMMA 0
#endif
#if WGMMA
#include "../include/clt_hopper.clh"
#else
#include "../include/clt_mma.clh"
#endif

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#if TURING
#define TYPE 2
#else
#define TYPE 1
#endif

__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void peak_matrix(__global float *out, ulong out_off, float m,
                                                                           float c, ulong n)
{
    const uint lid = (uint)get_local_id(0);
    float sum = 0.0f;
#if WGMMA
    /* Pairs of bf16 numbers of typical magnitude: the clock rate depends on how many bits change. */
    __local uint tile[(64 + 128) * 64 / 2] __attribute__((aligned(1024)));
    for (uint i = lid; i < (64 + 128) * 64 / 2; i += 256) tile[i] = 0x3f803f00u ^ (i * 2654435761u & 0x807f807fu);
    __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    const ulong a = CLT_TILE_K(CLT_LOCAL_ADDRESS(tile)), b = CLT_TILE_K(CLT_LOCAL_ADDRESS(tile) + 64 * 128);
    float d[64];
    EACH(i, 64) d[i] = m;
    for (ulong i = 0; i < n; i++) {
        CLT_MMA_FENCE();
        CLT_MMA_SS(128, d, a, b, 1, 0);
        CLT_MMA_SS(128, d, a + 2, b + 2, 1, 0);
        CLT_MMA_SS(128, d, a + 4, b + 4, 1, 0);
        CLT_MMA_SS(128, d, a + 6, b + 6, 1, 0);
        CLT_MMA_COMMIT();
        CLT_MMA_WAIT(128, 0, d);
    }
    EACH(i, 64) sum += d[i];
#else
    float d[8][4];
    EACH(i, 8) EACH(j, 4) d[i][j] = m;
    const uint a = 0x3f803f00u ^ (lid * 2654435761u & 0x807f807fu), b = a * 5u & 0xbfffbfffu, four[4] = {a, b, a, b};
    for (ulong i = 0; i < n; i++) EACH(p, 8) CLT_MMA(TYPE, d[p], four, a, b);
    EACH(i, 8) EACH(j, 4) sum += d[i][j];
#endif
    out[out_off + get_global_id(0)] = sum + c;
}
