#!/bin/bash
# Devices and ranks that hang: on one rank, under one of several, with and without cltrain launch. All ranks end within the
# time-out and 5 s, the exit code is 75, rank, host, step and phase are named, the last events are in a file, and the next
# start resumes. LONG=1: more cases.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
mpirun_by_hand
set=$golden/mpt-learned
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" "save_folder=$tmp/run"
    scheduler.t_max=1200ba max_duration=1200ba save_interval=5ba log_config=false console_log_interval=1000ba
    device_train_microbatch_size=2)
${CC:-cc} -shared -fPIC -D_GNU_SOURCE -o "$tmp/hang.so" test/fault/hang_device.c -ldl ||
    fail "the library that hangs does not build"
case $(nm -D "$cltrain" 2>/dev/null) in *__asan_init*) preload=$(${CC:-cc} -print-file-name=libasan.so):$tmp/hang.so ;; *) preload=$tmp/hang.so ;; esac

# Waits for the end of process $pid: code, took (ms after the time of the file MARK, or from now on), left.
ended() { # [MARK]
    began=$(now)
    wait $pid 2>/dev/null
    code=$?
    took=$(($(now) - began))
    [ ! -f "${1:-}" ] || took=$(($(now) - $(date -r "$1" +%s%N | sed 's/......$//')))
    nobody_left "save_folder=$tmp/run"
}

# Whether a line names rank $1 and its phase, and the file that it names has the events of all $2 ranks. $3: the line.
named() {
    local file
    grep -q "$3" "$log" || return 1
    file=$(sed -n 's/^  last events: //p' "$log" | head -n 1)
    [ -f "$file" ] && [ "$(grep -c '^rank [0-9]* (host .*, process [0-9]*): step [0-9]*, ' "$file")" = "$2" ] &&
        [ "$(grep -c ' s  step [0-9]*  forward and backward' "$file")" -ge "$2" ]
}

# First without a fault: kernels are compiled and checked, and the speed of this machine is known, before times count.
in_background "$cltrain" launch -n 2 train "${settings[@]}" "save_folder=$tmp/warm" max_duration=1ba
until_there "first step done"
wait "$started"
report "a run without a fault" $?

# --- a hung device ----------------------------------------------------------------------------------------------------
# NAME, ranks, hung rank, command; $stage of sharding
hung() {
    local name=$1 ranks=$2 rank=$3 silent
    shift 3
    silent=$(patience 2)
    rm -f "$tmp/mark"
    in_background env LD_PRELOAD="$preload" HANG_AT=3000 HANG_RANK="$rank" HANG_MARK="$tmp/mark" CLTRAIN_DEVICE_TIMEOUT="$silent" \
        "$@" train "${settings[@]}" "cltrain.zero_stage=${stage:-0}"
    pid=$started
    ended "$tmp/mark"
    [ -e "$tmp/mark" ] && [ $code = 75 ] && [ $took -ge $((silent * 1000 - 200)) ] && soon $((silent * 1000 + 5000)) && [ "$left" = 0 ] &&
        grep -q "device .* did not respond for $silent s" "$log" &&
        named "$rank" "$ranks" "rank $rank (host .*) ends the job at step [1-9][0-9]*, .*: its device hangs"
    report "$name" $? "exit $code after $took ms"
}
hung "a hung device" 1 0 "$cltrain"
hung "a hung device under one of two ranks" 2 1 "$cltrain" launch -n 2
stage=3 hung "the same with sharded gradients and weights" 2 0 "$cltrain" launch -n 2
hung "the same with mpirun alone" 2 0 "${by_hand[@]}" -np 2 "$cltrain"

# --- a device that fails, after saves that failed ---------------------------------------------------------------------------
in_background env LD_PRELOAD="$preload" HANG_AT=3000 HANG_RANK=1 HANG_FAILS=1 CLTRAIN_IO_FAULT="pwrite:data.*:1-:EIO" \
    "$cltrain" launch -n 2 train "${settings[@]}" save_interval=1ba
pid=$started
until_there "\[rank 1\] error: .*CL_OUT_OF_RESOURCES"
ended
[ $code = 1 ] && soon 5000 && [ "$left" = 0 ] && grep -q "training continues without a checkpoint" "$log"
report "a device fails under one of two ranks whose saves have failed" $? "exit $code after $took ms"

# --- stopped ranks, mpirun alone ----------------------------------------------------------------------------------------
silent=$(patience 6) # joining has the same time-out, and takes seconds on a busy machine
export CLTRAIN_COMM_TIMEOUT=$silent
rank_of() { for p in $(pgrep -f "^$cltrain train.*save_folder=$tmp/run"); do
    tr '\0' '\n' <"/proc/$p/environ" | grep -q "^\(OMPI_COMM_WORLD_RANK\|PMI_RANK\)=$1$" && echo "$p"; done 2>/dev/null; }
under_mpirun() { # signal, rank
    in_background "${by_hand[@]}" -np 2 "$cltrain" train "${settings[@]}"
    pid=$started
    until_there "checkpoint saved"
    kill "-$1" "$(rank_of "$2")"
    ended
}
under_mpirun STOP 1
[ $code = 75 ] && soon $((silent * 1000 + 5000)) && [ "$left" = 0 ] &&
    named 1 2 "rank 1 (host .*) does not respond: step [0-9]*, [a-z ]* for" && [ "$(grep -c '^  rank [01] (host' "$log")" = 2 ]
report "mpirun alone: a rank is stopped" $? "exit $code after $took ms"
under_mpirun KILL 0
[ $code != 0 ] && soon 5000 && [ "$left" = 0 ] && grep -q "rank 0 (host .*) is gone: it was at step" "$log"
report "mpirun alone: a rank is killed" $? "exit $code after $took ms"
under_mpirun TERM 1
[ $code = 75 ] && [ "$left" = 0 ] && grep -q "^stopped at batch [0-9]* after a save" "$log"
report "mpirun alone: SIGTERM to a rank" $? "exit $code after $took ms"

# --- the file system hangs as well ---------------------------------------------------------------------------------------
rm -rf "$tmp"/cltrain-launch.*
in_background env LD_PRELOAD="$preload" HANG_EVENTS=1 "$cltrain" launch -n 2 train "${settings[@]}"
pid=$started
until_there "checkpoint saved"
kill -KILL "$(rank_pid 1)"
ended
[ $code = 1 ] && soon 5000 && [ "$left" = 0 ] && grep -q "^error: rank 1 (host .*) is gone: it was at step" "$log"
report "a rank is killed, and the file of the last events cannot be opened" $? "exit $code after $took ms"

# --- a rank that is stopped while it starts ---------------------------------------------------------------------------
rm -rf "$tmp"/cltrain-launch.*
in_background "$cltrain" launch -n 2 train "${settings[@]}"
pid=$started
while [ -z "$(rank_pid 1)" ] && kill -0 $pid; do sleep 0.02; done
kill -STOP "$(rank_pid 1)"
ended
[ $code = 75 ] && soon $((silent * 1000 + 5000)) && [ "$left" = 0 ]
report "a rank is stopped while it starts" $? "exit $code after $took ms"

if [ -n "${LONG:-}" ]; then
    # mpirun itself is stopped: cltrain launch ends the ranks.
    in_background "$cltrain" launch -n 2 train "${settings[@]}"
    pid=$started
    until_there "checkpoint saved"
    kill -STOP "$(pgrep -P $pid | head -n 1)"
    kill -TERM $pid
    ended
    [ $code != 0 ] && soon 15000 && [ "$left" = 0 ]
    report "mpirun is stopped" $? "exit $code after $took ms"
fi
unset CLTRAIN_COMM_TIMEOUT

"$cltrain" train "${settings[@]}" max_duration=60ba >"$log" 2>&1
report "the next start resumes" $? "$(grep -o 'resumed from.*' "$log" | sed 's/.*ep/ep/')"
finish
