#!/bin/bash
# Runs the operations' test programs at small shapes under Oclgrind, which interprets every kernel and reports data
# races, accesses outside buffers and wrong API calls. Fails if a program fails or a log is not empty (Oclgrind's exit
# code does not show what it found). Each program runs twice: as a device of no type, with the portable rows, and as a
# CPU, with the rows that only CPUs have (of a table without such rows the first; --own-rows), which need more local
# memory than Oclgrind's default and then call no built-in functions of compilers.
#
# usage: test/ops/oclgrind.sh [PROGRAM...]     from the root, after `make`; default: every build/test/ops/test_*
#   BUILD=dir      where the programs are (build)
#   JOBS=n         programs at a time (2)
#   TIME_LIMIT=s   for each program (3000)
#   TEST_COMPLETE=1   as a CPU, all rows, and every program (test/long/oclgrind.sh)
# timeout: 3600
# at leisure: an interpreter of kernels, and no clock
# no sanitizer: it checks kernels, and Oclgrind preloads a library before the sanitizer's
set -u
BUILD=${BUILD:-build} JOBS=${JOBS:-2} TIME_LIMIT=${TIME_LIMIT:-3000} TEST_COMPLETE=${TEST_COMPLETE:-}
command -v oclgrind >/dev/null || { echo "oclgrind is not installed (apt-get install oclgrind)"; exit 1; }
# Not test_tune and test_tune_products: they run the rows of other programs again, to time them.
if [ $# = 0 ]; then
    for program in "$BUILD"/test/ops/test_*; do
        [[ ${program##*/} = test_tune* ]] || set -- "$@" "$program"
    done
fi
[ -x "$1" ] || { echo "$1: no such program; run make first"; exit 1; }
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT

run_one() { # program, folder of its logs, "cpu" or "any"
    local name=${1##*/}.$3 start=$SECONDS rc why=
    local as=() shapes=(--tiny)
    if [ "$3" = any ]; then
        unset CLTRAIN_DEVICE_TYPE
    else
        export CLTRAIN_DEVICE_TYPE=$3
        as=(--local-mem-size 262144 --build-options -DCLT_NO_BUILTINS)
        [ -n "$TEST_COMPLETE" ] || shapes+=(--own-rows)
    fi
    CLTRAIN_NO_CACHE=1 timeout "$TIME_LIMIT" oclgrind --data-races --check-api --max-errors 20 "${as[@]}" \
        --log "$2/$name.log" "$1" "${shapes[@]}" >"$2/$name.out" 2>&1
    rc=$?
    [ $rc -eq 124 ] && why="still running after $TIME_LIMIT s"
    [ $rc -ne 0 ] && [ -z "$why" ] && why="exit code $rc"
    [ -s "$2/$name.log" ] && why="${why:+$why, }Oclgrind's log is not empty"
    grep -q "device  ] Oclgrind" "$2/$name.out" || why="${why:+$why, }it did not run on Oclgrind"
    if [ -n "$why" ]; then
        echo "FAILED $name ($((SECONDS - start)) s): $why"
        head -n 60 "$2/$name.log" 2>/dev/null
        grep -E "^\[  (ERROR|FAILED)|ERROR|error:" "$2/$name.out" | head -n 20
        return 1
    fi
    echo "ok     $name ($((SECONDS - start)) s)"
}
export -f run_one
export TIME_LIMIT TEST_COMPLETE

# As a CPU the rows of these would be the same: their tables have none that only CPUs have.
no_cpu_rows=" test_act_fast test_cast_fp8 test_gemm_finish test_gemm_fp8 test_math test_step "
[ -z "$TEST_COMPLETE" ] || no_cpu_rows=

# The longest first, so that the last one does not run alone.
# shellcheck disable=SC2012,SC2016  # names of our own, without blanks
ls -S "$@" | sed 's/.*/&\n&/' | awk -v none="$no_cpu_rows" '{ name = $0; sub(".*/", "", name) }
        NR % 2 || !index(none, " " name " ") { print $0, NR % 2 ? "any" : "cpu" }' |
    xargs -P "$JOBS" -L 1 bash -c 'run_one "$2" "$1" "$3"' _ "$dir"
