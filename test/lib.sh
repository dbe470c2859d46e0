# shellcheck shell=bash disable=SC2034
# lib.sh: shared by the test scripts. A script starts with
#     cd "$(dirname "$0")/../.." && . test/lib.sh
# and then has $cltrain (the program), $tmp (a folder that is removed at the end) and the functions below.
set -u
BUILD=$(readlink -f "${BUILD:-build}")
cltrain=$BUILD/cltrain
golden=$PWD/test/golden
. test/drivers.sh
tmp=$(mktemp -d)
failed=0
# Only in this shell: a background process that a signal ends before its exec also runs the trap.
trap '[ $BASHPID != $$ ] || rm -rf "$tmp"' EXIT
export CLTRAIN_CACHE_DIR=${CLTRAIN_CACHE_DIR:-$BUILD/test-cache}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Tests choose devices, transports and variants themselves; the caller's settings must not interfere.
unset CLTRAIN_DEVICE CLTRAIN_TRANSPORT CLTRAIN_HOSTS CLTRAIN_VARIANT CLTRAIN_LOG

# has_platform NAME: whether this machine has an OpenCL platform whose name contains NAME
has_platform() { "$cltrain" devices 2>/dev/null | grep -qi "^Platform.*$1"; }

# on_ranks N COMMAND...: runs cltrain on N ranks. Leak detection is off, because MPI unloads the plugins that
# leak, and suppressions cannot name them.
on_ranks() {
    local n=$1
    shift
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 "$cltrain" launch -n "$n" "$@"
}

fail() {
    echo "FAIL: $*"
    failed=1
}

# needs_mpirun: ends the script as skipped if MPI is not installed. Leak detection is off as in on_ranks.
# Files of Open MPI and of ranks go to $tmp. HWLOC_COMPONENTS is set as by cltrain launch, so that mpirun does
# not search for X displays.
needs_mpirun() {
    command -v mpirun >/dev/null || { echo "skipped: mpirun is not installed (package openmpi-bin)"; exit 0; }
    export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 TMPDIR=$tmp HWLOC_COMPONENTS=-opencl,-gl
}

# mpirun_by_hand: sets the array by_hand to a command that starts ranks without cltrain launch; -np N must
# follow. Returns false if mpirun is not Open MPI's.
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

# report NAME STATUS [DETAIL]: prints one line; if STATUS is not 0, also the end of $log, and the script fails
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

# The speed of this machine: slowest is the longest time in milliseconds from a start to the line that a test
# waited for. Time limits of the tests are for a fast, idle machine and are extended by it. slow_start SINCE:
# records another start.
slowest=0 took=0
slow_start() {
    local ms=$(($(now) - $1))
    [ $ms -le $slowest ] || slowest=$ms
}

# soon MS: whether $took milliseconds are within MS, extended for a slow machine. patience S: a time-out of S
# seconds, longer on a slow machine, within which a process that does not hang responds.
soon() { [ "$took" -le $(($1 + 3 * slowest)) ]; }
patience() { echo $((slowest / 500 > $1 ? slowest / 500 : $1)); }

# in_background COMMAND...: starts a command with its output in $log; $started is its process id. The log is
# truncated before the start, so that until_there does not find a line of an earlier command.
in_background() {
    started_at=$(now)
    : >"$log"
    "$@" >"$log" 2>&1 &
    started=$!
}

# until_there PATTERN [FILE]: waits up to ten minutes until a line of FILE (default $log) matches; false if
# the background process exits before that.
until_there() {
    local end=$((SECONDS + 600)) gone=
    while :; do
        kill -0 "$started" 2>/dev/null || gone=1 # checked before grep, so that the last output counts
        if grep -qs -- "$1" "${2:-$log}"; then
            slow_start "$started_at"
            return 0
        fi
        [ -z "$gone" ] && [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

# nobody_left PATTERN: waits up to 5 s until no process has PATTERN in its command line; $left: the number of
# those that remain
nobody_left() {
    for _ in $(seq 50); do
        left=$(pgrep -fc -- "$1")
        [ "$left" != 0 ] || return 0
        sleep 0.1
    done
    return 1
}

# finish: the last line of a script
finish() {
    [ $failed = 0 ] || { echo "some checks failed"; exit 1; }
    exit 0
}

# newest FOLDER: prints the path of its newest checkpoint by batch number, complete or not; newest_batch
# FOLDER: prints that number. Both print nothing if there is none.
newest() {
    find "$1" -maxdepth 1 -name 'ep*-ba*' ! -name '*.tmp*' 2>/dev/null | sed 's/.*-ba\([0-9]*\)$/\1 &/' | sort -n | tail -n 1 | cut -d' ' -f2
}
newest_batch() { newest "$1" | sed 's/.*-ba//'; }

# rank_pid R: prints the process id of a rank of the launch whose TMPDIR is $tmp
rank_pid() { cut -d' ' -f1 "$tmp"/cltrain-launch.*/"$1".pid 2>/dev/null; }

# ended: waits for the end of what in_background started, which trains in $tmp/run: sets code, took (milliseconds since
# $began) and left (processes of the run that still live).
# shellcheck disable=SC2154
ended() {
    wait "$started" 2>/dev/null
    code=$?
    took=$(($(now) - began))
    nobody_left "save_folder=$tmp/run"
}

# disturbed_run STEPS EVERY: writes $tmp/run.yaml and sets $settings for a small run that is long enough to be
# disturbed: STEPS batches of the golden set with learned positions, a checkpoint after EVERY batches, one
# evaluation at the end
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

# steps_of FOLDER: prints batch, loss and gradient norm of each finished batch as in metrics.jsonl. The last
# row of a batch number counts.
steps_of() {
    sed -n 's/^{"batch":\([0-9]*\),.*"loss":\([^,]*\),.*"grad_norm":\([^,]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl" |
        awk '{ row[$1] = $0; if ($1 > last) last = $1 } END { for (i = 1; i <= last; i++) print row[i] }'
}

# same_hash NAME FOLDER: the run's hash is $want; the folder $tmp/FOLDER is removed.
same_hash() {
    local have
    have=$("$cltrain" ckpt hash "$tmp/$2" 2>&1)
    [ -n "$want" ] && [ "$have" = "$want" ]
    report "$1" $? "$(echo "$have" | tr -s ' \n' ' ')"
    rm -rf "${tmp:?}/$2"
}
