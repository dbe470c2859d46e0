#!/bin/bash
# The guards of a run, the long form: many flipped bits on 2, 3 and 4 ranks, which must be found before
# anything is saved; skipped spikes with a stop at every step; a slow rank, which is suspended most of the
# time.
#   FLIPS=N    number of flipped bits (default 20)
# timeout: 1800
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-learned
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" scheduler.t_max=12ba
    log_config=false log_to_console=false)
state() { "$cltrain" ckpt hash "$tmp/$1" | tr '\n' ' '; }

# --- flipped bits: random weight, bit, batch and rank ---
# Replicas are compared every 3 batches and before every save.
"$cltrain" train -q "${settings[@]}" max_duration=12ba save_interval=12ba "save_folder=$tmp/straight" || fail "the undisturbed run"
RANDOM=17
for ((i = 0; i < ${FLIPS:-20}; i++)); do
    n=$((2 + i % 3)) rank=$((RANDOM % (2 + i % 3))) batch=$((1 + RANDOM % 11)) bit=$(((RANDOM * 32768 + RANDOM) % (32 * 136000)))
    run=(train "${settings[@]}" max_duration=12ba save_interval=5ba cltrain.guards.replica_hash_interval=3 "save_folder=$tmp/f$i")
    CLTRAIN_INJECT=flip=$rank:$batch:$bit on_ranks $n "${run[@]}" >"$log" 2>&1
    code=$? found=$(sed -n 's/.*"event":"replicas_differ","batch":\([0-9]*\),"ranks":\[\([0-9,]*\)\].*/\1 \2/p' "$tmp/f$i/metrics.jsonl")
    # Expected: found at the next comparison, and the rank is named if there is a majority.
    want=$batch
    while [ $((want % 3)) != 0 ] && [ $((want % 5)) != 0 ] && [ $want != 12 ]; do want=$((want + 1)); done
    who=$rank
    [ $n = 2 ] && who=0,1
    # A flip that makes the next step not finite is found at that step.
    [ $code = 75 ] && [ "${found#* }" = "$who" ] && [ "${found% *}" -ge "$batch" ] && [ "${found% *}" -le "$want" ]
    report "bit $bit of rank $rank of $n after batch $batch" $? "exit $code, found '$found'"
    newest=$("$cltrain" ckpt ls "$tmp/f$i" 2>/dev/null | sed -n 's/.*ba\([0-9]*\).*/\1/p' | sort -n | tail -n 1)
    [ "${newest:-0}" -lt "$batch" ]
    report "the flip is not saved" $? "the newest checkpoint is of batch ${newest:-none}"
    on_ranks $n "${run[@]}" >"$log" 2>&1 && [ "$(state "f$i")" = "$(state straight)" ]
    report "the resumed run has the right state" $?
    rm -rf "${tmp:?}/f$i"
done

# --- skipped spikes, with a stop at every step ---
STOPS="1 2 3 4 5 6 7 8 9 10 11" bash test/train/guards.sh >"$log" 2>&1
report "stops at every step" $?

# --- a slow rank: suspended four fifths of the time ---
in_background "$cltrain" launch -n 3 train "${settings[@]}" max_duration=100000ba scheduler.t_max=100000ba "save_folder=$tmp/slow"
launch=$started
until_there '"batch":2,' "$tmp/slow/metrics.jsonl"
slow=$(pgrep -f "cltrain train .*save_folder=$tmp/slow" | sort -n | tail -n 1) # the newest process is a rank, not mpirun
end=$((SECONDS + 90))
while [ $SECONDS -lt $end ] && ! grep -qs '"event":"straggler"' "$tmp/slow/metrics.jsonl"; do
    kill -STOP "$slow" && sleep 0.08
    kill -CONT "$slow" && sleep 0.02
done
kill -TERM $launch
wait $launch
grep -q '"event":"straggler"' "$tmp/slow/metrics.jsonl"
report "the slow rank is reported" $? "$(grep '"event":"straggler"' "$tmp/slow/metrics.jsonl" | head -n 1)"
finish
