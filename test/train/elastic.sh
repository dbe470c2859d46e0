#!/bin/bash
# Elastic resumption: a run on changing numbers of ranks, devices and microbatches, stopped, killed and
# resumed, has the losses, the state and the sample order of an undisturbed run, with every sample once per
# epoch.
#   LEGS="1:2ba:auto ..." test/train/elastic.sh    other legs: ranks:time:microbatch, or kill:ranks
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
other=pocl
if has_platform intel; then other=intel; else echo "SKIP: no Intel runtime for CPUs here: every leg is on PoCL"; fi
legs=${LEGS:-2:2ba:auto 3:1ba:2 kill:4 8:2ba:1 1:1ba:auto 4:9ba:3}
samples=64 batches=9 # three epochs of 24, 24 and 16 samples
here=$PWD
cd "$golden/mpt-variants" || exit 1

# leg RANKS MICROBATCH DEVICE ARGUMENT ...
leg() {
    "$cltrain" launch -n "$1" --device "$3" train train.yaml device_train_microbatch_size="$2" max_duration=${batches}ba \
        global_train_batch_size=24 train_loader.drop_last=false train_loader.dataset.shuffle=true model.emb_pdrop=0.1 \
        log_config=false log_to_console=false save_interval=1ba "${@:4}" >"$log" 2>&1
}

# killed RANKS FOLDER: trains until a batch is saved, then kills a rank with SIGKILL
killed() {
    local before launch
    before=$(grep -c '"event":"checkpoint"' "$tmp/$2/metrics.jsonl")
    leg "$1" auto pocl save_folder="$tmp/$2" --log-samples "$tmp/$2.samples" &
    launch=$!
    while [ "$(grep -c '"event":"checkpoint"' "$tmp/$2/metrics.jsonl")" -le "$before" ]; do
        kill -0 $launch 2>/dev/null || break
        sleep 0.02
    done
    kill -9 "$(cut -d' ' -f1 "$tmp"/cltrain-launch.*/0.pid | head -n 1)" 2>/dev/null
    wait $launch
    rm -rf "$tmp"/cltrain-launch.*
}

leg 1 auto pocl save_folder="$tmp/straight" --log-samples "$tmp/straight.samples"
report "an undisturbed run of $batches batches" $?
python3 "$here/test/samples.py" "$tmp/straight.samples" $samples >"$tmp/straight.order" 2>>"$log"
report "has every sample once per epoch" $?
[ "$(cut -d: -f2 "$tmp/straight.order" | sort -u | wc -l)" = $batches ]
report "in a different order in each epoch" $?

devices=(pocl "$other" "pocl,$other")
i=0
for part in $legs; do
    IFS=: read -r ranks time microbatch <<<"$part"
    if [ "$ranks" = kill ]; then
        killed "$time" moved
        continue
    fi
    leg "$ranks" "$microbatch" "${devices[i++ % 3]}" --stop-after "$time" save_folder="$tmp/moved" \
        --log-samples "$tmp/moved.samples"
    code=$?
    [ $code = 75 ] || [ $code = 0 ]
    report "$ranks ranks, microbatch $microbatch, for $time" $?
done
python3 "$here/test/samples.py" "$tmp/moved.samples" $samples >"$tmp/moved.order" 2>"$log"
report "the disturbed run has every sample once per epoch" $?
diff "$tmp/straight.order" "$tmp/moved.order" >"$log"
report "in the order of the undisturbed run" $?
diff <(steps_of "$tmp/straight") <(steps_of "$tmp/moved") >"$log"
report "the same losses" $?
[ "$("$cltrain" ckpt hash "$tmp/straight")" = "$("$cltrain" ckpt hash "$tmp/moved")" ]
report "the same state" $?
finish
