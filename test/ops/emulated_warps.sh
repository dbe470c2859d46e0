#!/bin/bash
# Kernels for NVIDIA's mma.sync (clkernels/include/clt_mma.clh) compared with the formula in double without such a device:
# their warps are emulated in OpenCL C on PoCL. What the emulation cannot find: a copy that is read too early, an operand
# that PTX does not take, speed.
#   TEST_COMPLETE=1   also the large cases
# at leisure: it compares numbers, and no clock
# no sanitizer: it checks kernels
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
kernels=$tmp/clkernels
cp -r clkernels "$kernels"
sed -i 's/#define CLT_EMULATED 0/#define CLT_EMULATED 1/' "$kernels/include/clt_mma.clh"
rows=0
for table in attention/attention attention/attention_backward gemm/gemm gemm8/gemm8; do
    rows=$((rows + $(grep -c "^mma_" "$kernels/$table.vt")))
    # Only the emulated rows remain, and the one that needs nothing.
    sed -i -E '/^(#|mma_|portable )/!d; /^mma_/s/mma_bf16,//' "$kernels/$table.vt"
done
[ $rows -ge 7 ]
report "$rows emulated rows" $?

tiny=--tiny
[ -z "${TEST_COMPLETE:-}" ] || tiny=
# Attention's programs name each row and its cases, the others each row.
for program in "test_attention_fast 2" "test_attention_fast_backward 3" "test_gemm_fast 1" "test_gemm8 1"; do
    read -r program least <<<"$program"
    CLTRAIN_KERNEL_PATH=$tmp CLTRAIN_DEVICE=pocl CLTRAIN_DEVICE_TYPE=gpu CLTRAIN_NO_CACHE=1 timeout 1500 "$BUILD/test/ops/$program" $tiny >"$log" 2>&1
    code=$?
    ran=$(grep -oE "mma_[0-9_]+(, [a-z0-9]+)? on" "$log" | sort -u | sed 's/[, ].*//' | uniq | paste -sd ' ')
    [ $code = 0 ] && [ "$(wc -w <<<"$ran")" -ge "$least" ]
    code=$?
    report "$program: $ran" $code
done
finish
