#!/bin/bash
# Random operations of clt_io through a proxy that disturbs a share of the requests; the model of the program and boto3,
# which asks the store itself, agree on every name and byte afterwards. test/long/object_faults.sh runs it longer.
#   OPERATIONS=150 SHARE=0.2 SEED=N MAX_BYTES=40000000 STALL=0.5
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh && . test/proxy.sh
store_start
seed=${SEED:-7}

proxy_start --share "${SHARE:-0.2}" --seed "$seed" --stall "${STALL:-0.5}"
echo "seed $seed"
"$BUILD/test/object/test_s3_random" "${OPERATIONS:-150}" "$seed" "${MAX_BYTES:-40000000}" "$tmp/model" >"$log" 2>&1
code=$?
proxy_stop
report "$(tail -n 1 "$log")" $code
echo "      $proxy_count faults: $proxy_faults"
[ "$proxy_count" -gt 0 ]
report "faults were injected" $?

"$store_python" - "$tmp/model" "$seed" >"$log" 2>&1 <<'PY'
import hashlib, os, sys, boto3
s3, bucket = boto3.client("s3"), os.environ["TEST_BUCKET"]
prefix = f"random-{sys.argv[2]}/"
want = {}
for line in open(sys.argv[1]):
    key, size, sha = line.rstrip("\n").split("\t")
    want[key] = (int(size), sha)
have = {}
for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
    for o in page.get("Contents", []):
        body = s3.get_object(Bucket=bucket, Key=o["Key"])["Body"].read()
        have[o["Key"]] = (len(body), hashlib.sha256(body).hexdigest())
for key in sorted(set(want) | set(have)):
    if want.get(key) != have.get(key):
        print("wrong:", key, want.get(key), have.get(key))
uploads = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
print("uploads left:", [u["Key"] for u in uploads])
sys.exit(want != have or not want or bool(uploads))
PY
report "boto3 finds the same $(wc -l <"$tmp/model") objects" $?
finish
