/* Does DPAS on int8 work in sub-groups of 8? */
#define SG 8
#define PROBE 1
#include "gemm8_dpas.cl"
