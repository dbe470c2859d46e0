#!/bin/bash
# Kills a training run at random moments with SIGKILL: one rank, all processes of the run at once, or the launcher, in
# rotation, on two ranks, whose starts take the stages of sharding in turn, and after each of their rounds the next
# transport. After each kill: every checkpoint in the folder verifies, and the newest one is not older than the last one
# that the run had announced as saved. Then the command is rerun until it is done; the weights at the end are those of an
# undisturbed run.
#   KILLS=3 (how many), SEED=1 (the moments follow from it), STAGES="3 2 1 0", TRANSPORTS="shm mpi"
# timeout: 240
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
KILLS=${KILLS:-3}
SEED=${SEED:-$(date +%N | sed 's/^0*//')}
RANDOM=$((SEED % 32768))
set=$golden/mpt-learned
keep=$((SEED % 2 ? 2 : 1)) # one of two: less than the two that always stay
read -ra stages <<<"${STAGES:-3 2 1 0}"
read -ra transports <<<"${TRANSPORTS:-shm mpi}"
echo "seed $SEED, $KILLS kills, stages ${stages[*]}, transports ${transports[*]}"
# Large enough that every rank owns a part.
settings=("train_loader.dataset.local=$set/mds" load_path=null model.d_model=128 model.n_layers=4
    device_train_microbatch_size=2 log_config=false console_log_interval=100000ba save_interval=3ba "save_num_checkpoints_to_keep=$keep")

# Starts the run in a process group of its own: pid.
starts=0
start() { # steps
    local stage=${stages[starts % ${#stages[@]}]} transport=${transports[starts / ${#stages[@]} % ${#transports[@]}]}
    starts=$((starts + 1))
    CLTRAIN_TRANSPORT=$transport setsid "$cltrain" launch -n 2 train "$set/train.yaml" "${settings[@]}" "max_duration=$1ba" "scheduler.t_max=100000ba" \
        "cltrain.zero_stage=$stage" "save_folder=$tmp/run" >>"$tmp/run.log" 2>&1 &
    pid=$!
}
everyone() { pgrep -f "save_folder=$tmp/run"; }
# Ranks alone, which are mpirun's children: a run survives the death of a process that compiles for a rank.
ranks() { pgrep -f "mpirun .*save_folder=$tmp/run" | xargs -r -n 1 pgrep -P; }
announced() { sed -n 's/^checkpoint saved: .*-ba\([0-9]*\) .*/\1/p' "$tmp/run.log" | tail -n 1; }
newest() { "$cltrain" -q ckpt ls "$tmp/run" 2>/dev/null | sed -n 's/.*ep[0-9]*-ba\([0-9]*\).*/\1/p' | sort -n | tail -n 1; }

# check WHAT: what is in the folder after a kill
check() {
    local c last now
    for c in "$tmp"/run/ep*-ba*; do
        case $c in *.tmp.* | *.superseded.* | *'*'*) continue ;; esac
        "$cltrain" -q ckpt verify "$c" >"$log" 2>&1 || { report "$1: $c verifies" 1; return; }
        verified=$((verified + 1))
    done
    last=$(announced) now=$(newest)
    [ "${last:-0}" -le "${now:-0}" ] || report "$1: announced ba$last, newest ba$now" 1
}

kills_rank=0 kills_all=0 kills_launch=0 verified=0 early=0
: >"$tmp/run.log"
for k in $(seq "$KILLS"); do
    lines=$(grep -c '^checkpoint saved' "$tmp/run.log")
    start 100000
    # Every second kill comes at any moment of the start; the others after the first save of this start.
    if [ $((RANDOM % 2)) = 0 ]; then
        for _ in $(seq 300); do
            [ "$(grep -c '^checkpoint saved' "$tmp/run.log")" -gt "$lines" ] && break
            kill -0 $pid 2>/dev/null || break
            sleep 0.05
        done
    else
        early=$((early + 1))
    fi
    sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.4f", r / 32768 * 0.7 }')"
    # Before it has become its program the kill would hit nothing, and the run would never end.
    while [ -z "$(everyone)" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
    case $((k % 3)) in
    0)
        while [ -z "$(ranks)" ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
        victims=$(ranks | tail -n 1) kills_rank=$((kills_rank + 1))
        ;;
    1) victims=$(everyone); kills_all=$((kills_all + 1)) ;;
    2) victims=$pid; kills_launch=$((kills_launch + 1)) ;;
    esac
    # shellcheck disable=SC2086
    kill -KILL $victims 2>/dev/null
    wait $pid 2>/dev/null
    for _ in $(seq 1200); do [ -z "$(everyone)" ] && break; sleep 0.1; done
    [ -z "$(everyone)" ] || { report "kill $k: everything of the run ends" 1; everyone | xargs -r kill -KILL; sleep 1; }
    check "kill $k"
done
from=$(newest)
end=$(( (${from:-0} / 3 + 2) * 3 ))
start $end
wait $pid
cp "$tmp/run.log" "$log"
report "the run resumes to its end at batch $end" $?
grep -E 'not usable|falling back' "$tmp/run.log" && fail "a checkpoint is not usable after a kill"
check "the end"
"$cltrain" -q train "$set/train.yaml" "${settings[@]}" "max_duration=${end}ba" scheduler.t_max=100000ba save_interval=100000ba \
    "save_folder=$tmp/calm" >"$log" 2>&1 || report "an undisturbed run" 1
want=$("$cltrain" ckpt hash "$tmp"/calm/ep*-ba"$end")
[ "$want" = "$("$cltrain" ckpt hash "$tmp"/run/ep*-ba"$end")" ]
report "the weights are those of an undisturbed run of $end batches" $?
echo "$KILLS kills ($kills_rank of a rank, $kills_all of all processes, $kills_launch of the launcher; $early while starting):" \
    "$verified checkpoints verified, $(grep -c '^checkpoint saved' "$tmp/run.log") were announced"
finish
