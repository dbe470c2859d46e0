#!/bin/bash
# The tests of operations whose cases are too many for every change: all combinations of types and options of attention and
# of matrix products, which take minutes of compilers. And the programs that otherwise build kernels without
# optimization.
# timeout: 5400
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
for name in ops/test_{attention,attention8,gemm} model/test_{units,generate}; do
    TEST_COMPLETE=1 "$BUILD/test/$name" >"$log" 2>&1
    report "${name#*/} complete" $?
done
for script in emulated_warps emulated_dpas emulated_amx; do
    TEST_COMPLETE=1 bash test/ops/$script.sh >"$log" 2>&1
    report "$script, large cases" $?
done
finish
