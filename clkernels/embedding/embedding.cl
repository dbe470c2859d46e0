/* embedding: lookups and their gradients; a work-item walks SEG columns of a row, LANES at a time (clt_lane.clh).
 * README.md defines the bits.
 *
 * Macros: LANES, SEG; HAS_WPE 0|1; FRACTION 0|1: the embedding fraction is not 1. */
#include "../include/clt_lane.clh"

#ifndef HAS_WPE
#define HAS_WPE 1
#endif
#ifndef FRACTION
#define FRACTION 0
#endif

/* out: [rows, cols]; global (segments of a row, rows) */
__kernel void embedding_forward(__global const int *ids, ulong ids_off, __global const float *wte, ulong wte_off,
                                __global const float *wpe, ulong wpe_off, __global float *out, ulong out_off,
                                ulong seq, ulong cols, ulong vocab, float fraction) {
    const size_t row = get_global_id(1);
    const int id = ids[ids_off + row];
    const bool inside = id >= 0 && (ulong)id < vocab;
    out += out_off + row * cols;
    wte += wte_off + (inside ? (size_t)id : 0) * cols;
    wpe += wpe_off + row % seq * cols;
    CLT_SPAN(c, end, cols) {
        VEC v = VLOAD(wte + c, end - c);
#if HAS_WPE
        v = v + VLOAD(wpe + c, end - c);
#endif
#if FRACTION
        v = v * fraction + v * (1.0f - fraction);
#endif
        if (!inside) v = (VEC)(NAN);
        VSTORE(v, out + c, end - c);
    }
}

#if FRACTION
#define SCALED(v) ((v)*fraction)
#else
#define SCALED(v) (v)
#endif

/* global (segments of a row, distinct ids): rows row_of[row_begin[u] .. row_begin[u + 1]) hold id ids[u] */
__kernel void embedding_backward(__global const float *dx, ulong dx_off, __global const int *ids, ulong ids_off,
                                 __global const int *first, ulong first_off, __global const int *row_begin,
                                 ulong row_begin_off, __global const int *row_of, ulong row_of_off,
                                 __global float *dwte, ulong dwte_off, ulong cols, float fraction) {
    const size_t u = get_global_id(1);
    const int begin = row_begin[row_begin_off + u], stop = row_begin[row_begin_off + u + 1];
    const bool fresh = first[first_off + u] != 0;
    dx += dx_off;
    row_of += row_of_off;
    dwte += dwte_off + (size_t)ids[ids_off + u] * cols;
    CLT_SPAN(c, end, cols) {
        VEC acc = (VEC)(0.0f);
        if (!fresh) acc = VLOAD(dwte + c, end - c);
        int i = begin;
#if LANES == 8
        /* A word that is everywhere has a long chain: eight of its rows are under way at a time. */
        for (; i + 8 <= stop; i += 8) {
            VEC g[8];
#pragma unroll
            for (int j = 0; j < 8; j++) g[j] = VLOAD(dx + (size_t)row_of[i + j] * cols + c, end - c);
#pragma unroll
            for (int j = 0; j < 8; j++) acc = acc + SCALED(g[j]);
        }
#endif
        for (; i < stop; i++) {
            VEC g = VLOAD(dx + (size_t)row_of[i] * cols + c, end - c);
            acc = acc + SCALED(g);
        }
        VSTORE(acc, dwte + c, end - c);
    }
}

/* global (segments of a row, positions) */
__kernel void positions_backward(__global const float *dx, ulong dx_off, __global float *dwpe, ulong dwpe_off,
                                 ulong rows, ulong seq, ulong cols, int accumulate, float fraction) {
    const size_t t = get_global_id(1);
    dx += dx_off;
    dwpe += dwpe_off + t * cols;
    CLT_SPAN(c, end, cols) {
        VEC acc = (VEC)(0.0f);
        if (accumulate) acc = VLOAD(dwpe + c, end - c);
        for (size_t row = t; row < rows; row += seq) {
            VEC g = VLOAD(dx + row * cols + c, end - c);
            acc = acc + SCALED(g);
        }
        VSTORE(acc, dwpe + c, end - c);
    }
}

/* dst[id] += src[id]; global (segments of a row, distinct ids) */
__kernel void add_rows(__global float *dst, ulong dst_off, __global const float *src, ulong src_off,
                       __global const int *ids, ulong ids_off, ulong cols) {
    const size_t at = (size_t)ids[ids_off + get_global_id(1)] * cols;
    dst += dst_off + at;
    src += src_off + at;
    CLT_SPAN(c, end, cols) {
        VEC v = VLOAD(dst + c, end - c) + VLOAD(src + c, end - c);
        VSTORE(v, dst + c, end - c);
    }
}
