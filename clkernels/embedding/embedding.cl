/* embedding: lookups and their gradients. A work-item processes SEG columns of a row, LANES at a time
 * (clt_lane.clh). README.md defines the bits.
 *
 * Macros: LANES, SEG; HAS_WPE 0|1; FRACTION 0|1: the embedding fraction is not 1; TABLE_TYPE: the type of wte
 * and wpe (clt_store.clh), gradients are fp32. LONG: gradients of words with at least this many rows have a
 * separate launch (0: none), which loads the next AHEAD rows while it adds AHEAD rows. */
#include "../include/clt_lane.clh"

#ifndef HAS_WPE
#define HAS_WPE 1
#endif
#ifndef FRACTION
#define FRACTION 0
#endif
#ifndef TABLE_TYPE
#define TABLE_TYPE 0
#endif
#ifndef LONG
#define LONG 0
#endif

/* out: [rows, cols]; global (segments of a row, rows) */
__kernel void embedding_forward(__global const int *ids, ulong ids_off, __global const CLT_T(TABLE_TYPE) *wte,
                                ulong wte_off, __global const CLT_T(TABLE_TYPE) *wpe, ulong wpe_off,
                                __global float *out, ulong out_off, ulong seq, ulong cols, ulong vocab,
                                float fraction) {
    const size_t row = get_global_id(1);
    const int id = ids[ids_off + row];
    const bool inside = id >= 0 && (ulong)id < vocab;
    out += out_off + row * cols;
    wte += wte_off + (inside ? (size_t)id : 0) * cols;
    wpe += wpe_off + row % seq * cols;
    CLT_SPAN(c, end, cols) {
        VEC v = VLOAD_AS(TABLE_TYPE, wte + c, end - c);
#if HAS_WPE
        v = v + VLOAD_AS(TABLE_TYPE, wpe + c, end - c);
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

/* rows row_of[row_begin[u] .. row_begin[u + 1]) hold id ids[u] */
#define CHAIN_ARGS                                                                                           \
    __global const float *dx, ulong dx_off, __global const int *ids, ulong ids_off, __global const int *first,  \
        ulong first_off, __global const int *row_begin, ulong row_begin_off, __global const int *row_of,     \
        ulong row_of_off, __global float *dwte, ulong dwte_off, ulong cols, float fraction

/* global (segments of a row, distinct ids) */
__kernel void embedding_backward(CHAIN_ARGS) {
    const size_t u = get_global_id(1);
    const int begin = row_begin[row_begin_off + u], stop = row_begin[row_begin_off + u + 1];
    const bool fresh = first[first_off + u] != 0;
    if (LONG && stop - begin >= LONG) return;
    dx += dx_off;
    row_of += row_of_off;
    dwte += dwte_off + (size_t)ids[ids_off + u] * cols;
    CLT_SPAN(c, end, cols) {
        VEC acc = (VEC)(0.0f);
        if (!fresh) acc = VLOAD(dwte + c, end - c);
        for (int i = begin; i < stop; i++) {
            VEC g = VLOAD(dx + (size_t)row_of[i] * cols + c, end - c);
            acc = acc + SCALED(g);
        }
        VSTORE(acc, dwte + c, end - c);
    }
}

#if LONG
/* A frequent word has a long chain, whose order is fixed. While AHEAD of its rows are added, the next AHEAD
 * rows and the numbers of the rows after them are being loaded. Few columns per item, to save registers.
 * global (cols / 4, distinct ids) */
#define LOAD_AHEAD(to)                                                                                       \
    _Pragma("unroll") for (int j = 0; j < AHEAD; j++) to[j] = *(__global const float4 *)(dx + (size_t)row[j] * cols)
#define LOAD_PLACES(i)                                                                                       \
    _Pragma("unroll") for (int j = 0; j < AHEAD; j++) row[j] = row_of[min((i) + j, stop - 1)]

__kernel void embedding_backward_long(CHAIN_ARGS) {
    const size_t u = get_global_id(1), c = get_global_id(0) * 4;
    const int begin = row_begin[row_begin_off + u], stop = row_begin[row_begin_off + u + 1];
    if (stop - begin < LONG || c >= cols) return;
    dx += dx_off + c;
    row_of += row_of_off;
    dwte += dwte_off + (size_t)ids[ids_off + u] * cols + c;
    float4 acc = (float4)(0.0f), now[AHEAD], next[AHEAD];
    if (first[first_off + u] == 0) acc = *(__global const float4 *)dwte;
    int row[AHEAD], i = begin;
    LOAD_PLACES(begin);
    LOAD_AHEAD(now);
    LOAD_PLACES(begin + AHEAD);
    for (; i + AHEAD <= stop; i += AHEAD) {
        LOAD_AHEAD(next);
        LOAD_PLACES(i + 2 * AHEAD);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) acc = acc + SCALED(now[j]);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) now[j] = next[j];
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
        if (i + j < stop) acc = acc + SCALED(now[j]);
    *(__global float4 *)dwte = acc;
}
#endif

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
