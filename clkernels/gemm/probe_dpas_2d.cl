/* Do DPAS on bf16 and fp16 in sub-groups of 16, and reads of blocks of a matrix work? */
#define BLOCK2D 1
#include "probe_dpas_16.cl"
