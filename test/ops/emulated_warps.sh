#!/bin/bash
# Kernels for NVIDIA's mma.sync (clkernels/include/clt_mma.clh) compared with the formula in double without such a device:
# their warps are emulated in OpenCL C on PoCL. What the emulation cannot find: a copy that is read too early, an operand
# that PTX does not take, speed.
#   TEST_COMPLETE=1   also the large cases
# at leisure: it compares numbers, and no clock
# no sanitizer: it checks kernels
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/emulated.sh || exit 1
emulate clt_mma.clh mma_ "mma_bf16|mma_f16" attention/attention attention/attention_backward gemm/gemm gemm8/gemm8
[ $rows -ge 7 ]
report "$rows emulated rows" $?
# Attention's programs name each row and its cases, the others each row.
run_emulated test_attention_fast 2
run_emulated test_attention_fast_backward 3
run_emulated test_gemm_fast 1
run_emulated test_gemm8 1
finish
