#!/bin/bash
# Runs every test program of the build and every script test/*/*.sh, prints one line each, and the log of
# those that fail.
#   test/run.sh [PATTERN ...]          only tests whose name contains one of the patterns
#   test/run.sh --long [PATTERN ...]   only the scripts of test/long/, which are otherwise not run
# A test fails after TEST_TIMEOUT seconds (default 900; a script sets its own limit with a line "# timeout:
# SECONDS"). The last line is "N passed, N failed". Under a sanitizer (test/sanitize.sh) a script with a line
# "# no sanitizer: REASON" is skipped with a line. The programs of ops/, model/ and train/, except those with a
# line " * Runs alone: REASON" at their start, and scripts with a line "# at leisure: REASON" watch no clock:
# TEST_JOBS of them run at the same time (default: the number of cores, at most 4), the longest first, with the
# lowest priority and twice the time. In parallel with them the other tests run one after the other, and use a
# core only part of the time. TEST_JOBS=1: one test at a time.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build}
export BUILD
LIMIT=${TEST_TIMEOUT:-900}
logs=$BUILD/test-logs
mkdir -p "$logs"
. test/drivers.sh
: "${CLTRAIN_CACHE_DIR:=$(readlink -f "$BUILD")/test-cache}"
export CLTRAIN_CACHE_DIR
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
JOBS=${TEST_JOBS:-$(nproc)}
[ "$JOBS" -le 4 ] || JOBS=4
results=$logs/results # one line per test: passed or failed
: >"$results"
long=0
[ "${1:-}" = --long ] && { long=1; shift; }

wants() {
    [ $# = 1 ] && return 0
    local name=$1 p
    shift
    for p in "$@"; do case $name in *"$p"*) return 0 ;; esac; done
    return 1
}

# Prints the reason why a script is skipped, if this is a run under a sanitizer and the script has a reason.
skip_reason() {
    [ -n "${TEST_SANITIZER:-}" ] && sed -n 's/^# no sanitizer: *//p' "$1" | grep .
}

# The failures in the part of a long log that is not printed.
failures() {
    [ "$(wc -l <"$1")" -gt 60 ] || return 0
    head -n -60 "$1" | grep -E '^\[ +(ERROR|LINE|FAILED) +\]|^(FAIL:|wrong:)|Sanitizer' | head -n 40
    echo ...
}

# Prints the output of a test at once, because other tests may run at the same time.
run_one() { run_and_report "$@" >"$logs/said.$BASHPID"; cat "$logs/said.$BASHPID"; rm -f "$logs/said.$BASHPID"; }

run_and_report() {
    local name=$1 limit=$LIMIT own log start seconds code cpu TIMEFORMAT='%U %S'
    shift
    log=$logs/$(echo "$name" | tr / _).log
    if [[ $name == *.sh ]]; then
        own=$(sed -n 's/^# timeout: *\([0-9][0-9]*\).*/\1/p' "$name" | head -n 1)
        limit=${own:-$LIMIT}
    fi
    start=$(date +%s.%N)
    { time timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null; } 2>"$log.cpu"
    code=$?
    cpu=$(awk '{ printf "%.1f", $1 + $2 }' "$log.cpu")
    rm -f "$log.cpu"
    seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    if [ $code = 0 ]; then
        echo passed >>"$results"
        printf 'PASS  %-44s %7s s, %7s s of CPU\n' "$name" "$seconds" "$cpu"
        grep -hi '^skip' "$log" | sed 's/^/      /'
        return
    fi
    echo failed >>"$results"
    printf 'FAIL  %-44s %7s s  ' "$name" "$seconds"
    if [ "${seconds%.*}" -ge "$limit" ]; then echo "took more than $limit s"; else echo "exit $code"; fi
    # The next run overwrites the log; keep it if the test failed.
    cp "$log" "${log%.log}.failed"
    { failures "$log"; tail -n 60 "$log"; } | sed 's/^/      | /'
    echo "      | (whole log: ${log%.log}.failed)"
}

# at_leisure TEST: whether it runs in parallel with others. TEST is a source without .c, or a script.
at_leisure() {
    case $1 in
    *.sh) grep -q '^# at leisure: ' "$1" ;;
    test/ops/* | test/model/* | test/train/*) ! grep -q '^ \* Runs alone: ' "$1.c" ;;
    *) false ;;
    esac
}

# run_test TEST [COMMAND ...]: runs it as an argument of the command
run_test() {
    case $1 in
    *.sh) run_one "$@" bash "$1" ;;
    *) run_one "$@" "$BUILD/$1" ;;
    esac
}

# run_pool TEST ...: JOBS at a time
run_pool() {
    local test LIMIT=$((2 * LIMIT)) lowest=(nice -n 19)
    [ "$JOBS" -gt 1 ] || lowest=()
    for test; do
        while [ "$(jobs -pr | wc -l)" -ge "$JOBS" ]; do wait -n; done
        run_test "$test" "${lowest[@]}" &
    done
    wait
}

# The longest first, so that none runs alone at the end; the larger a program, the longer it takes.
longest=(train/hash_matrix.sh ops/oclgrind.sh ops/offline_gates.sh ops/emulated_warps.sh ops/test_attention ops/test_attention8
    model/test_generate ops/test_gemm train/steady.sh train/offload.sh train/test_amp)
patterns=("$@")
pool=() others=()
# shellcheck disable=SC2012 # the names have no special characters
mapfile -t tests < <({ printf 'test/%s\n' "${longest[@]}"; ls -S test/{ops,model,train}/test_*.c; ls test/*/test_*.c test/*/*.sh; } |
    sed 's/\.c$//' | awk '!seen[$0]++')
for name in "${tests[@]}"; do
    case $name in test/long/*) [ $long = 1 ] || continue ;; *) [ $long = 0 ] || continue ;; esac
    [[ $name == *.sh || -x $BUILD/$name ]] || continue # CURL=0 builds no programs of object/
    wants "$name" "${patterns[@]}" || continue
    if [[ $name == *.sh ]] && why=$(skip_reason "$name"); then
        echo "SKIP  $name: $why"
    elif at_leisure "$name"; then
        pool+=("$name")
    else
        others+=("$name")
    fi
done
if [ "$JOBS" -gt 1 ]; then run_pool "${pool[@]}" & else run_pool "${pool[@]}"; fi
for name in "${others[@]}"; do run_test "$name"; done
wait
# A test without a result, because its shell was killed, counts as failed.
passed=$(grep -c passed "$results")
failed=$((${#pool[@]} + ${#others[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
