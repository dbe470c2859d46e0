/* Does Hopper's warpgroup product wgmma work through the second pass over PTX (runtime/device/clt_ptx.h)?
 *
 * Asked      Only where inline_ptx holds. One warpgroup computes c = a b with a[m][k] = m + k (64 x 16) and b
 *            the unit matrix (16 x 8). Both lie in local memory in blocks of 8 rows by 16 bytes; a descriptor
 *            gives the address and the distances between blocks, all in units of 16 bytes.
 * Input      64 words, in[i] = i; in[i] & 64 is 0, which the compiler cannot know. Launch: one work-group of
 *            128.
 * Right      512 floats: c[m][n] = m + n, row after row.
 * Wrong      A pass fails to build (the architecture is older than sm_90, or the driver returns no PTX), or
 *            an element differs.
 * Targets    sm_90
 * Sets       wgmma */
#pragma OPENCL FP_CONTRACT OFF

/* The bits of a small integer as bf16. */
#define BF16(x) (as_uint((float)(x)) >> 16)
#define DESC(p) ((ulong)(((uint)(ulong)(p) & 0x3ffffu) >> 4) | 8ul << 16 | 16ul << 32)

__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void probe(__global const uint *in, __global float *out) {
    __local ushort a[64 * 16] __attribute__((aligned(128)));
    __local ushort b[8 * 16] __attribute__((aligned(128)));
    uint t = (uint)get_local_id(0), zero = in[t & 63] & 64u;
    for (uint i = t; i < 64 * 16; i += 128) {
        uint r = i / 16, k = i % 16, at = ((r / 8) * 2 + k / 8) * 64 + (r % 8) * 8 + k % 8;
        a[at] = (ushort)BF16(r + k + zero);
        if (r < 8) b[at] = (ushort)BF16(r == k);
    }
    __asm__ volatile("fence.proxy.async.shared::cta;" ::: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
    __asm__ volatile("//@wgmma.fence.sync.aligned;\n"
                     "//@wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, "
                     "%4, %5, 1, 1, 1, 0, 0;\n"
                     "//@wgmma.commit_group.sync.aligned;\n"
                     "//@wgmma.wait_group.sync.aligned 0;"
                     : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
                     : "l"(DESC(a)), "l"(DESC(b))
                     : "memory");
    uint at = ((t >> 5) * 16 + ((t & 31) >> 2)) * 8 + (t & 3) * 2;
    out[at] = c0;
    out[at + 1] = c1;
    out[at + 64] = c2;
    out[at + 65] = c3;
}
