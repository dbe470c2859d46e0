/* Does DPAS on bf16 and fp16 work in sub-groups of 16? Xe-HPG, which is told by its lack of fp64, answers no:
 * its units take 8 items, and the compiler spills when it makes 16 of them. */
#ifndef cl_khr_fp64
#error "DPAS of this device is used in sub-groups of 8"
#endif
#define SG 16
#define PROBE 1
#include "gemm_dpas.cl"
