#!/bin/bash
# What a user sees and keeps when ranks die, hang or are told to stop. One run goes through all of it, folder and
# checkpoints staying the same: after every disturbance the newest checkpoint verifies and the next start goes on from
# there; at the end the weights are those of an undisturbed run.
# timeout: 400
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$(readlink -f "${BUILD:-build}")
cltrain=$B/cltrain
golden=test/golden/mpt-learned
bad=0

if ! command -v mpirun >/dev/null; then
    echo "skipped: mpirun is not installed (package openmpi-bin)"
    exit 0
fi
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
# Open MPI leaves memory behind, in plugins that are no longer there to be named.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export TMPDIR=$T OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export CLTRAIN_CACHE_DIR=${CLTRAIN_CACHE_DIR:-$B/test-cache}

STEPS=1200
cat "$golden/train.yaml" - >"$T/run.yaml" <<EOF
eval_interval: 100000ba
eval_loader:
  name: text
  dataset:
    local: $golden/mds
    split: train
    shuffle: false
    max_seq_len: 64
  drop_last: false
EOF
settings=("train_loader.dataset.local=$golden/mds" "load_path=$golden/hf" "scheduler.t_max=${STEPS}ba" "max_duration=${STEPS}ba"
    save_interval=25ba save_num_checkpoints_to_keep=3 log_config=false console_log_interval=1000ba
    device_train_microbatch_size=2)

report() { # NAME, 0 for good, detail
    if [ "$2" = 0 ]; then
        echo "ok    $1${3:+: $3}"
        return
    fi
    echo "FAIL  $1${3:+: $3}"
    tail -n 40 "$log" | sed 's/^/      | /'
    bad=1
}

now() { date +%s%N | sed 's/......$//'; } # milliseconds
newest() { find "$1" -maxdepth 1 -name 'ep*-ba*' ! -name '*.tmp*' | sed 's/.*-ba\([0-9]*\)$/\1 &/' | sort -n | tail -n 1 | cut -d' ' -f2; }
rank_pid() { cut -d' ' -f1 "$T"/cltrain-launch.*/"$1".pid; }

# Starts `cltrain launch -n RANKS train` in the background: launch_pid, log.
start() { # RANKS, more arguments
    log=$T/log
    rm -rf "$T"/cltrain-launch.*
    "$cltrain" launch -n "$1" train "$T/run.yaml" "${settings[@]}" "save_folder=$T/run" "${@:2}" >"$log" 2>&1 &
    launch_pid=$!
}

wait_for() { # text in the log
    for _ in $(seq 600); do
        grep -q "$1" "$log" && return 0
        kill -0 "$launch_pid" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# Waits for the end: code, took (milliseconds since began), left (processes of the run that still live).
finish() {
    wait "$launch_pid" 2>/dev/null
    code=$?
    took=$(($(now) - began))
    left=$(pgrep -fc "save_folder=$T/run")
}

verified() { "$cltrain" ckpt verify "$(newest "$T/run")" >"$T/verify.log" 2>&1; }

# Lines that are neither progress nor news of saving: what is left is what the user has to read.
told() { grep -cvE '^(\[batch|	 |checkpoint saved|device:|model:|first step|weights loaded|resumed from|remov(ed|ing) |$)' "$log"; }

# DISTURBANCE, WHOM (launch, mpirun or a rank), ranks
disturb() {
    local whom=$2
    start "$3" ${4:-}
    wait_for "checkpoint saved" || return
    case $whom in
    launch) whom=$launch_pid ;;
    mpirun) whom=$(pgrep -P "$launch_pid" | head -n 1) ;;
    *) whom=$(rank_pid "$whom") ;;
    esac
    began=$(now)
    kill "-$1" "$whom"
    finish
}

log=$T/log
: >"$log"
"$cltrain" train "$T/run.yaml" "${settings[@]}" "save_folder=$T/calm" >"$log" 2>&1
report "an undisturbed run on one rank" $?
want=$("$cltrain" ckpt hash "$(newest "$T/calm")")

# --- a rank that dies -----------------------------------------------------------------------------------------------
for case in "1 2" "0 3"; do
    set -- $case
    disturb KILL "$1" "$2"
    [ $code != 0 ] && [ $took -le 5000 ] && [ "$left" = 0 ] && [ "$(told)" = 1 ] &&
        grep -q "error: rank $1 (process [0-9]*) is gone" "$log" && verified
    report "rank $1 of $2 is killed" $? "exit $code after $took ms"
done

# --- a rank that hangs ----------------------------------------------------------------------------------------------
export CLTRAIN_COMM_TIMEOUT=3
for case in "1 2" "0 2"; do
    set -- $case
    disturb STOP "$1" "$2"
    [ $code = 75 ] && [ $took -le 8000 ] && [ "$left" = 0 ] && [ "$(told)" = 1 ] &&
        grep -q "error: rank $1 (host .*) does not answer: step [0-9]*, [a-z ]* for" "$log" && verified
    report "rank $1 of $2 is stopped" $? "exit $code after $took ms"
done
unset CLTRAIN_COMM_TIMEOUT

# --- being told to stop ---------------------------------------------------------------------------------------------
for case in "INT launch" "TERM launch" "USR1 launch" "INT 1" "TERM 0" "USR1 1"; do
    set -- $case
    disturb "$1" "$2" 2
    at=$(sed -n 's/^stopped at batch \([0-9]*\) after a save.*/\1/p' "$log")
    [ $code = 75 ] && [ -n "$at" ] && [ "$left" = 0 ] && [ $took -le 5000 ] && verified &&
        [ "$(newest "$T/run" | sed 's/.*-ba//')" = "$at" ]
    report "SIG$1 to ${2/#[0-9]/rank &}" $? "exit $code after $took ms, saved at batch $at"
done

start 2
sleep 0.4
began=$(now)
kill -TERM $launch_pid
finish
[ $code = 75 ] && [ "$left" = 0 ] && verified
report "SIGTERM while the ranks start" $? "exit $code after $took ms"

start 2 eval_interval=1ba
wait_for "Eval batch=" && began=$(now) && kill -TERM $launch_pid
finish
[ $code = 75 ] && [ "$left" = 0 ] && verified
report "SIGTERM during an evaluation" $? "exit $code after $took ms"

start 2 save_interval=1ba
wait_for "checkpoint saved" && began=$(now) && kill -USR1 $launch_pid
finish
[ $code = 75 ] && [ "$left" = 0 ] && verified
report "SIGUSR1 between saves at every step" $? "exit $code after $took ms"

# The first SIGINT cannot end a run in which a rank hangs.
start 2
wait_for "checkpoint saved"
kill -STOP "$(rank_pid 1)"
began=$(now)
kill -INT $launch_pid
sleep 0.3
kill -INT $launch_pid
finish
[ $code = 130 ] && [ $took -le 3000 ] && [ "$left" = 0 ] && verified
report "SIGINT twice" $? "exit $code after $took ms"

# --- the launcher dies ------------------------------------------------------------------------------------------------
disturb KILL mpirun 2
[ $code != 0 ] && [ $took -le 5000 ] && [ "$left" = 0 ] && verified
report "mpirun is killed" $? "exit $code after $took ms"
disturb KILL launch 2
sleep 3
left=$(pgrep -fc "save_folder=$T/run")
[ $code = 137 ] && [ "$left" = 0 ] && verified
report "launch is killed" $? "$left processes left after 3 s"

# --- to the end -------------------------------------------------------------------------------------------------------
start 2
began=$(now)
finish
have=$("$cltrain" ckpt hash "$(newest "$T/run")")
[ $code = 0 ] && [ -n "$want" ] && [ "$have" = "$want" ]
report "after all that the weights are those of the undisturbed run" $? "$(basename "$(newest "$T/run")")"

exit $bad
