/* Does the compiler take the instructions of the matrix unit by inline assembly, and does the unit add the right
 * products of bytes? Each item multiplies two tiles, compares the sums with those in C, and gives back its word if all
 * are right. Rows name this file after cpu=, without which the instructions would end the process. */
#include "../include/clt_amx.clh"

#define WG 8

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void probe(__global const uint *in, __global uint *out)
{
    const size_t item = get_global_id(0);
    uint a[256] __attribute__((aligned(64))), b[256] __attribute__((aligned(64))), got[256] __attribute__((aligned(64)));
    CLT_AMX_TILES
    for (uint i = 0; i < 256; i++) {
        a[i] = (in[item] + 1) * 0x9e3779b9u * (2 * i + 1) | (i % 2 ? 0 : 0x80);
        b[i] = (in[item] + 7) * 0x85ebca6bu * (2 * i + 3) ^ (i % 3 ? 0 : 0x80);
    }
    CLT_AMX_BEGIN
    CLT_AMX_CLEAR(0);
    CLT_AMX_LOAD(4, a, 64);
    CLT_AMX_LOAD(6, b, 64);
    CLT_AMX_DOT8(0, 4, 6);
    CLT_AMX_DOT8(0, 4, 6);
    CLT_AMX_STORE(0, got, 64);
    CLT_AMX_END
    bool right = true;
    for (uint i = 0; i < 16; i++)
        for (uint j = 0; j < 16; j++) {
            int sum = 0;
            for (uint k = 0; k < 64; k++) {
                const uint x = a[i * 16 + k / 4] >> k % 4 * 8, y = b[k / 4 * 16 + j] >> k % 4 * 8;
                sum += (int)(char)x * (int)(char)y;
            }
            right = right && (int)got[i * 16 + j] == 2 * sum;
        }
    out[item] = right ? in[item] : ~0u;
}
