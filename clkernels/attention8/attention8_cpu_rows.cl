/* Rows of heads as whole numbers with a scale each, for CPUs: what attention8_rows.cl does, 16 elements at a time.
 *
 * attention8_rows: one work-item per 64 rows of a head. Global {blocks of 64 rows, heads, B}, local {1, 1, 1}.
 *
 * Options: those of ../attention/attention.clh. */
#include "attention8_cpu.clh"

/* Arguments as in attention8_rows.cl. */
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
attention8_rows(__global const ELEM *x, ulong x_off, uint ldx, __global ushort *numbers, ulong numbers_off,
                __global float *scales, ulong scales_off, __global const float *other, ulong other_off, uint use_other,
                uint seq, uint heads) {
    const size_t h = get_global_id(1), b = get_global_id(2), head = (b * heads + h) * ROWS8(seq);
    const size_t first = get_global_id(0) * BLOCK, end = min(first + BLOCK, (size_t)seq);
    for (size_t i = first; i < end; i++) {
        __global const ELEM *from = x + x_off + (b * seq + i) * ldx + h * HEAD_DIM;
        __global ushort *to = numbers + numbers_off + (head + i) * PITCH8;
        float16 v[DV];
        uint16 most = (uint16)(0);
#pragma unroll
        for (int c = 0; c < DV; c++) {
            v[c] = CLT_LOAD16(TYPE, from + 16 * c, WIDTH(c));
            most = max(most, magnitude16(v[c]));
        }
        const uint s = scale8_bits(largest(most));
        const float inverse = as_float(s == CLT_NAN_BITS ? 0u : (254u << 23) - s);
#pragma unroll
        for (int c = 0; c < DV; c++) {
            /* 1.5 * 2^23 rounds to the nearest integer, ties to even */
            const float16 whole = fma(v[c], (float16)(inverse), (float16)(CLT_ROUND_MAGIC)) - CLT_ROUND_MAGIC;
            const ushort16 bits =
                inverse == 0.0f ? (ushort16)(0) : convert_ushort16(as_uint16(whole) >> 16);
            if (16 * c + 16 <= PITCH8)
                vstore16(bits, 0, to + 16 * c);
            else
                vstore8(bits.lo, 0, to + 16 * c);
        }
        const float same = other[other_off + head + i];
        scales[scales_off + head + i] = as_float(use_other && same != same ? CLT_NAN_BITS : s);
    }
}
