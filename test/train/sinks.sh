#!/bin/bash
# Every sink on a real run that stops and resumes: what it writes is what metrics.jsonl has. TensorBoard's and
# MLflow's files are read by these packages where they are installed. A sink that cannot write costs one line.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1

# python_with MODULE: prints a Python that has the module
python_with() {
    local p
    for p in python3 ${TEST_PYTHON:-}; do
        "$p" -c "import $1" 2>/dev/null && echo "$p" && return
    done
    return 1
}

set -- train test/golden/mpt-learned/train.yaml load_path=null max_duration=6ba save_folder="$tmp/run" \
    train_loader.dataset.local="$golden/mpt-learned/mds" global_train_batch_size=8 log_config=false \
    "eval_loader={name: text, label: 'a \"b\", c', dataset: {local: $golden/mpt-learned/mds, split: train}}" \
    eval_interval=3ba "callbacks={speed_monitor: {}, lr_monitor: {}, memory_monitor: {}, system_metrics_monitor: {}, \
fdiff_metrics: {diff_train_metrics: true}}" \
    "loggers={tensorboard: {log_dir: $tmp/board, flush_interval: 2}, mlflow: {tracking_uri: 'file:$tmp/ml', \
experiment_name: e, tags: {team: x}}, file_logger: {filename: '$tmp/{run_name}.txt'}}" \
    cltrain.csv="$tmp/csv/steps.csv" cltrain.prometheus="$tmp/prom/run.prom"
"$cltrain" "$@" --stop-after 4ba >"$log" 2>&1
[ $? = 75 ] || report "a run that stops" 1
"$cltrain" "$@" >"$log" 2>&1 || report "a run that resumes" 1

python3 - "$tmp" >"$log" 2>&1 <<'PY'
import csv, json, re, sys
t = sys.argv[1]
rows = [json.loads(line) for line in open(t + "/run/metrics.jsonl")]
steps = [r for r in rows if "loss" in r]
evals = [r for r in rows if "eval_loss" in r]
assert [r["batch"] for r in steps] == [1, 2, 3, 4, 5, 6], steps
assert [r["batch"] for r in evals] == [3, 6], evals
table = list(csv.DictReader(open(t + "/csv/steps.csv")))
assert [float(r["loss"]) for r in table if r["loss"]] == [r["loss"] for r in steps]
assert [float(r["eval_loss"]) for r in table if r["eval_loss"]] == [r["eval_loss"] for r in evals]
assert {r["eval_label"] for r in table if r["eval_label"]} == {'a "b", c'}
prom = open(t + "/prom/run.prom").read()
number = lambda name: float(re.search("^" + name + r"\{[^}]*\} (\S+)$", prom, re.M).group(1))
assert number("cltrain_step") == 6 and number("cltrain_tokens_total") == steps[-1]["token"]
assert abs(number("cltrain_loss") - steps[-1]["loss"]) < 1e-6
assert number("cltrain_step_seconds_count") == 2 and prom.endswith("\n")
for line in prom.splitlines():
    assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{\w+="([^"\\]|\\.)*"(,\w+="([^"\\]|\\.)*")*\} \S+', line), line
text = open(t + "/mpt-learned.txt").read()
for r in steps:
    assert "[metric][batch=%d]: loss/train/total: %.4f\n" % (r["batch"], r["loss"]) in text
assert text.count("total_fdiff") == 4 and "system/process_memory_gb: 0." in text
PY
report "CSV, Prometheus and text file agree with metrics.jsonl" $? || tail -3 "$log"

if python=$(python_with tensorboard.backend.event_processing.event_accumulator); then
    "$python" - "$tmp" >"$log" 2>&1 <<'PY'
import glob, json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
t = sys.argv[1]
assert len(glob.glob(t + "/board/mpt-learned/events.out.tfevents.*")) == 2
rows = [json.loads(line) for line in open(t + "/run/metrics.jsonl")]
a = EventAccumulator(t + "/board/mpt-learned")
a.Reload()
near = lambda x, y: abs(x - y) <= 1e-6 * abs(y)
for tag, key in (("loss/train/total", "loss"), ('metrics/eval/a "b", c/LanguageCrossEntropy', "eval_loss")):
    got, want = a.Scalars(tag), [r for r in rows if key in r]
    assert [e.step for e in got] == [r["batch"] for r in want], (tag, got)
    assert all(near(e.value, r[key]) for e, r in zip(got, want)), tag
tags = a.Tags()["scalars"]
for tag in ("lr-DecoupledAdamW/group0", "throughput/tokens_per_sec", "throughput/device/tokens_per_sec", "time/batch",
            "time/total", "memory/current_allocated_mem", "metrics/train/LanguagePerplexity", "l2_norm/grad/global"):
    assert tag in tags, (tag, tags)
PY
    report "the tensorboard package reads the event files" $?
else
    echo "skipped: the tensorboard package is not installed"
fi

if python=$(python_with mlflow); then
    MLFLOW_ALLOW_FILE_STORE=true "$python" - "$tmp" >"$log" 2>&1 <<'PY'
import json, sys
from mlflow.tracking import MlflowClient
t = sys.argv[1]
rows = [r for r in map(json.loads, open(t + "/run/metrics.jsonl")) if "loss" in r]
c = MlflowClient(tracking_uri="file:" + t + "/ml")
e = c.get_experiment_by_name("e")
runs = c.search_runs([e.experiment_id])
assert len(runs) == 1, "a resumed run continues its MLflow run"
r = runs[0]
assert r.info.run_name == "mpt-learned" and r.info.status == "FINISHED" and r.info.end_time >= r.info.start_time
history = sorted(c.get_metric_history(r.info.run_id, "loss/train/total"), key=lambda m: m.step)
assert [m.step for m in history] == [1, 2, 3, 4, 5, 6]
assert all(abs(m.value - x["loss"]) < 1e-6 for m, x in zip(history, rows))
assert "metrics/eval/a _b__ c/TokenAccuracy" in r.data.metrics
assert r.data.params["model.d_model"] == "64" and r.data.tags["team"] == "x", r.data.params
c.log_metric(r.info.run_id, "loss/train/total", 1.0, step=7)  # the package continues the run
PY
    report "the mlflow package reads the file store" $?
else
    echo "skipped: the mlflow package is not installed"
fi

# Folders that cannot be made: a line for each sink, and the run is the same.
touch "$tmp/file"
"$cltrain" "$@" save_folder="$tmp/again" loggers.tensorboard.log_dir="$tmp/file/x" loggers.mlflow.tracking_uri="$tmp/file/x" \
    loggers.file_logger.filename="$tmp/file/x" cltrain.csv="$tmp/file/x" cltrain.prometheus="$tmp/file/x" >"$log" 2>&1
code=$?
n=$(grep -c "is not written; training continues" "$log")
[ $code = 0 ] && [ "$n" = 5 ]
report "sinks that cannot be written cost a line each" $? "exit $code, $n lines"
hash_of() { "$cltrain" ckpt hash "$1" | sed -n 's/^weights *//p'; }
[ -n "$(hash_of "$tmp/run")" ] && [ "$(hash_of "$tmp/run")" = "$(hash_of "$tmp/again")" ]
report "and change no bit" $?
"$cltrain" "$@" loggers.mlflow.tracking_uri=databricks --dry-run 2>&1 | grep -q "^loggers.mlflow.tracking_uri 'databricks' is not a folder"
report "a remote tracking_uri is said to write nothing" $?

"$cltrain" "$@" "callbacks={hf_checkpointer: {save_folder: '$tmp/{run_name}', save_interval: 1dur, precision: bfloat16}}" \
    >"$log" 2>&1 && [ -s "$tmp/mpt-learned/huggingface/ba6/model.safetensors" ] &&
    grep -q '"torch_dtype": "bfloat16"' "$tmp/mpt-learned/huggingface/ba6/config.json"
report "hf_checkpointer exports at the end of a run" $?

# A loss that cannot fall by 100 is best at its first evaluation, batch 2; more than 4 batches later the run ends.
early() {
    "$cltrain" train test/golden/mpt-learned/train.yaml load_path=null save_folder="$tmp/early" log_config=false \
        train_loader.dataset.local="$golden/mpt-learned/mds" eval_interval=2ba save_interval=3ba \
        "eval_loader={name: text, dataset: {local: $golden/mpt-learned/mds, split: train}}" "callbacks={early_stopper: \
{monitor: LanguageCrossEntropy, dataloader_label: eval, min_delta: 100, patience: 4ba}}" "$@" >"$log" 2>&1
}
early --stop-after 4ba
early
[ "$(grep -c '"loss"' "$tmp/early/metrics.jsonl")" = 7 ] && [ "$(newest_batch "$tmp/early")" = 7 ] &&
    grep -q 'is [0-9.]*, of batch 2: the run ends at batch 7$' "$log"
report "early_stopper ends a run, also after a resume" $?
early
[ "$(grep -c '"loss"' "$tmp/early/metrics.jsonl")" = 7 ] && grep -q "^nothing to do: the run ended early" "$log"
report "a run that ended early does not go on" $?
# Steps that are queued ahead on ranks that wait for each other while they queue: the host comes to the last result right
# after that of the step before.
(cd "$golden/mpt-variants" && CLTRAIN_AHEAD=1 CLTRAIN_QUEUES=3 on_ranks 2 train train.yaml load_path=null max_duration=5ba \
    model.n_layers=9 model.d_model=128 cltrain.zero_stage=3 log_config=false save_folder="$tmp/ahead") >"$log" 2>&1
report "two ranks with steps queued ahead" $?
grep -o '"step_seconds":[0-9.]*' "$tmp/ahead/metrics.jsonl" | cut -d: -f2 |
    awk '{ t[NR] = $1 } END { exit !(NR == 5 && t[5] > (t[3] + t[4]) / 8) }'
report "the last of them has its time" $? "$(grep -o '"step_seconds":[0-9.]*' "$tmp/ahead/metrics.jsonl" | tr '\n' ' ')"
finish
