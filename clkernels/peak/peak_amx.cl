/* peak_amx: only products of bf16 tiles, to measure the rate of a CPU's matrix unit (runtime/device/clt_peak.c).
 *
 * A work-item does n * 16 * 4 of them, each 16 x 16 x 32. Launch: any number of items. Requires: AMX-BF16. */
#include "../include/clt_amx.clh"

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

__kernel void peak_amx(__global float16 *out, ulong out_off, float m, float c, ulong n)
{
    float words[256];
    CLT_AMX_TILES
    for (int i = 0; i < 256; i++) words[i] = m;
    CLT_AMX_BEGIN
    CLT_AMX_CLEAR(0);
    CLT_AMX_CLEAR(1);
    CLT_AMX_CLEAR(2);
    CLT_AMX_CLEAR(3);
    CLT_AMX_LOAD(4, words, 64);
    CLT_AMX_LOAD(5, words, 64);
    for (ulong i = 0; i < n; i++) {
        EACH(r, 16)
        {
            CLT_AMX_DOT16(0, 4, 5);
            CLT_AMX_DOT16(1, 4, 5);
            CLT_AMX_DOT16(2, 4, 5);
            CLT_AMX_DOT16(3, 4, 5);
        }
    }
    CLT_AMX_STORE(0, words, 64);
    CLT_AMX_END
    out[out_off + get_global_id(0)] = (float16)(words[0] + c);
}
