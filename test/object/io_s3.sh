#!/bin/bash
# clt_io on SeaweedFS, and boto3 beside it: each reads what the other wrote.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start

"$BUILD/test/object/test_io_s3" >"$log" 2>&1
report "clt_io on SeaweedFS" $?

# Sizes on both sides of a part, and a key with characters that are encoded in URLs.
cross="cross/a b+c%&=?#ä~'()*"
sizes=(0 1 16777216 16777217 40000003)
copy() { "$BUILD/test/object/test_io_s3" copy "$@" >>"$log" 2>&1; }
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
"$store_python" "$tmp/boto.py" "$tmp" "$cross" "${sizes[@]}" >>"$log" 2>&1
for bytes in "${sizes[@]}"; do
    cmp "$tmp/$bytes" "$tmp/$bytes.read" >>"$log" 2>&1
    report "boto3 reads $bytes bytes" $?
    copy "s3://$TEST_BUCKET/$cross/$bytes.boto" "$tmp/$bytes.back" && cmp "$tmp/$bytes" "$tmp/$bytes.back" >>"$log"
    report "boto3 wrote $bytes bytes" $?
done
exit $failed
