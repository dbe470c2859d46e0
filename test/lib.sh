# shellcheck shell=bash disable=SC2034
# lib.sh: what the test scripts share. A script starts with
#     cd "$(dirname "$0")/../.." && . test/lib.sh
# and then has $cltrain (the program), $tmp (a folder that goes away at the end) and the functions below.
set -u
BUILD=$(readlink -f "${BUILD:-build}")
cltrain=$BUILD/cltrain
golden=$PWD/test/golden
. test/drivers.sh
tmp=$(mktemp -d)
failed=0
# A process in the background that a signal ends before it has become its program runs this, too.
trap '[ $BASHPID != $$ ] || rm -rf "$tmp"' EXIT
export CLTRAIN_CACHE_DIR=${CLTRAIN_CACHE_DIR:-$BUILD/test-cache}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Short names for devices patterns must not be bent by what the caller has set.
unset CLTRAIN_DEVICE CLTRAIN_TRANSPORT CLTRAIN_VARIANT CLTRAIN_LOG

# Platforms in this machine: has_platform "Intel" etc.
has_platform() { "$cltrain" devices 2>/dev/null | grep -qi "^Platform.*$1"; }

# on_ranks N COMMAND...: cltrain on N ranks. What MPI's plugins leak has no names left by the time leaks are looked for.
on_ranks() {
    local n=$1
    shift
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 "$cltrain" launch -n "$n" "$@"
}

fail() {
    echo "FAIL: $*"
    failed=1
}

# needs_mpirun: ends the script, as left out, where there is no MPI. Open MPI leaves memory behind, in plugins that are
# no longer there to be named when leaks are looked for; what it and ranks keep in TMPDIR goes away at the end. An mpirun
# that is started by hand looks for no X displays, as under cltrain launch.
needs_mpirun() {
    command -v mpirun >/dev/null || { echo "skipped: mpirun is not installed (package openmpi-bin)"; exit 0; }
    export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 TMPDIR=$tmp HWLOC_COMPONENTS=-opencl,-gl
}

# mpirun_by_hand: sets the array by_hand to what starts ranks without cltrain launch, up to the number of ranks (-np):
# Open MPI's mpirun has words of its own. false: it is another one's.
mpirun_by_hand() {
    case $(mpirun --version 2>/dev/null) in
    *"Open MPI"* | *OpenRTE*)
        by_hand=(mpirun --bind-to none --oversubscribe --quiet --mca btl_vader_single_copy_mechanism none)
        ;;
    *)
        by_hand=(mpirun -bind-to none)
        false
        ;;
    esac
}

# report NAME, 0 for good, detail: one line; where it went wrong the end of $log, too.
log=$tmp/log
report() {
    if [ "$2" = 0 ]; then
        echo "ok    $1${3:+: $3}"
        return
    fi
    fail "$1${3:+: $3}"
    tail -n 40 "$log" | sed 's/^/      | /'
}

now() { date +%s%N | sed 's/......$//'; } # milliseconds

# How slow and busy this machine is: what a start took at most until the word that was waited for was there, in
# milliseconds. What is promised in seconds is promised for a machine that is neither. slow_start SINCE: one more start.
slowest=0 took=0
slow_start() {
    local ms=$(($(now) - $1))
    [ $ms -le $slowest ] || slowest=$ms
}

# soon MS: what took $took milliseconds was promised within MS, and was done by then or not much later than a slow machine
# can. patience S: a time-out of S seconds or, on a slow machine, of more, in which what does not hang makes itself heard.
soon() { [ "$took" -le $(($1 + 3 * slowest)) ]; }
patience() { echo $((slowest / 500 > $1 ? slowest / 500 : $1)); }

# in_background COMMAND...: starts it, its output in $log; $started is its process. The log is emptied here: the process
# does it too late for who looks for a word of its own and would find one of the process before.
in_background() {
    started_at=$(now)
    : >"$log"
    "$@" >"$log" 2>&1 &
    started=$!
}

# until_there PATTERN [FILE]: until a line of the file ($log) has it, at most ten minutes; false if what was started in the
# background is gone before.
until_there() {
    local end=$((SECONDS + 600)) gone=
    while :; do
        kill -0 "$started" 2>/dev/null || gone=1 # before the look: what it said at its end counts
        if grep -qs -- "$1" "${2:-$log}"; then
            slow_start "$started_at"
            return 0
        fi
        [ -z "$gone" ] && [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

# nobody_left PATTERN: no process has it in its command line, or none has after the few seconds that one that was killed may
# need for its end. $left: how many.
nobody_left() {
    for _ in $(seq 50); do
        left=$(pgrep -fc -- "$1")
        [ "$left" != 0 ] || return 0
        sleep 0.1
    done
    return 1
}

# finish: the last line of a script.
finish() {
    [ $failed = 0 ] || { echo "some of it failed"; exit 1; }
    exit 0
}

# newest FOLDER: the path of its newest checkpoint by number, whole or not; newest_batch FOLDER: that number. Nothing if
# there is none.
newest() {
    find "$1" -maxdepth 1 -name 'ep*-ba*' ! -name '*.tmp*' 2>/dev/null | sed 's/.*-ba\([0-9]*\)$/\1 &/' | sort -n | tail -n 1 | cut -d' ' -f2
}
newest_batch() { newest "$1" | sed 's/.*-ba//'; }

# rank_pid R: the process of a rank of the launch whose TMPDIR is $tmp.
rank_pid() { cut -d' ' -f1 "$tmp"/cltrain-launch.*/"$1".pid 2>/dev/null; }

# disturbed_run STEPS EVERY: $tmp/run.yaml and $settings of a run that is small, but long enough to be disturbed: so many
# batches on the golden set with learned positions, a checkpoint EVERY so many, and one evaluation, at its end.
disturbed_run() {
    local set=$golden/mpt-learned
    cat "$set/train.yaml" - >"$tmp/run.yaml" <<EOF
eval_interval: 100000ba
eval_loader:
  name: text
  dataset:
    local: $set/mds
    split: train
    shuffle: false
    max_seq_len: 64
  drop_last: false
EOF
    settings=("train_loader.dataset.local=$set/mds" "load_path=$set/hf" "scheduler.t_max=${1}ba" "max_duration=${1}ba"
        "save_interval=${2}ba" save_num_checkpoints_to_keep=3 log_config=false console_log_interval=1000ba
        device_train_microbatch_size=2)
}

# The finished batches of a run's folder, one line each: batch, loss and gradient norm as they were printed. After a
# stop the last row of a batch is the one that counts.
steps_of() {
    sed -n 's/^{"batch":\([0-9]*\),.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl" |
        awk '{ row[$1] = $0; if ($1 > last) last = $1 } END { for (i = 1; i <= last; i++) print row[i] }'
}
