#!/bin/bash
# The command frame: help, version, exit codes, suggestions; and configuration errors as a user meets them.
set -u
c=$BUILD/cltrain
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
bad=0
complain() {
    echo "wrong: $*"
    bad=1
}

# expect CODE WORD ARGUMENTS...: the exit code, and a word somewhere in what is printed.
expect() {
    local code=$1 word=$2 out got
    shift 2
    out=$("$c" "$@" 2>&1)
    got=$?
    [ $got = "$code" ] || complain "cltrain $*: exit $got, not $code"
    [[ $out == *"$word"* ]] || complain "cltrain $*: no '$word' in: $out"
}

expect 0 "Examples" --help
expect 0 "Examples" -h
expect 0 "cltrain 0." --version
expect 0 "CLTRAIN_CACHE_DIR" --help-env
expect 2 "Usage"
expect 2 "did you mean train" trian
expect 2 "did you mean --version" --verson
expect 2 "--color" --color=sometimes devices
expect 2 "did you mean --json" devices --jsn
expect 2 "needs a value" generate --prompt
expect 2 "whole number" generate --seed many x
expect 2 "takes no value" devices --json=1
expect 2 "configuration" train
expect 2 "no kernel variant is named by 'gemm=none'" devices --rows --disable-row 'norm=*,gemm=none'
expect 0 "without not_disabled: cpu, wide" devices --rows --disable-row 'cast=cpu,cast=wide'
expect 0 '"cast":[{"id":"cpu"' devices --rows --json

for name in $("$c" --help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    out=$("$c" "$name" --help 2>"$dir/err") || complain "cltrain $name --help fails"
    [ -s "$dir/err" ] && complain "cltrain $name --help writes to stderr"
    [[ $out == *"  cltrain $name"* ]] || complain "cltrain $name --help has no example"
done

run=test/golden/mpt-learned/train.yaml
expect 78 "no such file" train "$dir/none.yaml"
expect 78 "did you mean 'optimizer'" train $run optimzer.lr=1
expect 78 "multiple of 16" train $run precision=amp_fp8 max_seq_len=40
expect 2 "key.sub=value" train $run nonsense
expect 78 "is a folder: give a YAML file" eval "$dir"
expect 74 "is this the folder of a run?" report "$dir"
expect 0 "300 tokens" data train-tokenizer README.md --vocab-size 300 --out "$dir/tokenizer"
expect 74 "not overwritten" data train-tokenizer README.md --vocab-size 280 --out "$dir/tokenizer"
expect 74 "has no tokenizer.json; the transformers package makes one" \
    data convert README.md --out "$dir/none" --concat-tokens 64 --tokenizer "$dir"
expect 0 "tokens are bytes" data convert README.md --out "$dir/bytes" --concat-tokens 64
expect 0 "has 64 tokens, and max_seq_len is 48" data batches $run -n 1 train_loader.dataset.local="$dir/bytes" \
    max_seq_len=48 train_loader.dataset.max_seq_len=48
expect 0 "280 tokens" data train-tokenizer README.md --vocab-size 280 --overwrite --out "$dir/tokenizer"
expect 0 "configuration is valid; devices, memory, data, schedule and checkpoints were not checked" train $run --dry-run
expect 0 "key profiler has no effect here" train $run --dry-run profiler={}
expect 0 "optimizer.disable_grad: 'wqe' matches no tensor" train $run --dry-run optimizer.disable_grad=wqe
expect 0 "exact_lanes: 8  # default" train $run --print-config
expect 0 "lr: 0.5  # command line (optimizer.lr=0.5)" train $run --print-config optimizer.lr=0.25 optimizer.lr=0.5
expect 0 "seed: 17  # $run:3:7" train --print-config $run
expect 2 "--stage must be 0 to 3" plan $run --stage 4
expect 2 "--stage 2 needs several ranks" plan $run --stage 2
expect 78 "does not suit 3 ranks" plan $run --device h200 --ranks 3 'fsdp_config={data_parallel_shard_degree: 2}'
expect 0 "host memory" plan $run --device h200 cltrain.offload=host
expect 0 "host memory" plan $run --device h200 --ranks 2 --stage 1 cltrain.offload=host
expect 0 "zero_stage   auto: 0, every rank keeps" plan $run --device h200 --ranks 2
expect 0 "zero_stage   auto: 1, the lowest" plan $run --device h200 --ranks 2 cltrain.guards.replica_hash_interval=0
expect 0 "zero_stage   2, as configured: fits" plan $run --device h200 --ranks 2 cltrain.zero_stage=2
expect 1 "what would fit at stage 3: " plan tools/presets/mpt-13b.yaml --device h200 --ranks 2 fsdp_config=null
expect 1 "what would fit: cltrain.zero_stage: 3" plan tools/presets/mpt-7b.yaml --device h200 --ranks 2 cltrain.zero_stage=0 fsdp_config=null
"$c" plan $run --device h200 --ranks 4 --stage 2 --json >"$dir/plan.json" || complain "plan --json fails"
python3 - "$dir/plan.json" <<'PY' || complain "plan --json does not list the stages"
import json, sys
p = json.load(open(sys.argv[1]))
uses = ["weights", "weights_16", "gradients", "optimizer", "exchange", "activations"]
right = [sum(s[u] for u in uses) == s["total"] and s["fits"] for s in p["stages"]]
sys.exit(right != 4 * [True] or p["stage"] != 2 or p["stages"][2]["total"] != p["total"])
PY
printf 'model:\n  d_model: 64\n  d_model: 65\n' >"$dir/twice.yaml"
expect 78 "twice.yaml:3:3" train "$dir/twice.yaml"
printf 'model: &a {x: *a}\n' >"$dir/circle.yaml"
expect 78 "circle.yaml:1:15" train "$dir/circle.yaml"
{
    echo 'a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]'
    for i in {1..9}; do echo "a$i: &a$i [$(printf "*a$((i - 1)), %.0s" {1..10})]"; done
} >"$dir/laughs.yaml"
expect 65 "laughs.yaml:5:" train "$dir/laughs.yaml"
# What comes from an alias is placed where it was written, and can be overridden.
{ echo 'base: &base {lr: fast}'; sed 's/^optimizer:/&\n  <<: *base/; /^  lr:/d' $run; } >"$dir/merged.yaml"
expect 78 "merged.yaml:1:18: key 'optimizer.lr'" train "$dir/merged.yaml"
expect 0 "key base has no effect here" train "$dir/merged.yaml" --dry-run optimizer.lr=1e-3

out=$(CLTRAIN_DEVIC=x "$c" --version 2>&1)
[[ $out == *"did you mean CLTRAIN_DEVICE"* ]] || complain "a mistyped environment variable is not named: $out"
out=$("$c" --color=always trian 2>&1)
[[ $out == *$'\033['* ]] || complain "--color=always gives no colour"
out=$(NO_COLOR=1 "$c" trian 2>&1)
[[ $out != *$'\033['* ]] || complain "NO_COLOR is not honoured"

# An anchor that is missing, or does not support the type, is reported and skipped.
for anchor in clblast openblas; do
    c=$BUILD/clbench expect 0 "$anchor supports fp32 tensors only; skipped" \
        gemm --suite mpt-small --only "qkv 1024x256x768" --type bf16 --anchor $anchor --seconds 0.01
done

# A file for rows that cannot be written is said before anything is measured.
for bench in "gemm --suite mpt-125m" "step --suite cpu"; do
    # shellcheck disable=SC2086
    c=$BUILD/clbench expect 74 "--json $dir/none/rows.json cannot be written" $bench --json "$dir/none/rows.json"
    # shellcheck disable=SC2086
    c=$BUILD/clbench expect 74 "--json $dir is a folder" $bench --json "$dir"
done

# Options of clbench step are refused as such, not as keys of a configuration.
step() { c=$BUILD/clbench expect 2 "$1" step --suite cpu "${@:2}"; }
step "--precision must be fp32, amp_bf16, amp_fp16, exact8 or amp_fp8, not 'bf16'" --precision bf16
step "--numerics must be exact or fast, not 'loose'" --numerics loose
step "--recompute must be none, norms or blocks, not 'all'" --recompute all
step "--seconds must be above 0" --seconds 0
step "--peak must be above 0" --peak=-1

# Standard files that are closed: nothing that is opened later takes their places.
mkfifo "$dir/lines"
"$c" data tokenize 0<"$dir/lines" >&- 2>&- &
pid=$!
exec 9>"$dir/lines"
for _ in {1..2000}; do
    places=$(readlink /proc/$pid/fd/1 /proc/$pid/fd/2)
    [ "$places" = $'/dev/null\n/dev/null' ] && break
    sleep 0.05
done
[ "$places" = $'/dev/null\n/dev/null' ] || complain "closed standard files are: $places"
exec 9>&-
wait $pid
exit $bad
