#!/bin/bash
# `cltrain ckpt` on an object store: import, list, verify, compare, export, overwrite; what the bucket holds after
# each; and the end of the process in the middle of a write.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
hf=$golden/mpt-learned/hf
run=s3://$TEST_BUCKET/runs/a

# expect CODE TEXT ARGS...: `cltrain ckpt ARGS` ends with CODE and prints TEXT
expect() {
    local code=$1 text=$2 got
    shift 2
    timeout 60 "$cltrain" ckpt "$@" >"$log" 2>&1
    got=$?
    [ "$got" = "$code" ] && grep -qF -- "$text" "$log" && return
    fail "ckpt $*: exit $got (wanted $code), wanted '$text' in:"
    sed 's/^/    /' "$log"
}

# keys PREFIX: the bucket's keys below it, as boto3 sees them
keys() {
    "$store_python" - "$1" <<'PY'
import os, sys, boto3
s3 = boto3.client("s3")
for o in s3.list_objects_v2(Bucket=os.environ["TEST_BUCKET"], Prefix=sys.argv[1]).get("Contents", []):
    print(o["Key"])
PY
}

expect 0 '28 tensors' import "$hf" "$run/ba0"
expect 74 'exists already' import "$hf" "$run/ba0"
first=$(keys runs/a/ba0/data.)
expect 0 '28 tensors' import --overwrite "$hf" "$run/ba0/"
second=$(keys runs/a/ba0/data.)
[ "$(wc -l <<<"$second")" = 1 ] && [ "$first" != "$second" ]
report "overwriting replaces the data file" $?
expect 0 'ba0' ls "$run"
expect 0 '"valid":true' ls "$run" --json
expect 0 'transformer.blocks.1.ffn.up_proj.weight' show "$run"
expect 0 'ok ' verify "$run"
expect 0 'bit-identical: 28 tensors' diff "$run" "$hf"

# the same hash as in a local folder
"$cltrain" ckpt import "$hf" "$tmp/local/ba0" >/dev/null
[ "$("$cltrain" ckpt hash "$run" | grep -o '[0-9a-f]\{32\}')" = \
  "$("$cltrain" ckpt hash "$tmp/local" | grep -o '[0-9a-f]\{32\}')" ]
report "the hash is that of a local checkpoint" $?

expect 0 '28 tensors' export "$run" "s3://$TEST_BUCKET/hf"
expect 74 'not overwritten' export "$run" "s3://$TEST_BUCKET/hf"
expect 0 'bit-identical: 28 tensors' diff "s3://$TEST_BUCKET/hf" "$hf"
expect 0 '28 tensors' import "s3://$TEST_BUCKET/hf" "$run/ba1"
expect 0 'ok ' verify "$run"
expect 0 'ok ' verify "$run/ba1" "s3://$TEST_BUCKET/hf" "s3://$TEST_BUCKET/hf/model.safetensors"
expect 0 '"d_model": 64' show "$run/ba1" --json
expect 0 'transformer.wte.weight' show "s3://$TEST_BUCKET/hf"
expect 0 'bit-identical: 28 tensors' diff "$run/ba0" "$run/ba1"
expect 1 'differ' diff "$run" "$golden/mpt-learned/final.safetensors"
expect 1 'shapes [512, 96] and [512, 64]' diff "$golden/mpt-alibi/hf" "$run/ba1"
expect 0 '28 tensors' export "$run/ba1" "$tmp/hf"
expect 0 'bit-identical: 28 tensors' diff "$tmp/hf" "s3://$TEST_BUCKET/hf/model.safetensors"
expect 0 '28 tensors' export --overwrite --shard-bytes 100000 "$run/ba1" "s3://$TEST_BUCKET/hf"
keys hf/ | grep -q 'model-00002-of-' && ! keys hf/ | grep -q 'hf/model.safetensors$'
report "an export in several files replaces one in a single file" $?
expect 0 'bit-identical: 28 tensors' diff "s3://$TEST_BUCKET/hf" "$hf"
[ "$("$cltrain" ckpt hash "s3://$TEST_BUCKET/hf" --json)" = "$("$cltrain" ckpt hash "$hf" --json)" ]
report "the hash of a Hugging Face folder in a bucket" $?

# a universal checkpoint of DeepSpeed
expect 0 '28 tensors' export "$run" "s3://$TEST_BUCKET/ds" --deepspeed-universal
expect 0 'bit-identical: 28 tensors' diff "s3://$TEST_BUCKET/ds" "$hf"
expect 0 'ok ' verify "s3://$TEST_BUCKET/ds"
expect 74 'exists already' export "$run" "s3://$TEST_BUCKET/ds" --deepspeed-universal
expect 0 '28 tensors' export "$run" "s3://$TEST_BUCKET/ds" --deepspeed-universal --overwrite

# damage is found, and a checkpoint without its data is not valid
"$store_python" - <<'PY'
import os, boto3
s3 = boto3.client("s3")
b = os.environ["TEST_BUCKET"]
key = s3.list_objects_v2(Bucket=b, Prefix="runs/a/ba1/data.")["Contents"][0]["Key"]
data = bytearray(s3.get_object(Bucket=b, Key=key)["Body"].read())
data[len(data) // 2] ^= 1
s3.put_object(Bucket=b, Key=key, Body=bytes(data))
PY
expect 65 'is damaged' verify "$run/ba1"
expect 0 'ok ' verify "$run/ba0"

# A process that ends at any time leaves nothing that is listed and damaged. The lock of each stays for a minute.
for delay in 0.02 0.05 0.08 0.12; do
    killed=s3://$TEST_BUCKET/killed/$delay
    "$cltrain" ckpt import "$hf" "$killed/ba0" >/dev/null 2>&1 &
    sleep "$delay"
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    ! "$cltrain" ckpt ls "$killed" --json 2>&1 | grep -q '"valid":false'
    report "an import that was killed after $delay s" $?
done
expect 74 '' ls "s3://no-such-bucket-$$/x"

# prune: an upload and data that killed saves left; checkpoints stay, and so do files of others
"$store_python" - <<'PY'
import os, boto3
s3 = boto3.client("s3")
b = os.environ["TEST_BUCKET"]
for key in ("runs/a/ba7/data.0123456789abcdef.1.00000.bin", "elsewhere/data.bin"):
    u = s3.create_multipart_upload(Bucket=b, Key=key)["UploadId"]
    for part in (1, 2):
        s3.upload_part(Bucket=b, Key=key, UploadId=u, PartNumber=part, Body=bytes(3 << 20))
s3.put_object(Bucket=b, Key="runs/a/ba0/data.0123456789abcdef.2.00000.bin", Body=bytes(2048))
s3.put_object(Bucket=b, Key="runs/a/notes/data.bin", Body=b"mine")
PY
uploads() {
    "$store_python" - <<'PY'
import os, boto3
for u in boto3.client("s3").list_multipart_uploads(Bucket=os.environ["TEST_BUCKET"]).get("Uploads", []):
    print(u["Key"])
PY
}
expect 0 '1 to remove, 2.00 KiB' prune "$run" --dry-run
expect 0 'ba7/data.0123456789abcdef.1.00000.bin (upload, begun' prune "$run" --uploads-older-than 0 --dry-run
grep -q '2 to remove, 6.00 MiB (dry run' "$log"
report "a dry run tells the bytes of uploads" $?
[ "$(uploads | wc -l)" = 2 ] && keys runs/a/ba0/data.0123 | grep -q .
report "a dry run removes nothing" $?
expect 0 '2 removed, 6.00 MiB freed' prune "$run" --uploads-older-than 0s
[ "$(uploads)" = elsewhere/data.bin ] && [ -z "$(keys runs/a/ba0/data.0123)" ] && keys runs/a/notes | grep -q .
report "what killed saves left is gone" $?
expect 0 'ok ' verify "$run/ba0"
expect 0 '28 tensors' import "s3://$TEST_BUCKET/hf" "$run/ba2"
expect 0 'would remove' prune "$run" --keep 1 --dry-run
expect 0 'checkpoint' prune "$run" --keep 1
expect 0 '"valid":true' ls "$run" --json
expect 74 'does not exist' prune "s3://$TEST_BUCKET/nothing"
exit $failed
