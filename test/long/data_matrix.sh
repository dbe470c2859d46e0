#!/bin/bash
# Bit-identity for every kind of data: fine-tuning rows, padded and packed, and several streams with every
# batching method. One hash of weights and optimizer state for each data set on 1, 2, 3, 4 and 8 ranks, with
# whole and with sharded gradients, and for a run that is stopped after every few batches, each time resumed on
# another number of ranks. device_per_stream, whose batches depend on the ranks, has one hash for each number of
# them, with and without stops.
#   test/long/data_matrix.sh [PART ...]   only these parts: finetuning streams by_rank
#   RANKS="1 2 ..."   other numbers of ranks
# timeout: 3000
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
read -r -a ranks <<<"${RANKS:-1 2 3 4 8}"
data=train_loader.dataset
batches=12

# train FOLDER RANKS [key=value ...]: in $folder, with $conf
train() {
    local name=$1 n=$2
    shift 2
    (cd "$folder" && on_ranks "$n" train -q --device pocl train.yaml "${conf[@]}" eval_loader=null max_duration=${batches}ba \
        save_folder="$tmp/$name" "$@") >"$log" 2>&1
}

# same NAME FOLDER: losses and hash are those of the first run of this data set
same() {
    local hash steps
    hash=$("$cltrain" ckpt hash "$tmp/$2" 2>&1)
    steps=$(steps_of "$tmp/$2")
    if [ -z "$want" ]; then
        want=$hash want_steps=$steps
        [ "$(wc -l <<<"$steps")" = $batches ] || fail "$set: $1 does not have $batches steps"
        echo "$set: ${hash//$'\n'/ }"
    fi
    [ "$hash" = "$want" ] && diff <(echo "$want_steps") <(echo "$steps") >"$log"
    report "$set: $1" $?
    rm -rf "${tmp:?}/$2"
}

# straight RANKS NAME [key=value ...]
straight() {
    train x "$1" "${@:3}" || { report "$set: $2" 1; return; }
    same "$2" x
}

# legs NAME RANKS:BATCHES ... RANKS: one run, stopped after so many batches on so many ranks, and then finished
legs() {
    local name=$1 leg n
    shift
    for leg in "$@"; do
        n=${leg#*:}
        if [ "$n" = "$leg" ]; then
            train legs "$leg"
        else
            train legs "${leg%:*}" --stop-after "${n}ba" device_train_microbatch_size=$((1 + n % 3))
            [ $? = 75 ]
        fi || { report "$set: $name, leg $leg" 1; return; }
    done
    [ "$(grep -c '"event":"resume"' "$tmp/legs/metrics.jsonl")" = $(($# - 1)) ] || fail "$set: expected $(($# - 1)) resumed starts"
    same "$name" legs
}

# matrix SET FOLDER [key=value ...]
matrix() {
    local n
    set=$1 folder=$2 want=
    conf=("${@:3}")
    for n in "${ranks[@]}"; do straight "$n" "on $n"; done
    straight 4 "4 ranks, sharded weights" cltrain.zero_stage=3
    straight 3 "3 ranks, lanes 3, 1 and 4" cltrain.lanes_per_rank="[3,1,4]"
    straight 2 "2 ranks, microbatch 1" device_train_microbatch_size=1
    legs "stopped after 1, 3, 4, 6, 7, 9 and 11 batches, each time resumed on another number" 2:1 8:2 3:1 1:2 4:1 8:2 1:2 2
    legs "8 ranks, stopped after 5 batches, then 1" 8:5 1
    hashes+=("$want")
}

# for_each_count SET FOLDER [key=value ...]: data that depend on the number of ranks
for_each_count() {
    local n
    for n in "${ranks[@]}"; do
        set="$1, $n ranks" folder=$2 want=
        conf=("${@:3}")
        straight "$n" "without a stop"
        legs "stopped after 1, 4 and 9 batches" "$n:1" "$n:3" "$n:5" "$n"
    done
}

hashes=()
finetuning() {
    local plain=$golden/finetune/train-plain packed=$golden/finetune/train-packed
    local all=(model.n_layers=1 model.emb_pdrop=0.1 model.resid_pdrop=0.1 max_seq_len=160 model.max_seq_len=160
        "$data.max_seq_len=160" train_loader.drop_last=false)
    matrix "fine-tuning, padded" "$plain" "${all[@]}" global_train_batch_size=24
    matrix "fine-tuning, padded, batches of 5" "$plain" "${all[@]}" global_train_batch_size=5
    all+=("$data.packing_ratio=2.7")
    matrix "fine-tuning, packed" "$packed" "${all[@]}" global_train_batch_size=24
    matrix "fine-tuning, packed, bins kept" "$packed" "${all[@]}" global_train_batch_size=8 "$data.max_leftover_bins_to_keep=3"
    matrix "fine-tuning, packed, chats" "$packed" "${all[@]}" global_train_batch_size=8 "$data.hf_name=../data/chat"
    matrix "fine-tuning, packed, MDS" "$packed" "${all[@]}" global_train_batch_size=8 "$data.hf_name=null" \
        "$data.local=../data/mds" "$data.packing_ratio=auto"
}

text=(model.d_model=16 model.n_layers=1 model.n_heads=2 model.emb_pdrop=0.1 max_seq_len=32 model.max_seq_len=32
    "$data.max_seq_len=32" global_train_batch_size=24)
mixed='{web: {local: ./mds, split: train, proportion: 3}, prose: {local: ./mds, split: val, proportion: 1}}'
several=("$data.local=null" "$data.streams=$mixed" "$data.epoch_size=130")
streams() {
    local method
    matrix "text, one data set" "$golden/e2e" "${text[@]}"
    for method in random stratified per_stream; do
        matrix "streams, $method" "$golden/e2e" "${text[@]}" "${several[@]}" "$data.batching_method=$method"
    done
}

by_rank() {
    for_each_count "streams, device_per_stream" "$golden/e2e" "${text[@]}" "${several[@]}" "$data.batching_method=device_per_stream"
}

[ $# -gt 0 ] || set -- finetuning streams by_rank
for part; do
    $part
done
[ "$(printf '%s\n' "${hashes[@]}" | sort -u | wc -l)" = "$(printf '%s\n' "${hashes[@]}" | wc -l)" ] ||
    fail "two kinds of data give the same weights"
finish
