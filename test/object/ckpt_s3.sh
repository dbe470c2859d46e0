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

# A process that ends at any time leaves nothing that is listed and damaged.
for delay in 0.02 0.05 0.08 0.12; do
    "$cltrain" ckpt import "$hf" "s3://$TEST_BUCKET/killed/at$delay" >/dev/null 2>&1 &
    sleep "$delay"
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
done
! "$cltrain" ckpt ls "s3://$TEST_BUCKET/killed" --json 2>&1 | grep -q '"valid":false'
report "killed imports" $?
expect 74 '' ls "s3://no-such-bucket-$$/x"
exit $failed
