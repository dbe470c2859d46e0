#!/bin/bash
# A rank that is killed while hosts exchange: two hosts of two ranks each train with sharded gradients and weights. The
# rank is named, nothing stays in a /dev/shm that no other process sees, and the next start resumes: in the end weights
# and moments are those of an undisturbed run on one rank.
# timeout: 300
cd "$(dirname "$0")/../.." || exit 1
if [ "${1:-}" != in-private ]; then
    unshare --mount bash -c 'mount -t tmpfs shm /dev/shm' 2>/dev/null ||
        { echo "skipped: cannot mount a private /dev/shm here (needs root and the right to mount)"; exit 0; }
    exec unshare --mount bash -c 'mount -t tmpfs shm /dev/shm && exec bash "$0" in-private' "$PWD/test/fault/host_rank_death.sh"
fi
. test/lib.sh || exit 1
needs_mpirun
export CLTRAIN_HOSTS=2
disturbed_run 60 5
settings+=(load_path=null model.d_model=128 model.n_layers=4 cltrain.zero_stage=3)

start() {
    rm -rf "$tmp"/cltrain-launch.*
    in_background "$cltrain" launch -n 4 train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/run"
}

# The end, and what is in /dev/shm.
ended_here() {
    ended
    there=$(ls -A /dev/shm)
}

"$cltrain" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/calm" >"$log" 2>&1
report "an undisturbed run on one rank" $?
want=$("$cltrain" ckpt hash "$(newest "$tmp/calm")")

# Not the first rank of its host, and the one that the others started from.
for rank in 3 0; do
    start
    until_there "checkpoint saved"
    sleep "0.$((RANDOM % 10))"
    began=$(now)
    kill -KILL "$(rank_pid $rank)"
    ended_here
    [ $code != 0 ] && soon 5000 && [ "$left" = 0 ] && [ -z "$there" ] &&
        grep -q "error: rank $rank (host .*, process [0-9]*) is gone" "$log" &&
        "$cltrain" ckpt verify "$(newest "$tmp/run")" >>"$log" 2>&1
    report "rank $rank of 4 on 2 hosts is killed" $? "exit $code after $took ms, in /dev/shm: '${there//$'\n'/ }'"
done

start
began=$(now)
ended_here
[ $code = 0 ] && [ -z "$there" ] && [ -n "$want" ] && [ "$("$cltrain" ckpt hash "$(newest "$tmp/run")")" = "$want" ]
report "the next start resumes and ends in the state of the undisturbed run" $? "exit $code"
grep -q "resumed from" "$log" && grep -q "^device: .*4 ranks on 2 hosts" "$log"
report "it resumes from a checkpoint of the disturbed run, on 2 hosts" $?
finish
