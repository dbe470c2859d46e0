#!/bin/bash
# A Vision Transformer has the same bits on 1, 2 and 3 ranks, with whole and with sharded state, with state in the host's
# memory, and with learning rates by layer.
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
program=$BUILD/test/train/test_vit_train
mpirun_by_hand
common=(--hash model.drop_path=0.2 model.pos_dropout=0.1)
decay=optimizer.layer_decay=0.65

# hash RANKS [KEY=VALUE ...]: of weights and optimizer state after three steps
hash() { timeout -k 5 300 "${by_hand[@]}" -np "$1" "$program" "${common[@]}" "${@:2}" 2>"$log" | tail -1; }

# same NAME "PLACE ..." [KEY=VALUE ...]: one rank without offload and every PLACE, which is RANKS:STAGE or
# RANKS:STAGE:host, have one hash
same() {
    local name=$1 places=$2 place got ranks stage offload
    shift 2
    want=$(hash 1 "$@")
    [ ${#want} = 50 ]
    report "$name on one rank" $?
    for place in $places; do
        IFS=: read -r ranks stage offload <<<"$place"
        got=$(hash "$ranks" "$@" cltrain.zero_stage="$stage" cltrain.offload="${offload:-none}")
        [ "$got" = "$want" ]
        report "$name on $ranks ranks at stage $stage${offload:+, state in host memory}: $got" $?
    done
}

# differs NAME FROM [KEY=VALUE ...]: a run that must not have the hash FROM
differs() {
    local from=$2
    [ "$(hash 1 "${@:3}")" != "$from" ]
    report "$1" $?
}

same fp32 "2:0 2:3 3:0 3:3"
plain=$want
same "exact bf16" "2:0 3:3" precision=amp_bf16 cltrain.numerics=exact
same lamb "1:0:host 2:1 3:2:host 3:3" optimizer.name=lamb $decay
lamb=$want
same "lamb in exact bf16" "1:0:host 2:3:host 3:0 3:3" optimizer.name=lamb precision=amp_bf16 cltrain.numerics=exact
sgd=(optimizer.name=sgd optimizer.momentum=0.9 optimizer.nesterov=true)
same sgd "1:0:host 2:1:host 2:2 3:3:host" "${sgd[@]}" $decay
# Queues of their own, as on a GPU, and slabs of several buffers.
export CLTRAIN_QUEUES=3 CLTRAIN_BUFFER_MIB=1
same "lamb with queues of their own" "1:0:host 2:2 3:3:host" optimizer.name=lamb $decay
[ "$want" = "$lamb" ]
report "which change no bits" $?
unset CLTRAIN_QUEUES CLTRAIN_BUFFER_MIB
differs "the same learning rate in all layers is another run" "$lamb" optimizer.name=lamb
[ "$(hash 1 optimizer.layer_decay=1)" = "$plain" ]
report "layer_decay 1 changes nothing" $?
finish
