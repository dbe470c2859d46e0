#!/bin/bash
# The number of lanes of a large batch: the default of a new run grows with the batch, and a run that was started with
# another number, as earlier versions did, keeps it.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
set=$golden/mpt-learned
mkdir "$tmp/text"
seq -f '%.0f and so on' 1 4000 >"$tmp/text/numbers.txt"
"$cltrain" data convert "$tmp/text" --out "$tmp/data" --concat-tokens 64 --tokenizer bytes >"$log" 2>&1
report "1,000 samples" $?

# run FOLDER ARGUMENT ...: three batches of 512 samples
run() {
    "$cltrain" train "$set/train.yaml" --device pocl "train_loader.dataset.local=$tmp/data" \
        "load_path=$set/hf" global_train_batch_size=512 device_train_microbatch_size=32 max_duration=3ba log_config=false \
        "save_folder=$tmp/$1" "${@:2}" >"$log" 2>&1
}

run new
[ $? = 0 ] || report "a new run" 1
want=$("$cltrain" ckpt hash "$tmp/new")
run sixteen cltrain.exact_lanes=16
same_hash "512 samples have 16 lanes" sixteen

run old cltrain.exact_lanes=8
[ "$("$cltrain" ckpt hash "$tmp/old")" != "$want" ]
report "the number of lanes changes bits" $?
want=$("$cltrain" ckpt hash "$tmp/old")
run resumed cltrain.exact_lanes=8 --stop-after 1ba
[ $? = 75 ]
report "a run with 8 lanes stops" $?
run resumed
report "it resumes without the key" $?
! grep -q exact_lanes "$log"
report "of which nothing is said" $?
same_hash "with 8 lanes" resumed
finish
