#!/bin/bash
# Ranks that die, hang or receive a signal. One run in one folder goes through all cases: after each the newest
# checkpoint verifies and the next start resumes from it; at the end the weights are those of an undisturbed run.
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
STEPS=1400 # enough that no case reaches the end on a fast machine
disturbed_run $STEPS 25

# Starts `cltrain launch -n RANKS train` in the background: launch_pid, log.
start() { # RANKS, more arguments
    rm -rf "$tmp"/cltrain-launch.*
    in_background "$cltrain" launch -n "$1" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/run" "${@:2}"
    launch_pid=$started
}

verified() { "$cltrain" ckpt verify "$(newest "$tmp/run")" >"$tmp/verify.log" 2>&1; }

# Lines that are neither progress nor news of saving: what is left is what the user has to read.
told() { grep -cvE '^(\[batch|[0-9]+ ranks.*: CPUs |	 |checkpoint saved|device:|model:|first step|  |weights loaded|resumed from|remov(ed|ing) |keys? .* no effect|device_train_microbatch_size: .* is lowered|$)' "$log"; }

# DISTURBANCE, WHOM (launch, mpirun or a rank), ranks
disturb() {
    local whom=$2
    start "$3" ${4:-}
    until_there "checkpoint saved" || return
    case $whom in
    launch) whom=$launch_pid ;;
    mpirun) whom=$(pgrep -P "$launch_pid" | head -n 1) ;;
    *) whom=$(rank_pid "$whom") ;;
    esac
    began=$(now)
    kill "-$1" "$whom"
    ended
}

: >"$log"
"$cltrain" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/calm" >"$log" 2>&1
report "an undisturbed run on one rank" $?
want=$("$cltrain" ckpt hash "$(newest "$tmp/calm")")

# --- a rank that dies -----------------------------------------------------------------------------------------------
for case in "1 2" "0 3"; do
    set -- $case
    disturb KILL "$1" "$2"
    [ $code != 0 ] && soon 5000 && [ "$left" = 0 ] && [ "$(told)" = 1 ] &&
        grep -q "error: rank $1 (host .*, process [0-9]*) is gone" "$log" && verified
    report "rank $1 of $2 is killed" $? "exit $code after $took ms"
done

# --- a rank that hangs ----------------------------------------------------------------------------------------------
silent=$(patience 6) # joining has it, too, and takes seconds on a busy machine
export CLTRAIN_COMM_TIMEOUT=$silent
for case in "1 2" "0 2"; do
    set -- $case
    disturb STOP "$1" "$2"
    [ $code = 75 ] && soon $((silent * 1000 + 5000)) && [ "$left" = 0 ] && [ "$(told)" = 1 ] &&
        grep -q "error: rank $1 (host .*) does not respond: step [0-9]*, [a-z ]* for" "$log" && verified
    report "rank $1 of $2 is stopped" $? "exit $code after $took ms"
done
unset CLTRAIN_COMM_TIMEOUT

# --- signals ---------------------------------------------------------------------------------------------
for case in "INT launch" "TERM 0" "USR1 1"; do
    set -- $case
    disturb "$1" "$2" 2
    at=$(sed -n 's/^stopped at batch \([0-9]*\) after a save.*/\1/p' "$log")
    [ $code = 75 ] && [ -n "$at" ] && [ "$left" = 0 ] && soon 5000 && verified &&
        [ "$(newest_batch "$tmp/run")" = "$at" ]
    report "SIG$1 to ${2/#[0-9]/rank &}" $? "exit $code after $took ms, saved at batch $at"
done

# Signals in every phase: test/fault/signals.sh.

# The first SIGINT cannot end a run in which a rank hangs.
start 2
until_there "checkpoint saved"
kill -STOP "$(rank_pid 1)"
began=$(now)
# Until it has ended: two signals before it checks count as one.
while kill -INT $launch_pid 2>/dev/null; do sleep 0.3; done
ended
[ $code = 130 ] && soon 3000 && [ "$left" = 0 ] && verified
report "SIGINT twice" $? "exit $code after $took ms"

# --- the launcher dies ------------------------------------------------------------------------------------------------
disturb KILL mpirun 2
[ $code != 0 ] && soon 5000 && [ "$left" = 0 ] && verified
report "mpirun is killed" $? "exit $code after $took ms"
disturb KILL launch 2
took=$(($(now) - began)) # until nobody was left
[ $code = 137 ] && soon 3000 && [ "$left" = 0 ] && verified
report "launch is killed" $? "$left processes left after $took ms"
disturb KILL launch 2
CLTRAIN_LOCK_WAIT=$(patience 5) start 2 --stop-after 1ba # at once, while the ranks still save: it waits for them
began=$(now)
ended
[ $code = 75 ] && [ "$left" = 0 ] && verified && grep -q "after 1ba (--stop-after) and saved" "$log"
report "launch is killed and started again at once" $? "exit $code"

# --- to the end -------------------------------------------------------------------------------------------------------
start 2
began=$(now)
ended
have=$("$cltrain" ckpt hash "$(newest "$tmp/run")")
[ $code = 0 ] && [ -n "$want" ] && [ "$have" = "$want" ]
report "after all cases the weights are those of the undisturbed run" $? "$(basename "$(newest "$tmp/run")")"

finish
