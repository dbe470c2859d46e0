/* Do warps' products of fp16 and of int8 work as sm_75 has them: mma.sync m16n8k8 and m8n8k16?
 *
 * Asked      Only where inline_ptx holds. The first warp computes c = a b with a[m][k] = m + k (16 x 16, of
 *            int8 16 x 32) and b the unit matrix (of 8 columns) by the text that the kernels use, so every
 *            element of the result shows which place of the fragments it came from.
 * Input      64 words, in[i] = i; in[i] & 64 is 0, which the compiler cannot know. Launch: one work-group of
 *            64.
 * Right      256 floats: c[m][n] = m + n, row after row, of fp16, then of int8.
 * Wrong      The build fails (the architecture is older than sm_75), or an element differs.
 * Targets    sm_75 sm_90
 * Sets       mma_f16 */
#define TURING 1
#include "../include/clt_mma.clh"

/* Of a[m][k ...], and of column n of b: two numbers as fp16, four as int8. */
#define A16(m, k) CLT_PACK2(2, (float)((m) + (k)), (float)((m) + (k) + 1))
#define B16(k, n) CLT_PACK2(2, (float)((k) == (n)), (float)((k) + 1 == (n)))
#define A8(m, k) (((m) + (k)) * 0x01010101u + 0x03020100u)
#define B8(k, n) ((n) - (k) < 4u ? 1u << ((n) - (k)) * 8 : 0u)

__kernel void probe(__global const uint *in, __global float *out)
{
    const uint i = (uint)get_local_id(0), g = (i & 31) / 4, t = i % 4, zero = in[i] & 64u, two = t * 2 + zero,
               four = t * 4 + zero;
    const uint a16[4] = {A16(g, two), A16(g + 8, two), A16(g, two + 8), A16(g + 8, two + 8)};
    const uint a8[4] = {A8(g, four), A8(g + 8, four), A8(g, four + 16), A8(g + 8, four + 16)};
    float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    int s[4] = {0, 0, 0, 0};
    CLT_MMA(2, c, a16, B16(two, g), B16(two + 8, g));
    CLT_MMA8(s, a8, B8(four, g), B8(four + 16, g));
    if (i >= 32) return;
    for (uint e = 0; e < 4; e++) {
        const uint at = (g + e / 2 * 8) * 8 + t * 2 + e % 2;
        out[at] = c[e];
        out[128 + at] = (float)s[e];
    }
}
