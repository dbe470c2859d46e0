# shellcheck shell=bash disable=SC2154
# emulated.sh: runs rows for matrix units without such a device. Their products by warps or sub-groups are
# emulated in OpenCL C on PoCL, and the results compared as on a device. After test/lib.sh.

# emulate HEADER ROWS WORDS TABLE...: a copy of the kernels in $tmp in which HEADER of clkernels/include emulates, and
# each table has only the rows whose names start with ROWS, without the requirements that match WORDS, and the last
# one, which needs nothing. Sets $rows to their number.
emulate() {
    local header=$1 prefix=$2 words=$3 table kernels=$tmp/clkernels
    cp -r clkernels "$kernels"
    sed -i 's/#define CLT_EMULATED 0/#define CLT_EMULATED 1/' "$kernels/include/$header"
    rows=0
    shift 3
    for table in "$@"; do
        rows=$((rows + $(grep -cE "^$prefix" "$kernels/$table.vt")))
        sed -i -E "/^(#|$prefix|portable )/!d; /^$prefix/s/($words),//g" "$kernels/$table.vt"
    done
}

# run_emulated PROGRAM LEAST: a test program, which names the rows it runs, LEAST of those or more. Most of its time is
# the compiler's, so kernels are optimized only with TEST_COMPLETE=1.
run_emulated() {
    local program=$1 least=$2 tiny=--tiny code ran
    [ -z "${TEST_COMPLETE:-}" ] || tiny=
    CLTRAIN_KERNEL_PATH=$tmp CLTRAIN_DEVICE=pocl CLTRAIN_DEVICE_TYPE=gpu CLTRAIN_NO_CACHE=1 TEST_EMULATED=1 timeout 1500 "$BUILD/test/ops/$program" $tiny >"$log" 2>&1
    code=$?
    ran=$(grep -oE "(mma|dpas|cpu_amx)[0-9a-z_]*(, [a-z0-9]+)? on" "$log" | sort -u | sed 's/[, ].*//' | uniq | paste -sd ' ')
    [ $code = 0 ] && [ "$(wc -w <<<"$ran")" -ge "$least" ]
    code=$?
    report "$program: $ran" $code
}
