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
for table in attention attention_backward; do
    rows=$((rows + $(grep -c "^mma_" "$kernels/attention/$table.vt")))
    # Only the emulated rows remain, and the one that needs nothing.
    sed -i -E '/^(#|mma_|portable )/!d; /^mma_/s/mma_bf16,//' "$kernels/attention/$table.vt"
done
[ $rows -ge 5 ]
report "$rows emulated rows" $?

tiny=--tiny
[ -z "${TEST_COMPLETE:-}" ] || tiny=
for program in test_attention_fast test_attention_fast_backward; do
    CLTRAIN_KERNEL_PATH=$tmp CLTRAIN_DEVICE_TYPE=gpu CLTRAIN_NO_CACHE=1 timeout 1500 "$BUILD/test/ops/$program" $tiny >"$log" 2>&1
    code=$?
    grep -E "cases$|: [0-9]+ cases" "$log"
    [ $code = 0 ] && [ "$(grep -c "mma_.*cases" "$log")" -ge 2 ]
    report "$program" $?
done
finish
