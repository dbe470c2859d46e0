#!/bin/bash
# Training from an object store: with a cold cache, with one for two ranks and a limit, and with compressed shards the losses
# have the bits of a run that reads the same data from a folder; a whole cache needs no store; SIGTERM ends a wait for data.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
export CLTRAIN_DEVICE=pocl TMPDIR=$tmp
has_platform "Portable Computing Language" || { echo "skipped: PoCL is not installed"; exit 0; }

"$store_python" - <<'PY' || fail "the upload"
import boto3, os, pathlib
s3 = boto3.client("s3")
for name in ("mds", "mds-zstd"):
    for f in pathlib.Path("test/golden/e2e", name).rglob("*"):
        if f.is_file():
            s3.upload_file(str(f), os.environ["TEST_BUCKET"], str(f.relative_to("test/golden/e2e")))
PY

# losses FOLDER: the loss of each batch
losses() { python3 -c 'import json, sys
for x in open(sys.argv[1]):
    r = json.loads(x)
    if "loss" in r: print(r["batch"], r["loss"])' "$1/metrics.jsonl"; }

# train NAME RANKS KEYS...: a run of a few steps with loss.NAME
train() {
    local name=$1 ranks=$2
    shift 2
    on_ranks "$ranks" train test/golden/e2e/train.yaml save_folder="$tmp/run.$name" max_duration=3ba eval_interval=0 \
        eval_loader.dataset.local="$PWD/test/golden/e2e/mds" \
        "$@" >"$log" 2>&1 && losses "$tmp/run.$name" >"$tmp/loss.$name" && [ -s "$tmp/loss.$name" ]
}
same() { cmp "$tmp/loss.$1" "$tmp/loss.$2"; }

data=train_loader.dataset
train folder 1 $data.local="$PWD/test/golden/e2e/mds"
report "a folder" $?
train cold 1 $data.local="$tmp/cold" $data.remote="s3://$TEST_BUCKET/mds" && same folder cold &&
    grep -q "MiB fetched, training waited" "$log" && grep -q data_stall_seconds "$tmp/run.cold/metrics.jsonl"
report "a cold cache" $?
train ranks 2 $data.local="$tmp/ranks" $data.remote="s3://$TEST_BUCKET/mds-zstd" $data.cache_limit=100kb && same folder ranks
report "two ranks, compressed shards and a limit" $?
timeout 60 "$cltrain" data fetch "s3://$TEST_BUCKET/mds/val" "$tmp/val" >"$log" 2>&1 &&
    "$cltrain" data verify "$tmp/val" >>"$log" 2>&1 && "$cltrain" data verify "s3://$TEST_BUCKET/mds/val" >>"$log" 2>&1
report "data fetch, verify" $?

seq 1 3000 >"$tmp/text.txt"
convert=(data convert "$tmp/text.txt" --concat-tokens 64 --tokenizer bytes)
"$cltrain" "${convert[@]}" --out "$tmp/made" >"$log" 2>&1 &&
    "$cltrain" "${convert[@]}" --out "s3://$TEST_BUCKET/made" >>"$log" 2>&1 &&
    "$cltrain" data fetch "s3://$TEST_BUCKET/made/train" "$tmp/made.back" >>"$log" 2>&1 && rm -r "$tmp/made.back/.fetch" &&
    diff -r "$tmp/made/train" "$tmp/made.back" >>"$log"
report "data convert to the store" $?

store_pause
"$cltrain" train test/golden/e2e/train.yaml save_folder="$tmp/run.stop" eval_loader.dataset.local="$PWD/test/golden/e2e/mds" \
    $data.local="$tmp/stop" \
    $data.remote="s3://$TEST_BUCKET/mds" >"$log" 2>&1 &
sleep 2
kill -TERM $!
wait $!
[ $? = 75 ]
report "SIGTERM while the store is silent" $?
store_resume
exit $failed
