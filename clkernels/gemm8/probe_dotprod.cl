/* Does the compiler take sdot by inline assembly, and does it add the right products? Rows name this file after cpu=,
 * without which the instruction would end the process. */
#define DOT 5
#include "gemm8_probe.clh"
