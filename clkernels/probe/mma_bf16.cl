/* Does inline PTX have the matrix product mma.sync m16n8k16 of bf16 with fp32 sums?
 *
 * Asked      Only where inline_ptx holds. The first warp computes c = a b with a[m][k] = m + k (16 x 16) and
 *            b the unit matrix (16 x 8), so every element of the result shows which place of the fragments it
 *            came from.
 * Input      64 words, in[i] = i; in[i] & 64 is 0, which the compiler cannot know. Launch: one work-group of
 *            64.
 * Right      128 floats: c[m][n] = m + n, row after row.
 * Wrong      The build fails (the architecture is older than sm_80), or an element differs.
 * Targets    sm_80 sm_90
 * Sets       mma_bf16 */
#pragma OPENCL FP_CONTRACT OFF

/* The bits of a small integer as bf16, and of two as a register of a fragment. */
#define BF16(x) (as_uint((float)(x)) >> 16)
#define PAIR(x, y) (BF16(x) | BF16(y) << 16)

__kernel void probe(__global const uint *in, __global float *out) {
    uint i = (uint)get_local_id(0), r = (i & 31) >> 2, k = (i & 3) * 2 + (in[i] & 64u);
    uint a0 = PAIR(r + k, r + k + 1), a1 = PAIR(r + 8 + k, r + 8 + k + 1);
    uint a2 = PAIR(r + k + 8, r + k + 9), a3 = PAIR(r + k + 16, r + k + 17);
    uint b0 = PAIR(k == r, k + 1 == r), b1 = 0;
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    if (i >= 32) return;
    out[r * 8 + k] = c0;
    out[r * 8 + k + 1] = c1;
    out[(r + 8) * 8 + k] = c2;
    out[(r + 8) * 8 + k + 1] = c3;
}
