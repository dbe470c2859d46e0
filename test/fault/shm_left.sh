#!/bin/bash
# What a killed start leaves in /dev/shm goes with the next start on that host; what belongs to others stays. In a
# /dev/shm that no other process sees.
# timeout: 300
cd "$(dirname "$0")/../.." || exit 1
if [ "${1:-}" != in-private ]; then
    unshare --mount bash -c 'mount -t tmpfs shm /dev/shm' 2>/dev/null ||
        { echo "skipped: no /dev/shm of its own here (it needs root and the right to mount)"; exit 0; }
    exec unshare --mount bash -c 'mount -t tmpfs shm /dev/shm && exec bash "$0" in-private' "$PWD/test/fault/shm_left.sh"
fi
. test/lib.sh || exit 1
needs_mpirun
mpirun_by_hand
set=$golden/mpt-learned
program=$BUILD/test/train/test_group
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" max_duration=1ba
    scheduler.t_warmup=0ba log_config=false)
export CLTRAIN_COMM_TIMEOUT=60

ours() { find /dev/shm -name 'cltrain.*' | sort; }
start() { timeout -k 5 300 "${by_hand[@]}" -np 2 "$cltrain" train "${settings[@]}" "save_folder=$tmp/$1" >"$log" 2>&1; }

start warm # compiles
[ -z "$(ours)" ]
report "a start leaves nothing" $? "$(ours | xargs)"

timeout -k 5 300 "${by_hand[@]}" -np 2 "$program" --do name --rank 0 >"$log" 2>&1
kept=$(ours)
[ "$(wc -l <<<"$kept")" = 1 ] && [[ $kept == /dev/shm/cltrain.window.* ]]
report "a rank that is killed before it removes a name leaves it" $? "$kept"

: >/dev/shm/cltrain.page.$$.1 # of a living process
: >/dev/shm/cltrain.notes     # of another form
touch -d '1 hour ago' /dev/shm/cltrain.page.$$.1 /dev/shm/cltrain.notes
start young
[ "$(ours | wc -l)" = 3 ]
report "a name that another process may still open stays" $? "$(ours | xargs)"

# All processes of a start are killed, after a random time.
began=$(now)
start timed
most=$(($(now) - began))
for _ in $(seq 12); do
    "${by_hand[@]}" -np 2 "$cltrain" train "${settings[@]}" "save_folder=$tmp/killed" max_duration=500ba >"$log" 2>&1 &
    job=$!
    sleep "$(awk -v most=$most -v r=$RANDOM 'BEGIN { print most / 1000 * r / 32768 }')"
    pkill -9 -f "^$cltrain train .*save_folder=$tmp/killed"
    kill -9 $job 2>/dev/null
    wait $job 2>/dev/null
    nobody_left "^$cltrain train .*save_folder=$tmp/killed"
    rm -rf "$tmp/killed"
done
echo "12 starts were killed within $most ms; now there: $(ours | xargs)"

sleep 11 # names of less than 10 s are not touched
start next
want="/dev/shm/cltrain.notes /dev/shm/cltrain.page.$$.1"
[ "$(ours | xargs)" = "$want" ]
report "the next start removes what the killed ones left, and nothing else" $? "$(ours | xargs)"
finish
