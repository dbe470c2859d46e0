/* Activations and gated MLPs, forward and backward, over rows x cols elements with row distances ld*.
 *
 *   ACT          number of the activation (clt_activation)
 *   TYPE         clt_dtype of all tensors (include/clt_store.clh)
 *   LANES, SEG   include/clt_lane.clh
 *   FAST         1, for numerics fast: GELU and its derivative with NVIDIA's exponential and an error below
 *                5e-7; other activations are unchanged
 *   HALF_PTX     include/clt_store.clh
 *
 * Global size {work-items per row, rows}. Requires nothing. Memory bound: reads and writes 2 to 5 tensors
 * once. */
#include "../include/clt_act.clh"
#include "../include/clt_lane.clh"

#ifndef ACT
#define ACT 1
#endif
#ifndef TYPE
#define TYPE 0
#endif
#ifndef FAST
#define FAST 0
#endif
typedef CLT_T(TYPE) elem;
#if FAST && ACT == 1
#include "../include/clt_act_fast.clh"
#define ACT_OF(v) VMAP(clt_fast_gelu, v)
#define GRAD_OF(v) VMAP(clt_fast_gelu_grad, v)
#else
#define ACT_OF(v) VMAP(CLT_ACT_FN(ACT), v)
#define GRAD_OF(v) VMAP(CLT_ACT_GRAD_FN(ACT), v)
#endif

/* y = act(x) */
__kernel void act_forward(ulong cols, __global const elem *x, ulong x_off, ulong ldx, __global elem *y,
                          ulong y_off, ulong ldy) {
    x += x_off + get_global_id(1) * ldx;
    y += y_off + get_global_id(1) * ldy;
    CLT_SPAN(c, end, cols) {
        const VEC v = VLOAD_AS(TYPE, x + c, end - c);
        VSTORE_AS(TYPE, ACT_OF(v), y + c, end - c);
    }
}

/* dx = dy * act'(x) */
__kernel void act_backward(ulong cols, __global const elem *x, ulong x_off, ulong ldx,
                           __global const elem *dy, ulong dy_off, ulong lddy, __global elem *dx,
                           ulong dx_off, ulong lddx) {
    x += x_off + get_global_id(1) * ldx;
    dy += dy_off + get_global_id(1) * lddy;
    dx += dx_off + get_global_id(1) * lddx;
    CLT_SPAN(c, end, cols) {
        const VEC v = VLOAD_AS(TYPE, x + c, end - c), d = VLOAD_AS(TYPE, dy + c, end - c);
        VSTORE_AS(TYPE, d * GRAD_OF(v), dx + c, end - c);
    }
}

/* y = act(gate) * up */
__kernel void glu_forward(ulong cols, __global const elem *gate, ulong gate_off, ulong ldgate,
                          __global const elem *up, ulong up_off, ulong ldup, __global elem *y, ulong y_off,
                          ulong ldy) {
    gate += gate_off + get_global_id(1) * ldgate;
    up += up_off + get_global_id(1) * ldup;
    y += y_off + get_global_id(1) * ldy;
    CLT_SPAN(c, end, cols) {
        const VEC g = VLOAD_AS(TYPE, gate + c, end - c), u = VLOAD_AS(TYPE, up + c, end - c);
        VSTORE_AS(TYPE, ACT_OF(g) * u, y + c, end - c);
    }
}

/* dgate = (dy * up) * act'(gate), dup = dy * act(gate); the results may overwrite the inputs */
__kernel void glu_backward(ulong cols, __global const elem *gate, ulong gate_off, ulong ldgate,
                           __global const elem *up, ulong up_off, ulong ldup, __global const elem *dy,
                           ulong dy_off, ulong lddy, __global elem *dgate, ulong dgate_off, ulong lddgate,
                           __global elem *dup, ulong dup_off, ulong lddup) {
    gate += gate_off + get_global_id(1) * ldgate;
    up += up_off + get_global_id(1) * ldup;
    dy += dy_off + get_global_id(1) * lddy;
    dgate += dgate_off + get_global_id(1) * lddgate;
    dup += dup_off + get_global_id(1) * lddup;
    CLT_SPAN(c, end, cols) {
        const VEC g = VLOAD_AS(TYPE, gate + c, end - c), u = VLOAD_AS(TYPE, up + c, end - c);
        const VEC d = VLOAD_AS(TYPE, dy + c, end - c);
        VSTORE_AS(TYPE, (d * u) * GRAD_OF(g), dgate + c, end - c);
        VSTORE_AS(TYPE, d * ACT_OF(g), dup + c, end - c);
    }
}
