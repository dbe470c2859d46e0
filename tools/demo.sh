#!/usr/bin/env bash
# A complete run of cltrain on real text, from text files to generated text and a report. `make demo` runs it.
#   novels -> train-tokenizer -> data convert -> train -> the same run on two ranks -> eval -> generate -> report
# All output goes to one folder (default demo/). An interrupted demo resumes; a finished one starts again. An
# installed copy uses the installed program and the current folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -f "$here/../Makefile" ]; then
    cd "$here/.."
    CLTRAIN=${CLTRAIN:-${BUILD:-build}/cltrain}
    presets=tools/presets
else
    CLTRAIN=${CLTRAIN:-cltrain}
    presets=$here/../presets
fi
OUT=${1:-demo}
DEVICE=${DEMO_DEVICE:-}
start=$SECONDS
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || say() { printf '\n%s\n' "$*"; }

on_exit() {
    local code=$?
    [ $code = 0 ] || say "The demo stopped with exit code $code. Run it again to resume."
}
trap on_exit EXIT

# Resume only with an unchanged configuration.
mkdir -p "$OUT"
sed "s|@OUT@|$OUT|g" "$here/demo.yaml" > "$OUT/run.yaml.new"
if cmp -s "$OUT/run.yaml.new" "$OUT/run.yaml" && [ ! -e "$OUT/finished" ]; then
    say "Resuming the interrupted demo in $OUT (to start again: rm -r $OUT)"
else
    rm -rf "${OUT:?}"/{text,tokenizer,data,run,run.yaml,finished}
fi
mv "$OUT/run.yaml.new" "$OUT/run.yaml"

say "1. Fetching the text: Jane Austen's novels"
"$here/demo_text.sh" "$OUT/text"

say "2. cltrain data train-tokenizer: 4,096 tokens"
[ -e "$OUT/tokenizer/tokenizer_config.json" ] ||
    "$CLTRAIN" data train-tokenizer "$OUT/text" --vocab-size 4096 --overwrite --out "$OUT/tokenizer"

say "3. cltrain data convert: MDS shards with zstd and hashes"
if [ ! -e "$OUT/data/train/index.json" ] || [ ! -e "$OUT/data/val/index.json" ]; then
    rm -rf "$OUT/data"
    "$CLTRAIN" data convert "$OUT/text" --out "$OUT/data" --tokenizer "$OUT/tokenizer" --split train --val-fraction 0.05 \
        --concat-tokens 256 --eos --compression zstd --hashes sha1,xxh64
fi
"$CLTRAIN" data verify "$OUT/data/train"

overrides=()
[ -z "$DEVICE" ] || overrides+=("cltrain.device=$DEVICE")

say "4. cltrain train: an MPT with 2.6 M parameters"
"$CLTRAIN" train "$OUT/run.yaml" max_duration=600ba "${overrides[@]}"

say "5. The same run continues with two ranks (cltrain launch -n 2)"
"$CLTRAIN" launch -n 2 train "$OUT/run.yaml" "${overrides[@]}"

say "6. cltrain eval"
"$CLTRAIN" eval "$OUT/run.yaml" load_path="$OUT/run" "${overrides[@]}"

say "7. cltrain generate"
"$CLTRAIN" generate "$OUT/run" --prompt "It is a truth universally acknowledged, that" --max-new-tokens 200 --temperature 0.7 \
    ${DEVICE:+--device "$DEVICE"} >"$OUT/generated.txt"
fold -s -w 100 "$OUT/generated.txt"

say "8. cltrain report"
"$CLTRAIN" report "$OUT/run"

touch "$OUT/finished"
say "Done in $((SECONDS - start)) s. Results:"
cat <<TXT
  $OUT/data          the data set (MDS, samples: $("$CLTRAIN" data show "$OUT/data/train" | sed -n 's/^ *samples *//p'))
  $OUT/run.yaml      the configuration, LLM Foundry's format
  $OUT/run           checkpoints, metrics.jsonl, log.txt, report.html
Try next:
  $CLTRAIN devices                                          the devices of this machine
  $CLTRAIN generate $OUT/run --prompt "Mr. Darcy" --top-p 0.9
  $CLTRAIN train $OUT/run.yaml max_duration=1500ba scheduler.t_max=1500ba   resumes from the last checkpoint
  $CLTRAIN ckpt ls $OUT/run
  $CLTRAIN plan $presets/mpt-125m.yaml                 memory that a larger model needs
TXT
