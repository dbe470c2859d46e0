#!/bin/bash
# cltrain launch --hop: legs on other devices and ranks in turn give the bits of a straight run; a hop that was stopped,
# killed or ended in the middle of a leg goes on there; what cannot work is refused before the first leg.
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
other=pocl
if has_platform intel; then other=intel; else echo "SKIP: no Intel runtime for CPUs here: every leg is on PoCL"; fi
cd "$golden/mpt-variants" || exit 1

# legs_of FOLDER: "batch:from:leg ..." of the legs that ended.
legs_of() {
    sed -n 's/^{"event":"hop","batch":\([0-9]*\),"from_batch":\([0-9]*\),"leg":\([0-9]*\)}$/\1:\2:\3/p' \
        "$1/metrics.jsonl" | xargs
}

hop() {
    local legs=$1 folder=$2
    shift 2
    "$cltrain" launch --hop "$legs" train -q train.yaml save_folder="$tmp/$folder" "$@" >"$log" 2>&1
}

check() { # NAME CONDITION...: reports it
    local name=$1
    shift
    "$@"
    report "$name" $?
}

"$cltrain" train -q --device pocl train.yaml max_duration=10ba save_folder="$tmp/straight" >"$log" 2>&1
report "a straight run" $?
want=$("$cltrain" ckpt hash "$tmp/straight")

# 16 samples are 2 batches. The first launch ends inside the second leg.
legs="pocl*1:3ba,$other*2:2ba,pocl+$other*2:16sp"
hop "$legs" hop max_duration=4ba
check "a hop that ends in its second leg" [ "$?:$(legs_of "$tmp/hop")" = 0:3:0:0 ]
hop "$legs" hop max_duration=10ba
check "the same hop goes on in that leg, and through the round" [ "$?:$(legs_of "$tmp/hop")" = "0:3:0:0 5:3:1 7:5:2" ]
check "the same bits" [ "$("$cltrain" ckpt hash "$tmp/hop")" = "$want" ]
check "the same losses" diff <(steps_of "$tmp/straight") <(steps_of "$tmp/hop")

hop "pocl*1:2ba,pocl*1:0.1dur" part max_duration=4ba
check "a leg that is less than a batch is one batch" [ "$?:$(legs_of "$tmp/part")" = "0:2:0:0 3:2:1" ]

# Two ranks of which one would queue steps ahead and one would look at each at once, as a GPU's and a CPU's do; and both
# ahead, while the first one writes a trace.
cat >"$tmp/by_rank" <<'RANK'
CLTRAIN_AHEAD=$((${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} == 0)) exec "$@"
RANK
mpirun_by_hand
"${by_hand[@]}" -np 2 bash "$tmp/by_rank" "$cltrain" train -q train.yaml --device "pocl,$other" max_duration=10ba save_folder="$tmp/unlike" >"$log" 2>&1
report "ranks that would queue steps ahead and not" $?
check "give the same bits" [ "$("$cltrain" ckpt hash "$tmp/unlike")" = "$want" ]
CLTRAIN_AHEAD=1 "$cltrain" launch -n 2 --device "pocl,$other" train -q train.yaml max_duration=10ba \
    save_folder="$tmp/traced" --trace "$tmp/trace.json" --trace-steps 4:6 >"$log" 2>&1
report "two ranks ahead, one of which writes a trace" $?
check "give the same bits" [ "$("$cltrain" ckpt hash "$tmp/traced")" = "$want" ]

# endless LEGS: a hop in the background that has to be stopped; $launch is its process.
endless() {
    in_background "$cltrain" launch --hop "$1" train train.yaml save_folder="$tmp/stopped" max_duration=100000ba \
        scheduler.t_max=100000ba save_interval=5ba log_config=false
    launch=$started
}

endless "pocl*2:2ba,pocl*1:90000ba"
until_there '^{"batch":4,' "$tmp/stopped/metrics.jsonl"
kill -TERM $launch
wait $launch
check "SIGTERM stops the hop with its leg" [ $? = 75 ]
grep -q "stopped in leg 2, round 1 (pocl\*1:90000ba).*the same command goes on with it" "$log"
report "and says where" $?

endless "pocl*2:2ba,pocl*1:90000ba"
until_there "leg 2 of 2, round 1"
report "started again it goes on with the second leg" $?
saved=$(grep -c '"event":"checkpoint"' "$tmp/stopped/metrics.jsonl")
until [ "$(grep -c '"event":"checkpoint"' "$tmp/stopped/metrics.jsonl")" -gt "$saved" ]; do
    kill -0 $launch 2>/dev/null || break
    sleep 0.1
done
kill -9 "$(cut -d' ' -f1 "$tmp"/cltrain-launch.*/0.pid | head -n 1)"
wait $launch
code=$?
check "a leg that is killed ends the hop" [ $code != 0 ]
grep -q "leg 2, round 1 (pocl\*1:90000ba) ended with code $code; the newest checkpoint is of batch" "$log"
report "and says which one, and what to do" $?

# --- what a resumed run says, and measures ---

train=("$cltrain" train train.yaml log_config=false log_to_console=false)
event() { grep '"event":"resume"' "$tmp/$1/metrics.jsonl" | tail -n 1; }

"${train[@]}" --device $other save_folder="$tmp/straight" max_duration=11ba >"$log" 2>&1
report "a run goes on on another device with --device alone" $?
grep -q "the same bits as without the stop: exact numerics" "$log" && grep -q "written by cltrain .*exact fp32, 1 rank of" "$log"
report "exact numerics: says who wrote it and that the bits are the same" $?
[ "$(grep -c "configuration: .* now, it was" "$log")" = 3 ] && grep -q 'configuration: max_duration is "11ba" now, it was "10ba"' "$log"
report "and what the configuration says else" $?
event straight | grep -q '"same_bits":true,"checked_batches":0'
report "and logs it" $?

# The loss that a checkpoint keeps is that of the next step, whose forward pass is another program's.
fast=(cltrain.numerics=fast cltrain.resume_check.batches=2)
"${train[@]}" "${fast[@]}" --device pocl save_folder="$tmp/fast" max_duration=6ba save_interval=3ba >"$log" 2>&1
report "a run with fast numerics" $?
python3 - "$tmp/fast" <<'PY'
import json, sys
kept = json.load(open(sys.argv[1] + "/ep0-ba3/manifest.json"))["numbers"]["check_loss_1"]
rows = [json.loads(line) for line in open(sys.argv[1] + "/metrics.jsonl")]
loss = [r["loss"] for r in rows if r.get("batch") == 4 and "loss" in r][0]
print(kept, loss)
sys.exit(abs(kept - loss) > 1e-6 * loss)
PY
report "keeps the loss that the next step has" $?
"$cltrain" launch -n 2 --device "$other" "${train[@]:1}" "${fast[@]}" save_folder="$tmp/fast" max_duration=7ba >"$log" 2>&1
grep -q "2 batches evaluated again: the loss differs by at most" "$log" && event fast | grep -q '"checked_batches":2,"largest_difference":'
report "which is evaluated again" $?
"${train[@]}" "${fast[@]}" --device pocl save_folder="$tmp/fast" max_duration=8ba model.logit_scale=1.5 >"$log" 2>&1
code=$?
grep -q "losses do not come out again" "$log" && [ $code = 1 ] && [ "$(steps_of "$tmp/fast" | wc -l)" = 7 ]
report "another model is found and stops the run" $?
"${train[@]}" "${fast[@]}" --device pocl save_folder="$tmp/fast" max_duration=8ba model.logit_scale=1.5 \
    cltrain.resume_check.action=warn >"$log" 2>&1
code=$?
grep -q "warning: the checkpoint's losses do not come out again" "$log" && [ $code = 0 ]
report "unless it is told to warn" $?

# refused CODE TEXT LEGS [ARGUMENT ...]
refused() {
    local code=$1 text=$2 got
    shift 2
    "$cltrain" launch --hop "$1" train -q train.yaml "${@:2}" >"$log" 2>&1
    got=$?
    [ "$got" = "$code" ] && grep -q -- "$text" "$log"
    report "refused ($code): $text" $?
}
refused 2 "'pocl' is no leg" pocl save_folder="$tmp/no"
refused 2 "'pocl\*0:1ba' is no leg" "pocl*1:1ba,pocl*0:1ba" save_folder="$tmp/no"
refused 78 "set save_folder" pocl:1ba save_folder=null
refused 78 "fewer than the 9 ranks" "pocl*9:1ba" save_folder="$tmp/no"
refused 69 "leg 2 (nosuch:1ba) cannot run here" "pocl:1ba,nosuch:1ba" save_folder="$tmp/no"
refused 2 "leave out --device" pocl:1ba save_folder="$tmp/no" --device pocl
check "nothing was begun" [ ! -e "$tmp/no" ]
finish
