/* image: patches of images, and the tokens that are made of them. README.md defines the bits. A work-item
 * processes SEG columns of a row, LANES at a time (clt_lane.clh).
 *
 * Macros: LANES, SEG; TYPE: the type of the patches (clt_store.clh), everything else is fp32. */
#include "../include/clt_lane.clh"

#ifndef TYPE
#define TYPE 0
#endif

/* out: [images * T, ld], of which 3 p^2 columns are pixels and the others 0; pixels: [images, 3, height, width]; across: patches of a row of patches. global
 * (segments of a row, images * T) */
__kernel void unfold_patches(__global const float *pixels, ulong pixels_off, __global CLT_T(TYPE) *out, ulong out_off,
                             ulong tokens, ulong ld, ulong height, ulong width, ulong p, ulong across) {
    const size_t row = get_global_id(1), image = row / tokens, t = row % tokens;
    const size_t patch = t ? t - 1 : 0, y = patch / across * p, x = patch % across * p;
    pixels += pixels_off + image * 3 * height * width + y * width + x;
    out += out_off + row * ld;
    const size_t begin = get_global_id(0) * SEG, end = begin + SEG < ld ? begin + SEG : ld;
    for (size_t c = begin; c < end; c++) {
        const size_t line = c / p, colour = line / p;
        const float v = t && colour < 3 ? pixels[(colour * height + line % p) * width + c % p] : 0.0f;
        CLT_STORE(TYPE, v, out + c);
    }
}

/* x: [images * T, cols]; global (segments of a row, images * T) */
__kernel void place_tokens(__global float *x, ulong x_off, __global const float *first, ulong first_off,
                           __global const float *position, ulong position_off, ulong tokens, ulong cols) {
    const size_t row = get_global_id(1), t = row % tokens;
    x += x_off + row * cols;
    first += first_off;
    position += position_off + t * cols;
    CLT_SPAN(c, end, cols) {
        VEC v;
        if (t == 0)
            v = VLOAD(first + c, end - c);
        else
            v = VLOAD(x + c, end - c);
        v = v + VLOAD(position + c, end - c);
        VSTORE(v, x + c, end - c);
    }
}

/* x: [images * T, cols], y: [images, cols]; part: 1 / n. global (segments of a row, images) */
__kernel void mean_tokens(__global const float *x, ulong x_off, __global float *y, ulong y_off, ulong tokens,
                          ulong cols, float part) {
    const size_t image = get_global_id(1);
    x += x_off + image * tokens * cols;
    y += y_off + image * cols;
    CLT_SPAN(c, end, cols) {
        VEC acc = (VEC)(0.0f);
        for (size_t t = 1; t < tokens; t++) acc = acc + VLOAD(x + t * cols + c, end - c);
        acc = acc * part;
        VSTORE(acc, y + c, end - c);
    }
}

/* dy: [images, cols], dx: [images * T, cols]; global (segments of a row, images * T) */
__kernel void mean_tokens_backward(__global const float *dy, ulong dy_off, __global float *dx, ulong dx_off,
                                   ulong tokens, ulong cols, float part) {
    const size_t row = get_global_id(1);
    dy += dy_off + row / tokens * cols;
    dx += dx_off + row * cols;
    CLT_SPAN(c, end, cols) {
        VEC v = VLOAD(dy + c, end - c) * part;
        if (row % tokens == 0) v = (VEC)(0.0f);
        VSTORE(v, dx + c, end - c);
    }
}
