#!/bin/bash
# Runs over several streams: losses, weights and sample ids do not depend on the number of ranks or on stops,
# whatever the batching method; what asks for ranks is refused where their number changes.
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
streams='{web: {local: ./mds, split: train, proportion: 3}, prose: {local: ./mds, split: val, proportion: 1}}'
conf=(train.yaml model.d_model=16 model.n_layers=1 model.n_heads=2 max_seq_len=32 model.max_seq_len=32
    train_loader.dataset.max_seq_len=32 eval_loader=null
    train_loader.dataset.local=null "train_loader.dataset.streams=$streams"
    train_loader.dataset.epoch_size=100 max_duration=8ba)

# run FOLDER RANKS [key=value ...]: one training run, at most two epochs of 6 batches
run() {
    local folder=$tmp/$1 ranks=$2
    shift 2
    (cd "$golden/e2e" && on_ranks "$ranks" train -q --device pocl "${conf[@]}" save_folder="$folder" "$@") \
        >"$folder.log" 2>&1
}

# one_hash METHOD: ranks 1 and 4, and a run that is stopped and resumed with other ranks, have one hash
one_hash() {
    local method=train_loader.dataset.batching_method=$1 want got name
    run one 1 "$method" || { tail -n 5 "$tmp/one.log"; fail "$1 on one rank"; return; }
    want=$("$cltrain" ckpt hash "$tmp/one")
    run four 4 "$method" && run stop 4 "$method" max_duration=3ba &&
        run stop 1 "$method" max_duration=7ba && run stop 2 "$method" ||
        { tail -n 5 "$tmp"/{four,stop}.log; fail "$1"; return; }
    for name in four stop; do
        got=$("$cltrain" ckpt hash "$tmp/$name")
        [ "$got" = "$want" ] || fail "$1, run '$name': hashes differ: $got, not $want"
    done
    echo "same: $1 on 1 and 4 ranks, and resumed on 4, 1 and 2: $(echo $want)"
    rm -rf "$tmp"/{one,four,stop}
    hashes+=("$want")
}

# order_is_seen METHOD RANKS: 'data order' prints the samples that a run logs; its ranks have neighbouring lanes, as
# ranks with whole gradients do
order_is_seen() {
    local method=train_loader.dataset.batching_method=$1
    run seen "$2" "$method" max_duration=5ba fsdp_config=null --log-samples "$tmp/ids" || { tail -n 5 "$tmp/seen.log"; fail "$1, logged"; return; }
    (cd "$golden/e2e" && "$cltrain" data order "${conf[@]}" "$method" --ranks "$2") >"$tmp/order.json" || fail "data order, $1"
    python3 - "$tmp/order.json" "$tmp"/ids/rank*.jsonl <<'END' || fail "data order prints other samples, $1"
import json, sys
want = [r["batches"] for r in json.load(open(sys.argv[1]))["ranks"]]
for rank, path in enumerate(sorted(sys.argv[2:])):
    seen = [json.loads(line)["samples"] for line in open(path)]
    assert len(seen) == 5 and seen == want[rank][:5], (rank, seen, want[rank][:5])
END
    rm -rf "$tmp/seen" "$tmp/ids"
}

hashes=()
one_hash random
one_hash stratified
one_hash per_stream
[ "$(printf '%s\n' "${hashes[@]}" | sort -u | wc -l)" = "$(printf '%s\n' "${hashes[@]}" | wc -l)" ] ||
    fail "two batching methods give the same weights"

device=train_loader.dataset.batching_method=device_per_stream
run device 2 "$device" max_duration=1ba || { tail -n 5 "$tmp/device.log"; fail "device_per_stream"; }
run device 2 "$device" max_duration=2ba || { tail -n 5 "$tmp/device.log"; fail "device_per_stream, resumed"; }
run device 1 "$device" && fail "device_per_stream was resumed with other ranks"
grep -q "saved by 2 ranks" "$tmp/device.log" || { tail -n 5 "$tmp/device.log"; fail "no reason is given"; }

order_is_seen stratified 2
order_is_seen device_per_stream 4

# refused TEXT [key=value ...]
refused() {
    run no 1 "${@:2}" && fail "accepted: ${*:2}"
    grep -q -- "$1" "$tmp/no.log" || { tail -n 3 "$tmp/no.log"; fail "the message lacks '$1'"; }
}
refused "stream 'prose'.*does not exist" train_loader.dataset.streams.prose.local=./nowhere
refused "streams.prose.*has no proportion and 'web' has one" train_loader.dataset.streams.prose.proportion=null \
    train_loader.dataset.streams.prose.repeat=2
refused "contradicts key .train_loader.dataset.streams" train_loader.dataset.local=./mds
refused "replication 2 must divide the number of ranks" train_loader.dataset.replication=2
exit $failed
