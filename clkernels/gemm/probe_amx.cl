/* Does the compiler take the instructions of the matrix unit by inline assembly, and does the unit add the right
 * products of bf16? Each item multiplies two tiles, compares the sums with those in C, and gives back its word if all
 * are right. Rows name this file after cpu=, without which the instructions would end the process. */
#include "../include/clt_amx.clh"

#pragma OPENCL FP_CONTRACT OFF
#define WG 8

/* Two whole numbers as bf16, the first one in the low half. */
static inline uint two_of(float x, float y)
{
    return as_uint(x) >> 16 | (as_uint(y) & 0xffff0000u);
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void probe(__global const uint *in, __global uint *out)
{
    const size_t item = get_global_id(0);
    uint a[256] __attribute__((aligned(64))), b[256] __attribute__((aligned(64))), got[256] __attribute__((aligned(64)));
    CLT_AMX_TILES
    for (uint i = 0; i < 256; i++) { /* products and sums are exact */
        a[i] = two_of((float)((in[item] + 3 * i) % 128), -(float)(5 * i % 64));
        b[i] = two_of((float)((in[item] + 7 * i) % 64), 0.25f * (float)(i % 61 + 1));
    }
    CLT_AMX_BEGIN
    CLT_AMX_CLEAR(0);
    CLT_AMX_LOAD(4, a, 64);
    CLT_AMX_LOAD(6, b, 64);
    CLT_AMX_DOT16(0, 4, 6);
    CLT_AMX_DOT16(0, 4, 6);
    CLT_AMX_STORE(0, got, 64);
    CLT_AMX_END
    bool right = true;
    for (uint i = 0; i < 16; i++)
        for (uint j = 0; j < 16; j++) {
            float sum = 0.0f;
            for (uint k = 0; k < 16; k++) {
                const uint x = a[i * 16 + k], y = b[k * 16 + j];
                sum += as_float(x << 16) * as_float(y << 16) + as_float(x & 0xffff0000u) * as_float(y & 0xffff0000u);
            }
            right = right && as_float(got[i * 16 + j]) == 2.0f * sum;
        }
    out[item] = right ? in[item] : ~0u;
}
