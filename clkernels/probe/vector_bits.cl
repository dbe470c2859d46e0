/* How wide are the registers that the compiler of a CPU device uses?
 *
 * Asked      Only of CPUs: the macros of the instruction sets that the text is compiled for. The processor may
 *            have more: distributions build PoCL for several sets, and POCL_KERNELLIB_NAME=avx2 chooses one.
 * Input      64 words, in[i] = i. Launch: one work-group of 64.
 * Right      out[i] = i + 512, 256 or 128; out[i] = i from compilers without such macros (SPIR-V): they
 *            compile for the processor that they run on.
 * Wrong      Other numbers.
 * Sets       vector_bits */
#pragma OPENCL FP_CONTRACT OFF
#if defined(__AVX512F__)
#define BITS 512u
#elif defined(__AVX__)
#define BITS 256u
#elif defined(__SSE2__) || defined(__ARM_NEON)
#define BITS 128u
#else
#define BITS 0u
#endif

__kernel void probe(__global const uint *in, __global uint *out) {
    size_t i = get_global_id(0);
    out[i] = in[i] + BITS;
}
