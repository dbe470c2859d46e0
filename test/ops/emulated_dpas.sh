#!/bin/bash
# Kernels for Intel's matrix units (clkernels/include/clt_dpas.clh) and their probes, compared with the oracle and the
# formula in double without such a device: sub-groups are emulated in OpenCL C on PoCL, with the layout of operands that
# the extensions' texts give; a read that breaks their restrictions gives wrong numbers. What the emulation cannot find: a
# compiler or a device that differs from these texts, a number that a sub-group reads from a place that only some of its
# items give, registers that do not suffice, speed.
#   TEST_COMPLETE=1   also the large cases, and the other tiles
# at leisure: it compares numbers, and no clock
# no sanitizer: it checks kernels
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/emulated.sh || exit 1
# PoCL compiles a program for each row, type and epilogue: one row of gemm.vt unless complete.
tiles="dpas(_|8_128)" least=1
[ -z "${TEST_COMPLETE:-}" ] || tiles=dpas least=5
emulate clt_dpas.clh "$tiles" "type=gpu|vendor=Intel|block_reads" gemm/gemm gemm8/gemm8
[ $rows = $((least + 3)) ]
report "$rows emulated rows" $?
run_emulated test_gemm_fast $least
run_emulated test_gemm8 3
finish
