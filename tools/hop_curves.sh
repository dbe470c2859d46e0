#!/usr/bin/env bash
# Trains one model on real text from one checkpoint in four ways: with exact numerics and with 16-bit types,
# each on one device and hopping between two devices. Prints the drift of each run's loss from the exact run
# and draws all curves into OUT/curves.svg. Exits with code 1 if the exact run with hops is not bit-identical
# to the exact run without.
#
#   tools/hop_curves.sh OUT_FOLDER [key=value ...]
#     DATA     data set of 64-token samples of bytes with train/ and val/ (default: made from text of this machine)
#     HERE     device of the runs without hops (default: nvidia)   THERE   the other device of a hop (default: pocl)
#     BATCHES  length of each run (default 120)                    LEGS    legs of a hop (default: HERE 15 batches, THERE 5)
#     CLTRAIN  the program (default build/cltrain)
set -euo pipefail
cd "$(dirname "$0")/.."
CLTRAIN=$(readlink -f "${CLTRAIN:-${BUILD:-build}/cltrain}")
[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/p}' "$0"; exit 2; }
out=$1
shift
HERE=${HERE:-nvidia} THERE=${THERE:-pocl} BATCHES=${BATCHES:-120}
LEGS=${LEGS:-$HERE*1:15ba,$THERE*1:5ba}
mkdir -p "$out"
# A finished run would not train again, and its bits, perhaps of another build, would be compared.
finished=("$out"/exact-hop/ep*-ba"$((BATCHES + 10))")
[ ! -e "${finished[0]}" ] || { echo "$out has finished runs: remove it, or use another folder" >&2; exit 2; }
if [ -z "${DATA:-}" ]; then
    DATA=$out/data
    tools/collect_text.sh "$out/text"
    [ -e "$DATA/val/index.json" ] || "$CLTRAIN" -q data convert "$out/text" --out "$DATA" --concat-tokens 64 --eos --val-fraction 0.02
fi

settings=(tools/presets/mpt-125m.yaml "variables.data_local=$DATA" max_seq_len=64
    train_loader.dataset.max_seq_len=64 eval_loader.dataset.max_seq_len=64 tokenizer.name=bytes
    global_train_batch_size=8 device_train_microbatch_size=8 device_eval_batch_size=8 scheduler.t_warmup=20ba
    "scheduler.t_max=$((BATCHES + 10))ba" eval_interval=1000ba eval_subset_num_batches=16 log_config=false log_to_console=false
    progress_bar=false save_num_checkpoints_to_keep=2 save_interval=1000ba cltrain.exact_lanes=1 "$@")
end="max_duration=$((BATCHES + 10))ba"
say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

# train NAME PROGRAM-WORDS -- key=value ...: trains from the first checkpoint to the end
train() {
    local name=$1 how=()
    shift
    while [ "$1" != -- ]; do how+=("$1") && shift; done
    shift
    local start=$SECONDS
    "${how[@]}" train -q "${settings[@]}" "$end" save_folder="$out/$name" load_path="$out/first" "$@" >"$out/$name.log" 2>&1 ||
        { tail -n 20 "$out/$name.log"; exit 1; }
    say "$name: $((SECONDS - start)) s"
}

say "first checkpoint: 10 batches with exact numerics on $HERE"
"$CLTRAIN" train -q "${settings[@]}" max_duration=10ba precision=fp32 cltrain.numerics=exact --device "$HERE" \
    save_folder="$out/first" >"$out/first.log" 2>&1 || { tail -n 20 "$out/first.log"; exit 1; }
train exact "$CLTRAIN" -- precision=fp32 cltrain.numerics=exact --device "$HERE"
train bf16 "$CLTRAIN" -- precision=amp_bf16 --device "$HERE"
train bf16-hop "$CLTRAIN" launch --hop "$LEGS" -- precision=amp_bf16
train exact-hop "$CLTRAIN" launch --hop "$LEGS" -- precision=fp32 cltrain.numerics=exact

# The table of the report: each run's loss compared with the exact run's.
runs=("$out/exact" "$out/bf16" "$out/bf16-hop" "$out/exact-hop")
"$CLTRAIN" report "${runs[@]}" --svg "$out/curves.svg" -o "$out/curves.html"
sed -n '/<h2>Comparison/,/<\/table>/s/^.*\(<tr>.*\)<\/tr>.*$/\1/p' "$out/curves.html" |
    awk -F '</t[dh]>' '{ gsub(/<t[rdh]>/, ""); printf "%-24s %20s %26s %12s %24s\n", $1, $2, $3, $4, $5 }'
for run in "${runs[@]}"; do
    hash=$("$CLTRAIN" ckpt hash "$run")
    echo "${run##*/}: evaluation loss $(sed -n 's/.*"eval_loss":\([^,}]*\).*/\1/p' "$run/metrics.jsonl" | tail -n 1), ${hash//$'\n'/, }"
    [ -n "${exact:-}" ] || exact=$hash
done
[ "$hash" = "$exact" ] || { echo "the exact run with hops is not bit-identical to the exact run without hops: LEGS=$LEGS" >&2; exit 1; }
say "the exact run with hops is bit-identical to the exact run without hops"
