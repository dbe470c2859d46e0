#!/bin/bash
# Configurations in the style of DeepSpeed's public examples (deepspeed_configs/): each trains two steps of a tiny model, or
# is refused with its reason. Also: OneCycle's betas reach the optimizer, and an elastic run keeps its batch.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-variants
configs=test/train/deepspeed_configs
base=(--device pocl "$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null max_duration=30ba log_config=false
    optimizer=null scheduler=null algorithms=null precision=null)
json=(global_train_batch_size=null device_train_microbatch_size=null) # the batch is the JSON file's

# run RANKS FOLDER CONFIG [argument ...]: two steps
run() {
    log=$tmp/$2.log
    local args=(train "${base[@]}" "save_folder=$tmp/$2" --deepspeed "$3" --stop-after 2ba "${@:4}")
    if [ "$1" = 1 ]; then "$cltrain" "${args[@]}"; else on_ranks "$1" "${args[@]}"; fi >"$log" 2>&1
}
hash() { "$cltrain" ckpt hash "$tmp/$1"; }

# NAME|RANKS|WHAT THE RUN PRINTS|OVERRIDES
while IFS='|' read -r name ranks words more; do
    read -ra over <<<"$more"
    [ ${#over[@]} -gt 0 ] || over=("${json[@]}")
    run "$ranks" "$name" "$configs/$name.json" "${over[@]}"
    [ $? = 75 ] && [ "$("$cltrain" ckpt ls "$tmp/$name" | grep -c ba2)" -ge 1 ] && grep -qF "$words" "$log"
    report "$name" $?
done <<'TABLE'
megatron_zero1|2|2 ranks|
hf_auto_zero3|1|cltrain.offload_parameters: host saves nothing on a CPU device|global_train_batch_size=8 device_train_microbatch_size=4 max_duration=30ba
bert_lamb|1|1 rank|
cifar_adam|1|1 rank|
one_cycle|1|beta1 grows up to 0.999|
range_test|1|1 rank|
zero2_bf16|2|on rank 0; it waited for the device after each phase|
lion_zero1|1|1 rank|
TABLE

sed "s|output/|$tmp/|" "$configs/profiler_csv.json" >"$tmp/profiler_csv.json"
run 1 profiler_csv "$tmp/profiler_csv.json" "${json[@]}"
[ $? = 75 ] && grep -qF "csv_monitor writes one table, $tmp/csv/tiny/metrics.csv" "$log" &&
    python3 - "$tmp" >>"$log" 2>&1 <<'PY'
import csv, json, sys
tmp = sys.argv[1]
steps = [r for r in map(json.loads, open(tmp + "/profiler_csv/metrics.jsonl")) if "loss" in r]
table = list(csv.DictReader(open(tmp + "/csv/tiny/metrics.csv")))
keys = ["batch", "sample", "loss", "lr"]
assert len(steps) == 2 and steps[1]["sample"] == 16, steps
assert [[float(r[k]) for k in keys] for r in table] == [[r[k] for k in keys] for r in steps], table
PY
report "csv_monitor: the table has the metrics of the run" $?
python3 - "$tmp" >>"$log" 2>&1 <<'PY'
import csv, re, sys
tmp = sys.argv[1]
lines = [line for line in open(tmp + "/profiler_csv.log") if "phases of batch" in line]
assert len(lines) == 1 and "phases of batch 2: forward" in lines[0], lines
*phases, total = map(float, re.findall(r"([0-9.]+) ms", lines[0]))
assert len(phases) == 5 and min(phases[0], phases[1], phases[3]) > 0 and abs(sum(phases) - total) < 0.06, lines
table = list(csv.DictReader(open(tmp + "/csv/tiny/metrics.csv")))
assert abs(1e3 * float(table[1]["step_seconds"]) - total) < 0.01, (table, lines)
PY
report "wall_clock_breakdown: the phases are those of the step" $?
"$cltrain" plan "${base[@]}" --deepspeed "$tmp/profiler_csv.json" "${json[@]}" --json >"$tmp/plan.json" 2>>"$log" &&
    python3 - "$tmp" >>"$log" 2>&1 <<'PY'
import csv, json, re, sys
tmp = sys.argv[1]
text = open(tmp + "/flops/profile.txt").read()
number = lambda row, unit: float(re.search(rf"^  {row} .*?([0-9.e+-]+) {unit}", text, re.M).group(1))
close = lambda a, b: abs(a - b) <= 1e-3 * abs(b)
table = list(csv.DictReader(open(tmp + "/csv/tiny/metrics.csv")))
each = json.load(open(tmp + "/plan.json"))["flops_per_token"]
total = each * (int(table[1]["token"]) - int(table[0]["token"]))
assert text.startswith("flops profile of batch 2:\n") and "samples     8, 1 rank," in text, text
assert close(number("operations", "FLOP,"), total), (text, total)
assert close(number("forward", "FLOP,"), total / 3) and close(number("backward", "FLOP,"), total * 2 / 3), text
assert close(number("step", "FLOP/s"), float(table[1]["flops_per_sec"])), (text, table)
for phase, part in ("forward", total / 3), ("backward", total * 2 / 3):
    rate = number(phase, "FLOP/s") # times are printed to 0.01 ms
    assert abs(rate * number(phase, "ms") / 1e3 - part) <= rate * 0.00501e-3 + 1e-3 * part, (phase, text)
PY
report "flops_profiler: operations are the plan's, rates those of the step" $? || cat "$tmp/flops/profile.txt"
sed 's/"wall_clock_breakdown": true/"wall_clock_breakdown": false/; s/"enabled": true, "profile_step"/"enabled": false, "profile_step"/' \
    "$tmp/profiler_csv.json" >"$tmp/quiet.json"
run 1 quiet "$tmp/quiet.json" "${json[@]}"
[ -n "$(hash quiet)" ] && [ "$(hash quiet)" = "$(hash profiler_csv)" ] && ! grep -q "phases of batch" "$log"
report "the same bits without profiles" $?

run 1 one_bit_adam "$configs/one_bit_adam.json" "${json[@]}"
[ $? = 78 ] && grep -qF 'one_bit_adam.json:3:' "$log" && grep -qF 'gradients are not compressed to one bit' "$log"
report "one_bit_adam is refused with its place" $?

# betas of the optimizer have no effect under cycle_momentum; without it they have.
sed 's/\[0.5, 0.6\]/[0.1, 0.2]/' "$configs/one_cycle.json" >"$tmp/betas.json"
sed 's/"cycle_min_mom"/"cycle_momentum": false, "cycle_min_mom"/' "$configs/one_cycle.json" >"$tmp/still.json"
run 1 betas "$tmp/betas.json" "${json[@]}"
run 1 still "$tmp/still.json" "${json[@]}"
[ -n "$(hash one_cycle)" ] && [ "$(hash betas)" = "$(hash one_cycle)" ] && [ "$(hash still)" != "$(hash one_cycle)" ]
report "OneCycle's betas are the optimizer's" $?

# The checkpoint names its rule of the loss scale; a run resumes under another one, from the scale that it had.
scale_of() { "$cltrain" ckpt show --json "$tmp/bert_lamb" 2>/dev/null | tr -d ' \n' | grep -o "\"$1\":[0-9.]*" | head -n 1; }
[ "$(scale_of loss_scale_rule)" = '"loss_scale_rule":2.0' ] && [ "$(scale_of loss_scale)" = '"loss_scale":1024.0' ]
report "a checkpoint names the rule of its loss scale" $? "$(scale_of loss_scale_rule), $(scale_of loss_scale)"
sed 's/"initial_scale_power": 10}/"initial_scale_power": 4}, "zero_optimization": {"stage": 1}/' "$configs/bert_lamb.json" >"$tmp/scale.json"
run 1 bert_lamb "$tmp/scale.json" "${json[@]}"
[ $? = 75 ] && [ "$(scale_of loss_scale_rule)" = '"loss_scale_rule":1.0' ] && [ "$(scale_of loss_scale)" = '"loss_scale":1024.0' ]
report "a run resumes under another rule" $? "$(scale_of loss_scale_rule), $(scale_of loss_scale)"

# A run of one rank resumes on two: the same batch, and the bits of one that never moved.
run 1 elastic "$configs/elastic.json" "${json[@]}"
[ $? = 75 ] && run 2 elastic "$configs/elastic.json" "${json[@]}"
[ $? = 75 ] && run 1 stays "$configs/elastic.json" "${json[@]}" --stop-after 4ba
[ $? = 75 ] && [ -n "$(hash stays)" ] && [ "$(hash elastic)" = "$(hash stays)" ]
report "an elastic run keeps its batch on two ranks" $?
run 3 elastic "$configs/elastic.json" "${json[@]}"
[ $? = 78 ] && grep -qF 'valid numbers near it are 1, 2, 4, 8' "$log"
report "three ranks are refused with the valid numbers" $?
finish
