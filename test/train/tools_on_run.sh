#!/bin/bash
# The tools on a real run of a byte-level model: data convert, train --trace, plan, generate, every ckpt
# command, report, tune.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1

# ok COMMAND...: must exit with 0; stdout goes to $tmp/out, stderr to $tmp/err
ok() {
    "$@" >"$tmp/out" 2>"$tmp/err" || { fail "exit $?: $*"; tail -n 5 "$tmp/err"; return 1; }
}
# code N COMMAND...: must exit with N
code() {
    local want=$1 got=0
    shift
    "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    [ $got = "$want" ] || { fail "exit $got, not $want: $*"; tail -n 5 "$tmp/err"; }
}
says() { grep -qF -- "$1" "$tmp/out" || { fail "'$1' is missing in:"; head -n 8 "$tmp/out"; }; }

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
"$cltrain" train "$tmp/run.yaml" 2>&1 | grep -q "^nothing to do: the checkpoint of batch 8 has reached max_duration 8ba" ||
    fail "rerunning a finished run does not report that nothing is left to do"

# --- a new batch size within an epoch: no sample is lost, no step is empty, epochs end with the samples ---
resized() { ok "$cltrain" train "$tmp/run.yaml" save_folder="$tmp/resized" eval_loader=null log_config=false "$@"; }
code 75 "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/resized" eval_loader=null global_train_batch_size=160 \
    max_duration=1ep --stop-after 2ba
resized global_train_batch_size=32 max_duration=1ep
resized global_train_batch_size=160 max_duration=2ep
grep -qF "[epoch=2][batch=1/" "$tmp/err" || fail "the console does not count the batches of the epoch"
python3 - "$tmp" <<'PY' || fail "epochs after a change of the batch size"
import json, sys
shards = json.load(open(sys.argv[1] + "/data/train/index.json"))["shards"]
n = sum(s["samples"] for s in shards)
rows = [r for r in map(json.loads, open(sys.argv[1] + "/resized/metrics.jsonl")) if "loss" in r]
ends = [b["sample"] for a, b in zip([{"epoch": 0}] + rows, rows) if b["epoch"] > a["epoch"]]
first = 320 + (n - 320) // 32 * 32
print(n, ends, [r["loss"] for r in rows])
sys.exit(ends != [first, first + n // 160 * 160] or not all(r["loss"] > 1 for r in rows))
PY

# --- a schedule in samples, with short batches, a stop and a new batch size ---
# The lr of a step is that of the time two batches before.
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

# --- evaluation data: labels appear in Foundry's metric names; a data set without a full batch is refused ---
ok "$cltrain" eval "$tmp/run.yaml" load_path="$tmp/run" \
    "eval_loader=[{label: few, name: text, dataset: {local: $tmp/data, split: val}}]"
grep -qF "Eval metrics/eval/few/LanguageCrossEntropy: " "$tmp/err" || fail "the console does not use the label of eval_loader"
code 78 "$cltrain" eval "$tmp/run.yaml" load_path="$tmp/run" eval_loader.drop_last=true device_eval_batch_size=1000

# The progress line shows the remaining time, also in a terminal of 80 columns.
env -u CI TERM=vt100 script -qec "stty cols 80; '$cltrain' train -q '$tmp/run.yaml' save_folder='$tmp/bar'" /dev/null >"$tmp/out"
says " left"

# --- a trace: JSON with phases of the host and kernels of steps 3 and 4 only ---
for ahead in 0 1; do
    CLTRAIN_AHEAD=$ahead ok "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/traced$ahead" precision=amp_bf16 \
        --trace "$tmp/trace.json" --trace-steps 3:4
    for word in '"ph":"X"' '"name":"queue step 3"' '"name":"wait for step 4"' '"name":"attention_forward"' '"name":"adamw"'; do
        grep -qF -- "$word" "$tmp/trace.json" || fail "the trace has no $word"
    done
    if grep -qE 'step (2|5)"' "$tmp/trace.json"; then fail "the trace has other steps"; fi
    [ "$(grep -c '"name":"guard"' "$tmp/trace.json")" = 2 ] || fail "the trace does not have the kernels of two steps"
done
code 2 "$cltrain" train "$tmp/run.yaml" --trace-steps 3
code 2 "$cltrain" train "$tmp/run.yaml" --trace "$tmp/trace.json" --trace-steps 4:3
# A run that stops during the traced steps writes the finished ones; a run without any of them prints a
# warning; a file that cannot be written is refused before the run.
rm "$tmp/trace.json"
code 75 "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/halted" --trace "$tmp/trace.json" --trace-steps 2:9 --stop-after 3ba
python3 -c 'import json, sys; names = [e["name"] for e in json.load(open(sys.argv[1]))["traceEvents"]]
sys.exit(not {"wait for step 2", "wait for step 3"} <= set(names) or names.count("guard") != 2)' "$tmp/trace.json" ||
    fail "a stopped run did not write the trace of its finished steps"
ok "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/beyond" max_duration=3ba --trace "$tmp/none.json" --trace-steps 9 \
    --record "$tmp/none" --record-steps 9
grep -qF -- "--trace $tmp/none.json is not written: this run ended without step 9" "$tmp/err" || fail "no warning about a missing trace"
grep -qF -- "--record $tmp/none is not written: this run ended without step 9" "$tmp/err" || fail "no warning about a missing record"
code 74 "$cltrain" train -q "$tmp/run.yaml" save_folder="$tmp/early" --trace "$tmp/none/trace.json"
grep -qF -- "--trace $tmp/none/trace.json cannot be written: folder $tmp/none" "$tmp/err" || fail "no error about the folder of the trace"
[ ! -e "$tmp/early" ] || fail "a run started although its trace cannot be written"

# --- save interval: sqrt(2 * MTTF * stall), with given values and from this run ---
every() { "$cltrain" plan "$tmp/run.yaml" --device h200 --json "$@" | sed -n 's/.*"save_every_seconds":\([0-9.a-z]*\),.*/\1/p'; }
[ "$(every --save-seconds 2.5 --mttf 12)" = 464.758 ] || fail "12 hours and 2.5 s give $(every --save-seconds 2.5 --mttf 12)"
python3 - "$tmp/run/metrics.jsonl" "$(every)" <<'PY' || fail "plan's interval does not follow from the run's checkpoints"
import json, sys
stalls = [r["stall_seconds"] for r in map(json.loads, open(sys.argv[1])) if r.get("event") == "checkpoint"]
want = (2 * 86400 * sum(stalls) / len(stalls)) ** 0.5
print(len(stalls), want, sys.argv[2])
sys.exit(abs(float(sys.argv[2]) / want - 1) > 1e-4)
PY
[ "$(every save_folder="$tmp/nothing")" = null ] || fail "plan prints an interval without a measurement"
code 2 "$cltrain" plan "$tmp/run.yaml" --mttf 0
code 2 "$cltrain" plan "$tmp/run.yaml" --device h200 --ranks 4294967297 # exceeds an int
code 78 "$cltrain" plan "$tmp/run.yaml" --device h200 --ranks 9 # refused as by the run
grep -q "at most 8 ranks" "$tmp/err" || fail "plan does not name the largest number of ranks"
# A run that does not fit: an error, and the plan is printed.
code 1 "$cltrain" plan tools/presets/mpt-7b.yaml --device 24gb
says "  total "
grep -q "the run needs\|the largest buffer needs" "$tmp/err" || fail "plan does not report that the run does not fit"

# --- generate ---

# text FILE ARGUMENTS...: writes the output of generate to $tmp/FILE
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
equal a n "the cache of keys and values changes the text"
ok "$cltrain" generate "$tmp/run" --prompt "The licence" -n 22 # uses the last of 32 positions
if grep -q "max_seq_len" "$tmp/err"; then fail "a text that fits gets a line about max_seq_len"; fi
ok "$cltrain" generate "$tmp/run" --prompt "The licence" -n 23
grep -q "exceed max_seq_len (32)" "$tmp/err" || fail "no line about a text that exceeds max_seq_len"
differ a c "another seed gives the same text"
head -c 11 "$tmp/a" | grep -q "^The licence$" || fail "the output does not start with the prompt"
text d "$tmp/run" --prompt "The licence" -n 40 --temperature 0 --seed 5
text e "$tmp/run" --prompt "The licence" -n 40 --temperature 0 --seed 6
equal d e "at temperature 0 the text depends on the seed"
text f "$tmp/run/ep0-ba4" --prompt "The licence" -n 40 --temperature 0
differ d f "the models after 4 and 8 steps generate the same text"
# Longer than the model's 32 positions: only the last 32 tokens matter.
tail32="01234567890123456789012345678901"
text g "$tmp/run" --prompt "a long beginning $tail32" -n 20 --temperature 0
text h "$tmp/run" --prompt "another one, longer still, $tail32" -n 20 --temperature 0
cmp -s <(sed "s/.*$tail32//" "$tmp/g") <(sed "s/.*$tail32//" "$tmp/h") || fail "a prompt longer than max_seq_len: the text depends on tokens before the last 32"
ok "$cltrain" generate test/golden/mpt-rope/hf --prompt ab -n 40 --temperature 0
grep -q "comes without a tokenizer" "$tmp/err" || fail "no warning about a model without a tokenizer"
grep -q "which the tokenizer does not have" "$tmp/err" || fail "no warning about tokens that are skipped"
# A run on token ids of an unsupported tokenizer: train and generate report it.
ok "$cltrain" train "$tmp/run.yaml" save_folder="$tmp/ids" tokenizer.name=some/hub max_duration=1ba
grep -q "^tokenizer.name 'some/hub' is not loaded" "$tmp/err" || fail "train does not report that a tokenizer is not loaded"
code 78 "$cltrain" generate "$tmp/ids" --prompt ab -n 2
grep -q "trained with the tokenizer 'some/hub'" "$tmp/err" || fail "generate does not name a tokenizer that is not on this machine"
ok "$cltrain" generate "$tmp/ids" --prompt ab -n 2 --tokenizer bytes
made=$(tr '\n' ' ' <"$tmp/d") made=${made#The licence}
stop=$(LC_ALL=C grep -ao '[ -~][ -~]' <<<"$made" | head -n 1)
text m "$tmp/run" --prompt "The licence" -n 40 --temperature 0 --stop nowhere --stop "$stop"
[ -n "$stop" ] || fail "the text has no two characters to stop at: '$made'"
[ "$(tr '\n' ' ' <"$tmp/m")" = "The licence${made%%"$stop"*} " ] || fail "--stop '$stop' does not end the text before its text: '$(cat "$tmp/m")'"
text o "$tmp/run" --prompt "The licence" -n 40 --top-p 1e-9 --top-k 0
equal o d "the smallest nucleus is not the most likely token"
text p "$tmp/run" --prompt "The licence" -n 40 --temperature 0 --repetition-penalty 1e9
differ p d "a penalty for repetition changes nothing"
text i "$tmp/run" -n 5
text j "$tmp/run" --prompt "nothing more" -n 0
[ "$(cat "$tmp/j")" = "nothing more" ] || fail "no new tokens: '$(cat "$tmp/j")'"
code 2 "$cltrain" generate "$tmp/run" --temperature -1
code 2 "$cltrain" generate "$tmp/run" --temperature nan
code 2 "$cltrain" generate "$tmp/run" --top-p 0
code 2 "$cltrain" generate "$tmp/run" --repetition-penalty 0
code 2 "$cltrain" generate "$tmp/run" --stop ""
code 2 "$cltrain" generate "$tmp/run" -n 4611686018427387903
code 2 "$cltrain" generate
code 74 "$cltrain" generate "$tmp/nowhere"
if has_platform intel; then
    text k "$tmp/run" --prompt "The licence" -n 40 --seed 5 --device intel
    text l "$tmp/run" --prompt "The licence" -n 40 --seed 5 --device pocl
    equal k l "Intel's runtime and PoCL generate different texts"
else
    echo "SKIP: no Intel runtime for CPUs here"
fi

# --- checkpoints ---

ok "$cltrain" ckpt ls "$tmp/run" && says ep0-ba8 && says ep0-ba4
ok "$cltrain" ckpt show "$tmp/run/ep0-ba8" && says transformer.wte.weight && says "257"
says "numbers.spike_loss               8 numbers"
if grep -q "spike_loss\.[0-9]" "$tmp/out"; then fail "ckpt show prints every number of a guard's window"; fi
ok "$cltrain" ckpt show "$tmp/run/ep0-ba8" --json && says '"spike_loss.7"'
ok "$cltrain" ckpt verify "$tmp/run"
ok "$cltrain" ckpt hash "$tmp/run/ep0-ba8" && cp "$tmp/out" "$tmp/hash8"
ok "$cltrain" ckpt hash "$tmp/run" && equal out hash8 "the hash of a folder is not that of its newest checkpoint"
ok "$cltrain" ckpt hash "$tmp/run/ep0-ba4" && differ out hash8 "two states have the same hash"
code 0 "$cltrain" ckpt diff "$tmp/run/ep0-ba8" "$tmp/run"
code 1 "$cltrain" ckpt diff "$tmp/run/ep0-ba4" "$tmp/run/ep0-ba8"
says transformer.
ok "$cltrain" ckpt export "$tmp/run" "$tmp/hf"
[ -s "$tmp/hf/config.json" ] && [ -s "$tmp/hf/model.safetensors" ] || fail "export wrote no config.json or model.safetensors"
code 74 "$cltrain" ckpt export "$tmp/run/ep0-ba4" "$tmp/hf"
grep -q "hf/config.json exists already" "$tmp/err" || fail "export does not name the file that it would replace"
ok "$cltrain" ckpt export "$tmp/run" "$tmp/hf" --overwrite
grep -q "its MptForCausalLM lacks positions without ALiBi" "$tmp/err" || fail "export does not name the feature that transformers ignores"
ok "$cltrain" ckpt export test/golden/mpt-alibi/hf "$tmp/alibi" # transformers supports all of this model
[ ! -s "$tmp/err" ] || fail "export warns about a model that transformers supports: $(cat "$tmp/err")"
# The MptConfig of transformers 5 refuses 0.0 for an int and has its own name for norm_eps.
for line in '"attn_pdrop": 0,' '"alibi_bias_max": 8,' '"layer_norm_epsilon": 1.0'; do
    grep -qF "$line" "$tmp/hf/config.json" || fail "the exported config.json has no $line"
done
text m "$tmp/hf" --prompt "The licence" -n 40 --seed 5
equal a m "the exported model generates another text"
ok "$cltrain" ckpt import "$tmp/hf" "$tmp/back/ep0-ba0"
ok "$cltrain" ckpt hash "$tmp/back" && head -n 1 "$tmp/out" >"$tmp/line"
head -n 1 "$tmp/hash8" >"$tmp/line8" && equal line line8 "export and import change the weights"
code 0 "$cltrain" ckpt diff "$tmp/run/ep0-ba8" "$tmp/back/ep0-ba0" # the second has no moments to compare
# eval accepts an export.
ok "$cltrain" eval -q "$tmp/run.yaml" load_path="$tmp/hf" && cp "$tmp/out" "$tmp/eval-hf"
ok "$cltrain" eval -q "$tmp/run.yaml" load_path="$tmp/run" && says '"eval_loss"'
says '"batch":8,'
cmp -s <(sed 's/"batch":8,/"batch":0,/' "$tmp/out") "$tmp/eval-hf" || fail "the export has another evaluation loss"
logged=$(sed -n 's/.*"batch":8,.*"eval_loss":\([^,]*\),.*/\1/p' "$tmp/run/metrics.jsonl")
grep -qF "\"eval_loss\":$logged," "$tmp/out" || fail "eval gives $(cat "$tmp/out"), the run's own evaluation $logged"

# --- report ---

ok "$cltrain" report "$tmp/run" --out "$tmp/report.html"
page=$tmp/report.html
head -c 15 "$page" | grep -qi '^<!doctype html>' || fail "the report does not begin with a doctype"
tail -c 10 "$page" | grep -q '</html>' || fail "the report does not end with </html>"
for tag in html head body style svg table title; do
    [ "$(grep -oE "<${tag}[ >]" "$page" | wc -l)" = "$(grep -o "</$tag>" "$page" | wc -l)" ] || fail "the report: <$tag> and </$tag> do not match"
done
[ "$(grep -o '<svg' "$page" | wc -l)" -ge 2 ] || fail "the report has no curves"
if grep -qiE '<link|<img|src *=|@import|url\(|href *= *"?http' "$page"; then fail "the report needs other files"; fi
if grep -q '<b>&"' "$page"; then fail "the report does not escape the run's name"; fi
grep -q '&lt;b&gt;&amp;' "$page" || fail "the report does not name the run"
if grep -qiE '[^a-z](nan|inf)[^a-z]' <(sed -n '/<svg/,/<\/svg>/p' "$page"); then fail "the report's curves contain nan or inf"; fi
grep -q '<b>[0-9.]* %</b><span>effective training time</span>' "$page" || fail "the report has no effective training time"
grep -q '<td>start</td>' "$page" || fail "the report has no events"
code 74 "$cltrain" report "$tmp/nowhere"
# Checkpoints with a mean stall of 2 s, steps of 0.5 s, a failure every hour: sqrt(2 * 3600 * 2) = 120 s = 240
# batches.
mkdir "$tmp/young"
printf '{"batch":%d,"loss":1,"step_seconds":0.5}\n' 1 2 3 >"$tmp/young/metrics.jsonl"
printf '{"event":"checkpoint","batch":3,"stall_seconds":%s}\n' 1.5 2.5 >>"$tmp/young/metrics.jsonl"
ok "$cltrain" report "$tmp/young"
grep -q '<td>hour</td><td>2m00s</td><td>240</td>' "$tmp/young/report.html" || fail "Young's interval: $(grep '<td>hour' "$tmp/young/report.html")"
# Losses 1, 2, 3 against 1, 2.5, 3, 4: three common batches, the largest difference 0.5 at batch 2, the mean
# 1/6.
mkdir "$tmp/one" "$tmp/o&her"
printf '{"batch":%d,"loss":%s}\n' 1 1 2 2 3 3 >"$tmp/one/metrics.jsonl"
printf '{"batch":%d,"loss":%s}\n' 1 1 2 2.5 3 3 4 4 >"$tmp/o&her/metrics.jsonl"
ok "$cltrain" report "$tmp/one" "$tmp/o&her" "$tmp/one" --svg "$tmp/losses.svg"
grep -q 'o&amp;her</td><td>3</td><td>0.5, at batch 2</td><td>0.167</td><td>0</td>' "$tmp/one/report.html" || fail "two runs: $(grep 'her</td>' "$tmp/one/report.html")"
grep -q '<td>0: the same losses</td>' "$tmp/one/report.html" || fail "equal losses are not reported as equal"
[ "$(grep -c 'xmlns=.http://www.w3.org/2000/svg' "$tmp/losses.svg")" = 1 ] && grep -q '>o&amp;her<' "$tmp/losses.svg" || fail "the picture of two runs"
# Large batch numbers and rates are written in full, events with the digits of the file; a logarithmic axis
# has lines at 1, 2 and 5.
mkdir "$tmp/large"
printf '{"batch":%d,"loss":1,"tokens_per_sec":%s,"grad_norm":%s}\n' 1000000 5e5 0.6 1234567 6e5 16 >"$tmp/large/metrics.jsonl"
echo '{"event":"checkpoint","batch":1234567,"stall_seconds":0.856}' >>"$tmp/large/metrics.jsonl"
ok "$cltrain" report "$tmp/large"
for word in '<td>1234567</td>' '"stall_seconds":0.856}' '>520000<' '>1200000<' '>0.6<' '>5<' '>10<'; do
    grep -qF -- "$word" "$tmp/large/report.html" || fail "the report of a long run has no $word"
done
grep -qi 'nan' "$tmp/large/report.html" && fail "the report of rows without tokens has coordinates that are no numbers"
# Each evaluation data set has its own losses; the last row of a batch number counts; medians skip missing
# values.
mkdir "$tmp/evals"
printf '{"batch":%d,"loss":1,"tokens_per_sec":%s}\n' 1 9 2 null 3 1 4 2 >"$tmp/evals/metrics.jsonl"
printf '{"batch":4,"label":"%s","eval_loss":%s}\n' few 2.5 "a<b" 9.5 few 2.25 >>"$tmp/evals/metrics.jsonl"
ok "$cltrain" report "$tmp/evals"
for word in '<b>2.2500</b><span>evaluation loss: few</span>' '<b>9.5000</b><span>evaluation loss: a&lt;b</span>' \
    '<b>2</b><span>tokens per second (median)</span>'; do
    grep -qF -- "$word" "$tmp/evals/report.html" || fail "the report of several evaluations has no $word"
done
[ "$(sed "/<div class='x x1'>/,\$d" "$tmp/evals/report.html" | grep -o '<circle' | wc -l)" = 2 ] || fail "the report shows superseded evaluations"
mkdir "$tmp/torn"
head -c 700 "$tmp/run/metrics.jsonl" >"$tmp/torn/metrics.jsonl"
printf '\n{"batch":"x"}\n[1]\nnot json <script>\n' >>"$tmp/torn/metrics.jsonl"
ok "$cltrain" report "$tmp/torn" # only the incomplete line is lost

# --- tune: with its own cache, so that no other test uses choices measured on a busy machine ---
export CLTRAIN_CACHE_DIR=$tmp/cache
ok "$cltrain" tune "$tmp/run.yaml" --seconds 0.001
says "were not measured; increase --seconds"
ok "$cltrain" tune "$tmp/run.yaml" --seconds 600
says "NT 32x96x32 fp32>fp32 exact"
says "saved in $tmp/cache/tune.csv"
ok "$cltrain" tune "$tmp/run.yaml" --export
! grep -v ',-,[^,]*,[^,]*$' "$tmp/out" || fail "tune --export prints more than lines for tuned.csv"
grep -q "^gemm,NT 32x96x32 fp32>fp32 exact,[a-z0-9_]*,[0-9.e-]*,0,-,." "$tmp/out" || fail "tune --export prints no line for tuned.csv"
ok "$cltrain" train -q "$tmp/run.yaml" max_duration=2ba "save_folder=$tmp/tuned"
cut -d' ' -f1-3 <(steps_of "$tmp/tuned") >"$tmp/tuned.steps"
ok "$cltrain" train -q "$tmp/run.yaml" max_duration=2ba cltrain.tune=off "save_folder=$tmp/untuned"
cmp "$tmp/tuned.steps" <(steps_of "$tmp/untuned") || fail "exact bits depend on tuning"
rm "$tmp/cache/tune.csv" && mkdir "$tmp/cache/tune.csv" # saving fails
code 74 "$cltrain" tune "$tmp/run.yaml" --seconds 600
if grep -q "^saved in" "$tmp/out"; then fail "tune reports success although it could not write"; fi
rmdir "$tmp/cache/tune.csv"
code 2 "$cltrain" tune "$tmp/run.yaml" --seconds 0
code 2 "$cltrain" tune
code 78 "$cltrain" train -n "$tmp/run.yaml" cltrain.tune=often
finish
