/* peak_copy: nothing but copying, to measure the peak rate of global memory (runtime/device/clt_peak.c).
 *
 *   T             type of an element
 *   RUN_OF_ITEM   distance between the first elements of neighbouring work-items
 *   STEP          distance between the elements of one item
 *
 * Item i copies the elements i * RUN_OF_ITEM + j * STEP for j < run. CPUs: RUN_OF_ITEM = run and STEP = 1, so
 * an item copies a contiguous run. GPUs: RUN_OF_ITEM = 1 and STEP = the number of items, so neighbours copy
 * neighbouring elements. Launch: items * run elements in all. Requires nothing. */
#pragma OPENCL FP_CONTRACT OFF

#ifndef T
#define T float4
#endif
#ifndef RUN_OF_ITEM
#define RUN_OF_ITEM 1
#endif
#ifndef STEP
#define STEP get_global_size(0)
#endif

__kernel void peak_copy(__global const T *x, ulong x_off, __global T *y, ulong y_off, ulong run) {
    size_t first = get_global_id(0) * RUN_OF_ITEM, step = STEP;
    for (ulong i = 0; i < run; i++) y[y_off + first + i * step] = x[x_off + first + i * step];
}
