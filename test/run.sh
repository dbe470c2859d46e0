#!/bin/bash
# Runs every test program of the build and every script test/*/*.sh, prints one line each, and the log of
# those that fail.
#   test/run.sh [PATTERN ...]          only tests whose name contains one of the patterns
#   test/run.sh --long [PATTERN ...]   only the scripts of test/long/, which are otherwise not run
# A test fails after TEST_TIMEOUT seconds (default 900; a script sets its own limit with a line "# timeout:
# SECONDS"). The last line is "N passed, N failed". Under a sanitizer (test/sanitize.sh) a script with a line
# "# no sanitizer: REASON" is skipped with a line. The programs of ops/, model/ and train/ mostly wait for
# compilers, which use one core: TEST_JOBS of them run at the same time (default: the number of cores, at most
# 4), except those with a line " * Runs alone: REASON" at their start. Other tests run alone, except scripts
# with a line "# at leisure: REASON", which compute for a long time: they run one after the other with the
# lowest priority in parallel with the other tests, unless TEST_JOBS is 1.
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
long=0 started=0
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

# in_parallel SOURCE: whether this program runs in parallel with others
in_parallel() { [[ $1 == test/@(ops|model|train)/* ]] && ! grep -q '^ \* Runs alone: ' "$1.c"; }

# programs SOURCE...: prints the test programs of these sources that are built and selected
programs() {
    local source
    for source; do [ -x "$BUILD/${source%.c}" ] && wants "${source%.c}" "${patterns[@]}" && echo "${source%.c}"; done
}

patterns=("$@")
scripts=() leisurely=()
for script in test/*/*.sh; do
    case $script in test/long/*) [ $long = 1 ] || continue ;; *) [ $long = 0 ] || continue ;; esac
    if [ ! -f "$script" ] || ! wants "$script" "$@"; then continue; fi
    if why=$(skip_reason "$script"); then
        echo "SKIP  $script: $why"
    elif [ "$JOBS" -gt 1 ] && grep -q '^# at leisure: ' "$script"; then
        leisurely=("$script" "${leisurely[@]}")
    else
        scripts+=("$script")
    fi
done
# Starts the scripts that run in parallel with the others: those of train/ first, at last compilers and interpreters,
# which use all cores when nothing else runs any more.
at_leisure() { for script in "${leisurely[@]}"; do run_one "$script" nice -n 19 bash "$script"; done & }

if [ $long = 0 ]; then
    # The longest and then the largest first, so that no long test runs alone at the end.
    # shellcheck disable=SC2012 # the names have no special characters
    mapfile -t sources < <({ ls test/ops/test_{attention,attention8,gemm}.c test/model/test_generate.c test/train/test_amp.c &&
        ls -S test/{ops,model,train}/test_*.c; } | awk '!seen[$0]++')
    for name in $(programs "${sources[@]}"); do
        in_parallel "$name" || continue
        while [ "$(jobs -pr | wc -l)" -ge "$JOBS" ]; do wait -n; done
        started=$((started + 1))
        run_one "$name" "$BUILD/$name" &
    done
    wait
    at_leisure
    for name in $(programs test/*/test_*.c); do
        ! in_parallel "$name" || continue
        started=$((started + 1))
        run_one "$name" "$BUILD/$name"
    done
fi
[ $long = 0 ] || at_leisure
for script in "${scripts[@]}"; do run_one "$script" bash "$script"; done
wait
# A test without a result, because its shell was killed, counts as failed.
passed=$(grep -c passed "$results")
failed=$((started + ${#scripts[@]} + ${#leisurely[@]} - passed))
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
