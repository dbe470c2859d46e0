#!/bin/bash
# A run whose save_folder is a bucket hops between two "hosts" that share nothing but the bucket: each has a home, a
# working folder and caches of its own. In exact mode the result has the hash of a run on one host with a local folder.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
url=s3://$TEST_BUCKET/runs/hop
for host in A B local; do
    mkdir -p "$tmp/$host/home" "$tmp/$host/work"
    cp -r "$golden/e2e/hf" "$golden/e2e/mds" "$golden/e2e/train.yaml" "$tmp/$host/work/"
done
# on HOST RANKS DEVICE FOLDER ARGUMENT...: trains there
on() {
    local host=$1 ranks=$2 device=$3 folder=$4
    shift 4
    (cd "$tmp/$host/work" && HOME=$tmp/$host/home TMPDIR=$tmp/$host on_ranks "$ranks" train -q --device "$device" train.yaml \
        load_path=hf run_name=hop save_folder="$folder" save_interval=2ba save_num_checkpoints_to_keep=2 max_duration=8ba \
        log_config=false "$@") >"$log" 2>&1
}
other=pocl
[ ! -f "$BUILD/intel/icd/intel.icd" ] || other=intel
on local 1 pocl "$tmp/local/ckpts"
report "8 batches into a local folder" $?
on A 1 pocl "$url" --stop-after 3ba
[ $? = 75 ]
report "host A: 3 batches into the bucket" $?
on B 2 "$other" "$url" --stop-after 3ba
[ $? = 75 ]
report "host B: 3 more on 2 ranks of $other" $?
on A 1 pocl "$url"
report "host A: the rest" $?

hash_of() { "$cltrain" ckpt hash "$1" 2>>"$log"; }
want=$(hash_of "$tmp/local/ckpts")
got=$(hash_of "$url")
[ -n "$want" ] && [ "$want" = "$got" ]
report "one hash: ${want%% *}" $?
"$cltrain" ckpt ls "$url" >"$log" 2>&1 && [ "$(grep -c ba "$log")" -ge 2 ]
report "ckpt ls" $?
"$cltrain" ckpt verify "$url/ep0-ba8" >"$log" 2>&1
report "ckpt verify" $?
# The bucket has the metrics of all legs, and no key of the store is in any of its texts.
"$store_python" - "$tmp/texts" >"$log" 2>&1 <<'PY'
import os, sys, boto3
s3, bucket, secret = boto3.client("s3"), os.environ["TEST_BUCKET"], os.environ["AWS_SECRET_ACCESS_KEY"]
for key in ("metrics.jsonl", "log.txt", "config.yaml"):
    text = s3.get_object(Bucket=bucket, Key="runs/hop/" + key)["Body"].read().decode()
    assert secret not in text, key
    if key == "metrics.jsonl":
        for batch in range(1, 9):
            assert '{"batch":%d,' % batch in text, batch
assert not s3.list_multipart_uploads(Bucket=bucket).get("Uploads"), "an upload was left"
PY
report "metrics, log and configuration of all legs" $?
exit $failed
