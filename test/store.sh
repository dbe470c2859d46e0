# shellcheck shell=bash disable=SC2154
# store.sh: an object store for tests: SeaweedFS, which checks signatures. After lib.sh:
#     . test/store.sh && store_start
# starts it on loopback with keys made for this run, makes the bucket $TEST_BUCKET, and exports the variables that the AWS
# tools and cltrain read. It ends with the script. Without the server the script ends as skipped.
# Set before it for a store on another "host" of hosts.sh: $store_address, and commands in front of the server and of its
# first client: $store_in, $store_client. $store_volumes: how many times 256 MiB it may store; what is deleted counts.
store_address=127.0.0.1 store_in=() store_client=() store_volumes=50

store_python=$BUILD/object/bin/python
store_dir=$tmp/store

# free_ports N: prints N ports that are free now, and so are the ports of gRPC, 10,000 higher. All are below 32,768, where
# the ports begin that the kernel gives to clients: the server has to get the same ones again after store_stop.
free_ports() {
    python3 - "$1" <<'PY'
import random, socket, sys
found = []
while len(found) < int(sys.argv[1]):
    port = random.randrange(12000, 22000)
    try:
        for p in (port, port + 10000):
            with socket.socket() as s:
                s.bind(("127.0.0.1", p))
    except OSError:
        continue
    if port not in found:
        found.append(port)
print(*found)
PY
}

random_text() { LC_ALL=C tr -dc 'A-Za-z0-9' </dev/urandom | head -c "$1"; }

# Identities: the admin's keys are exported; $store_reader_keys and $store_writer_keys are "KEY SECRET" of one that
# may only read and list, and of one that may not list.
store_identities() {
    store_reader_keys="AK$(random_text 18) $(random_text 40)"
    store_writer_keys="AK$(random_text 18) $(random_text 40)"
    cat >"$store_dir/s3.json" <<EOF
{"identities": [
 {"name": "admin", "credentials": [{"accessKey": "$AWS_ACCESS_KEY_ID", "secretKey": "$AWS_SECRET_ACCESS_KEY"}],
  "actions": ["Admin", "Read", "Write", "List", "Tagging"]},
 {"name": "reader", "credentials": [{"accessKey": "${store_reader_keys% *}", "secretKey": "${store_reader_keys#* }"}],
  "actions": ["Read", "List"]},
 {"name": "writer", "credentials": [{"accessKey": "${store_writer_keys% *}", "secretKey": "${store_writer_keys#* }"}],
  "actions": ["Read", "Write"]}]}
EOF
}

store_run() {
    "${store_in[@]}" "$BUILD/object/bin/weed" server -dir="$store_dir/data" -s3 -ip="$store_address" -ip.bind="$store_address" -master.telemetry=false \
        -s3.port.iceberg=0 -s3.port.lance=0 -s3.config="$store_dir/s3.json" -s3.port="${ports[0]}" \
        -master.electionTimeout=1s -master.port="${ports[1]}" -volume.port="${ports[2]}" -filer.port="${ports[3]}" -volume.max="$store_volumes" \
        -master.volumeSizeLimitMB=256 >"$store_dir/log" 2>&1 &
    store_pid=$!
}

# Waits until the store takes an object.
store_wait() {
    local i
    for ((i = 0; i < 150; i++)); do
        "${store_client[@]}" "$store_python" - <<'PY' 2>/dev/null && return 0
import os, boto3
from botocore.config import Config
s3 = boto3.client("s3", config=Config(connect_timeout=1, read_timeout=5, retries={"max_attempts": 0}))
bucket = os.environ["TEST_BUCKET"]
try:
    s3.create_bucket(Bucket=bucket)
except (s3.exceptions.BucketAlreadyExists, s3.exceptions.BucketAlreadyOwnedByYou):
    pass
s3.put_object(Bucket=bucket, Key="started", Body=b"1")
s3.delete_object(Bucket=bucket, Key="started")
PY
        kill -0 "$store_pid" 2>/dev/null || break
        sleep 0.2
    done
    grep -a '^F' "$store_dir/log" # of its log levels the fatal one
    tail -n 20 "$store_dir/log"
    fail "the store did not start"
    exit 1
}

store_start() {
    [ -x "$BUILD/object/bin/weed" ] || { echo "skipped: SeaweedFS is not installed (tools/setup.sh --check)"; exit 0; }
    mkdir -p "$store_dir/data"
    read -r -a ports <<<"$(free_ports 4)"
    AWS_ACCESS_KEY_ID=AK$(random_text 18)
    AWS_SECRET_ACCESS_KEY=$(random_text 40)
    export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
    export AWS_ENDPOINT_URL=http://127.0.0.1:${ports[0]} TEST_BUCKET=cltrain
    export AWS_SHARED_CREDENTIALS_FILE=$tmp/none AWS_CONFIG_FILE=$tmp/none AWS_EC2_METADATA_DISABLED=true
    # Proxies and authorities of the machine are not for loopback.
    unset AWS_SESSION_TOKEN AWS_PROFILE AWS_CA_BUNDLE AWS_ENDPOINT_URL_S3 S3_ENDPOINT_URL "${!CLTRAIN_S3_@}"
    export no_proxy=127.0.0.1
    store_identities
    store_run
    trap '[ $BASHPID != $$ ] || { store_stop; rm -rf "$tmp"; }' EXIT
    store_wait
}

store_pause() { kill -STOP "$store_pid"; }
store_resume() { kill -CONT "$store_pid"; }
store_stop() {
    kill -CONT "$store_pid" 2>/dev/null
    kill -KILL "$store_pid" 2>/dev/null
    wait "$store_pid" 2>/dev/null
}
# The same data again after store_stop.
store_restart() {
    store_run
    store_wait
}
