#!/bin/bash
# A YAML in the form of LLM Foundry's with its lines for object stores put in: data from `remote` through a cache, weights
# from load_path, checkpoints in save_folder, all s3://. The run is killed on one host, continues on another one with other
# devices and ranks, and ends on the first. Losses and hash are those of a run on one host without a store.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
export CLTRAIN_S3_LEASE=6
"$store_python" - <<'PY' || fail "the upload"
import boto3, os, pathlib
s3 = boto3.client("s3")
root = pathlib.Path("test/golden/e2e")
for name in ("mds", "hf"):
    for f in (root / name).rglob("*"):
        if f.is_file():
            s3.upload_file(str(f), os.environ["TEST_BUCKET"], "my-folder/" + str(f.relative_to(root)))
PY
cat >"$tmp/lines.yaml" <<EOF

# Checkpoint to local filesystem or remote object store
save_interval: 2ba
save_num_checkpoints_to_keep: 2  # Important, this cleans up checkpoints saved to DISK
# save_folder: ./{run_name}/checkpoints
save_folder: s3://$TEST_BUCKET/my-folder/{run_name}/checkpoints

# Load from local filesystem or remote object store
load_path: s3://$TEST_BUCKET/my-folder/hf
EOF
for host in A B C local; do
    mkdir -p "$tmp/$host/home" "$tmp/$host/work"
    sed -e "s#data_local:.*#data_local: ./cache#" -e "s#data_remote:.*#data_remote: s3://$TEST_BUCKET/my-folder/mds#" \
        "$golden/e2e/train.yaml" "$tmp/lines.yaml" >"$tmp/$host/work/run.yaml"
done
# on HOST RANKS DEVICE ARGUMENT...: trains there
on() {
    local host=$1 ranks=$2 device=$3
    shift 3
    cd "$tmp/$host/work" || exit 1
    local program=(on_ranks "$ranks")
    [ "$ranks" != 1 ] || program=("$cltrain") # one process, which can be killed
    HOME=$tmp/$host/home TMPDIR=$tmp/$host "${program[@]}" train --device "$device" run.yaml max_duration=16ba \
        scheduler.t_max=20ba log_config=false "$@" >"$log" 2>&1
}
hash_of() { "$cltrain" ckpt hash "$1" 2>>"$log"; }
other=pocl
[ ! -f "$BUILD/intel/icd/intel.icd" ] || other=intel

(on local 1 pocl variables.data_local="$golden/e2e/mds" variables.data_remote=null load_path="$golden/e2e/hf" \
    save_folder=./checkpoints)
report "16 batches without a store" $?
want=$(hash_of "$tmp/local/work/checkpoints")
run=s3://$TEST_BUCKET/my-folder/golden-e2e/checkpoints

in_background on A 1 pocl
until_there "checkpoint saved: .*-ba4"
pkill -KILL -P "$started"
wait "$started" 2>/dev/null
! grep -q "^done" "$log" && grep -q "weights loaded from s3://$TEST_BUCKET/my-folder/hf" "$log"
report "host A: killed after batch 4" $?
(on B 2 "$other" --stop-after 6ba)
[ $? = 75 ] && grep -q "resumed from $run/ep0-ba[4-9]" "$log"
report "host B: 6 more on 2 ranks of $other" $?
(on A 1 pocl)
report "host A: the rest" $? "$(grep -o 'resumed from.*' "$log")"

[ -n "$want" ] && [ "$want" = "$(hash_of "$run")" ]
report "one hash: ${want%%$'\n'*}" $?
"$cltrain" ckpt verify "$run" >"$log" 2>&1
report "ckpt verify" $?
mkdir "$tmp/bucket"
"$BUILD/test/object/test_io_s3" copy "$run/metrics.jsonl" "$tmp/bucket/metrics.jsonl" >"$log" 2>&1
steps_of "$tmp/local/work/checkpoints" >"$tmp/local.steps"
steps_of "$tmp/bucket" >"$tmp/bucket.steps"
[ "$(wc -l <"$tmp/local.steps")" = 16 ] && diff "$tmp/local.steps" "$tmp/bucket.steps" >"$log" 2>&1
report "the bucket's metrics have the losses of the run without a store" $?
cmp "$tmp/bucket/metrics.jsonl" "$tmp/A/work/runs/golden-e2e/metrics.jsonl" >"$log" 2>&1
report "and are those of the last host" $?
(on C 1 pocl save_folder=./checkpoints load_path="$run/latest-rank{rank}.pt" max_duration=17ba)
[ $? = 0 ] && grep -q "resumed from $run/ep0-ba16" "$log"
report "load_path: latest-rank{rank}.pt" $?
exit $failed
