#!/bin/bash
# Training from an object store: with a cold cache, with one for two ranks and a limit, and with compressed shards the losses
# have the bits of a run that reads the same data from a folder; SIGTERM ends a wait for data; a run whose store ends, or lacks
# a shard, or has a damaged one, saves, exits with 75, 74 or 65, and resumes with the bits of an undisturbed run.
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
    grep -q "MiB fetched; training \(waited .*\|did not wait\) for them" "$log" && grep -q data_stall_seconds "$tmp/run.cold/metrics.jsonl"
report "a cold cache" $?
train ranks 2 $data.local="$tmp/ranks" $data.remote="s3://$TEST_BUCKET/mds-zstd" $data.cache_limit=100kb && same folder ranks
report "two ranks, compressed shards and a limit" $?
timeout 60 "$cltrain" data fetch "s3://$TEST_BUCKET/mds/val" "$tmp/val" >"$log" 2>&1 &&
    "$cltrain" data verify "$tmp/val" >>"$log" 2>&1 && "$cltrain" data verify "s3://$TEST_BUCKET/mds/val" >>"$log" 2>&1
report "data fetch, verify" $?
"$cltrain" data fetch "s3://$TEST_BUCKET/mds" "$tmp/both" >"$log" 2>&1 && rm -r "$tmp"/both/*/.fetch && diff -r test/golden/e2e/mds "$tmp/both" >>"$log" &&
    "$cltrain" data fetch "s3://$TEST_BUCKET/mds" "$tmp/one" --split val >>"$log" 2>&1 && rm -r "$tmp"/one/val/.fetch &&
    [ "$(ls "$tmp/one")" = val ] && diff -r test/golden/e2e/mds/val "$tmp/one/val" >>"$log"
report "data fetch of splits" $?
"$cltrain" data fetch "s3://$TEST_BUCKET/nothing" "$tmp/nothing" >"$log" 2>&1
[ $? = 65 ] && grep -q "no index.json in s3://$TEST_BUCKET/nothing" "$log"
report "data fetch of nothing" $?

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

# --- the store ends while a run needs it ---
seq 1 40000 >"$tmp/long.txt"
convert=(data convert "$tmp/long.txt" --concat-tokens 128 --tokenizer bytes --size-limit 20000 --hashes xxh64)
"$cltrain" "${convert[@]}" --out "$tmp/long" >"$log" 2>&1 && "$cltrain" "${convert[@]}" --out "s3://$TEST_BUCKET/long" >>"$log" 2>&1
report "a longer data set" $?

# long NAME RANKS KEYS...: the exit code of 60 steps in index order
long() {
    local name=$1 ranks=$2
    shift 2
    on_ranks "$ranks" train test/golden/e2e/train.yaml save_folder="$tmp/run.$name" max_duration=60ba eval_interval=0 \
        eval_loader.dataset.local="$PWD/test/golden/e2e/mds" $data.shuffle=false $data.predownload=16 \
        $data.download_timeout=2 $data.download_retry=1 cltrain.resume_check.batches=1 "$@"
}
remote=(--) # of a run with a cold cache
from_store() { remote=("$data.local=$tmp/cache.$1" "$data.remote=s3://$TEST_BUCKET/long"); }
# same_as_undisturbed NAME
same_as_undisturbed() { losses "$tmp/run.$1" >"$tmp/loss.$1" && cmp "$tmp/loss.undisturbed" "$tmp/loss.$1"; }

long undisturbed 1 $data.local="$tmp/long" >"$log" 2>&1 && losses "$tmp/run.undisturbed" >"$tmp/loss.undisturbed" &&
    [ "$(wc -l <"$tmp/loss.undisturbed")" = 60 ]
report "a longer run" $?
for ranks in 1 2; do
    from_store gone$ranks
    in_background long gone$ranks $ranks "${remote[@]}"
    until_there '"batch":4,' "$tmp/run.gone$ranks/metrics.jsonl"
    store_stop
    wait "$started"
    code=$?
    [ $code = 75 ] && grep -q "shard.* of s3://$TEST_BUCKET/long/train did not arrive in .* s (download_timeout 2 s, " "$log" &&
        grep -q "stopped at batch .* after a save, because data could not be read; rerun the same command" "$log" &&
        [ "$(grep -c "did not arrive" "$log")" -le $ranks ] && [ "$(newest_batch "$tmp/run.gone$ranks")" -lt 60 ]
    report "the store ends, ranks: $ranks" $? "exit code $code"
    store_restart
    long gone$ranks $ranks "${remote[@]}" >"$log" 2>&1 && same_as_undisturbed gone$ranks
    report "resumed, ranks: $ranks" $?
done

# shard NUMBER VERB: removes a shard in the store, damages it, or puts the right one there
shard() {
    "$store_python" - "$1" "$2" "$tmp/long/train" <<'PY'
import boto3, os, sys
name = f"shard.{int(sys.argv[1]):05d}.mds"
s3, where = boto3.client("s3"), dict(Bucket=os.environ["TEST_BUCKET"], Key=f"long/train/{name}")
data = bytearray(open(f"{sys.argv[3]}/{name}", "rb").read())
if sys.argv[2] == "remove":
    s3.delete_object(**where)
else:
    if sys.argv[2] == "damage":
        data[-1] ^= 1
    s3.put_object(Body=bytes(data), **where)
PY
}
# refused WHAT CODE PATTERN: a run of two ranks that stops with CODE after a save, and says why
refused() {
    long refused 2 "${remote[@]}" >"$log" 2>&1
    code=$?
    [ $code = "$2" ] && grep -q "$3" "$log" && grep -q "could not be read; fix the error above" "$log" &&
        [ "$(newest_batch "$tmp/run.refused")" -gt 2 ]
    report "$1" $? "exit code $code"
}
from_store refused
shard 9 remove
refused "a shard that does not exist" 74 "s3://$TEST_BUCKET/long/train/shard.00009.mds"
shard 9 damage
refused "a damaged shard" 65 "shard.00009.mds: xxh64 checksum mismatch"
shard 9 repair
long refused 1 "${remote[@]}" >"$log" 2>&1 && same_as_undisturbed refused
report "resumed after the repair" $?
exit $failed
