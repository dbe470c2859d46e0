#!/bin/bash
# cltrain.offload, cltrain.offload_parameters, cltrain.offload_gradients and cltrain.offload_update: host on real runs.
# Hashes of weights and optimizer state are those of a run without offload, at every stage of sharding, on one rank and on
# several, in fp32 and with 16-bit weights, and when a run changes between the two at a stop. Replicas are compared. The
# memory of a rank is within 2 % of the plan's, and no step allocates any. With 16-bit weights stages 0 and 2 are left to
# test/long/offload.sh (TEST_COMPLETE=1).
# timeout: 1800
# at leisure: it compares bits and bytes, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
export CLTRAIN_ASSERT_STEADY=1
set=$golden/mpt-variants
# Five stretches of state on one rank; few tokens.
settings=(train.yaml load_path=null model.d_model=512 model.n_layers=2 model.attn_config.kv_n_heads=4
    model.expansion_ratio=4 model.vocab_size=6000 max_seq_len=16 model.max_seq_len=16 train_loader.dataset.max_seq_len=16
    tokenizer.kwargs.model_max_length=16 global_train_batch_size=8 cltrain.numerics=exact scheduler.t_warmup=1ba
    scheduler.t_max=5ba log_config=false log_to_console=false)

# train FOLDER RANKS [key=value ...]: three steps; the output is in $log
train() {
    (cd "$set" && on_ranks "$2" train --device pocl "${settings[@]}" max_duration=3ba "save_folder=$tmp/$1" "${@:3}") \
        >"$log" 2>&1
}

# compare NAME RANKS [key=value ...]
compare() {
    train x "${@:2}"
    same_hash "$1" x
}

# planned KEY RANKS [key=value ...]: bytes of the plan
planned() {
    (cd "$set" && "$cltrain" plan --json --device pocl --ranks "$2" "${settings[@]}" "${@:3}") 2>>"$log" |
        sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"
}

# memory NAME RANKS [key=value ...]: of the run in $tmp/x
memory() {
    local plan used
    train x "${@:2}"
    plan=$(planned total "${@:2}")
    used=$(sed -n 's/.*"device_memory_bytes":\([0-9]*\).*/\1/p' "$tmp/x/metrics.jsonl" | sort -n | tail -n 1)
    awk -v p="$plan" -v u="$used" 'BEGIN { exit !(p > 0 && u > 0 && u <= 1.02 * p && u >= 0.98 * p) }'
    report "memory: $1" $? "$used bytes, plan $plan"
}

# on_one_rank TEXT KEY key=value ...: what KEY moves to the host's memory, with one queue and with three.
on_one_rank() {
    local text=$1 key=$2
    shift 2
    memory "$text, one rank" 1 "$@"
    grep -q "^$key: host saves nothing on a CPU device" "$log" && grep -q "of device memory, .* of host memory" "$log"
    report "$text: the run says what is in the host's memory" $?
    same_hash "$text: one rank, one queue" x
    CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 CLTRAIN_BUILD_HELPERS=1 compare "$text: one rank, steps queued ahead, a rehearsal" 1 "$@"
}

for precision in fp32 amp_bf16; do
    run=("precision=$precision")
    train straight 1 "${run[@]}"
    report "$precision: a run without offload" $?
    want=$("$cltrain" ckpt hash "$tmp/straight")
    ! grep -q "host memory" "$log"
    report "$precision: it has no state in the host's memory" $?
    run+=(cltrain.offload=host)

    on_one_rank "$precision, state" cltrain.offload "${run[@]}"
    CLTRAIN_QUEUES=3 memory "$precision, one rank, a part on the device" 1 "${run[@]}" cltrain.offload_ratio=0.6
    same_hash "$precision: one rank, a part of the state on the device" x
    CLTRAIN_QUEUES=3 compare "$precision: two ranks, stage 1, a part of the state on the device" 2 "${run[@]}" \
        cltrain.zero_stage=1 cltrain.offload_ratio=0.3
    CLTRAIN_QUEUES=3 compare "$precision: three ranks, stage 2" 3 "${run[@]}" cltrain.zero_stage=2
    # Queues of their own take memory for the exchange that the plan of a CPU device does not have.
    stages="0 1 2 3"
    [ -n "${TEST_COMPLETE:-}" ] || { stages="0 2" && [ "$precision" = fp32 ] || stages="1 3"; }
    for stage in $stages; do
        sharded=("${run[@]}" "cltrain.zero_stage=$stage" cltrain.guards.replica_hash_interval=1)
        memory "$precision, two ranks, stage $stage" 2 "${sharded[@]}"
        same_hash "$precision: two ranks, stage $stage, one queue" x
        CLTRAIN_QUEUES=3 compare "$precision: two ranks, stage $stage, queues of their own" 2 "${sharded[@]}"
    done

    # The optimizer's step on the host's cores: all of the state, a part of it beside the device's, on ranks.
    updated=("${run[@]}" cltrain.offload_update=host)
    memory "$precision, steps of the host" 1 "${updated[@]}"
    grep -q "^the optimizer's step runs on .* compute units" "$log"
    report "$precision: the run says what computes the optimizer's step" $?
    same_hash "$precision: steps of the host, one queue" x
    CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 CLTRAIN_BUILD_HELPERS=1 compare \
        "$precision: steps of the host for a part of the state, queued ahead, a rehearsal" 1 "${updated[@]}" \
        cltrain.offload_ratio=0.6
    CLTRAIN_QUEUES=3 compare "$precision: two ranks, stage 1, steps of the host" 2 "${updated[@]}" cltrain.zero_stage=1
    CLTRAIN_QUEUES=3 compare "$precision: two ranks, stage 3, steps of the host" 2 "${updated[@]}" cltrain.zero_stage=3

    # The weights that the model reads, without and with the state.
    weights=("precision=$precision" cltrain.zero_stage=3 cltrain.offload_parameters=host)
    on_one_rank "$precision, weights" cltrain.offload_parameters "${weights[@]}"
    memory "$precision, two ranks, weights" 2 "${weights[@]}"
    same_hash "$precision: two ranks, weights, one queue" x
    CLTRAIN_QUEUES=3 compare "$precision: two ranks, weights and a part of the state" 2 "${weights[@]}" \
        cltrain.offload=host cltrain.offload_ratio=0.6

    # Sums of gradients, alone and with everything else.
    gradients=("precision=$precision" cltrain.zero_stage=2 cltrain.offload_gradients=host)
    on_one_rank "$precision, gradients" cltrain.offload_gradients "${gradients[@]}"
    compare "$precision: one rank, gradients, stage 3 with weights on the device" 1 "${gradients[@]}" \
        cltrain.zero_stage=3
    gradients=("${weights[@]}" cltrain.offload_gradients=host)
    CLTRAIN_QUEUES=3 memory "$precision, weights, gradients and a part of the state" 1 "${gradients[@]}" \
        cltrain.offload=host cltrain.offload_ratio=0.6
    same_hash "$precision: one rank, weights, gradients and a part of the state" x
    compare "$precision: everything in host memory, steps of the host" 1 "${updated[@]}" "${gradients[@]}"
    memory "$precision, two ranks, weights and gradients" 2 "${gradients[@]}"
    same_hash "$precision: two ranks, weights and gradients" x

    # The last one begins with a run that has nothing in the host's memory.
    train legs 2 "${run[@]}" "${weights[@]}" max_duration=1ba && train legs 1 "precision=$precision" max_duration=2ba &&
        CLTRAIN_QUEUES=3 train legs 1 "${run[@]}" "${gradients[@]}"
    report "$precision: with, without and with offload" $?
    same_hash "$precision: with, without and with offload, the hashes" legs
    rm -rf "$tmp/straight"
done

# Below stage 3 each rank has the whole weights on its device.
train x 1 cltrain.offload_parameters=host cltrain.zero_stage=2
code=$?
[ $code = 78 ] && grep -q "cltrain.offload_parameters.* needs stage 3: set cltrain.zero_stage: 3" "$log"
report "weights in host memory at stage 2 are refused" $? "exit $code"

train x 1 cltrain.offload_gradients=host cltrain.zero_stage=1
code=$?
[ $code = 78 ] && grep -q "cltrain.offload_gradients.* needs stage 2 or 3: set cltrain.zero_stage" "$log"
report "gradients in host memory at stage 1 are refused" $? "exit $code"

# What the sums over lanes have to bear: lanes without samples, of which some follow others that have samples (16 lanes of
# 9 samples), frozen tensors, gradients that are limited one by one, directions in their place (LAMB), and the next
# step's gradients while the update of one still brings the total.
sums=(global_train_batch_size=9 cltrain.exact_lanes=16)
for more in "optimizer.disable_grad=[norm]" \
    "algorithms={gradient_clipping: {clipping_type: value, clipping_threshold: 0.0001}} cltrain.guards.gradient_norm=false" \
    "optimizer={name: lamb, lr: 0.01, weight_decay: 0.01}"; do
    IFS='|' read -ra keys <<<"${more// cltrain/|cltrain}"
    train sums 1 "${sums[@]}" "${keys[@]}"
    report "${keys[0]}: a run without offload" $?
    want=$("$cltrain" ckpt hash "$tmp/sums")
    CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 compare "${keys[0]}: gradients in host memory" 1 "${sums[@]}" "${keys[@]}" \
        cltrain.zero_stage=2 cltrain.offload_gradients=host
    CLTRAIN_QUEUES=3 compare "${keys[0]}: everything in host memory" 1 "${sums[@]}" "${keys[@]}" cltrain.zero_stage=3 \
        cltrain.offload_gradients=host cltrain.offload_parameters=host cltrain.offload=host
    [[ $more = *lamb* ]] || CLTRAIN_QUEUES=3 compare "${keys[0]}: steps of the host" 1 "${sums[@]}" "${keys[@]}" \
        cltrain.offload=host cltrain.offload_update=host
    rm -rf "$tmp/sums"
done

# Several ranks: sums of more units than have places on the device; a round that completes no subtree (three ranks),
# ranks with more lanes than others, two hosts, and everything at once.
parts=(model.d_model=64 model.n_layers=9 cltrain.offload_gradients=host)
train parts 1 "${parts[@]:0:2}"
report "nine blocks: a run without offload" $?
want=$("$cltrain" ckpt hash "$tmp/parts")
memory "two ranks, gradients" 2 "${parts[@]}" cltrain.zero_stage=2
same_hash "nine blocks: two ranks, one queue" x
grep -q "of device memory, .* of host memory" "$log"
report "nine blocks: the run says what is in the host's memory" $?
CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 compare "nine blocks: two ranks, steps queued ahead" 2 "${parts[@]}" cltrain.zero_stage=2
CLTRAIN_QUEUES=3 compare "nine blocks: three ranks, stage 3" 3 "${parts[@]}" cltrain.zero_stage=3
CLTRAIN_QUEUES=3 compare "nine blocks: lanes by speed" 3 "${parts[@]}" cltrain.zero_stage=2 "cltrain.lanes_per_rank=[5,1,2]"
CLTRAIN_QUEUES=3 CLTRAIN_HOSTS=2 compare "nine blocks: four ranks of two hosts, everything in host memory" 4 "${parts[@]}" \
    cltrain.zero_stage=3 cltrain.offload_parameters=host cltrain.offload=host cltrain.offload_update=host
CLTRAIN_QUEUES=3 compare "nine blocks: four ranks, groups of two" 4 "${parts[@]}" \
    "fsdp_config={sharding_strategy: HYBRID_SHARD, data_parallel_shard_degree: 2}"
for more in "" cltrain.offload_gradients=none; do
    fast=(precision=amp_bf16 cltrain.numerics=fast device_train_microbatch_size=1 cltrain.zero_stage=2
        "fsdp_config={mixed_precision: PURE, sharding_strategy: SHARD_GRAD_OP}")
    CLTRAIN_QUEUES=3 train "fast${more:+-without}" 2 "${parts[@]}" "${fast[@]}" $more
    report "nine blocks, numerics fast, gradients travel as bf16: ${more:-in host memory}" $?
done
want=$("$cltrain" ckpt hash "$tmp/fast-without")
same_hash "nine blocks, numerics fast: two ranks" fast
rm -rf "$tmp/parts" "$tmp/fast" "$tmp/fast-without"

# In numerics fast microbatches are added one by one, as with several ranks at stage 2.
fast=(precision=amp_bf16 cltrain.numerics=fast device_train_microbatch_size=1)
train fast 2 "${fast[@]}" cltrain.zero_stage=2
report "numerics fast: two ranks, stage 2" $?
want=$("$cltrain" ckpt hash "$tmp/fast")
CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 compare "numerics fast: one rank, gradients in host memory" 1 "${fast[@]}" \
    cltrain.zero_stage=2 cltrain.offload_gradients=host
rm -rf "$tmp/fast"

# A lane of several microbatches is one chain of additions.
train x 1 cltrain.offload_gradients=host cltrain.zero_stage=2 global_train_batch_size=32 device_train_microbatch_size=2
code=$?
[ $code = 0 ] && grep -q "^sums of gradients stay on the device: a lane has 4 samples, a microbatch 2; to offload them: " "$log"
report "with larger lanes they stay on the device, and the run says why" $? "exit $code"

# A bit that flips in the host's memory of one replica.
CLTRAIN_INJECT=flip=1:2:1000003 train flip 3 precision=amp_bf16 cltrain.offload=host cltrain.zero_stage=0 \
    cltrain.guards.replica_hash_interval=1
code=$?
[ $code = 75 ] && grep -q "^error: batch 2: the values (weight) of rank 1 (host .*) differ from those of the other 2 ranks" "$log"
report "a flipped bit in offloaded state" $? "exit $code"

# A step that is skipped leaves weights in the host's memory as they are.
for where in none host update; do
    keys=()
    [ $where = none ] || keys=(cltrain.zero_stage=3 cltrain.offload_parameters=host cltrain.offload_gradients=host)
    [ $where = update ] && keys=(cltrain.offload=host cltrain.offload_update=host)
    CLTRAIN_QUEUES=3 CLTRAIN_INJECT=nan=2:2 train "skip-$where" 1 precision=amp_bf16 cltrain.guards.nonfinite=skip "${keys[@]}"
    report "offload_parameters and offload_gradients, or offload_update: $where, a step that is not finite" $?
done
want=$("$cltrain" ckpt hash "$tmp/skip-none")
same_hash "the state after a skipped step" skip-host
same_hash "the state after a step that the host skips" skip-update

# Steps that are not finite are looked into, and a roll-back loads the state into the host's memory.
for where in none host; do
    CLTRAIN_INJECT=nan=3:4 train "bad-$where" 2 precision=amp_bf16 "cltrain.offload=$where" max_duration=5ba \
        cltrain.guards.nonfinite=rollback cltrain.guards.nonfinite_in_a_row=2 save_interval=1ba
    report "offload: $where, two steps that are not finite" $?
done
grep -q '"event":"rollback"' "$tmp/bad-host/metrics.jsonl"
report "the run has rolled back" $?
want=$("$cltrain" ckpt hash "$tmp/bad-none")
same_hash "the state after a roll-back" bad-host

# Composer's keys ask for the same, and for inputs of blocks there.
(cd "$set" && "$cltrain" plan --device pocl "${settings[@]}" "fsdp_config={cpu_offload: true}") >"$log" 2>&1
grep -q "host memory" "$log"
report "fsdp_config.cpu_offload" $?
(cd "$set" && "$cltrain" plan --device pocl "${settings[@]}" model.n_layers=5 "fsdp_config={activation_cpu_offload: true}") >"$log" 2>&1
grep -q "host memory .* inputs of blocks" "$log"
report "fsdp_config.activation_cpu_offload" $?
finish
