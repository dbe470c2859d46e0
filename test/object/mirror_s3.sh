#!/bin/bash
# cltrain.mirror: checkpoints of a local save_folder and the run's files are copied to a bucket or another folder behind
# training. A copy is a checkpoint like any other; a mirror that is away, behind or in use never stops the run.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
export CLTRAIN_S3_LEASE=6
url=s3://$TEST_BUCKET/mirrors
cp -r "$golden/e2e/hf" "$golden/e2e/mds" "$golden/e2e/train.yaml" "$tmp/"
cd "$tmp" || exit 1
# train FOLDER MIRROR ARGUMENT...: 8 batches, a checkpoint after each second one, of which two are kept, on $ranks ranks
ranks=1
train() {
    local run=(on_ranks "$ranks")
    [ "$ranks" != 1 ] || run=("$cltrain") # one process, which can be killed
    "${run[@]}" train --device pocl train.yaml load_path=hf run_name=m save_folder="$1" cltrain.mirror="$2" \
        save_interval=2ba save_num_checkpoints_to_keep=2 save_latest_filename=newest max_duration=8ba log_config=false \
        "${@:3}" >"$log" 2>&1
}
hash_of() { "$cltrain" ckpt hash "$1" 2>&1; }
# same NAME FOLDER MIRROR: the mirror has the checkpoints of FOLDER, which verify, the hint, and the run's files
same() {
    local a b
    a=$("$cltrain" ckpt ls "$2" --json | grep -o '"name":"[^"]*"\|"valid":[a-z]*\|"batch":[0-9]*')
    b=$("$cltrain" ckpt ls "$3" --json | grep -o '"name":"[^"]*"\|"valid":[a-z]*\|"batch":[0-9]*')
    echo "$a -- $b" >"$log"
    [ -n "$a" ] && [ "$a" = "$b" ]
    report "$1: the same checkpoints" $?
    [ "$(hash_of "$2")" = "$(hash_of "$3")" ]
    report "$1: the same hash" $?
    "$cltrain" ckpt verify "$3" >"$log" 2>&1
    report "$1: ckpt verify" $?
    : >"$log"
    for file in metrics.jsonl log.txt config.yaml newest; do
        rm -f "$tmp/file"
        "$BUILD/test/object/test_io_s3" copy "$3/$file" "$tmp/file" >>"$log" 2>&1
        bytes=$(wc -c <"$2/$file")
        # The last lines of the log are about the mirror itself.
        [ "$file" != log.txt ] || bytes=$(wc -c <"$tmp/file")
        [ "$bytes" -gt 0 ] && cmp -n "$bytes" "$2/$file" "$tmp/file" >>"$log" 2>&1
        report "$1: $file" $?
    done
}

train one "$url/one"
report "a mirror in a bucket" $?
same bucket one "$url/one"
want=$(hash_of one)
train two "file://$tmp/two.mirror"
report "a mirror in a folder" $?
same folder two "$tmp/two.mirror"
[ "$(hash_of two)" = "$want" ]
report "both have one hash" $?

# Another host has nothing but the bucket: the same command resumes from the mirror, and continues both.
train three "$url/three" --stop-after 4ba
[ $? = 75 ]
report "4 batches" $?
mv three three.host
train three "$url/three"
report "the rest on another host" $?
grep -q "resumed from $url/three/ep0-ba4" "$log"
report "resumes from the mirror" $?
same "two hosts" three "$url/three"
[ "$(hash_of "$url/three")" = "$want" ]
report "one hash: ${want%% *}" $?
[ "$(grep -c '^{"batch":[1-8],.*"loss"' three/metrics.jsonl)" = 8 ]
report "metrics of both" $?
train four "$tmp/four.mirror" "load_path=$url/one/ep0-ba6" && [ "$(hash_of four)" = "$want" ]
report "load_path of a copy" $?

# A store that does not respond: the run ends well with a warning, and the next one copies what is missing.
export CLTRAIN_S3_TIMEOUT=2
began=$(now)
store_pause
train five "$url/five"
code=$?
took=$(($(now) - began))
store_resume
[ $code = 0 ]
report "without the store the run ends with 0" $?
grep "warn.*mirror $url/five" "$log" >/dev/null && tail -n 3 "$log" | grep -q "mirror $url/five could not be\|does not have ep0-ba8"
report "and a warning" $?
[ "$(hash_of five)" = "$want" ]
report "with all its checkpoints" $?
unset CLTRAIN_S3_TIMEOUT
train five "$url/five"
[ "$(hash_of "$url/five")" = "$want" ]
report "the next start copies the newest" $?

# A store that is away for several saves: the mirror skips to the newest, for which the run waits at its end.
train six "$url/six" --stop-after 2ba
[ $? = 75 ]
report "2 batches" $?
store_pause
ranks=2
in_background train six "$url/six"
until_there "^done: 8 batches"
report "training does not wait for the mirror" $?
sleep 3
kill -0 $started
report "the run waits for it at the end" $?
store_resume
wait $started
report "on two ranks" $?
ranks=1
grep -q "mirror $url/six is behind: skips ep0-ba[246], because ep0-ba[468] is newer" "$log" && grep -q "waiting up to 600 s" "$log"
report "it says that it skips, and how long the run waits" $?
[ "$(hash_of "$url/six")" = "$want" ]
report "and has the newest" $?

# Killed while checkpoints are saved and copied: the mirror has whole ones or none.
for ms in 0 0.02 0.05 0.1; do
    in_background train "killed$ms" "$url/killed$ms"
    until_there "checkpoint saved"
    sleep $ms
    pkill -KILL -P "$started"
    wait $started 2>/dev/null
    "$cltrain" ckpt ls "$url/killed$ms" --json >"$tmp/ls" 2>&1
    ! grep -q '"valid":false' "$tmp/ls"
    report "killed $ms s after a save" $? "$(grep -c '"valid":true' "$tmp/ls") copies"
done

# Another run has the mirror's lock.
CLTRAIN_S3_LEASE=600 "$BUILD/test/object/test_io_s3" hold "$url/seven/run.lock" >"$tmp/held" 2>&1 &
holder=$!
until [ -s "$tmp/held" ]; do sleep 0.1; done
export CLTRAIN_S3_TIMEOUT=3
CLTRAIN_LOCK_WAIT=1 train seven "$url/seven"
[ $? = 74 ] && grep -q "another run is writing to this folder ($url/seven/run.lock: holder)" "$log"
report "a run that would have to resume from a mirror in use does not start" $?
train seven "$url/seven" autoresume=false
code=$?
grep -q "mirror $url/seven: another run has its lock (holder)" "$log" && [ $code = 0 ] &&
    ! "$cltrain" ckpt ls "$url/seven" 2>&1 | grep -q ba8
report "a run whose mirror is in use leaves it alone" $?
kill -KILL $holder
finish
