#!/bin/bash
# Kernels for the matrix unit of x86 processors (clkernels/include/clt_amx.clh) and their probes, compared with the oracle
# and the formula in double on a processor that may not have it: the unit's tiles are emulated in OpenCL C on PoCL. What
# the emulation cannot find: an instruction that a compiler refuses, speed.
#   TEST_COMPLETE=1   also the large cases
# at leisure: it compares numbers, and no clock
# no sanitizer: it checks kernels
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/emulated.sh || exit 1
emulate clt_amx.clh cpu_amx "type=cpu|cpu=amx[a-z0-9]+" gemm/gemm gemm8/gemm8
[ $rows = 2 ]
report "$rows emulated rows" $?
run_emulated test_gemm_fast 1
run_emulated test_gemm8 1
finish
