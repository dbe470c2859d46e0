#!/bin/bash
# cltrain launch --hop: a run whose legs change devices and ranks is bit-identical to a run without hops; a
# hop that was stopped or killed within a leg resumes that leg; invalid hops are refused before the first leg.
# Also: the report of a resumed run.
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
other=pocl
if has_platform intel; then other=intel; else echo "SKIP: no Intel runtime for CPUs here: every leg is on PoCL"; fi
cd "$golden/mpt-variants" || exit 1

# legs_of FOLDER: "batch:from:leg ..." of the finished legs.
legs_of() {
    sed -n 's/^{"event":"hop","batch":\([0-9]*\),"from_batch":\([0-9]*\),"leg":\([0-9]*\)}$/\1:\2:\3/p' \
        "$1/metrics.jsonl" | xargs
}

hop() {
    local legs=$1 folder=$2
    shift 2
    "$cltrain" launch --hop "$legs" train -q train.yaml save_folder="$tmp/$folder" "$@" >"$log" 2>&1
}

check() { # NAME CONDITION...: reports the result of a condition
    local name=$1
    shift
    "$@"
    report "$name" $?
}

"$cltrain" train -q --device pocl train.yaml max_duration=10ba save_folder="$tmp/straight" >"$log" 2>&1
report "a run without hops" $?
want=$("$cltrain" ckpt hash "$tmp/straight")

# 16 samples are 2 batches. The first launch ends within the second leg.
legs="pocl*1:3ba,$other*2:2ba,pocl+$other*2:16sp"
hop "$legs" hop max_duration=4ba
check "a hop that ends in its second leg" [ "$?:$(legs_of "$tmp/hop")" = 0:3:0:0 ]
hop "$legs" hop max_duration=10ba
check "the same hop resumes that leg and completes the round" [ "$?:$(legs_of "$tmp/hop")" = "0:3:0:0 5:3:1 7:5:2" ]
check "bit-identical to the run without hops" [ "$("$cltrain" ckpt hash "$tmp/hop")" = "$want" ]
check "the same losses" diff <(steps_of "$tmp/straight") <(steps_of "$tmp/hop")

hop "pocl*1:2ba,pocl*1:0.1dur" part max_duration=4ba
check "a leg shorter than a batch is one batch" [ "$?:$(legs_of "$tmp/part")" = "0:2:0:0 3:2:1" ]

# Two ranks, of which one would queue steps ahead (as on a GPU) and one would not (as on a CPU); then both
# ahead, with a trace.
cat >"$tmp/by_rank" <<'RANK'
CLTRAIN_AHEAD=$((${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}} == 0)) exec "$@"
RANK
mpirun_by_hand
"${by_hand[@]}" -np 2 bash "$tmp/by_rank" "$cltrain" train -q train.yaml --device "pocl,$other" max_duration=10ba save_folder="$tmp/unlike" >"$log" 2>&1
report "one rank that queues steps ahead and one that does not" $?
check "are bit-identical" [ "$("$cltrain" ckpt hash "$tmp/unlike")" = "$want" ]
CLTRAIN_AHEAD=1 "$cltrain" launch -n 2 --device "pocl,$other" train -q train.yaml max_duration=10ba \
    save_folder="$tmp/traced" --trace "$tmp/trace.json" --trace-steps 4:6 >"$log" 2>&1
report "two ranks that queue ahead, with a trace" $?
check "are bit-identical" [ "$("$cltrain" ckpt hash "$tmp/traced")" = "$want" ]
python3 - "$tmp/trace.json" >"$log" 2>&1 <<'PY'
import json, sys
events = json.load(open(sys.argv[1]))["traceEvents"]
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
assert sorted(names) == [0, 1] and all(names[r].startswith(f"rank {r} (") for r in names), names
timed = [e for e in events if e["ph"] == "X"]
assert min(e["ts"] for e in timed) < 0.001 and all(e["dur"] >= 0 for e in timed)
for rank in names:
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == rank}
    for row, some in ("host", "queue step 5"), ("device: compute", "guard"):
        (tid,) = (t for t in rows if rows[t] == row)
        assert some in [e["name"] for e in timed if (e["pid"], e["tid"]) == (rank, tid)], (rank, row)
# The ranks compute each step at the same time: the same phase overlaps on both, on one clock.
for step in 4, 5, 6:
    a, b = ([e for e in timed if e["pid"] == r and e["name"] == f"wait for step {step}"] for r in (0, 1))
    assert len(a) == len(b) == 1, (step, a, b)
    assert a[0]["ts"] < b[0]["ts"] + b[0]["dur"] and b[0]["ts"] < a[0]["ts"] + a[0]["dur"], (a, b)
PY
report "the trace has the rows of both ranks, on one clock" $?

# endless LEGS: starts a hop in the background that must be stopped; $launch is its process.
endless() {
    in_background "$cltrain" launch --hop "$1" train train.yaml save_folder="$tmp/stopped" max_duration=100000ba \
        scheduler.t_max=100000ba save_interval=5ba log_config=false
    launch=$started
}

endless "pocl*2:2ba,pocl*1:90000ba"
until_there '^{"batch":4,' "$tmp/stopped/metrics.jsonl"
kill -TERM $launch
wait $launch
check "SIGTERM stops leg and hop" [ $? = 75 ]
grep -q "stopped in leg 2, round 1 (pocl\*1:90000ba).*rerun the same command to resume this leg" "$log"
report "and reports the leg" $?

endless "pocl*2:2ba,pocl*1:90000ba"
until_there "leg 2 of 2, round 1"
report "restarted, it resumes the second leg" $?
saved=$(grep -c '"event":"checkpoint"' "$tmp/stopped/metrics.jsonl")
until [ "$(grep -c '"event":"checkpoint"' "$tmp/stopped/metrics.jsonl")" -gt "$saved" ]; do
    kill -0 $launch 2>/dev/null || break
    sleep 0.1
done
kill -9 "$(cut -d' ' -f1 "$tmp"/cltrain-launch.*/0.pid | head -n 1)"
wait $launch
code=$?
check "a leg that is killed ends the hop" [ $code != 0 ]
grep -q "leg 2, round 1 (pocl\*1:90000ba) exited with code $code; the newest checkpoint is of batch" "$log"
report "and the launch reports the leg and what to do" $?

# --- the report of a resumed run ---

train=("$cltrain" train train.yaml log_config=false log_to_console=false)
event() { grep '"event":"resume"' "$tmp/$1/metrics.jsonl" | tail -n 1; }

"${train[@]}" --device $other save_folder="$tmp/straight" max_duration=11ba >"$log" 2>&1
report "a run resumes on another device with --device alone" $?
grep -q "bit-identical to an uninterrupted run: exact numerics" "$log" && grep -q "written by cltrain .*exact fp32, 1 rank of" "$log"
report "exact numerics: reports the writer and equal bits" $?
[ "$(grep -c "configuration: .* changed: .*, was" "$log")" = 3 ] && grep -q 'configuration: max_duration changed: "11ba", was "10ba"' "$log"
report "reports changes of the configuration" $?
event straight | grep -q '"same_bits":true,"checked_batches":0'
report "logs the event" $?

# The loss in a checkpoint must be that of the next step, which another program computes.
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
report "saves the loss of the next step" $?
"$cltrain" launch -n 2 --device "$other" "${train[@]:1}" "${fast[@]}" save_folder="$tmp/fast" max_duration=7ba >"$log" 2>&1
grep -q "resume check: 2 batches evaluated, largest relative difference" "$log" && event fast | grep -q '"checked_batches":2,"largest_difference":'
report "the resumed run evaluates the same batches" $?
"${train[@]}" "${fast[@]}" --device pocl save_folder="$tmp/fast" max_duration=8ba model.logit_scale=1.5 >"$log" 2>&1
code=$?
grep -q "losses are not reproduced" "$log" && [ $code = 1 ] && [ "$(steps_of "$tmp/fast" | wc -l)" = 7 ]
report "a changed model stops the run" $?
"${train[@]}" "${fast[@]}" --device pocl save_folder="$tmp/fast" max_duration=8ba model.logit_scale=1.5 \
    cltrain.resume_check.action=warn >"$log" 2>&1
code=$?
grep -q "warning: the checkpoint's losses are not reproduced" "$log" && [ $code = 0 ]
report "with action=warn it only warns" $?

# refused CODE TEXT LEGS [ARGUMENT ...]
refused() {
    local code=$1 text=$2 got
    shift 2
    "$cltrain" launch --hop "$1" train -q train.yaml "${@:2}" >"$log" 2>&1
    got=$?
    [ "$got" = "$code" ] && grep -q -- "$text" "$log"
    report "refused ($code): $text" $?
}
refused 2 "'pocl' is not a valid leg" pocl save_folder="$tmp/no"
refused 2 "'pocl\*0:1ba' is not a valid leg" "pocl*1:1ba,pocl*0:1ba" save_folder="$tmp/no"
refused 78 "set save_folder" pocl:1ba save_folder=null
refused 78 "fewer than the 9 ranks" "pocl*9:1ba" save_folder="$tmp/no"
refused 69 "leg 2 (nosuch:1ba) cannot run here" "pocl:1ba,nosuch:1ba" save_folder="$tmp/no"
refused 2 "remove --device" pocl:1ba save_folder="$tmp/no" --device pocl
check "no run was started" [ ! -e "$tmp/no" ]
finish
