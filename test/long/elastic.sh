#!/bin/bash
# Elastic resumption, the long form: stops at each of 20 steps, every pair of rank counts out of 1, 2, 3, 4
# and 8, and random legs with SIGKILL between them. SEED=N repeats the random legs; ROUNDS=N is their number
# (default 10).
# timeout: 7200
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
here=$PWD
seed=${SEED:-$$}
RANDOM=$seed
echo "SEED=$seed"

random_legs() {
    local ranks=(1 2 3 4 5 6 7 8) n
    for n in 1 2 3 4 5; do
        if [ $((RANDOM % 3)) = 0 ] && [ $n != 1 ]; then
            printf 'kill:%d ' "${ranks[RANDOM % 8]}"
        else
            printf '%d:%dba:%s ' "${ranks[RANDOM % 8]}" $((1 + RANDOM % 2)) "$([ $((RANDOM % 2)) = 0 ] && echo auto || echo $((1 + RANDOM % 3)))"
        fi
    done
    echo "${ranks[RANDOM % 8]}:9ba:auto"
}
for round in $(seq "${ROUNDS:-10}"); do
    legs=$(random_legs)
    LEGS=$legs bash test/train/elastic.sh >"$log" 2>&1
    report "random legs $round: $legs" $?
done

cd "$golden/mpt-variants" || exit 1
# train RANKS FOLDER BATCHES
train() {
    "$cltrain" launch -n "$1" --device pocl train -q train.yaml save_folder="$tmp/$2" max_duration="$3ba" >"$log" 2>&1
}
train 1 straight 20
report "an uninterrupted run of 20 batches" $?
want=$("$cltrain" ckpt hash "$tmp/straight")
# equal NAME FOLDER: compares state and losses with the uninterrupted run
equal() {
    diff <(steps_of "$tmp/straight") <(steps_of "$tmp/$2") >"$log" && [ "$("$cltrain" ckpt hash "$tmp/$2")" = "$want" ]
    report "$1" $?
    rm -rf "${tmp:?}/$2"
}
for k in $(seq 1 19); do
    train 1 a "$k" && train 1 a 20
    equal "stopped after $k of 20 batches" a
done
for a in 1 2 3 4 8; do
    for b in 1 2 3 4 8; do
        train $a a 10 && train $b a 20
        equal "$a ranks, then $b" a
    done
done
cd "$here" && finish
