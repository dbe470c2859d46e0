/* Does DPAS on bf16 and fp16 work in sub-groups of 8? */
#define SG 8
#define PROBE 1
#include "gemm_dpas.cl"
