#!/bin/bash
# A Vision Transformer trains on pictures from MDS shards and from a folder of classes, with every augmentation: the
# same weights on 1 and 3 ranks, with other numbers of decoding threads, and after a stop and a resume.
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
images=$golden/vit/images
cat >"$tmp/run.yaml" <<'YAML'
model: {name: vit, image_size: 32, patch_size: 8, width: 32, depth: 2, heads: 2, classes: 10}
tokenizer: {name: bytes}
optimizer: {name: adamw, lr: 0.001}
scheduler: {name: constant_with_warmup, t_warmup: 0ba}
train_loader:
  name: image
  dataset: {local: null, shuffle: true, random_resized_crop: true, hflip: 0.5, randaugment: 2,
            label_smoothing: 0.1, mixup: 0.8, cutmix: 1.0, decode_threads: 3}
eval_loader:
  name: image
  label: val
  dataset: {local: null, crop_pct: 0.9}
eval_interval: 3ba
max_duration: 6ba
global_train_batch_size: 8
device_eval_batch_size: 4
device_train_microbatch_size: 2
precision: fp32
cltrain: {numerics: exact, exact_lanes: 8}
YAML
conf=("$tmp/run.yaml" "eval_loader.dataset.local=$images/mds/png")

# run FOLDER RANKS SOURCE [key=value ...]: one training run
run() {
    local folder=$tmp/$1 ranks=$2 source=$images/$3
    shift 3
    on_ranks "$ranks" train -q --device pocl "${conf[@]}" train_loader.dataset.local="$source" save_folder="$folder" \
        "$@" >"$folder.log" 2>&1 && return 0
    tail -n 5 "$folder.log"
    fail "${folder##*/}"
}
if ! "$cltrain" train --device pocl "${conf[@]}" train_loader.dataset.local="$images/mds/jpeg" max_duration=1ba \
    >"$log" 2>&1 && grep -q "IMAGES=0" "$log"; then
    echo "skipped: built without pictures (IMAGES=0)"
    exit 0
fi

for source in mds/jpeg imagefolder/train; do
    rm -rf "$tmp"/{one,three,threads,stop}
    run one 1 $source
    want=$("$cltrain" ckpt hash "$tmp/one")
    run three 3 $source
    run threads 1 $source train_loader.dataset.decode_threads=1
    run stop 1 $source max_duration=4ba
    run stop 2 $source
    names='three threads stop'
    if [ $source = mds/jpeg ]; then # without `local` shards are fetched into a folder below TMPDIR
        mkdir -p "$tmp/fetched"
        TMPDIR=$tmp/fetched run remote 1 $source train_loader.dataset.local=null train_loader.dataset.remote="$images/$source"
        names+=' remote'
    fi
    for name in $names; do
        got=$("$cltrain" ckpt hash "$tmp/$name")
        [ -n "$want" ] && [ "$got" = "$want" ] || fail "$source, run '$name': hashes differ: $got, not $want"
    done
    run other 1 $source train_loader.dataset.shuffle_seed=1 train_loader.dataset.shuffle=false
    [ "$("$cltrain" ckpt hash "$tmp/other")" != "$want" ] || fail "$source: another seed makes no difference"
    rm -rf "$tmp/other"
    echo "same: $source with mixup and cutmix on 1 and 3 ranks, other threads, and resumed: $(echo $want)"
done

# Weights of another image size: those of a checkpoint and those of its export give the same positions.
"$cltrain" ckpt export "$tmp/one" "$tmp/export" >"$log" 2>&1 || fail "export"
for from in one export; do
    run "larger_$from" 1 mds/jpeg load_path="$tmp/$from" load_weights_only=true model.image_size=48 max_duration=1ba
done
[ "$("$cltrain" ckpt hash "$tmp/larger_one")" = "$("$cltrain" ckpt hash "$tmp/larger_export")" ] || fail "positions are resampled"

# Wherever a user reads about the run it counts images, under Composer's names, and says nothing of tokens.
run words 1 mds/jpeg max_duration=3ba cltrain.csv="$tmp/words.csv" cltrain.prometheus="$tmp/words.prom" \
    "callbacks={speed_monitor: {}, early_stopper: {monitor: MulticlassAccuracy, dataloader_label: val}}"
"$cltrain" train --device pocl "${conf[@]}" train_loader.dataset.local="$images/mds/jpeg" save_folder="$tmp/words" \
    "callbacks={speed_monitor: {}}" log_config=false >"$tmp/words.txt" 2>&1 || fail "console"
"$cltrain" eval --device pocl "${conf[@]}" train_loader.dataset.local="$images/mds/jpeg" load_path="$tmp/words" >>"$tmp/words.txt" 2>&1 || fail "eval"
"$cltrain" plan "${conf[@]}" >>"$tmp/words.txt" 2>&1 || fail "plan"
"$cltrain" top "$tmp/words" >>"$tmp/words.txt" && "$cltrain" ckpt ls "$tmp/words" >>"$tmp/words.txt" || fail "top, ckpt ls"
"$cltrain" report "$tmp/words" --out "$tmp/words.html" >"$log" 2>&1 || fail "report"
python3 - "$tmp" >"$log" 2>&1 <<'PY'
import json, re, sys
tmp = sys.argv[1]
text = open(tmp + "/words.txt").read()
curves = open(tmp + "/words.html").read().split("<h2>Events")[0]
files = {name: open(f"{tmp}/{name}").read() for name in ("words/metrics.jsonl", "words.csv", "words.prom")}
files["words/metrics.jsonl"] = "\n".join(r for r in files["words/metrics.jsonl"].splitlines() if "event" not in r)
for name, s in dict(files, console=text, report=curves).items():
    found = re.search(r".*([Tt]oken|[Pp]erplexity|Language[CP]).*", s)
    assert not found, (name, found.group())
for name in ("metrics/train/CrossEntropy", "metrics/eval/val/CrossEntropy", "metrics/eval/val/MulticlassAccuracy",
             "metrics/eval/val/MulticlassAccuracyTop5", "throughput/samples_per_sec", "throughput/device/samples_per_sec"):
    assert f" {name}: " in text, name
assert re.search(r"done: 6 batches, \d+ images in", text) and re.search(r"images/s +step", text)
rows = [json.loads(line) for line in open(tmp + "/words/metrics.jsonl")]
steps = [r for r in rows if "loss" in r and "event" not in r]
assert len(steps) == 6 and all(r["samples_per_sec"] > 0 for r in steps)
evals = [json.loads(line) for line in text.splitlines() if line.startswith('{"label"')]
assert len(evals) == 1 and 0 <= evals[0]["eval_accuracy"] <= evals[0]["eval_accuracy_top5"] <= 1, evals
newest = [r for r in rows if "eval_loss" in r]
assert evals[0]["eval_accuracy"] == newest[-1]["eval_accuracy"]
csv = [line.split(",") for line in files["words.csv"].splitlines()]
assert len(csv) == 5 and {len(line) for line in csv} == {15}, csv
assert csv[0][-1] == "eval_accuracy_top5" and csv[4][-1] == "%.9g" % newest[0]["eval_accuracy_top5"], csv
for part in ("images per second", ">images<", "nats per image", "evaluation accuracy"):
    assert part in curves, part
PY
report "a run of images counts images, under Composer's names" $?
"$cltrain" train --device pocl "${conf[@]}" train_loader.dataset.local="$images/mds/jpeg" save_folder="$tmp/stopper" \
    "callbacks={early_stopper: {monitor: TokenAccuracy, dataloader_label: val}}" >"$log" 2>&1
[ $? = 78 ] && grep -q "TokenAccuracy, which this model does not have: use CrossEntropy or MulticlassAccuracy" "$log"
report "metrics of text are refused" $?

# Every evaluation leaves pictures with predictions: the same file for any ranks, batches and stages; the report has them.
# A name that is no UTF-8 is repaired.
second=$tmp/val/$'second\xe9'
mkdir -p "$tmp/val/first" "$second"
cp "$images"/imagefolder/train/{bee,Zebra}/* "$tmp/val/first" && cp "$images"/imagefolder/train/9/* "$second"
for eval in all:"$tmp/val" some:"$images/imagefolder/train"; do
    set -- "${eval%%:*}" max_duration=3ba eval_loader.dataset.local="${eval#*:}"
    run "$1" 1 imagefolder/train "${@:2}"
    run "$1-3" 3 imagefolder/train "${@:2}" device_eval_batch_size=1 cltrain.zero_stage=3
    cmp "$tmp/$1/predictions.json" "$tmp/$1-3/predictions.json" >"$log" 2>&1
    report "predictions on 1 and 3 ranks, $1 pictures" $?
    sed -i '2s/"png":"/&<i>/; s/_name":"/&<i>/g' "$tmp/$1-3/predictions.json"
    "$cltrain" report "$tmp/$1" >"$log" 2>&1 && "$cltrain" report "$tmp/$1-3" >"$log" 2>&1 || fail "report"
done
python3 - "$tmp" "$images/imagefolder/train" >"$log" 2>&1 <<'PY'
import base64, json, pathlib, struct, sys
def check(run, folder):
    folders = sorted(p.name for p in folder.iterdir() if p.is_dir())
    classes = [c.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for c in folders]
    labels = [i for i, c in enumerate(folders) for p in folder.joinpath(c).rglob("*") if p.suffix in (".png", ".jpg")]
    n = min(8, len(labels))
    o = json.loads((run / "predictions.json").read_text())
    page = (run / "report.html").read_text()
    assert o["batch"] == 3 and o["data"] == "val", o
    assert [x["sample"] for x in o["images"]] == [(2 * i + 1) * len(labels) // (2 * n) for i in range(n)]
    for x in o["images"]:
        assert x["label"] == labels[x["sample"]] and x["label_name"] == classes[x["label"]], x
        assert x["predicted_name"] == (classes[x["predicted"]] if x["predicted"] < len(classes) else str(x["predicted"])), x
        assert 0.1 <= x["probability"] <= 1, x  # the largest of ten
        png = base64.b64decode(x["png"], validate=True)
        assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (32, 32)
        assert f"data:image/png;base64,{x['png']}'" in page
    wrong = sum(x["label"] != x["predicted"] for x in o["images"])
    assert page.count("<figure") == n and page.count("<figure class='no'") == wrong
    return n, wrong, len(labels)
tmp = pathlib.Path(sys.argv[1])
n, wrong, total = check(tmp / "all", tmp / "val")
newest = [json.loads(line) for line in open(tmp / "all/metrics.jsonl") if "eval_accuracy" in line][-1]
assert n == total and abs(1 - wrong / n - newest["eval_accuracy"]) < 1e-8, (n, wrong, total, newest)
n, wrong, total = check(tmp / "some", pathlib.Path(sys.argv[2]))
assert n == 8 and total > 8
damaged = (tmp / "some-3/report.html").read_text().split("<h2>Files")[0]
assert damaged.count("<figure") == n - 1 and "<i>" not in damaged and "&lt;i&gt;" in damaged
PY
report "the report shows them" $?

# data verify decodes pictures.
"$cltrain" data verify "$images/mds/jpeg" >"$log" 2>&1 && grep -q "good: 3 shards, 14 samples" "$log"
report "good pictures" $?
"$cltrain" data verify "$images/mds/jpeg" --max-image-pixels 10 >"$log" 2>&1
[ $? = 65 ] && grep -q "^error: sample 0 of .*above the limit of 10 pixels" "$log" && grep -q "bad: 3 of 3 shards" "$log"
report "pictures that cannot be decoded" $?

# A picture that is damaged ends the run with its name; what a fetch left is no class.
mkdir -p "$tmp/set/a" "$tmp/set/.fetch" && cp "$images/bad/truncated.jpg" "$images/files/rgb.png" "$tmp/set/a"
"$cltrain" train --device pocl "${conf[@]}" train_loader.dataset.local="$tmp/set" global_train_batch_size=2 \
    eval_loader=null cltrain.exact_lanes=2 >"$log" 2>&1
[ $? = 65 ] && grep -q "set/a/truncated.jpg .*the JPEG data end early" "$log"
report "a damaged picture" $?
finish
