/* Does the compiler take vpdpbusd of 256 bits by inline assembly, and does it add the right products? Rows name
 * this file after cpu=, without which the instruction would end the process. */
#define DOT 2
#include "gemm8_probe.clh"
