#!/bin/bash
# The tools around a run, on a real run over bytes: data convert, generate, report, and every ckpt command.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1

# ok COMMAND...: exit 0; what it printed on stdout is in $tmp/out, on stderr in $tmp/err.
ok() {
    "$@" >"$tmp/out" 2>"$tmp/err" || { fail "exit $?: $*"; tail -n 5 "$tmp/err"; return 1; }
}
# code N COMMAND...: exit N.
code() {
    local want=$1 got=0
    shift
    "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    [ $got = "$want" ] || { fail "exit $got, not $want: $*"; tail -n 5 "$tmp/err"; }
}
says() { grep -qF -- "$1" "$tmp/out" || { fail "no '$1' in:"; head -n 8 "$tmp/out"; }; }

mkdir "$tmp/text"
cp LICENSE README.md test/golden/mpt-learned/train.json "$tmp/text"
ok "$cltrain" data convert -q "$tmp/text" --out "$tmp/data" --val-fraction 0.1 --concat-tokens 32 --eos --hashes xxh64
cat >"$tmp/run.yaml" <<YAML
run_name: tools <b>&"quoted"
max_seq_len: 32
model: {name: mpt_causal_lm, d_model: 32, n_heads: 2, n_layers: 1, max_seq_len: 32, vocab_size: 257}
tokenizer: {name: bytes}
train_loader: {name: text, dataset: {local: $tmp/data, split: train, max_seq_len: 32, shuffle: true}, drop_last: true}
eval_loader: {name: text, dataset: {local: $tmp/data, split: val, max_seq_len: 32}, drop_last: false}
optimizer: {name: decoupled_adamw, lr: 1.0e-3, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.0}
scheduler: {name: cosine_with_warmup, t_warmup: 2ba, alpha_f: 0.1}
algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}
global_train_batch_size: 8
device_eval_batch_size: 8
device_train_microbatch_size: auto
max_duration: 8ba
eval_interval: 4ba
save_interval: 4ba
save_folder: $tmp/run
precision: fp32
seed: 3
YAML
ok "$cltrain" train -q "$tmp/run.yaml" || finish
"$cltrain" train "$tmp/run.yaml" 2>&1 | grep -q "^nothing to do: max_duration 8ba is reached by the checkpoint of batch 8" ||
    fail "the same command after the end does not say that nothing is left to do"

# --- another batch size from the middle of an epoch: no sample is lost, no step is empty, epochs end where samples do ---------
resized() { ok "$cltrain" train "$tmp/run.yaml" save_folder="$tmp/resized" eval_loader=null log_config=false "$@"; }
code 75 "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/resized" eval_loader=null global_train_batch_size=160 \
    max_duration=1ep --stop-after 2ba
resized global_train_batch_size=32 max_duration=1ep
resized global_train_batch_size=160 max_duration=2ep
grep -qF "[epoch=2][batch=1/" "$tmp/err" || fail "the console does not count batches of the epoch"
python3 - "$tmp" <<'PY' || fail "epochs after another batch size"
import json, sys
shards = json.load(open(sys.argv[1] + "/data/train/index.json"))["shards"]
n = sum(s["samples"] for s in shards)
rows = [r for r in map(json.loads, open(sys.argv[1] + "/resized/metrics.jsonl")) if "loss" in r]
ends = [b["sample"] for a, b in zip([{"epoch": 0}] + rows, rows) if b["epoch"] > a["epoch"]]
first = 320 + (n - 320) // 32 * 32
print(n, ends, [r["loss"] for r in rows])
sys.exit(ends != [first, first + n // 160 * 160] or not all(r["loss"] > 1 for r in rows))
PY

# --- a schedule in samples over short batches, a stop and another batch size: the lr of a step is that of the time two back ------
decay() {
    "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/decay" eval_interval=0 train_loader.drop_last=false \
        scheduler.name=linear_decay_with_warmup scheduler.t_warmup=0sp scheduler.alpha_f=0 max_duration=1400sp "$@"
}
code 75 decay global_train_batch_size=160 --stop-after 5ba
ok decay global_train_batch_size=80
python3 - "$tmp/decay/metrics.jsonl" <<'PY' || fail "learning rates in samples, or an evaluation with eval_interval 0"
import json, sys
rows = list(map(json.loads, open(sys.argv[1])))
steps = [r for r in rows if "loss" in r]
want = [1e-3 * (1 - s / 1400) for s in [0, 0] + [r["sample"] for r in steps]]
print([(r["sample"], r["lr"], w) for r, w in zip(steps, want)])
sys.exit(any("eval_loss" in r for r in rows) or not all(abs(r["lr"] - w) < 1e-10 for r, w in zip(steps, want)))
PY

# --- evaluation data: several have Foundry's names, and none is without a batch --------------------------------------------
ok "$cltrain" eval "$tmp/run.yaml" load_path="$tmp/run" \
    "eval_loader=[{label: few, name: text, dataset: {local: $tmp/data, split: val}}]"
grep -qF "Eval metrics/eval/few/LanguageCrossEntropy: " "$tmp/err" || fail "the console has another name for eval_loader's label"
code 78 "$cltrain" eval "$tmp/run.yaml" load_path="$tmp/run" eval_loader.drop_last=true device_eval_batch_size=1000

# The progress bar's line ends with the time left, also in a terminal of 80 columns.
env -u CI TERM=vt100 script -qec "stty cols 80; '$cltrain' train -q '$tmp/run.yaml' save_folder='$tmp/bar'" /dev/null >"$tmp/out"
says " left"

# --- a trace: JSON with the host's phases and kernels of steps 3 and 4, and of no others -----------------------------------
for ahead in 0 1; do
    CLTRAIN_AHEAD=$ahead ok "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/traced$ahead" precision=amp_bf16 \
        --trace "$tmp/trace.json" --trace-steps 3:4
    for word in '"ph":"X"' '"name":"queue step 3"' '"name":"wait for step 4"' '"name":"attention_forward"' '"name":"adamw"'; do
        grep -qF -- "$word" "$tmp/trace.json" || fail "no $word in the trace"
    done
    if grep -qE 'step (2|5)"' "$tmp/trace.json"; then fail "the trace has other steps"; fi
    [ "$(grep -c '"name":"guard"' "$tmp/trace.json")" = 2 ] || fail "the trace has not two steps' kernels"
done
code 2 "$cltrain" train "$tmp/run.yaml" --trace-steps 3
code 2 "$cltrain" train "$tmp/run.yaml" --trace "$tmp/trace.json" --trace-steps 4:3
# A run that stops among its steps writes those it did; one that has none of them says so; a file that cannot be written is
# told of before the run.
rm "$tmp/trace.json"
code 75 "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/halted" --trace "$tmp/trace.json" --trace-steps 2:9 --stop-after 3ba
python3 -c 'import json, sys; names = [e["name"] for e in json.load(open(sys.argv[1]))["traceEvents"]]
sys.exit(not {"wait for step 2", "wait for step 3"} <= set(names) or names.count("guard") != 2)' "$tmp/trace.json" ||
    fail "a run that stopped has not the trace of the steps it did"
ok "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/beyond" max_duration=3ba --trace "$tmp/none.json" --trace-steps 9 \
    --record "$tmp/none" --record-steps 9
grep -qF -- "--trace $tmp/none.json is not written: this run had no step 9" "$tmp/err" || fail "a trace of steps that do not come"
grep -qF -- "--record $tmp/none is not written: this run had no step 9" "$tmp/err" || fail "a record of steps that do not come"
code 74 "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/early" --trace "$tmp/none/trace.json"
grep -qF -- "--trace $tmp/none/trace.json cannot be written: folder $tmp/none" "$tmp/err" || fail "no word about a trace's folder"
[ ! -e "$tmp/early" ] || fail "a run began whose trace cannot be written"

# --- how often to save: sqrt(2 * MTTF * stall) of what is given, and of what this run's checkpoints cost ----------------------
every() { "$cltrain" plan "$tmp/run.yaml" --device h200 --json "$@" | sed -n 's/.*"save_every_seconds":\([0-9.a-z]*\)}/\1/p'; }
[ "$(every --save-seconds 2.5 --mttf 12)" = 464.758 ] || fail "12 hours and 2.5 s make $(every --save-seconds 2.5 --mttf 12)"
python3 - "$tmp/run/metrics.jsonl" "$(every)" <<'PY' || fail "plan's interval is not that of the run's checkpoints"
import json, sys
stalls = [r["stall_seconds"] for r in map(json.loads, open(sys.argv[1])) if r.get("event") == "checkpoint"]
want = (2 * 86400 * sum(stalls) / len(stalls)) ** 0.5
print(len(stalls), want, sys.argv[2])
sys.exit(abs(float(sys.argv[2]) / want - 1) > 1e-4)
PY
[ "$(every save_folder="$tmp/nothing")" = null ] || fail "an interval without a measurement"
code 2 "$cltrain" plan "$tmp/run.yaml" --mttf 0
code 2 "$cltrain" plan "$tmp/run.yaml" --device h200 --ranks 4294967297 # no int
code 78 "$cltrain" plan "$tmp/run.yaml" --device h200 --ranks 9 # as the run would
grep -q "at most 8 ranks" "$tmp/err" || fail "plan does not say how many ranks there may be"
# A run that does not fit: an error, and the plan shows by how much.
code 1 "$cltrain" plan tools/presets/mpt-7b.yaml --device 24gb
says "  total "
grep -q "the run needs\|the largest buffer needs" "$tmp/err" || fail "plan does not say that the run does not fit"

# --- generate ----------------------------------------------------------------------------------------------------------

# text FILE ARGUMENTS...: what generate prints, into $tmp/FILE.
text() {
    local to=$tmp/$1
    shift
    ok "$cltrain" generate -q "$@" && cp "$tmp/out" "$to"
}
differ() { if cmp -s "$tmp/$1" "$tmp/$2"; then fail "$3"; fi; }
equal() { cmp -s "$tmp/$1" "$tmp/$2" || fail "$3"; }

text a "$tmp/run" --prompt "The licence" -n 40 --seed 5
text b "$tmp/run" --prompt "The licence" -n 40 --seed 5
text c "$tmp/run" --prompt "The licence" -n 40 --seed 6
equal a b "the same seed gives another text"
text n "$tmp/run" --prompt "The licence" -n 40 --seed 5 --no-cache
equal a n "kept keys and values change the text"
ok "$cltrain" generate "$tmp/run" --prompt "The licence" -n 22 # the last of 32 positions is there
if grep -q "max_seq_len" "$tmp/err"; then fail "a text that fits is said to lose its beginning"; fi
ok "$cltrain" generate "$tmp/run" --prompt "The licence" -n 23
grep -q "max_seq_len is 32" "$tmp/err" || fail "a text that loses its beginning, and no word of it"
differ a c "another seed gives the same text"
head -c 11 "$tmp/a" | grep -q "^The licence$" || fail "the prompt does not come first"
text d "$tmp/run" --prompt "The licence" -n 40 --temperature 0 --seed 5
text e "$tmp/run" --prompt "The licence" -n 40 --temperature 0 --seed 6
equal d e "at temperature 0 the seed plays a part"
text f "$tmp/run/ep0-ba4" --prompt "The licence" -n 40 --temperature 0
differ d f "a model of 4 steps continues like one of 8"
# Longer than the model's 32 positions: the last 32 tokens count, so what comes before them changes nothing.
tail32="01234567890123456789012345678901"
text g "$tmp/run" --prompt "a long beginning $tail32" -n 20 --temperature 0
text h "$tmp/run" --prompt "another one, longer still, $tail32" -n 20 --temperature 0
cmp -s <(sed "s/.*$tail32//" "$tmp/g") <(sed "s/.*$tail32//" "$tmp/h") || fail "a prompt longer than max_seq_len: not the last tokens count"
ok "$cltrain" generate test/golden/mpt-rope/hf --prompt ab -n 40 --temperature 0
grep -q "is this a model over bytes?" "$tmp/err" || fail "tokens that have no text are left out without a word"
# A run over somebody else's token ids: both say that its tokenizer is not there.
ok "$cltrain" train "$tmp/run.yaml" save_folder="$tmp/ids" tokenizer.name=some/hub max_duration=1ba
grep -q "^tokenizer.name 'some/hub' is not loaded" "$tmp/err" || fail "train does not say that a tokenizer is not loaded"
ok "$cltrain" generate "$tmp/ids" --prompt ab -n 2
grep -q "trained with tokenizer 'some/hub'" "$tmp/err" || fail "generate takes bytes for another tokenizer's ids without a word"
ok "$cltrain" generate "$tmp/run" --prompt ab -n 2
if grep -q "trained with tokenizer" "$tmp/err"; then fail "generate warns of a model over bytes"; fi
text i "$tmp/run" -n 5
text j "$tmp/run" --prompt "nothing more" -n 0
[ "$(cat "$tmp/j")" = "nothing more" ] || fail "no new tokens: '$(cat "$tmp/j")'"
code 2 "$cltrain" generate "$tmp/run" --temperature -1
code 2 "$cltrain" generate "$tmp/run" --temperature nan
code 2 "$cltrain" generate "$tmp/run" -n 4611686018427387903
code 2 "$cltrain" generate
code 74 "$cltrain" generate "$tmp/nowhere"
if has_platform intel; then
    text k "$tmp/run" --prompt "The licence" -n 40 --seed 5 --device intel
    text l "$tmp/run" --prompt "The licence" -n 40 --seed 5 --device pocl
    equal k l "Intel's runtime and PoCL continue in different ways"
else
    echo "SKIP: no Intel runtime for CPUs here"
fi

# --- checkpoints -------------------------------------------------------------------------------------------------------

ok "$cltrain" ckpt ls "$tmp/run" && says ep0-ba8 && says ep0-ba4
ok "$cltrain" ckpt show "$tmp/run/ep0-ba8" && says transformer.wte.weight && says "257"
says "numbers.spike_loss               8 numbers"
if grep -q "spike_loss\.[0-9]" "$tmp/out"; then fail "ckpt show prints a guard's window number by number"; fi
ok "$cltrain" ckpt show "$tmp/run/ep0-ba8" --json && says '"spike_loss.7"'
ok "$cltrain" ckpt verify "$tmp/run"
ok "$cltrain" ckpt hash "$tmp/run/ep0-ba8" && cp "$tmp/out" "$tmp/hash8"
ok "$cltrain" ckpt hash "$tmp/run" && equal out hash8 "a folder of checkpoints is not its newest one"
ok "$cltrain" ckpt hash "$tmp/run/ep0-ba4" && differ out hash8 "two states have one hash"
code 0 "$cltrain" ckpt diff "$tmp/run/ep0-ba8" "$tmp/run"
code 1 "$cltrain" ckpt diff "$tmp/run/ep0-ba4" "$tmp/run/ep0-ba8"
says transformer.
ok "$cltrain" ckpt export "$tmp/run" "$tmp/hf"
[ -s "$tmp/hf/config.json" ] && [ -s "$tmp/hf/model.safetensors" ] || fail "export wrote no config.json or model.safetensors"
code 74 "$cltrain" ckpt export "$tmp/run/ep0-ba4" "$tmp/hf"
grep -q "hf/config.json exists already" "$tmp/err" || fail "export does not say what it would replace"
ok "$cltrain" ckpt export "$tmp/run" "$tmp/hf" --overwrite
grep -q "has positions without ALiBi, which" "$tmp/err" || fail "export does not say what transformers lacks"
ok "$cltrain" ckpt export test/golden/mpt-alibi/hf "$tmp/alibi" # which transformers has whole
[ ! -s "$tmp/err" ] || fail "export says of a model that transformers has whole: $(cat "$tmp/err")"
# The MptConfig of transformers 5 takes no 0.0 where it says int, and has its own word for norm_eps.
for line in '"attn_pdrop": 0,' '"alibi_bias_max": 8,' '"layer_norm_epsilon": 1.0'; do
    grep -qF "$line" "$tmp/hf/config.json" || fail "the exported config.json has no $line"
done
text m "$tmp/hf" --prompt "The licence" -n 40 --seed 5
equal a m "the exported model continues in another way"
ok "$cltrain" ckpt import "$tmp/hf" "$tmp/back/ep0-ba0"
ok "$cltrain" ckpt hash "$tmp/back" && head -n 1 "$tmp/out" >"$tmp/line"
head -n 1 "$tmp/hash8" >"$tmp/line8" && equal line line8 "weights change on the way out and in"
code 0 "$cltrain" ckpt diff "$tmp/run/ep0-ba8" "$tmp/back/ep0-ba0" # which has no moments to compare
# An export is a place to start from.
ok "$cltrain" eval -q "$tmp/run.yaml" load_path="$tmp/hf" && cp "$tmp/out" "$tmp/eval-hf"
ok "$cltrain" eval -q "$tmp/run.yaml" load_path="$tmp/run" && says '"eval_loss"'
says '"batch":8,'
cmp -s <(sed 's/"batch":8,/"batch":0,/' "$tmp/out") "$tmp/eval-hf" || fail "the export evaluates to something else"
logged=$(sed -n 's/.*"batch":8,.*"eval_loss":\([^,]*\),.*/\1/p' "$tmp/run/metrics.jsonl")
grep -qF "\"eval_loss\":$logged," "$tmp/out" || fail "eval gives $(cat "$tmp/out"), the run's own evaluation $logged"

# --- report ------------------------------------------------------------------------------------------------------------

ok "$cltrain" report "$tmp/run" --out "$tmp/report.html"
page=$tmp/report.html
head -c 15 "$page" | grep -qi '^<!doctype html>' || fail "the report does not begin with a doctype"
tail -c 10 "$page" | grep -q '</html>' || fail "the report does not end with </html>"
for tag in html head body style svg table title; do
    [ "$(grep -oE "<${tag}[ >]" "$page" | wc -l)" = "$(grep -o "</$tag>" "$page" | wc -l)" ] || fail "the report: <$tag> and </$tag> do not match"
done
[ "$(grep -o '<svg' "$page" | wc -l)" -ge 2 ] || fail "the report has no curves"
if grep -qiE '<link|<img|src *=|@import|url\(|href *= *"?http' "$page"; then fail "the report needs other files"; fi
if grep -q '<b>&"' "$page"; then fail "the report holds the run's name as HTML"; fi
grep -q '&lt;b&gt;&amp;' "$page" || fail "the report does not name the run"
if grep -qiE '[^a-z](nan|inf)[^a-z]' <(sed -n '/<svg/,/<\/svg>/p' "$page"); then fail "the report's curves hold numbers that are none"; fi
grep -q '<b>[0-9.]* %</b><span>effective training time</span>' "$page" || fail "the report has no effective training time"
grep -q '<td>start</td>' "$page" || fail "the report has no events"
code 74 "$cltrain" report "$tmp/nowhere"
# A checkpoint that costs 2 s, steps of 0.5 s, a failure every hour: sqrt(2 * 3600 * 2) = 120 s are 240 batches.
mkdir "$tmp/young"
printf '{"batch":%d,"loss":1,"step_seconds":0.5}\n' 1 2 3 >"$tmp/young/metrics.jsonl"
printf '{"event":"checkpoint","batch":3,"stall_seconds":%s}\n' 1.5 2.5 >>"$tmp/young/metrics.jsonl"
ok "$cltrain" report "$tmp/young"
grep -q '<td>an hour</td><td>2m00s</td><td>240</td>' "$tmp/young/report.html" || fail "Young's interval: $(grep 'an hour' "$tmp/young/report.html")"
# Losses 1, 2, 3 beside 1, 2.5, 3, 4: three batches in common, 0.5 at most, at batch 2; a sixth on average.
mkdir "$tmp/one" "$tmp/o&her"
printf '{"batch":%d,"loss":%s}\n' 1 1 2 2 3 3 >"$tmp/one/metrics.jsonl"
printf '{"batch":%d,"loss":%s}\n' 1 1 2 2.5 3 3 4 4 >"$tmp/o&her/metrics.jsonl"
ok "$cltrain" report "$tmp/one" "$tmp/o&her" "$tmp/one" --svg "$tmp/losses.svg"
grep -q 'o&amp;her</td><td>3</td><td>0.5, at batch 2</td><td>0.167</td><td>0</td>' "$tmp/one/report.html" || fail "two runs: $(grep 'her</td>' "$tmp/one/report.html")"
grep -q '<td>0: the same losses</td>' "$tmp/one/report.html" || fail "the same losses are not said to be the same"
[ "$(grep -c 'xmlns=.http://www.w3.org/2000/svg' "$tmp/losses.svg")" = 1 ] && grep -q '>o&amp;her<' "$tmp/losses.svg" || fail "the picture of two runs"
# Large batch numbers and rates are written in full, events with the digits that they have; a logarithmic axis has 1, 2 and 5.
mkdir "$tmp/large"
printf '{"batch":%d,"loss":1,"tokens_per_sec":%s,"grad_norm":%s}\n' 1000000 5e5 0.6 1234567 6e5 16 >"$tmp/large/metrics.jsonl"
echo '{"event":"checkpoint","batch":1234567,"stall_seconds":0.856}' >>"$tmp/large/metrics.jsonl"
ok "$cltrain" report "$tmp/large"
for word in '<td>1234567</td>' '"stall_seconds":0.856}' '>520000<' '>1200000<' '>0.6<' '>5<' '>10<'; do
    grep -qF -- "$word" "$tmp/large/report.html" || fail "the report of a long run has no $word"
done
# Each evaluation data set has its own losses, the newest row of a batch counts; values that are missing are in no median.
mkdir "$tmp/evals"
printf '{"batch":%d,"loss":1,"tokens_per_sec":%s}\n' 1 9 2 null 3 1 4 2 >"$tmp/evals/metrics.jsonl"
printf '{"batch":4,"label":"%s","eval_loss":%s}\n' few 2.5 "a<b" 9.5 few 2.25 >>"$tmp/evals/metrics.jsonl"
ok "$cltrain" report "$tmp/evals"
for word in '<b>2.2500</b><span>evaluation loss: few</span>' '<b>9.5000</b><span>evaluation loss: a&lt;b</span>' \
    '<b>2</b><span>tokens a second (median)</span>'; do
    grep -qF -- "$word" "$tmp/evals/report.html" || fail "the report of several evaluations has no $word"
done
[ "$(grep -o '<circle' "$tmp/evals/report.html" | wc -l)" = 2 ] || fail "the report shows evaluations that do not count"
mkdir "$tmp/torn"
head -c 700 "$tmp/run/metrics.jsonl" >"$tmp/torn/metrics.jsonl"
printf '\n{"batch":"x"}\n[1]\nnot json <script>\n' >>"$tmp/torn/metrics.jsonl"
ok "$cltrain" report "$tmp/torn" # a torn line costs that line

# --- tune: a cache of its own, so that nothing else is decided by what a busy machine measures
export CLTRAIN_CACHE_DIR=$tmp/cache
ok "$cltrain" tune "$tmp/run.yaml" --seconds 0.001
says "were not measured; --seconds gives more time"
ok "$cltrain" tune "$tmp/run.yaml" --seconds 600
says "NT 32x96x32 fp32>fp32 exact"
says "kept in $tmp/cache/tune.csv"
ok "$cltrain" tune "$tmp/run.yaml" --export
! grep -v ',-,[^,]*,[^,]*$' "$tmp/out" || fail "tune --export prints more than lines to append to tuned.csv"
grep -q "^gemm,NT 32x96x32 fp32>fp32 exact,[a-z0-9_]*,[0-9.e-]*,0,-,." "$tmp/out" || fail "tune --export prints no line for tuned.csv"
ok "$cltrain" train -q "$tmp/run.yaml" max_duration=2ba "save_folder=$tmp/tuned"
cut -d' ' -f1-3 <(steps_of "$tmp/tuned") >"$tmp/tuned.steps"
ok "$cltrain" train -q "$tmp/run.yaml" max_duration=2ba cltrain.tune=off "save_folder=$tmp/untuned"
cmp "$tmp/tuned.steps" <(steps_of "$tmp/untuned") || fail "exact bits depend on tuning"
rm "$tmp/cache/tune.csv" && mkdir "$tmp/cache/tune.csv" # nothing can be kept there
code 74 "$cltrain" tune "$tmp/run.yaml" --seconds 600
if grep -q "^kept in" "$tmp/out"; then fail "tune says that it kept what it could not write"; fi
rmdir "$tmp/cache/tune.csv"
code 2 "$cltrain" tune "$tmp/run.yaml" --seconds 0
code 2 "$cltrain" tune
code 78 "$cltrain" train -n "$tmp/run.yaml" cltrain.tune=often
finish
