/* peak_fma: nothing but fma, to measure the peak rate in fp32 (runtime/device/clt_peak.c).
 *
 *   T     float, or a vector of it
 *   ACC   independent chains of a work-item
 *   RUN   fma of each chain per iteration, so that counting takes few of the instructions
 *
 * A work-item does n * RUN * ACC fma of type T. The chains end in one store, so that the compiler cannot drop
 * any. Launch: any number of items. Requires nothing. */
#pragma OPENCL FP_CONTRACT OFF

#ifndef T
#define T float
#endif
#ifndef ACC
#define ACC 8
#endif
#ifndef RUN
#define RUN 16
#endif

__kernel void peak_fma(__global T *out, ulong out_off, float m, float c, ulong n) {
    T x[ACC];
#pragma unroll
    for (int a = 0; a < ACC; a++) x[a] = (T)(m * (float)a);
    for (ulong i = 0; i < n; i++) {
#pragma unroll
        for (int r = 0; r < RUN; r++)
#pragma unroll
            for (int a = 0; a < ACC; a++) x[a] = fma(x[a], (T)m, (T)c);
    }
    T sum = x[0];
#pragma unroll
    for (int a = 1; a < ACC; a++) sum += x[a];
    out[out_off + get_global_id(0)] = sum;
}
