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

# A lease of 3 s whose holder cannot renew it, because the store does not respond or the holder is stopped. hold NAME:
# another process that takes it; $holder is its id. says NAME N LINE: whether LINE becomes the Nth line of its output.
hold() {
    : >"$tmp/$1"
    CLTRAIN_S3_LEASE=3 "$BUILD/test/object/test_io_s3" hold "s3://$TEST_BUCKET/lease/run.lock" >"$tmp/$1" 2>&1 &
    holder=$!
}
says() {
    local i
    for ((i = 0; i < 300; i++)); do
        [ "$(wc -l <"$tmp/$1")" -lt "$2" ] || break
        sleep 0.1
    done
    [ "$(sed -n "$2p" "$tmp/$1")" = "$3" ]
}
hold first
first=$holder
says first 1 held
store_pause
says first 2 "not held"
report "a lease expires while the store does not respond" $?
store_resume
says first 3 held
report "and is regained" $?
kill -STOP "$first"
hold second
says second 1 held
report "a lease that expired is taken over" $?
kill -CONT "$first"
says first 4 "not held"
report "its first holder has lost it" $?
sleep 1.5 # renewals of both
[ "$(wc -l <"$tmp/first")" = 4 ] && [ "$(cat "$tmp/second")" = held ]
report "for good, and the second one keeps it" $?
kill -KILL "$first" "$holder"
wait "$first" "$holder" 2>/dev/null
exit $failed
