#!/bin/bash
# Sharded gradients and weights with lanes and ranks that do not match: a rank without a lane in a round, or without a
# sample, takes part in what the others exchange. Every run ends with the state of one rank that holds everything.
# timeout: 300
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-variants
# Large enough that every rank owns a part.
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null model.d_model=128 model.n_layers=4
    max_duration=3ba scheduler.t_warmup=1ba log_config=false)

# train FOLDER RANKS [override ...]
train() {
    on_ranks "$2" train -q --device pocl "${settings[@]}" "${@:3}" "save_folder=$tmp/$1" >"$log" 2>&1
}

# compare NAME "RANKS:STAGE ..." [override ...]: each with one rank, which has all lanes
compare() {
    local name=$1 where=$2 want at
    shift 2
    train one 1 "${@/#cltrain.lanes_per_rank=*/cltrain.zero_stage=0}" || report "$name, one rank" 1
    want=$("$cltrain" ckpt hash "$tmp/one")
    for at in $where; do
        train many "${at%:*}" "$@" "cltrain.zero_stage=${at#*:}" && [ -n "$want" ] &&
            [ "$("$cltrain" ckpt hash "$tmp/many")" = "$want" ] && [ "$(steps_of "$tmp/many")" = "$(steps_of "$tmp/one")" ]
        report "$name, ${at%:*} ranks, stage ${at#*:}" $?
        rm -rf "$tmp/many"
    done
    rm -rf "$tmp/one"
}

compare "one sample for eight lanes" "2:2 3:3" global_train_batch_size=1
compare "lanes that three ranks do not divide, of two microbatches" "3:2 3:3" global_train_batch_size=16 device_train_microbatch_size=1
compare "ranks with one, two and five lanes, a short last batch" "3:2 3:3" 'cltrain.lanes_per_rank=[1, 2, 5]' \
    global_train_batch_size=24 train_loader.drop_last=false max_duration=4ba
compare "three samples, tied weights, blocks recomputed" "2:3 3:2" global_train_batch_size=3 model.tie_word_embeddings=true \
    cltrain.recompute=blocks
export CLTRAIN_AHEAD=1 CLTRAIN_TRANSPORT=mpi
compare "five samples over MPI, steps queued ahead" "2:2 3:3" global_train_batch_size=5
finish
