#!/bin/bash
# Faults in runs whose gradients and weights are sharded (stages 2 and 3): ranks that die, stall or are late, signals.
# One run in one folder goes through all cases, at another stage or with other ranks after each: at the
# end weights and moments are those of an undisturbed run on one rank.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
STEPS=150
disturbed_run $STEPS 5
# Large enough that every rank owns a part. Of eight lanes three ranks have different numbers.
settings+=(load_path=null model.d_model=128 model.n_layers=4 eval_interval=25ba cltrain.guards.replica_hash_interval=10)

# start STAGE RANKS [override ...]: launch, log
start() {
    rm -rf "$tmp"/cltrain-launch.*
    in_background "$cltrain" launch -n "$2" train "$tmp/run.yaml" "${settings[@]}" "cltrain.zero_stage=$1" \
        "save_folder=$tmp/run" "${@:3}"
    launch=$started
}

verified() { "$cltrain" ckpt verify "$(newest "$tmp/run")" >"$tmp/verify.log" 2>&1; }

# disturb SIGNAL RANK STAGE RANKS: behind the first checkpoint of this start
disturb() {
    start "$3" "$4"
    until_there "checkpoint saved" || return
    sleep "0.$((RANDOM % 10))"
    began=$(now)
    kill "-$1" "$(rank_pid "$2")"
    ended
}

"$cltrain" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/calm" >"$log" 2>&1
report "an undisturbed run on one rank" $?
want=$("$cltrain" ckpt hash "$(newest "$tmp/calm")")

for case in "1 3 3" "0 2 2"; do
    set -- $case
    disturb KILL "$1" "$2" "$3"
    [ $code != 0 ] && soon 5000 && [ "$left" = 0 ] && verified &&
        grep -q "error: rank $1 (host .*, process [0-9]*) is gone" "$log"
    report "rank $1 of $3 is killed at stage $2" $? "exit $code after $took ms"
done

silent=$(patience 4)
export CLTRAIN_COMM_TIMEOUT=$silent
for case in "2 3 3" "1 2 2"; do
    set -- $case
    disturb STOP "$1" "$2" "$3"
    [ $code = 75 ] && soon $((silent * 1000 + 5000)) && [ "$left" = 0 ] && verified &&
        grep -q "error: rank $1 (host .*) does not respond: step [0-9]*, [a-z ]* for" "$log"
    report "rank $1 of $3 is stopped at stage $2" $? "exit $code after $took ms"
done

# A rank that is late, but not too late: the run continues.
start 3 3
until_there "checkpoint saved"
kill -STOP "$(rank_pid 1)"
sleep $((silent / 2))
kill -CONT "$(rank_pid 1)"
seen=$(grep -c "checkpoint saved" "$log")
until [ "$(grep -c "checkpoint saved" "$log")" -gt "$seen" ] || ! kill -0 "$launch" 2>/dev/null; do sleep 0.05; done
kill -TERM "$(rank_pid 1)"
ended
[ $code = 75 ] && [ "$left" = 0 ] && verified && grep -q "^stopped at batch [0-9]* after a save" "$log"
report "rank 1 of 3 is stopped for half of the deadline at stage 3" $? "exit $code"
unset CLTRAIN_COMM_TIMEOUT

for case in "TERM 1 3 2" "USR1 0 2 3" "INT 2 3 3"; do
    set -- $case
    disturb "$1" "$2" "$3" "$4"
    at=$(sed -n 's/^stopped at batch \([0-9]*\) after a save.*/\1/p' "$log")
    [ $code = 75 ] && [ -n "$at" ] && [ "$left" = 0 ] && verified && [ "$(newest_batch "$tmp/run")" = "$at" ]
    report "SIG$1 to rank $2 of $4 at stage $3" $? "exit $code after $took ms, saved at batch ${at:-?}"
done

start 3 3
began=$(now)
ended
[ $code = 0 ] && [ -n "$want" ] && [ "$("$cltrain" ckpt hash "$(newest "$tmp/run")")" = "$want" ]
report "after all cases the state is that of the undisturbed run" $? "exit $code, $(basename "$(newest "$tmp/run")")"
finish
