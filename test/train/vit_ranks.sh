#!/bin/bash
# A Vision Transformer has the same bits on 1, 2 and 3 ranks, with whole and with sharded weights.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
program=$BUILD/test/train/test_vit_train
mpirun_by_hand
run=(timeout -k 5 300 "${by_hand[@]}")
common=(--hash model.drop_path=0.2 model.pos_dropout=0.1)

# same NAME KEY=VALUE ...: one hash for 1, 2 and 3 ranks at stages 0 and 3
same() {
    local name=$1 want got ranks stage
    shift
    want=$("${run[@]}" -np 1 "$program" "${common[@]}" "$@" 2>"$log" | tail -1)
    [ ${#want} = 50 ]
    report "$name on one rank" $?
    for ranks in 2 3; do
        for stage in 0 3; do
            got=$("${run[@]}" -np $ranks "$program" "${common[@]}" "$@" cltrain.zero_stage=$stage 2>"$log" | tail -1)
            [ "$got" = "$want" ]
            report "$name on $ranks ranks at stage $stage: $got" $?
        done
    done
}
same fp32
same "exact bf16" precision=amp_bf16 cltrain.numerics=exact
same lamb optimizer.name=lamb precision=amp_bf16 cltrain.numerics=exact
finish
