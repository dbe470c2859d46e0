#!/bin/bash
# cltrain generate --prompts: every prompt of a JSONL file gets the text that it gets alone, in the file's order, however
# many go together; 16-bit types; refused options and files.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
model=$golden/icl/hf tokenizer=$golden/finetune/tokenizers/plain
say() { "$cltrain" generate "$model" -q --tokenizer "$tokenizer" -n 12 "$@" 2>"$log"; }
refused() {
    local code=$1 word=$2
    shift 2
    say "$@" >/dev/null
    local got=$?
    [ $got = "$code" ] && grep -qF -- "$word" "$log" || fail "generate $*: exit $got, $(cat "$log")"
}

cat >"$tmp/prompts.jsonl" <<'EOT'
{"prompt": "The capital of France is"}
{"prompt": "A \"quoted\" word\nand a line", "id": 7}
{"prompt": "b"}

{"prompt": "The capital of Spain is a town that"}
EOT
python3 - "$tmp/prompts.jsonl" "$tmp" <<'PY'
import json, sys
for n, line in enumerate(filter(str.strip, open(sys.argv[1]))):
    open(f"{sys.argv[2]}/prompt{n}", "w").write(json.loads(line)["prompt"])
PY
for n in 0 1 2 3; do say --prompt "$(cat "$tmp/prompt$n")" >"$tmp/alone$n" || fail "one prompt: $(cat "$log")"; done
for batch in 1 3 8; do
    say --prompts "$tmp/prompts.jsonl" --batch $batch >"$tmp/all" || fail "--batch $batch: $(cat "$log")"
    python3 - "$tmp" <<'PY' || fail "--batch $batch"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/all")]
assert len(rows) == 4, rows
for n, row in enumerate(rows):
    alone = open(f"{sys.argv[1]}/alone{n}").read()
    assert row["prompt"] == open(f"{sys.argv[1]}/prompt{n}").read(), row
    assert row["prompt"] + row["text"] + "\n" == alone, (row, alone)
    assert row["text"]
PY
done
for type in bf16 fp16; do
    say --prompts "$tmp/prompts.jsonl" --precision $type -t 0 >"$tmp/$type" || fail "--precision $type: $(cat "$log")"
    [ "$(wc -l <"$tmp/$type")" = 4 ] || fail "--precision $type: $(cat "$tmp/$type")"
done
say --prompts "$tmp/prompts.jsonl" -n 0 >"$tmp/none" && [ "$(grep -c '"text": ""' "$tmp/none")" = 4 ] || fail "-n 0"

refused 2 "--precision must be" --precision fp8 -p x
refused 2 "--batch must be" --prompts "$tmp/prompts.jsonl" --batch 0
refused 2 "--prompts excludes" --prompts "$tmp/prompts.jsonl" -p x
echo '{"text": 1}' >"$tmp/bad.jsonl"
refused 65 "bad.jsonl:1" --prompts "$tmp/bad.jsonl"
: >"$tmp/empty.jsonl"
refused 65 "has no prompts" --prompts "$tmp/empty.jsonl"
finish
