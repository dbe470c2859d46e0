#!/usr/bin/env bash
# Compares transfers to and from an object store with rclone and boto3, in one run that alternates between them:
# `make bench-object`. Prints Markdown. The store is SeaweedFS on this machine (tools/setup.sh --check installs it and boto3;
# rclone is a package).
#
#   tools/bench_object.sh [options]
#     --parts LIST   of download upload stall link first memory (default: all; link and first need root: they make two
#                    network namespaces and a cable of 1 Gbit/s with 10 ms in each direction between them)
#     --rounds N     rounds of download and upload; the median counts (default 3)
#     --mib N        size of the data set, in shards of 64 MiB (default 1024)
#     --layers N     of the model whose checkpoint is uploaded: 0.64 + 0.151 N GB (default 10: 2.1 GB)
#     --tiny         small data and a small model, as a test of this script
# Exits with 1 if a transfer failed or arrived damaged; a slow one is no failure. Environment: BUILD, DEVICE (pocl).
# $OUT (default build/bench-object) keeps the numbers: results.tsv (part, side, round, MiB, seconds) and the logs.
cd "$(dirname "$0")/.." && . test/lib.sh && . test/store.sh || exit 1
set -o pipefail

usage() { sed -n '2,/^cd/{/^#/p}' "$0"; exit "$1"; }
every='download upload stall link first memory'
parts=$every rounds=3 mib=1024 layers=10 shard=64 width=1024 vocab=50368 steps=50
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) usage 0 ;;
    --tiny) rounds=1 mib=16 layers=1 shard=1 width=64 vocab=512 steps=10; shift; continue ;;
    --parts | --rounds | --mib | --layers) [ $# -gt 1 ] || usage 2 >&2 ;;
    *) echo "unknown option '$1'" >&2; usage 2 >&2 ;;
    esac
    declare "${1#--}=${2//,/ }" && shift 2
done
wants() { [[ " $parts " == *" $1 "* ]]; }
for part in $parts; do [[ " $every " == *" $part "* ]] || { echo "unknown part '$part' ($every)" >&2; exit 2; }; done
out=${OUT:-$BUILD/bench-object} device=${DEVICE:-pocl}
mkdir -p "$out" && : >"$out/results.tsv" && : >"$out/log" || exit 1
say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }
bad() { echo "FAILED: $*"; tail -n 5 "$out/log" | sed 's/^/    /'; failed=1; }
command -v rclone >/dev/null || { echo "rclone is not installed (apt-get install rclone): its columns are empty"; }

# --- clients ---

# Large parts and many streams, as its users set it up; no provider's name, because older releases do not know SeaweedFS.
rclone_settings() {
    export RCLONE_CONFIG=$tmp/rclone.conf
    cat >"$RCLONE_CONFIG" <<CONF
[store]
type = s3
provider = Other
endpoint = $AWS_ENDPOINT_URL
access_key_id = $AWS_ACCESS_KEY_ID
secret_access_key = $AWS_SECRET_ACCESS_KEY
region = us-east-1
no_check_bucket = true
CONF
}
by_rclone() { # SOURCE TARGET
    rclone copy --transfers 8 --s3-upload-concurrency 8 --s3-chunk-size 16M "$@"
}
by_boto3() { "$store_python" tools/anchors/boto3_copy.py "$@"; } # get|put FOLDER PREFIX

# timed PART SIDE ROUND MIB COMMAND...: one line of results.tsv
timed() {
    local since took
    since=$(now)
    "${@:5}" >>"$out/log" 2>&1 || { bad "$1, $2"; return 1; }
    took=$(($(now) - since))
    record "$1" "$2" "$3" "$4" "$(awk "BEGIN { print $took / 1000 }")"
}
record() { printf '%s\t%s\t%s\t%s\t%s\n' "$@" >>"$out/results.tsv"; }
# median PART SIDE: MiB/s; empty without measurements
median() {
    awk -F'\t' -v p="$1" -v s="$2" '$1 == p && $2 == s && $5 > 0 { print $4 / $5 }' "$out/results.tsv" | sort -g |
        awk '{ v[NR] = $1 } END { if (NR) printf "%.0f", v[int((NR + 1) / 2)] }'
}
ratio() { [ -z "$1" ] || [ -z "$2" ] || awk "BEGIN { printf \"%.2f\", $1 / $2 }"; }

# --- data ---

# A data set of $1 MiB in shards of $2 MiB with checksums: $tmp/$3, and PREFIX $3 in the bucket. Tokens have four bytes.
make_data() {
    if [ -d "$tmp/$3" ]; then
        put_data "$3"
        return
    fi
    say "making $1 MiB of data in shards of $2 MiB"
    head -c $(($1 << 20)) /dev/urandom | base64 -w 0 | head -c $(($1 << 18)) >"$tmp/text"
    "$cltrain" -q data convert "$tmp/text" --out "$tmp/$3" --concat-tokens 2048 --tokenizer bytes --hashes xxh64 \
        --size-limit $(($2 << 20)) >>"$out/log" 2>&1 && put_data "$3" || { bad "the data set"; exit 1; }
    rm "$tmp/text"
}
put_data() { "${store_in[@]}" "$store_python" tools/anchors/boto3_copy.py put "$tmp/$1" "$1" >>"$out/log" 2>&1; }
size_of() { du -s --apparent-size -B 1M "$1" | cut -f1; }
same_files() { diff -r -x .fetch "$1" "$2" >>"$out/log" 2>&1 || bad "$3: the files differ"; }

# get SIDE ROUND MIB
get() {
    local to=$tmp/got.$1
    case $1 in
    cltrain) timed download "$@" "$cltrain" -q data fetch "s3://$TEST_BUCKET/data/train" "$to" &&
        same_files "$tmp/data/train" "$to" "data fetch" ;;
    rclone) ! command -v rclone >/dev/null || timed download "$@" by_rclone "store:$TEST_BUCKET/data/train" "$to" ;;
    boto3) timed download "$@" by_boto3 get "$to" data/train ;;
    esac
    rm -rf "$to"
}
download() {
    local i k size sides=(cltrain rclone boto3)
    make_data "$mib" "$shard" data
    size=$(size_of "$tmp/data/train")
    for ((i = 1; i <= rounds; i++)); do
        say "download, round $i"
        for k in 0 1 2; do get "${sides[(i + k) % 3]}" $i "$size"; done # each is first in turn
    done
}

# --- checkpoints ---

# train FOLDER SAVE_FOLDER KEYS...: trains in $tmp/FOLDER; a batch is so short that a step costs little more than its update
train() {
    local folder=$tmp/$1
    mkdir -p "$folder"
    (cd "$folder" && "$cltrain" train -q --device "$device" "$root/tools/bench/bench.yaml" run_name=it \
        model.d_model=$width model.n_layers="$layers" model.n_heads=16 model.vocab_size=$vocab max_seq_len=16 model.max_seq_len=16 \
        train_loader.dataset.max_seq_len=16 train_loader.dataset.local="$tmp/text16" global_train_batch_size=1 \
        device_train_microbatch_size=1 save_folder="$2" "${@:3}") >>"$out/log" 2>&1
}
root=$PWD
short_text() {
    [ ! -d "$tmp/text16" ] || return 0
    seq 1 20000 >"$tmp/text"
    "$cltrain" -q data convert "$tmp/text" --out "$tmp/text16" --concat-tokens 16 >>"$out/log" 2>&1 || { bad "the text"; exit 1; }
}
# event FOLDER KEY: of the last checkpoint event
event() { grep '"event":"checkpoint"' "$1" | tail -n 1 | sed -n "s/.*\"$2\":\([0-9.]*\).*/\1/p"; }

upload() {
    local i size
    short_text
    say "a checkpoint in a folder"
    train local "$tmp/local/ckpt" max_duration=1ba || { bad "the local run"; return; }
    size=$(size_of "$tmp/local/ckpt/ep0-ba1")
    for ((i = 1; i <= rounds; i++)); do
        say "upload of $size MiB, round $i"
        train "up$i" "s3://$TEST_BUCKET/up$i" max_duration=1ba || { bad "the save"; return; }
        record upload cltrain $i "$size" "$(event "$tmp/up$i/runs/it/metrics.jsonl" seconds)"
        "$cltrain" ckpt verify "s3://$TEST_BUCKET/up$i/ep0-ba1" >>"$out/log" 2>&1 || bad "the checkpoint is damaged"
        empty "up$i"
        ! command -v rclone >/dev/null ||
            timed upload rclone $i "$size" by_rclone "$tmp/local/ckpt/ep0-ba1" "store:$TEST_BUCKET/rc$i"
        empty "rc$i"
        timed upload boto3 $i "$size" by_boto3 put "$tmp/local/ckpt/ep0-ba1" "boto$i"
        empty "boto$i"
    done
}
# The store keeps all of it in this machine's files.
empty() {
    "$store_python" -c 'import boto3, os, sys
for o in boto3.resource("s3").Bucket(os.environ["TEST_BUCKET"]).objects.filter(Prefix=sys.argv[1] + "/"): o.delete()' "$1"
}

# stall_in FOLDER SAVE_FOLDER METRICS: sets stalled, the seconds that training waits for a save, and interval, those of the
# 50 steps behind it.
stall_in() {
    train "$1" "$2" save_interval=${steps}ba max_duration=$((2 * steps + 1))ba || { bad "the run with saves"; return; }
    stalled=$(grep '"event":"checkpoint"' "$3" | head -n 1 | sed -n 's/.*"stall_seconds":\([0-9.]*\).*/\1/p')
    interval=$(grep -o '"step_seconds":[0-9.]*' "$3" | cut -d: -f2 | head -n $((2 * steps)) | tail -n "$steps" |
        awk '{ t += $1 } END { print t }')
}
stall() {
    short_text
    say "saves while $((4 * steps)) steps train"
    stall_in stallf "$tmp/stallf/ckpt" "$tmp/stallf/ckpt/metrics.jsonl"
    stalled_file=$stalled
    stall_in stall "s3://$TEST_BUCKET/stall" "$tmp/stall/runs/it/metrics.jsonl"
    empty stall
}

# --- the cable ---

. test/hosts.sh
on_host_a() { "$tmp/enter" "$host_a" host-a "$@"; }
on_cable() {
    store_stop
    two_hosts
    trap '[ $BASHPID != $$ ] || { store_stop; end_hosts; }' EXIT
    slow_cable 10 || { echo "skipped: link, first: no cable here: $why"; exit $failed; }
    store_address=10.77.0.2 store_in=("$tmp/enter" "$host_b" host-b) store_client=("$tmp/enter" "$host_a" host-a)
    export CLTRAIN_S3_INSECURE=$store_address AWS_ENDPOINT_URL=http://$store_address:${ports[0]} no_proxy=$store_address
    # Its consensus keeps the first address, so it starts empty.
    rm -rf "$store_dir/data" && mkdir "$store_dir/data"
    store_restart
    rclone_settings
}

# What the cable carries, in MiB/s. NAMESPACE -> NAMESPACE, address of the second
plain_rate() {
    "$tmp/enter" "$2" taker python3 tools/bench/link_rate.py take 5201 >"$tmp/rate" &
    sleep 1
    "$tmp/enter" "$1" giver python3 tools/bench/link_rate.py give "$3" 5201
    wait $!
    cat "$tmp/rate"
}

link() {
    local size
    make_data "$mib" "$shard" data
    size=$(size_of "$tmp/data/train")
    say "the cable itself"
    record link-down link 1 "$(plain_rate "$host_b" "$host_a" 10.77.0.1)" 1
    record link-up link 1 "$(plain_rate "$host_a" "$host_b" 10.77.0.2)" 1
    say "down and up the cable"
    timed link-down cltrain 1 "$size" on_host_a "$cltrain" -q data fetch "s3://$TEST_BUCKET/data/train" "$tmp/got.link"
    same_files "$tmp/data/train" "$tmp/got.link" "data fetch over the cable"
    rm -rf "$tmp/got.link"
    ! command -v rclone >/dev/null || {
        timed link-down rclone 1 "$size" on_host_a bash -c "$(declare -f by_rclone)"' && by_rclone "$@"' _ "store:$TEST_BUCKET/data/train" "$tmp/got.link"
        rm -rf "$tmp/got.link"
    }
    short_text
    [ -d "$tmp/local" ] || train local "$tmp/local/ckpt" max_duration=1ba || { bad "the local run"; return; }
    size=$(size_of "$tmp/local/ckpt/ep0-ba1")
    mkdir -p "$tmp/link"
    (cltrain_plain=$cltrain; cltrain=$tmp/on_a
     printf '#!/bin/bash\nexec "%s" "%s" host-a "%s" "$@"\n' "$tmp/enter" "$host_a" "$cltrain_plain" >"$cltrain"
     chmod +x "$cltrain"
     train link "s3://$TEST_BUCKET/link" max_duration=1ba) || { bad "the save over the cable"; return; }
    record link-up cltrain 1 "$size" "$(event "$tmp/link/runs/it/metrics.jsonl" seconds)"
    ! command -v rclone >/dev/null || timed link-up rclone 1 "$size" on_host_a bash -c "$(declare -f by_rclone)"' && by_rclone "$@"' _ \
        "$tmp/local/ckpt/ep0-ba1" "store:$TEST_BUCKET/rclink"
}

# One batch of a cold set of 100 shards beside the time of its index and two shards, one after the other.
first() {
    local bytes=$((shard > 8 ? 8 : shard)) key=first/train
    make_data $((100 * bytes)) $bytes first
    say "the first batch of 100 shards of $bytes MiB over the cable"
    two=$(on_host_a "$store_python" - $key <<'PY'
import boto3, json, os, sys, time
s3, bucket, key = boto3.client("s3"), os.environ["TEST_BUCKET"], sys.argv[1]
s3.head_object(Bucket=bucket, Key=key + "/index.json")  # the connection
t = time.time()
index = json.loads(s3.get_object(Bucket=bucket, Key=key + "/index.json")["Body"].read())
for shard in index["shards"][:2]:
    s3.get_object(Bucket=bucket, Key="%s/%s" % (key, shard["raw_data"]["basename"]))["Body"].read()
print("%.3f" % (time.time() - t))
PY
    )
    local folder=$tmp/firstrun
    mkdir -p "$folder"
    (cd "$folder" && on_host_a "$cltrain" train -q --device "$device" "$root/tools/bench/bench.yaml" run_name=it model.d_model=64 \
        model.n_layers=1 model.n_heads=2 model.vocab_size=256 max_seq_len=2048 model.max_seq_len=2048 \
        train_loader.dataset.max_seq_len=2048 train_loader.dataset.remote="s3://$TEST_BUCKET/first" \
        train_loader.dataset.local=cache global_train_batch_size=1 device_train_microbatch_size=1 max_duration=1ba \
        train_loader.dataset.shuffle=true save_folder="$folder/ckpt") >>"$out/log" 2>&1 || bad "the run with a cold set"
    waited=$(sed -n 's/.*"data_stall_seconds":\([0-9.]*\).*/\1/p' "$folder"/*/metrics.jsonl "$folder"/runs/it/metrics.jsonl 2>/dev/null | head -n 1)
}

# --- memory ---

peak_of() { # COMMAND...: MiB of the largest resident size
    python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)' "$@" 2>>"$out/log"
}
memory() {
    [ -d "$tmp/data" ] || make_data "$mib" "$shard" data
    say "memory"
    fetch_s3=$(peak_of "$cltrain" -q data fetch "s3://$TEST_BUCKET/data/train" "$tmp/got.memory")
    rm -rf "$tmp/got.memory"
    fetch_file=$(peak_of "$cltrain" -q data fetch "$tmp/data/train" "$tmp/got.memory")
    rm -rf "$tmp/got.memory"
    short_text
    export -f train
    export tmp cltrain device root width layers vocab out
    save_s3=$(peak_of bash -c 'train mem3 "$1" max_duration=1ba' _ "s3://$TEST_BUCKET/mem")
    save_file=$(peak_of bash -c 'train memf "$1" max_duration=1ba' _ "$tmp/memf/ckpt")
    empty mem
}

# --- the report ---

row() { # PART TEXT GOAL
    local ours rclone boto
    ours=$(median "$1" cltrain) rclone=$(median "$1" rclone) boto=$(median "$1" boto3)
    echo "| $2 | ${ours:--} | ${rclone:--} | ${boto:--} | $(ratio "$ours" "$rclone") | $(ratio "$ours" "$boto") | $3 |"
}
link_row() { # PART TEXT
    local ours
    ours=$(median "$1" cltrain)
    echo "| $2 | ${ours:--} | $(median "$1" rclone) | $(median "$1" link) | $(ratio "$ours" 119.2) | 0.9 |"
}
tables() {
    echo "Machine: $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(nproc) threads, $(date +%F)"
    echo
    if wants download || wants upload; then
        echo "| what, MiB/s | cltrain | rclone | boto3 | of rclone | of boto3 | goal |"
        echo "|---|---:|---:|---:|---:|---:|---|"
        ! wants download || row download "download, $mib MiB in $shard MiB shards, checked" "1.0 of both"
        ! wants upload || row upload "checkpoint upload" "1.0 of rclone"
        echo
    fi
    if wants link; then
        echo "| 1 Gbit/s (119 MiB/s), round trip 20 ms; MiB/s | cltrain | rclone | 8 plain connections | of 119 | goal |"
        echo "|---|---:|---:|---:|---:|---:|"
        link_row link-down "download"
        link_row link-up "checkpoint upload"
        echo
    fi
    ! wants stall || echo "Training waited ${stalled:--} s for a save, $(awk "BEGIN { printf \"%.2f\", 100 * ${stalled:-0} / ${interval:-1} }") % of an interval of $steps steps (${interval:--} s; goal: 1 %); ${stalled_file:--} s for one into a folder."
    ! wants first || echo "The first batch waited ${waited:--} s for data; index and two shards one after the other take ${two:--} s (goal: not more)."
    ! wants memory || echo "Peak memory: data fetch ${fetch_s3:--} MiB from the store, ${fetch_file:--} MiB from a folder; a run that saves once ${save_s3:--} MiB into the store, ${save_file:--} MiB into a folder."
}

store_volumes=200
store_start
rclone_settings
for part in download upload stall memory; do wants $part && $part; done
if wants link || wants first; then
    [ "$(id -u)" = 0 ] && on_cable || { echo "skipped: link, first: they need root"; parts=" $parts " parts=${parts/ link / } parts=${parts/ first / }; }
    for part in link first; do wants $part && $part; done
fi
tables | tee "$out/tables.md"
exit $failed
