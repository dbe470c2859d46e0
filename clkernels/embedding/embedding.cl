/* embedding: lookups and their gradients; a work-item computes SPAN columns of a row, W at a time. README.md defines
 * the bits.
 *
 * Macros: W 1|16, SPAN (a multiple of W); HAS_WPE 0|1; FRACTION 0|1: the embedding fraction is not 1. */
#include "../include/clt_vec.clh"

#ifndef SPAN
#define SPAN W
#endif
#ifndef HAS_WPE
#define HAS_WPE 1
#endif
#ifndef FRACTION
#define FRACTION 0
#endif
#if SPAN % W != 0
#error "SPAN is a multiple of W"
#endif

/* for each c of this item's columns: `c`, and `left` columns from it to the end of the row */
#define FOR_COLUMNS(cols)                                                                                    \
    for (size_t c = get_global_id(0) * SPAN, end_ = c + SPAN, left; c < end_ && c < (cols) && (left = (cols)-c); c += W)

/* out: [rows, cols]; global (spans of a row, rows) */
__kernel void embedding_forward(__global const int *ids, ulong ids_off, __global const float *wte, ulong wte_off,
                                __global const float *wpe, ulong wpe_off, __global float *out, ulong out_off,
                                ulong seq, ulong cols, ulong vocab, float fraction) {
    const size_t row = get_global_id(1);
    const int id = ids[ids_off + row];
    const bool inside = id >= 0 && (ulong)id < vocab;
    out += out_off + row * cols;
    wte += wte_off + (inside ? (size_t)id : 0) * cols;
    wpe += wpe_off + row % seq * cols;
    FOR_COLUMNS(cols) {
        CLT_VEC v = CLT_VEC_LOAD(wte + c, left);
#if HAS_WPE
        v = v + CLT_VEC_LOAD(wpe + c, left);
#endif
#if FRACTION
        v = v * fraction + v * (1.0f - fraction);
#endif
        if (!inside) v = (CLT_VEC)(NAN);
        CLT_VEC_STORE(v, out + c, left);
    }
}

#if FRACTION
#define SCALED(v) ((v)*fraction)
#else
#define SCALED(v) (v)
#endif

/* global (spans of a row, distinct ids): rows row_of[row_begin[u] .. row_begin[u + 1]) hold id ids[u] */
__kernel void embedding_backward(__global const float *dx, ulong dx_off, __global const int *ids, ulong ids_off,
                                 __global const int *first, ulong first_off, __global const int *row_begin,
                                 ulong row_begin_off, __global const int *row_of, ulong row_of_off,
                                 __global float *dwte, ulong dwte_off, ulong cols, float fraction) {
    const size_t u = get_global_id(1);
    const int begin = row_begin[row_begin_off + u], end = row_begin[row_begin_off + u + 1];
    const bool fresh = first[first_off + u] != 0;
    dx += dx_off;
    row_of += row_of_off;
    dwte += dwte_off + (size_t)ids[ids_off + u] * cols;
    FOR_COLUMNS(cols) {
        CLT_VEC acc = (CLT_VEC)(0.0f);
        if (!fresh) acc = CLT_VEC_LOAD(dwte + c, left);
        for (int i = begin; i < end; i++) {
            CLT_VEC g = CLT_VEC_LOAD(dx + (size_t)row_of[i] * cols + c, left);
            acc = acc + SCALED(g);
        }
        CLT_VEC_STORE(acc, dwte + c, left);
    }
}

/* global (spans of a row, positions) */
__kernel void positions_backward(__global const float *dx, ulong dx_off, __global float *dwpe, ulong dwpe_off,
                                 ulong rows, ulong seq, ulong cols, int accumulate, float fraction) {
    const size_t t = get_global_id(1);
    dx += dx_off;
    dwpe += dwpe_off + t * cols;
    FOR_COLUMNS(cols) {
        CLT_VEC acc = (CLT_VEC)(0.0f);
        if (accumulate) acc = CLT_VEC_LOAD(dwpe + c, left);
        for (size_t row = t; row < rows; row += seq) {
            CLT_VEC g = CLT_VEC_LOAD(dx + row * cols + c, left);
            acc = acc + SCALED(g);
        }
        CLT_VEC_STORE(acc, dwpe + c, left);
    }
}

/* dst[id] += src[id]; global (spans of a row, distinct ids) */
__kernel void add_rows(__global float *dst, ulong dst_off, __global const float *src, ulong src_off,
                       __global const int *ids, ulong ids_off, ulong cols) {
    const size_t at = (size_t)ids[ids_off + get_global_id(1)] * cols;
    dst += dst_off + at;
    src += src_off + at;
    FOR_COLUMNS(cols) {
        CLT_VEC v = CLT_VEC_LOAD(dst + c, left) + CLT_VEC_LOAD(src + c, left);
        CLT_VEC_STORE(v, dst + c, left);
    }
}
