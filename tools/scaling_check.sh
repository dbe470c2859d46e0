#!/usr/bin/env bash
# Compares the cost model of docs/scaling.md with this machine: measures the rates of a CPU device, trains on 1, 2, 4
# and 8 ranks that share its cores, and prints measured and predicted step times and their ratio.
#
#   tools/scaling_check.sh                     the small model of tools/bench/bench.yaml
#   RANKS="1 2" tools/scaling_check.sh model.d_model=768 model.n_layers=12 model.n_heads=12 model.vocab_size=50368
#
# Variables: DEVICE (default portable), RANKS (default "1 2 4 8", powers of two), SEQ (256), SAMPLES of a microbatch (2),
# STEPS of a run (8), REPEATS of everything (3). Close other programs first. Times are the least over all repetitions.
#
# The speed of passes is measured with all ranks at work: it is the slope between steps of 2 and of 6 microbatches per
# rank. What is predicted is the rest of the step with 2 microbatches: update, copies and additions, from rates that
# clbench measures. A microbatch is a lane's, and a rank has one lane, so ranks add nothing before they exchange.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}; case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
CLTRAIN=${CLTRAIN:-$BUILD/cltrain} CLBENCH=${CLBENCH:-$BUILD/clbench}
DEVICE=${DEVICE:-portable} RANKS=${RANKS:-1 2 4 8} SEQ=${SEQ:-256} SAMPLES=${SAMPLES:-2} STEPS=${STEPS:-8} REPEATS=${REPEATS:-3}
FEW=2 MANY=6 # microbatches per rank
cores=$(nproc)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
config=$PWD/tools/bench/bench.yaml
sizes=(max_seq_len="$SEQ" model.max_seq_len="$SEQ" train_loader.dataset.max_seq_len="$SEQ"
    train_loader.dataset.local="$work/data" cltrain.numerics=exact "$@")

# least: the smallest of the numbers on stdin
least() { sort -g | head -1; }
# calc EXPRESSION: with enough digits for times
calc() { awk "BEGIN {printf \"%.9g\", ($1)}"; }

# kernel_rate BENCHMARK ROW THREADS: GB/s
kernel_rate() {
    "$CLBENCH" "$1" --device "$DEVICE" --only "$2" --threads "$3" --seconds 0.5 --json "$work/rate.json" > /dev/null
    sed -n 's/.*"gbps": \([0-9.]*\).*/\1/p' "$work/rate.json"
}
# best_rate BENCHMARK ROW THREADS: the largest of all repetitions
best_rate() { for _ in $(seq "$REPEATS"); do kernel_rate "$@"; done | sort -gr | head -1; }

# step_seconds RANKS MICROBATCHES: the least step time after the third step
step_seconds() {
    local n=$1 m=$2 folder=$work/run-$1-$2
    for _ in $(seq "$REPEATS"); do
        rm -rf "$folder"
        (cd "$work" && "$CLTRAIN" launch -n "$n" train -q "$config" --device "$DEVICE" save_folder="$folder" \
            global_train_batch_size=$((n * m * SAMPLES)) device_train_microbatch_size="$SAMPLES" \
            cltrain.exact_lanes="$n" max_duration="${STEPS}ba" save_interval=1000000ba "${sizes[@]}") > "$work/log" 2>&1 ||
            { cat "$work/log" >&2; return 1; }
        sed -n 's/.*"step_seconds":\([0-9.]*\).*/\1/p' "$folder/metrics.jsonl" | tail -n +4
    done | least
}

# predict RANKS PASS_SECONDS: the step with FEW microbatches
predict() {
    local n=$1 pass=$2
    "$CLBENCH" schedule "$config" --ranks "$n" --stage 0 --microbatches $FEW --microbatch "$SAMPLES" --one-queue \
        --pass-seconds "$pass" --update "$(calc "$update / $n")" --add "$(calc "$add / $n")" \
        --out "$copy_one" --in "$copy_one" --host "$copy_all" --json "$work/step.json" "${sizes[@]}" > "$work/log" ||
        { cat "$work/log" >&2; return 1; }
    sed -n 's/.*"step_seconds": \([0-9.e-]*\).*/\1/p' "$work/step.json"
}

echo "machine      $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $cores threads, load $(awk '{print $1}' /proc/loadavg), $(date +%F)"
find . -path ./build -prune -o -name '*.c' -print | sort | xargs cat > "$work/all.txt"
head -c 400000 "$work/all.txt" > "$work/text.txt"
"$CLTRAIN" -q data convert "$work/text.txt" --out "$work/data" --split train --concat-tokens "$SEQ" > /dev/null

# Rates of all cores together; ranks divide them. A copy reads and writes each byte, so half its rate is moved.
add=$(best_rate copy add "$cores")
update=$(best_rate optimizer adamw "$cores")
copy_one=$(calc "$(best_rate copy copy 1) / 2")
copy_all=$(calc "$(best_rate copy copy "$cores") / 2")
[ "$(calc "$copy_all >= $copy_one")" = 1 ] || copy_all=$copy_one
echo "rates        additions $add GB/s, AdamW $update GB/s, copies $copy_one GB/s on one core, $copy_all GB/s on all"
echo
printf '%5s %6s %12s %12s %12s %10s %9s\n' ranks cores "pass s" "measured s" "predicted s" ratio scaling
for n in $RANKS; do
    few=$(step_seconds "$n" $FEW)
    many=$(step_seconds "$n" $MANY)
    pass=$(calc "($many - $few) / ($MANY - $FEW)")
    predicted=$(predict "$n" "$pass")
    : "${one:=$few}"
    printf '%5d %6s %12.6f %12.6f %12.6f %10.3f %9.3f\n' "$n" "$(calc "$cores / $n")" "$pass" "$few" "$predicted" \
        "$(calc "$predicted / $few")" "$(calc "$one * $n / $few / ${RANKS%% *}")"
done
echo
echo "ratio: predicted over measured. scaling: tokens per second over those of the first row, on the same cores."
