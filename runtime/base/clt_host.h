/* clt_host: how much of the host's memory this process may use, and what its processor computes with. */
#ifndef CLT_HOST_H
#define CLT_HOST_H

#include <stdint.h>

/* Bytes: the smallest of the host's physical memory and the memory limits of the process's control group and
 * the group's ancestors (containers). Memory that other processes use is not subtracted. */
uint64_t clt_host_memory(void);
/* For tests: clt_host_memory with the control group's files read below ROOT/proc and ROOT/sys. The physical
 * memory is still the host's. */
uint64_t clt_host_memory_under(const char *root);

/* Bits of the processor's widest floating-point registers that system and compilers use: 512 (AVX-512), 256
 * (AVX), 128. */
int clt_host_vector_bits(void);
/* Whether the processor and the system have a set of instructions: 1, 0, or -1 for an unknown name. Names are
 * gcc's: avx2, avx512bw, avx512vnni, avx512bf16, avxvnni, and dotprod on 64-bit ARM; amxint8 and amxbf16 are
 * products by the matrix unit of x86 processors (AMX), for which the call asks the system to let this process
 * use the unit. Those of another architecture give 0. */
int clt_host_has(const char *instructions);

#endif
