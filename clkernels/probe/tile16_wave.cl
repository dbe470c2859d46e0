/* Do the 16 x 16 products of include/clt_tile16.clh work, and how many lanes has a wave?
 *
 * Asked      Only of GPUs, once with -DTYPE=1 (bf16) and once with -DTYPE=2 (fp16): both must be right. The
 *            first wave computes c = 1 + a b' with a[i][k] = i - k and b[j][k] = j + 2 k by the text that the
 *            kernels use.
 * Input      64 words, in[i] = i; in[i] & 64 is 0, which the compiler cannot know. Launch: one work-group of
 *            64.
 * Right      257 floats: c[i][j] = 1 + the sum over k of (i - k) (j + 2 k), row after row, then the lanes of
 *            a wave.
 * Wrong      The build fails (AMD's compiler defines no known target, or the device is another vendor's), or
 *            an element differs.
 * Targets    gfx90a gfx942 gfx1100 gfx1201
 * Sets       tile16_wave (0: no such matrix unit) */
#include "../include/clt_tile16.clh"
#include "../include/clt_store.clh"

#ifndef TYPE
#define TYPE 1
#endif

__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void probe(__global const uint *in, __global float *out) {
    __local ushort a[16 * 16] __attribute__((aligned(16))), b[16 * 16] __attribute__((aligned(16)));
    int t = (int)get_local_id(0), l = t % CLT_WAVE;
    for (int i = t; i < 256; i += 64) {
        a[i] = CLT_ROUND(TYPE, (float)(i / 16 - i % 16 + (int)(in[t] & 64u)));
        b[i] = CLT_ROUND(TYPE, (float)(i / 16 + 2 * (i % 16)));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    clt_acc c = (clt_acc)((float)(in[t] & 64u) + 1.0f);
    c = CLT_TILE16(TYPE, clt_frag_load(a, 16, l), clt_frag_load(b, 16, l), c);
    if (t == 0) out[256] = CLT_WAVE;
    if (t < CLT_WAVE)
        for (int r = 0; r < CLT_ACC; r++) out[CLT_ACC_ROW(l, r) * 16 + l % 16] = c[r];
}
