#!/bin/bash
# Fine-tuning data: packed rows have one hash on any number of ranks and after stops, across epochs; 'data
# batches' prints the batches that LLM Foundry made and those of every rank; bad data are named by file and line.
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
data=train_loader.dataset
set=$golden/finetune

# Packed rows, eight batches in three epochs with a short last batch each.
conf=(train.yaml model.n_layers=1 eval_loader=null load_path=hf load_weights_only=true
    load_strict_model_weights=false global_train_batch_size=8 train_loader.drop_last=false
    max_seq_len=160 model.max_seq_len=160 "$data.max_seq_len=160" "$data.packing_ratio=2.7"
    "$data.max_leftover_bins_to_keep=3" max_duration=8ba)

# run FOLDER RANKS [key=value ...]
run() {
    local folder=$tmp/$1 ranks=$2
    shift 2
    (cd "$set/train-packed" && on_ranks "$ranks" train -q --device pocl "${conf[@]}" save_folder="$folder" "$@") \
        >"$folder.log" 2>&1
}

want=
one_hash() {
    local name=$1 got
    got=$("$cltrain" ckpt hash "$tmp/$2")
    if [ -z "$want" ]; then
        want=$got
    elif [ "$got" != "$want" ]; then
        fail "$name: hashes differ: $got, not $want"
        return
    fi
    echo "same: $name"
}

ended() { tail -n 5 "$tmp/$1.log"; fail "run '$1' failed"; }

run one 1 || ended one
one_hash "packed on 1 rank" one
run two 2 || ended two
one_hash "2 ranks" two
run four 4 device_train_microbatch_size=1 || ended four
one_hash "4 ranks, microbatch 1" four
# A run that --stop-after ends has its own exit code.
run stop 1 --stop-after 3ba --log-samples "$tmp/ids"
run stop 4 --stop-after 2ba --log-samples "$tmp/ids"
run stop 2 --log-samples "$tmp/ids" || ended stop
one_hash "stopped after 3 and 5 batches, resumed on 4 and 2 ranks" stop
# What the three legs logged is what data batches prints.
(cd "$set/train-packed" && "$cltrain" data batches "${conf[@]}" -n 8) >"$tmp/batches.jsonl" || fail "data batches"
python3 - "$tmp/batches.jsonl" "$tmp"/ids/rank*.jsonl <<'END' || fail "the samples that the run logged"
import json, sys
want = [[i for row in json.loads(line)["sample_ids"] for i in row] for line in open(sys.argv[1])]
seen = {(x["batch"], x["place"]): x["samples"] for p in sys.argv[2:] for x in map(json.loads, open(p))}
got = [[i for key in sorted(seen) if key[0] == b + 1 for i in seen[key]] for b in range(8)]
assert got == want and all(len(b) >= 12 for b in want[:2]), (got, want)
END
run other 1 $data.packing_ratio=2.4 || ended other
[ "$("$cltrain" ckpt hash "$tmp/other")" != "$want" ] || fail "another packing ratio has the same hash"

# The same over two weighted streams.
want=
mixed=("$data.hf_name=null" "$data.max_seq_len=512" "$data.batching_method=stratified"
    "$data.streams={a: {local: ../data/mds, split: train, repeat: 1.5}, b: {local: ../data/mds-messages, split: ''}}"
    max_seq_len=512 model.max_seq_len=512 load_path=null max_duration=6ba)
run mixed 1 "${mixed[@]}" || ended mixed
one_hash "streams on 1 rank" mixed
run parts 2 "${mixed[@]}" --stop-after 3ba
run parts 4 "${mixed[@]}" device_train_microbatch_size=1 || ended parts
one_hash "streams stopped after 3 batches on 2 ranks, resumed on 4" parts

# batches SET [key=value ...]: what data batches prints
batches() {
    local set_=$1
    shift
    (cd "$set/$set_" && "$cltrain" data batches train.yaml "$@") || fail "data batches of $set_"
}

# The batches that the reference's trainer saw; and those of two ranks, which are the halves of it.
for s in train-plain train-packed; do
    batches $s -n 12 >"$tmp/$s.jsonl"
    batches $s -n 12 --ranks 2 >"$tmp/$s-2.jsonl"
    python3 - "$set/$s/train.json" "$tmp/$s.jsonl" "$tmp/$s-2.jsonl" <<'END' || fail "data batches prints other batches for $s"
import json, sys
want = json.load(open(sys.argv[1]))["batches"]
got = [json.loads(line) for line in open(sys.argv[2])]
two = [json.loads(line) for line in open(sys.argv[3])]
keys = "sample_ids", "input_ids", "labels", "attention_mask", "sequence_id"
def runs(row):
    out = []
    for x in row:
        if out and out[-2] == x: out[-1] += 1
        else: out += [x, 1]
    return out
def spans(row):
    flags = [x != -100 for x in row]
    return [i for i in range(len(row) + 1) if (i < len(row) and flags[i]) != (i > 0 and flags[i - 1])]
assert len(got) == len(want) == 12 and len(two) == 24
for g, w in zip(got, want):
    assert [[x for x, m in zip(r, a) if m] for r, a in zip(g["input_ids"], g["attention_mask"])] == w["input_ids"]
    assert [runs(r) for r in g["attention_mask"]] == w["attention_mask"]
    assert [runs(r) for r in g["sequence_id"]] == w["sequence_id"]
    assert [spans(r) for r in g["labels"]] == w["targets"]
for i, g in enumerate(got):
    for key in keys:
        assert two[2 * i][key] + two[2 * i + 1][key] == g[key], (i, key)
END
done

# drop_last leaves no batch: the same message in both commands.
for c in "data batches" "train -q"; do
    # shellcheck disable=SC2086 # two words
    (cd "$set/train-packed" && "$cltrain" $c "${conf[@]}" $data.packing_ratio=100 train_loader.drop_last=true \
        save_folder="$tmp/none") >"$log" 2>&1 && fail "$c: no batch, and no error"
    grep -q "less than one batch (global_train_batch_size 8 times packing_ratio)" "$log" || fail "$c: $(cat "$log")"
done

# From a Llama folder and conversations to an answering model, with the preset.
preset=(tools/presets/finetune.yaml variables.model="$golden/families/llama3/hf" variables.data="$set/data/chat")
preset+=(variables.max_seq_len=256 precision=fp32 global_train_batch_size=8 save_folder="$tmp/tuned")
"$cltrain" train "${preset[@]}" >"$log" 2>&1 || { fail "the preset does not train"; tail "$log"; }
[ "$(grep -c '"loss":' "$tmp/tuned/metrics.jsonl")" = 2 ] || fail "16 conversations are not 2 batches of 8"
"$cltrain" ckpt export -q "$tmp/tuned" "$tmp/exported" >"$log" 2>&1 || { fail "ckpt export"; tail "$log"; }
cmp -s "$golden/families/llama3/hf/tokenizer.json" "$tmp/exported/tokenizer.json" || fail "the exported folder has another tokenizer"
for model in "$tmp/tuned" "$tmp/exported"; do
    "$cltrain" generate -q "$model" --chat -p "they release you from" -n 8 -t 0.9 >"$tmp/$(basename "$model").txt" 2>"$log" ||
        { fail "$model does not chat"; tail "$log"; }
done
cmp -s "$tmp/tuned.txt" "$tmp/exported.txt" || fail "checkpoint and exported folder answer differently"
exit $failed
