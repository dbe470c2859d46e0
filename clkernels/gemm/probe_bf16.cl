/* Does the compiler take vdpbf16ps by inline assembly, and does it add the right products? Each item compares it
 * with the sum in fp32, of numbers whose products and sums are exact, and gives back its word if every lane is
 * right. Rows name this file after cpu=, without which the instruction would end the process. */
#pragma OPENCL FP_CONTRACT OFF
#ifdef CLT_NO_BUILTINS
#error "an interpreter has no machine instructions"
#endif

#define WG 8

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void probe(__global const uint *in, __global uint *out)
{
    const size_t item = get_global_id(0);
    uint a[16], b[16];
    float want[16];
    for (uint i = 0; i < 16; i++) {
        const float x[2] = {(float)((in[item] + 3 * i) % 128), -(float)(5 * i % 64)};
        const float y[2] = {(float)((in[item] + 7) % 64), 0.25f * (float)(i + 1)};
        a[i] = as_uint(x[0]) >> 16 | (as_uint(x[1]) & 0xffff0000u);
        b[i] = as_uint(y[0]) >> 16 | (as_uint(y[1]) & 0xffff0000u);
        want[i] = 3.0f + x[0] * y[0] + x[1] * y[1];
    }
    float16 sum = (float16)(3.0f);
    const float16 va = as_float16(vload16(0, a)), vb = as_float16(vload16(0, b));
    __asm__("vdpbf16ps %2,%1,%0" : "+vr"(sum) : "vr"(va), "vr"(vb));
    float got[16];
    vstore16(sum, 0, got);
    bool right = true;
    for (int i = 0; i < 16; i++) right = right && got[i] == want[i];
    out[item] = right ? in[item] : ~0u;
}
