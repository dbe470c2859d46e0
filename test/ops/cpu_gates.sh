#!/bin/bash
# Compiles the CPU rows of the matrix products for NEON, AVX2 and AVX-512, whatever this machine is, and fails if the tile
# of an inner loop does not fit the registers, or a function is undefined. The compiler is clang-19, not a driver's.
#     test/ops/cpu_gates.sh [--verbose] [word ...]     word: only rows whose table/id contains one
# at leisure: only compilers run here
# no sanitizer: only compilers run here
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
command -v clang-19 >/dev/null && command -v llc-19 >/dev/null || { echo "skipped: clang-19 or llc-19 is not installed (packages clang-19, llvm-19)"; exit 0; }
python3 test/ops/cpu_gates.py "$tmp" "$@" || failed=1
# It finds a tile that is too large.
sed 's/^cpu_6x16 .*/cpu_6x16 gemm\/gemm_cpu.cl cpu type=cpu MR=8,NV=2,KC=192,ROWS=504,LA=24576,TYPES=7/' clkernels/gemm/gemm.vt >"$tmp/gemm.vt"
python3 test/ops/cpu_gates.py "$tmp" --tables "$tmp" gemm/cpu_6x16 >"$log" 2>&1
[ $? = 1 ] && [ "$(grep -c '^FAIL.*accesses of the stack' "$log")" = 2 ]
report "a tile of 8 x 32 is found not to fit NEON and AVX2" $?
finish
