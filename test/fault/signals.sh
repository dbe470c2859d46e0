#!/bin/bash
# Signals in every phase of a run: start, compiling, loading, training, evaluating, saving. SIGTERM, SIGUSR1 or SIGINT go
# to the launch or to one rank alone, by chance, and each start has the next stage of sharding. After each signal the
# newest checkpoint is whole and not older than any that was announced, the exit code is 75, no process is left, and the
# next start resumes. At the end the weights are those of an undisturbed run.
#   COUNT=n signals (default 6, one per phase), SEED=n
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
COUNT=${COUNT:-6} SEED=${SEED:-$(date +%s)}
RANDOM=$SEED
echo "seed $SEED"
STEPS=160
disturbed_run $STEPS 10
settings+=(load_path=null model.d_model=128 model.n_layers=4) # large enough that both ranks own a part
phases=(start compile load train eval save)
hash_of() { "$cltrain" ckpt hash "$1" 2>/dev/null; }
pause() { sleep "$(awk -v r=$RANDOM -v most="$1" 'BEGIN { printf "%.3f", most * r / 32768 }')"; } # up to $1 seconds

# Starts two ranks for `phase`, at the next stage of sharding, and waits until they may be in it.
stage=$SEED
begin() {
    stage=$(((stage + 1) % 4))
    local run=("$cltrain" launch -n 2 train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/run" "cltrain.zero_stage=$stage") more=()
    rm -rf "$tmp"/cltrain-launch.*
    [ "$1" = eval ] && more=(eval_interval=1ba)
    [ "$1" = save ] && more=(save_interval=1ba)
    if [ "$1" = compile ]; then
        rm -rf "$tmp/cache" "$tmp/pocl"
        mkdir "$tmp/cache" "$tmp/pocl"
        in_background env CLTRAIN_CACHE_DIR="$tmp/cache" POCL_CACHE_DIR="$tmp/pocl" "${run[@]}"
    else
        in_background "${run[@]}" "${more[@]}"
    fi
    launch=$started
    case $1 in
    start) pause 0.8 ;;
    compile) until_there "^model:" && pause 3 ;;
    load) until_there "^device:" && pause 0.3 ;;
    train) until_there "first step done" && pause 0.6 ;;
    eval) until_there "Eval batch=" && pause 0.3 ;;
    save) until_there "checkpoint saved" && pause 0.3 ;;
    esac
}

"$cltrain" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/calm" >"$log" 2>&1
want=$(hash_of "$tmp/calm")
[ -n "$want" ]
report "an undisturbed run on one rank" $?

announced=0 delivered=0 lost=0 ended=0 early=0
for ((i = 0; i < COUNT; )); do
    phase=${phases[i % ${#phases[@]}]}
    begin "$phase"
    targets=(launch 0 1) signals=(TERM USR1 INT)
    target=${targets[RANDOM % 3]} signal=${signals[RANDOM % 3]} pid=$launch come=$(rank_pid 0)$(rank_pid 1)
    [ $target != launch ] && pid=$(rank_pid $target)
    [ -n "$pid" ] || { pid=$launch target=launch; }
    kill "-$signal" "$pid" 2>/dev/null
    wait $launch 2>/dev/null
    code=$?
    for n in $(sed -n 's/^checkpoint saved: .*-ba\([0-9]*\) .*/\1/p' "$log"); do [ "$n" -gt $announced ] && announced=$n; done
    now=$(newest_batch "$tmp/run")
    if [ $code = 0 ]; then # the run was done before: it counts as an undisturbed one, and the next begins from nothing
        ended=$((ended + 1))
        [ "$(hash_of "$tmp/run")" = "$want" ] || fail "a run that reached its end has other weights"
        rm -rf "$tmp/run"
        announced=0
        [ $ended -le $((COUNT + 6)) ] || { fail "no run can be interrupted"; break; }
        continue
    fi
    i=$((i + 1))
    delivered=$((delivered + 1))
    said=$(grep -m 1 -o '^stopped .*' "$log")
    good=1
    case $code in
    75) [ -n "$said" ] || good=0 ;;
    # Before the launch or a rank handles signals: the system's default.
    130 | 138 | 143) [ -z "$come" ] && early=$((early + 1)) || good=0 ;;
    *) good=0 ;;
    esac
    [ "${now:-0}" -ge $announced ] || good=0
    [ -z "$now" ] || "$cltrain" ckpt verify "$tmp/run" >"$tmp/verify.log" 2>&1 || good=0
    nobody_left "save_folder=$tmp/run" || good=0
    [ $good = 1 ] || lost=$((lost + 1))
    report "$phase, stage $stage: SIG$signal to $target" $((1 - good)) "exit $code; ${said:-no output}"
done

# Ctrl-C also ends a `tee` behind the run: the output after it is lost, not the steps.
for ranks in 1 2; do
    run=("$cltrain")
    [ $ranks = 1 ] || run+=(launch -n "$ranks")
    : >"$log"
    rm -f "$tmp/fifo"
    mkfifo "$tmp/fifo"
    cat "$tmp/fifo" >"$log" &
    reader=$!
    "${run[@]}" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/pipe$ranks" max_duration=9999ba scheduler.t_max=9999ba save_interval=9999ba \
        console_log_interval=1ba >"$tmp/fifo" 2>&1 &
    started=$!
    until_there "first step done"
    { kill -9 $reader && wait $reader; } 2>/dev/null
    sleep 0.3
    kill -INT $started
    wait $started
    code=$?
    [ $code = 75 ] && [ -n "$(newest_batch "$tmp/pipe$ranks")" ]
    report "nobody reads the output any more, then SIGINT: $ranks ranks" $? "exit $code"
done

in_background env -C "$tmp" "$cltrain" train "$tmp/run.yaml" "${settings[@]}" save_folder=null run_name=none \
    max_duration=9999ba scheduler.t_max=9999ba
until_there "first step done"
kill -INT $started
wait $started
code=$?
[ $code = 130 ] && grep -q "nothing is saved, because there is no save_folder" "$log" && ! grep -q "saving the" "$log"
report "SIGINT without a save_folder" $? "exit $code"

# The evaluation at the end of a run is interrupted: rerunning the command completes it, once.
"$cltrain" data convert docs --out "$tmp/text" --concat-tokens 64 --eos --val-fraction 0.2 >"$log" 2>&1
run=("$cltrain" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/evaluates" max_duration=4ba save_interval=4ba
    "eval_loader.dataset.local=$tmp/text" device_eval_batch_size=1)
in_background "${run[@]}"
until_there "Eval batch="
kill -TERM $started
wait $started
code=$?
grep -q eval_loss "$tmp/evaluates/metrics.jsonl"
[ $code$? = 751 ] && "${run[@]}" >>"$log" 2>&1 && "${run[@]}" >>"$log" 2>&1 &&
    [ "$(grep -c eval_loss "$tmp/evaluates/metrics.jsonl")" = 1 ]
report "SIGTERM in the last evaluation, which is done at the next start" $? "exit $code"

for _ in 1 2; do "$cltrain" launch -n 2 train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/run" >"$log" 2>&1 && break; done
[ "$(hash_of "$tmp/run")" = "$want" ] && [ "$(newest_batch "$tmp/run")" = $STEPS ]
report "after $delivered signals ($early before the start, $ended runs came to their end) the weights are those of the undisturbed run" $? \
    "$lost lost"
finish
