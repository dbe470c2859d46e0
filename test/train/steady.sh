#!/bin/bash
# After the first step a run allocates no device memory and compiles nothing, also with evaluations,
# checkpoints and a short last batch, at every stage of sharding. The device memory of a run is within 5 % of
# what `cltrain plan` prints. No program makes PoCL read its full list of declarations, which would slow down warm starts.
# timeout: 1800
# at leisure: it compares bytes, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
export CLTRAIN_ASSERT_STEADY=1

# steady NAME SET DEVICE RANKS override...
steady() {
    local name=$1 set=$2 device=$3 ranks=$4 plan used
    shift 4
    rm -rf "$tmp/run"
    if ! (cd "$golden/$set" && on_ranks "$ranks" train -v --device "$device" train.yaml "$@" save_folder="$tmp/run") >"$tmp/log" 2>&1; then
        fail "$name"
        tail -n 8 "$tmp/log"
        return
    fi
    if [ -n "$short_lists" ] && grep "needs more than the short declarations" "$tmp/log"; then
        fail "$name: a program uses a built-in function that clkernels/include/clt_builtins.clh does not declare"
    fi
    plan=$(cd "$golden/$set" && "$cltrain" plan train.yaml "$@" --json --device "$device" --ranks "$ranks" 2>&1 |
        sed -n 's/.*"total":\([0-9]*\).*/\1/p')
    used=$(sed -n 's/.*"device_memory_bytes":\([0-9]*\).*/\1/p' "$tmp/run/metrics.jsonl" | sort -n | tail -n 1)
    if awk -v p="$plan" -v u="$used" 'BEGIN { exit !(p > 0 && u > 0 && u <= 1.05 * p && u >= 0.95 * p) }'; then
        echo "steady: $name: $used bytes, plan $plan"
    else
        fail "$name: the run uses '$used' bytes, the plan is '$plan'"
    fi
}

short_lists=$("$cltrain" devices --json | grep -o '"driver":"3\.[0-9.]*+debian"' | head -n 1)
[ -n "$short_lists" ] || echo "SKIP: not PoCL 3: the short list of declarations is not checked"
devices=(pocl)
if has_platform intel; then [ -z "${TEST_COMPLETE:-}" ] || devices+=(intel); else echo "SKIP: no Intel runtime for CPUs here: only PoCL"; fi
short=(max_duration=5ba scheduler.t_max=5ba scheduler.t_warmup=1ba)
for device in "${devices[@]}"; do
    steady "$device, evaluations and checkpoints" e2e "$device" 1 "${short[@]}" load_path=hf load_weights_only=true \
        eval_interval=2ba save_interval=2ba
    steady "$device, short last batch, microbatch auto" mpt-variants "$device" 1 "${short[@]}" global_train_batch_size=24 \
        train_loader.drop_last=false device_train_microbatch_size=auto model.emb_pdrop=0.1
done
CLTRAIN_QUEUES=3 steady "recomputation from host memory, Lion" mpt-variants pocl 1 "${short[@]}" \
    cltrain.offload_activations=host load_path=null model.n_layers=6 optimizer.name=decoupled_lionw eval_interval=2ba
# With few parameters one rank would own all: the memory of rank 0 is compared with that of the one that needs most.
large=(model.d_model=1024 load_path=null)
steady "two ranks, evaluations" e2e pocl 2 "${short[@]}" "${large[@]}" eval_interval=2ba
steady "fast numerics" mpt-learned pocl 1 "${short[@]}" cltrain.numerics=fast
# The plan counts the row of matrix products that needs the most scratch memory: too much for the smallest model.
steady "amp_bf16, 16-bit weights" mpt-variants pocl 1 "${short[@]}" precision=amp_bf16 load_path=null model.d_model=256
for precision in exact8 amp_fp8; do
    steady "$precision" mpt-variants pocl 1 "${short[@]}" precision=$precision load_path=null model.d_model=256
done
steady "amp_fp16, two ranks" mpt-learned pocl 2 "${short[@]}" "${large[@]}" precision=amp_fp16
# Large enough that ranks own similar parts of it; few tokens.
sharded=("${short[@]}" model.vocab_size=5000 model.d_model=256 model.n_layers=5 load_path=null max_seq_len=16
    model.max_seq_len=16 train_loader.dataset.max_seq_len=16 tokenizer.kwargs.model_max_length=16)
stages=(1 2 3) both=(fp32 amp_bf16)
[ -n "${TEST_COMPLETE:-}" ] || { stages=(2 3) both=(amp_bf16); echo "skipped: Intel's runtime, stage 1, sharding in fp32 (TEST_COMPLETE=1: all)"; }
for stage in "${stages[@]}"; do
    for precision in "${both[@]}"; do
        steady "stage $stage, $precision" mpt-variants pocl 2 "${sharded[@]}" "cltrain.zero_stage=$stage" \
            "precision=$precision" eval_interval=2ba save_interval=2ba
    done
done
# Ranks own still more similar parts.
for precision in "${both[@]}"; do
    steady "weights inside groups, $precision" mpt-variants pocl 4 "${sharded[@]}" model.n_layers=12 max_duration=3ba \
        "fsdp_config={sharding_strategy: HYBRID_SHARD, data_parallel_shard_degree: 2}" "precision=$precision"
done
steady "stage 3, microbatches of one sample" mpt-variants pocl 2 "${sharded[@]}" cltrain.zero_stage=3 \
    precision=amp_bf16 device_train_microbatch_size=1 fsdp_config.limit_all_gathers=false
finish
