/* peak_bf16: only vdpbf16ps, to measure a CPU's rate of products of bf16 pairs (runtime/device/clt_peak.c).
 *
 * A work-item does n * 16 * 12 of them, each 32 products. Launch: any number of items. Requires: AVX512-BF16. */
#pragma OPENCL FP_CONTRACT OFF
#ifdef CLT_NO_BUILTINS
#error "an interpreter has no machine instructions"
#endif

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

__kernel void peak_bf16(__global float16 *out, ulong out_off, float m, float c, ulong n)
{
    float16 sum[12];
    const uint16 pair = (uint16)(0x3f803f00u);
    EACH(a, 12) sum[a] = (float16)(m * (float)a);
    for (ulong i = 0; i < n; i++) {
        EACH(r, 16)
        EACH(a, 12) __asm__("vdpbf16ps %1,%1,%0" : "+vr"(sum[a]) : "vr"(pair));
    }
    EACH(a, 11) sum[0] += sum[a + 1];
    out[out_off + get_global_id(0)] = sum[0] + c;
}
