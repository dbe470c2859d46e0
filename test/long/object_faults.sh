#!/bin/bash
# An object store under faults, at length. PARTS picks some:
#   random    OPERATIONS random operations of clt_io through a proxy with faults, SEEDS times (test/object/faults_s3.sh)
#   kills     KILLS times kill -9 of a run that saves to the store
#   fetch     FETCH_KILLS times kill -9 of `data fetch` while it fetches
#   outage    the store is stopped for AWAY seconds while a run saves to it, and while one reads from it
#   refusals  full store, denied rights, no bucket, wrong clock, expired credentials: message, exit code, nothing lost
#   moto      the random operations and the checkpoints on another server; rclone reads and writes what cltrain does
# timeout: 7200
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh && . test/proxy.sh
SEED=${SEED:-$(date +%s)}
RANDOM=$((SEED % 32768))
OPERATIONS=${OPERATIONS:-1000} KILLS=${KILLS:-100} FETCH_KILLS=${FETCH_KILLS:-100} AWAY=${AWAY:-60}
parts=" ${PARTS:-random kills fetch outage refusals moto} "
echo "seed $SEED"

if [[ $parts = *" random "* ]]; then
    for seed in ${SEEDS:-$SEED}; do
        OPERATIONS=$OPERATIONS SHARE=0.1 STALL=2 SEED=$seed bash test/object/faults_s3.sh >"$log" 2>&1
        report "random operations" $? "$(grep -v '^ok    boto3\|injected' "$log" | tr -s '\n ' ' ')"
    done
fi
[ "$parts" != " random " ] || finish

store_start
cd "$tmp" || exit 1 # runs with a save_folder in the store keep their metrics in the working folder
export CLTRAIN_DEVICE=pocl TMPDIR=$tmp
set=$golden/mpt-learned
settings=("train_loader.dataset.local=$set/mds" load_path=null model.d_model=128 model.n_layers=4 device_train_microbatch_size=2
    log_config=false console_log_interval=100000ba scheduler.t_max=100000ba save_interval=3ba save_num_checkpoints_to_keep=2)
# train FOLDER BATCHES ARGUMENT...
train() { "$cltrain" train "$set/train.yaml" "${settings[@]}" "save_folder=$1" "max_duration=${2}ba" run_name=r "${@:3}"; }
hash_of() { "$cltrain" -q ckpt hash "$1" 2>/dev/null | grep -o '[0-9a-f]\{32\}' | head -n 1; }
names_of() { "$cltrain" -q ckpt ls "$1" 2>/dev/null | grep -o 'ep[0-9]*-ba[0-9]*' | sort -u; }
newest_of() { names_of "$1" | sed 's/.*-ba//' | sort -n | tail -n 1; }
# whole FOLDER: every checkpoint that is listed verifies; $verified counts them
verified=0
whole() {
    local c
    for c in $(names_of "$1"); do
        timeout 60 "$cltrain" -q ckpt verify "$1/$c" >"$tmp/verify.log" 2>&1 || { report "$1/$c verifies" 1 "$(cat "$tmp/verify.log")"; return 1; }
        verified=$((verified + 1))
    done
}
# calm BATCHES: the hash of an undisturbed run
calm() {
    [ -d "$tmp/calm.$1" ] || train "$tmp/calm.$1" "$1" >"$tmp/calm.log" 2>&1
    hash_of "$tmp/calm.$1"
}
same_as_calm() { # NAME FOLDER BATCHES
    local want have
    want=$(calm "$3") have=$(hash_of "$2")
    [ -n "$want" ] && [ "$want" = "$have" ]
    report "$1: the hash of an undisturbed run of $3 batches" $? "$have"
}
boto() { "$store_python" - "$@"; } # a program on standard input, with s3 and bucket

free_lock() {
    boto "$1" <<'PY'
import os, sys, boto3
boto3.client("s3").delete_object(Bucket=os.environ["TEST_BUCKET"], Key=sys.argv[1])
PY
}

upload() { # FOLDER PREFIX
    boto "$1" "$2" <<'PY'
import os, pathlib, sys, boto3
s3 = boto3.client("s3")
for f in pathlib.Path(sys.argv[1]).rglob("*"):
    if f.is_file():
        s3.upload_file(str(f), os.environ["TEST_BUCKET"], sys.argv[2] + "/" + str(f.relative_to(sys.argv[1])))
PY
}

# --- kills ---

# The lease of a killed run ends after a minute, which every WAITS-th start waits for; before the others the lock is removed.
kills() {
    local k announced newest waited=0 end url=s3://$TEST_BUCKET/kills/r
    : >"$tmp/all.log"
    for ((k = 1; k <= KILLS; k++)); do
        if [ $((k % ${WAITS:-25})) = 2 ]; then waited=$((waited + 1)); else free_lock kills/r/run.lock; fi
        : >"$log"
        train "$url" 100000 >"$log" 2>&1 &
        pid=$!
        # Two of three after the first save of this start.
        for ((i = 0; i < 1500 && k % 3; i++)); do
            grep -q '^checkpoint saved' "$log" && break
            kill -0 $pid 2>/dev/null || break
            sleep 0.1
        done
        sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", r / 32768 * 1.5 }')"
        kill -0 $pid 2>/dev/null || report "kill $k: the run went on until then" 1
        kill -KILL $(pgrep -P $pid) $pid 2>/dev/null
        wait $pid 2>/dev/null
        cat "$log" >>"$tmp/all.log"
        announced=$(sed -n 's/^checkpoint saved: .*-ba\([0-9]*\) .*/\1/p' "$tmp/all.log" | tail -n 1)
        newest=$(newest_of "$url")
        [ "${announced:-0}" -le "${newest:-0}" ] || report "kill $k: announced ba$announced, newest ba$newest" 1
        whole "$url" || break
    done
    free_lock kills/r/run.lock
    end=$(( (${newest:-0} / 3 + 2) * 3 ))
    train "$url" $end >"$log" 2>&1
    report "$KILLS kills, $waited starts waited for the lease: $verified checkpoints verified, $(grep -c '^checkpoint saved' "$tmp/all.log") announced; the last start ends" $?
    same_as_calm "after kills" "$url" $end
}

fetch_kills() {
    local k=0 took ended=0
    seq 1 "${FETCH_LINES:-1000000}" >"$tmp/text.txt"
    "$cltrain" -q data convert "$tmp/text.txt" --concat-tokens 64 --tokenizer bytes --hashes xxh64 --size-limit 1000000 --out "$tmp/set" >"$log" 2>&1
    upload "$tmp/set/train" set
    took=$(now)
    "$cltrain" data fetch "s3://$TEST_BUCKET/set" "$tmp/got" >"$log" 2>&1
    took=$(($(now) - took))
    rm -rf "$tmp/got"
    while [ $k -lt "$FETCH_KILLS" ] && [ $ended -lt $((5 * FETCH_KILLS)) ]; do
        "$cltrain" data fetch "s3://$TEST_BUCKET/set" "$tmp/got" >"$log" 2>&1 &
        pid=$!
        sleep "$(awk -v r=$RANDOM -v ms=$took 'BEGIN { printf "%.3f", r / 32768 * ms / 1000 }')"
        kill -KILL $pid 2>/dev/null
        wait $pid 2>/dev/null
        # One that had ended is no kill; the next one begins with nothing, and earlier.
        grep -q 'fetched$' "$log" && { ended=$((ended + 1)) took=$((took * 9 / 10)); rm -rf "$tmp/got"; continue; }
        k=$((k + 1))
        # What is there under its final name is whole.
        for f in "$tmp"/got/shard.*.mds; do
            [ ! -e "$f" ] || cmp -s "$f" "$tmp/set/train/${f##*/}" || report "kill $k: ${f##*/}" 1
        done
    done
    "$cltrain" data fetch "s3://$TEST_BUCKET/set" "$tmp/got" >"$log" 2>&1 && diff -r -x .fetch "$tmp/set/train" "$tmp/got" >>"$log"
    report "$k kills of data fetch ($ended more had ended before): the same data set" $?
    [ $k = "$FETCH_KILLS" ]
    report "as many kills as wanted" $?
}

# --- outage ---

away() {
    store_stop
    sleep "$AWAY"
    store_restart
}

outage() {
    local i waited url=s3://$TEST_BUCKET/outage/r code end=${OUTAGE_BATCHES:-600}
    train "$url" "$end" save_interval=100ba >"$log" 2>&1 &
    pid=$!
    for ((i = 0; i < 600; i++)); do grep -q '^checkpoint saved' "$log" && break; sleep 0.1; done
    away
    wait $pid
    code=$?
    { [ $code = 0 ] || [ $code = 75 ]; } && grep -qa 'warning: s3://.*repeated for up to' "$log"
    report "the store of the checkpoints away for $AWAY s: exit $code" $? "$(grep -ao 'warning: s3://.*' "$log" | head -n 1)"
    whole "$url"
    while [ $code = 75 ]; do train "$url" "$end" save_interval=100ba >"$log" 2>&1; code=$?; done
    same_as_calm "after the outage" "$url" "$end"

    # The cache holds one shard of five, so shards are fetched all the time.
    local data=train_loader.dataset set=$golden/e2e
    upload "$set/mds/train" data/train
    streamed() { # FOLDER ARGUMENT...
        "$cltrain" train "$set/train.yaml" save_folder="$1" run_name=s max_duration="${STREAM_BATCHES:-1500}ba" scheduler.t_max=100000ba \
            eval_interval=0 eval_loader.dataset.local="$set/mds" save_interval=100ba save_num_checkpoints_to_keep=2 log_config=false \
            console_log_interval=100000ba "${@:2}"
    }
    streamed "$tmp/local" $data.local="$set/mds" >"$log" 2>&1
    report "a run on local data" $?
    : >"$log"
    streamed "$tmp/streamed" $data.local="$tmp/cache" $data.remote="s3://$TEST_BUCKET/data" $data.cache_limit=40kb \
        $data.predownload=8 >"$log" 2>&1 &
    pid=$!
    for ((i = 0; i < 600; i++)); do grep -q '^checkpoint saved' "$log" && break; sleep 0.1; done
    away
    kill -0 $pid 2>/dev/null
    report "the run that reads from the store has not ended before the store is back" $?
    wait $pid
    code=$?
    # The longest wait of one batch: small ones come from the small cache.
    waited=$(grep -o '"data_stall_seconds":[0-9.]*' "$tmp/streamed/metrics.jsonl" | cut -d: -f2 | sort -g | tail -n 1)
    { [ $code = 0 ] || [ $code = 75 ]; } && awk -v w="${waited:-0}" -v a="$AWAY" 'BEGIN { exit !(w > a / 2) }'
    report "the store of the data away for $AWAY s: exit $code, one batch waited ${waited:-0} s for data" $?
    whole "$tmp/streamed"
    while [ $code = 75 ]; do
        streamed "$tmp/streamed" $data.local="$tmp/cache" $data.remote="s3://$TEST_BUCKET/data" $data.cache_limit=40kb >"$log" 2>&1
        code=$?
    done
    [ -n "$(hash_of "$tmp/local")" ] && [ "$(hash_of "$tmp/local")" = "$(hash_of "$tmp/streamed")" ]
    report "after the outage of the data: the hash of a run on local data" $? "$(hash_of "$tmp/streamed")"
}

# --- refusals ---

# refused NAME CODE TEXT COMMAND...: exits with CODE, and a line holds TEXT
refused() {
    local name=$1 want=$2 text=$3 got
    shift 3
    timeout 120 "$@" >"$log" 2>&1
    got=$?
    [ $got = "$want" ] && grep -qF -- "$text" "$log"
    report "$name: exit $got" $? "$(grep -aF -- "$text" "$log" | head -n 1)"
}
keys() { with_keys=(env AWS_ACCESS_KEY_ID="${1% *}" AWS_SECRET_ACCESS_KEY="${1#* }" "$cltrain"); }
through() { # PROXY-ARGUMENTS...: until proxy_stop
    proxy_start --share 1 --seed 1 "$@"
}

refusals() {
    local url=s3://$TEST_BUCKET/refused/r start=(train "$set/train.yaml" "${settings[@]}" run_name=r max_duration=6ba)
    train "$url" 6 >"$log" 2>&1
    report "a run" $?
    keys "$store_reader_keys"
    refused "read-only keys, a run" 74 "lack s3:PutObject" "${with_keys[@]}" "${start[@]}" "save_folder=s3://$TEST_BUCKET/refused/x"
    refused "read-only keys, verify" 0 "ok" "${with_keys[@]}" ckpt verify "$url"
    keys "$store_writer_keys"
    refused "keys that may not list" 74 "lack s3:ListBucket" "${with_keys[@]}" ckpt ls "$url"
    keys "AKUNKNOWN0123456789 x"
    refused "unknown access key" 74 "does not know the access key" "${with_keys[@]}" ckpt ls "$url"
    keys "$AWS_ACCESS_KEY_ID x"
    refused "wrong secret" 74 "the secret key is not" "${with_keys[@]}" ckpt ls "$url"
    refused "no bucket" 74 "there is no bucket" "$cltrain" ckpt ls "s3://no-such-bucket/r"
    refused "another region" 0 "ep" env AWS_REGION=eu-west-3 "$cltrain" ckpt ls "$url" # SeaweedFS has none
    if command -v faketime >/dev/null; then
        refused "clock 20 minutes ahead" 0 "ok" faketime -f +20m "$cltrain" ckpt verify "$url"
        refused "clock 20 minutes behind" 0 "ok" faketime -f -20m "$cltrain" ckpt verify "$url"
        refused "clock 20 minutes ahead, a save" 0 "28 tensors" faketime -f +20m "$cltrain" ckpt import "$set/hf" "s3://$TEST_BUCKET/clock/ba0"
    else
        echo "skipped: wrong clocks (package faketime is not installed)"
    fi
    through --kinds expired_for_good
    refused "expired credentials" 74 "credentials expired" "$cltrain" ckpt ls "$url"
    proxy_stop
    # The store fills up after two saves: the run says so, trains to its end and keeps what it saved.
    through --kinds full --only "$TEST_BUCKET/refused/full/ep1-" # the second and third save
    refused "full store" 74 "XMinioStorageFull" "$cltrain" "${start[@]}" max_duration=12ba "save_folder=s3://$TEST_BUCKET/refused/full"
    proxy_stop
    [ -n "$(names_of "s3://$TEST_BUCKET/refused/full")" ] && whole "s3://$TEST_BUCKET/refused/full"
    report "full store: the earlier checkpoints are whole" $?
    gone
}

# The bucket is emptied and deleted during a run.
gone() {
    local code
    boto <<'PY'
import boto3
boto3.client("s3").create_bucket(Bucket="short-lived")
PY
    CLTRAIN_S3_TIMEOUT=20 train s3://short-lived/r 600 save_interval=100ba >"$log" 2>&1 &
    pid=$!
    for ((i = 0; i < 600; i++)); do grep -q '^checkpoint saved' "$log" && break; sleep 0.1; done
    boto <<'PY'
import boto3
s3 = boto3.client("s3")
for page in s3.get_paginator("list_objects_v2").paginate(Bucket="short-lived"):
    for o in page.get("Contents", []):
        s3.delete_object(Bucket="short-lived", Key=o["Key"])
s3.delete_bucket(Bucket="short-lived")
PY
    wait $pid
    code=$?
    [ $code = 74 ] || [ $code = 0 ]
    report "bucket gone during a run: exit $code" $? "$(grep -a '^error' "$log" | head -n 1)"
}

# --- other programs ---

second_server() {
    local port
    "$store_python" -c 'import moto.server' 2>/dev/null || { echo "skipped: moto is not installed (tools/setup.sh --check)"; return; }
    port=$(free_ports 1)
    "$store_python" -m moto.server -H 127.0.0.1 -p "$port" >"$tmp/moto.log" 2>&1 &
    moto_pid=$!
    (
        export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_SECRET_ACCESS_KEY=any AWS_ACCESS_KEY_ID=any
        boto <<'PY'
import os, time, boto3
for i in range(100):
    try:
        boto3.client("s3").create_bucket(Bucket=os.environ["TEST_BUCKET"])
        break
    except Exception:
        time.sleep(0.2)
PY
        "$BUILD/test/object/test_s3_random" "${MOTO_OPERATIONS:-300}" "$SEED" 40000000 "$tmp/moto.model" >"$log" 2>&1
        report "moto" $? "$(tail -n 1 "$log")"
        train "s3://$TEST_BUCKET/runs/r" 12 >"$log" 2>&1
        report "moto: a run" $?
        whole "s3://$TEST_BUCKET/runs/r"
        same_as_calm "moto" "s3://$TEST_BUCKET/runs/r" 12
        exit "$failed"
    ) || failed=1
    kill -KILL $moto_pid
    wait $moto_pid 2>/dev/null
}

with_rclone() {
    command -v rclone >/dev/null || { echo "skipped: rclone is not installed (tools/setup.sh --check)"; return; }
    export RCLONE_CONFIG=$tmp/none RCLONE_CONFIG_STORE_TYPE=s3 RCLONE_CONFIG_STORE_PROVIDER=Other RCLONE_CONFIG_STORE_ENV_AUTH=true \
        RCLONE_CONFIG_STORE_ENDPOINT=$AWS_ENDPOINT_URL RCLONE_CONFIG_STORE_REGION=us-east-1
    "$cltrain" -q ckpt import "$set/hf" "s3://$TEST_BUCKET/rclone/ba0" >"$log" 2>&1 &&
        rclone copy "store:$TEST_BUCKET/rclone/ba0" "$tmp/rclone/ba0" >>"$log" 2>&1 &&
        "$cltrain" ckpt verify "$tmp/rclone/ba0" >>"$log" 2>&1 &&
        [ "$(hash_of "$tmp/rclone/ba0")" = "$(hash_of "s3://$TEST_BUCKET/rclone/ba0")" ]
    report "rclone reads a checkpoint" $?
    rclone copy "$tmp/rclone/ba0" "store:$TEST_BUCKET/rclone/copy" >"$log" 2>&1 &&
        "$cltrain" ckpt verify "s3://$TEST_BUCKET/rclone/copy" >>"$log" 2>&1 &&
        train "s3://$TEST_BUCKET/rclone/run" 3 "load_path=s3://$TEST_BUCKET/rclone/copy" load_weights_only=true model.d_model=64 model.n_layers=2 >>"$log" 2>&1
    report "rclone wrote a checkpoint" $?
    # 100 MB in parts of 5 MiB by rclone, of 16 MiB by cltrain, and what rclone thinks of the difference
    head -c 100000000 /dev/urandom >"$tmp/large"
    rclone copyto --s3-chunk-size 5M --s3-upload-cutoff 5M "$tmp/large" "store:$TEST_BUCKET/rclone/large" >"$log" 2>&1 &&
        "$BUILD/test/object/test_io_s3" copy "s3://$TEST_BUCKET/rclone/large" "s3://$TEST_BUCKET/rclone/again" >>"$log" 2>&1 &&
        rclone cat "store:$TEST_BUCKET/rclone/again" | cmp - "$tmp/large" >>"$log" 2>&1
    report "rclone and cltrain read each other's uploads in parts" $?
}

[[ $parts != *" kills "* ]] || kills
[[ $parts != *" fetch "* ]] || fetch_kills
[[ $parts != *" outage "* ]] || outage
[[ $parts != *" refusals "* ]] || refusals
[[ $parts != *" moto "* ]] || { second_server; with_rclone; }
finish
