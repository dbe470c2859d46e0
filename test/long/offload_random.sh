#!/bin/bash
# Random configurations of sharding and offload in exact numerics: ranks, stage, groups of ranks, where state,
# weights, sums of gradients and inputs of blocks are, how much of the state, what computes the update, queues, steps
# queued ahead, a stop between two of them; of language models and a Vision Transformer. Weights and optimizer state
# have the hash of a run on one rank without any of this. RUNS (default 150) and SEED (default: of the clock, printed)
# choose them; a failure prints its keys. DEVICE (default pocl) and RANKS (default "1 1 2 3 4", of which one is
# picked) are for other devices.
# timeout: 3600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
folder=$(mktemp -d /var/tmp/cltrain-offload.XXXXXX)
trap '[ $BASHPID != $$ ] || rm -rf "$tmp" "$folder"' EXIT
RANDOM=${SEED:=$(($(date +%s) % 30000))}
echo "SEED=$SEED"

# More blocks than places on the device; the embedding is larger than a block, and units begin inside of chunks.
settings=(cltrain.numerics=exact cltrain.recompute=blocks log_config=false log_to_console=false scheduler.t_warmup=1ba
    scheduler.t_max=5ba)

pick() { # one of the arguments
    shift $((RANDOM % $#))
    echo "$1"
}

# train FOLDER RANKS [key=value ...]: of the model in $set
train() {
    local model=(load_path=null model.n_layers=8)
    [ "$set" != vit/images ] || model=(model.depth=8)
    (cd "$golden/$set" &&
        on_ranks "$2" train --device "${DEVICE:-pocl}" train.yaml "${model[@]}" "${settings[@]}" "save_folder=$tmp/$1" \
            "${@:3}") >"$log" 2>&1
}

# draw: sets ranks, keys, and the environment of a leg
draw() {
    local stage update
    # shellcheck disable=SC2086
    ranks=$(pick ${RANKS:-1 1 2 3 4})
    stage=$(pick 0 1 2 3 3)
    keys=("cltrain.zero_stage=$stage" "cltrain.offload=$(pick none host file)" "cltrain.offload_activations=$(pick none host file)")
    [ "$stage" -lt 2 ] || keys+=("cltrain.offload_gradients=$(pick none host file)")
    [ "$stage" -lt 3 ] || keys+=("cltrain.offload_parameters=$(pick none host file)")
    # Groups of ranks that are replicas of each other.
    [[ $stage-$((ranks % 2))-$(pick 0 1) != 3-0-1 || ${keys[*]} == *parameters=file* ]] ||
        keys+=(fsdp_config.sharding_strategy=HYBRID_SHARD "fsdp_config.data_parallel_shard_degree=$(pick 1 2)")
    [[ ${keys[*]} == *offload=none* ]] || keys+=("cltrain.offload_ratio=$(pick null 0 0.4 1)")
    [[ ${keys[*]} != *=file* ]] || keys+=("cltrain.offload_folder=$folder")
    update=$(pick device host)
    [[ ${keys[*]} != *offload=host* || ${keys[*]} == *[rt]s=file* || $optimizer == lamb ]] ||
        keys+=("cltrain.offload_update=$update")
    export CLTRAIN_QUEUES CLTRAIN_AHEAD CLTRAIN_URING
    CLTRAIN_QUEUES=$(pick 1 3) CLTRAIN_AHEAD=$(pick 0 1) CLTRAIN_URING=$(pick 0 1)
}

declare -A hash
for ((i = 0; i < ${RUNS:-150}; i++)); do
    optimizer=$(pick decoupled_adamw decoupled_adamw decoupled_lionw lamb)
    set=$(pick mpt-variants mpt-learned mpt-alibi mpt-rope vit/images)
    base=("precision=$(pick fp32 amp_bf16 exact8)" "optimizer.name=$optimizer")
    [ $set = vit/images ] || base+=("model.d_model=$(pick 64 256)" model.n_heads=4)
    if [ -z "${hash[$set ${base[*]}]:-}" ]; then
        unset CLTRAIN_QUEUES CLTRAIN_AHEAD CLTRAIN_URING
        train straight 1 "${base[@]}" max_duration=3ba || report "a run without offload: $set ${base[*]}" 1
        hash[$set ${base[*]}]=$("$cltrain" ckpt hash "$tmp/straight")
        rm -rf "$tmp/straight"
    fi
    want=${hash[$set ${base[*]}]}
    said=
    if [ "$(pick 0 0 1)" = 1 ]; then
        draw
        said="1ba: $ranks ranks, queues $CLTRAIN_QUEUES, ahead $CLTRAIN_AHEAD: ${keys[*]}; then "
        train x "$ranks" "${base[@]}" "${keys[@]}" max_duration=1ba || report "$said" 1 "${base[*]}"
    fi
    draw
    said+="$ranks ranks, queues $CLTRAIN_QUEUES, ahead $CLTRAIN_AHEAD: ${keys[*]}"
    train x "$ranks" "${base[@]}" "${keys[@]}" max_duration=3ba || tail -n 3 "$log"
    same_hash "$set ${base[*]}, $said" x
done
finish
