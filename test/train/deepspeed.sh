#!/bin/bash
# A run with a ds_config.json on two ranks ends with the same bits as the YAML that says the same, also after a stop, in
# bf16 and fp16; a file that contradicts the YAML ends with 78.
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-variants
base=(-q --device pocl "$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null max_duration=4ba log_config=false)
# What the JSON file says is not in the YAML.
empty=(optimizer=null scheduler=null algorithms=null global_train_batch_size=null device_train_microbatch_size=null precision=null)
params='"lr": 0.004, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1'

# config bf16|fp16 CLIPPING: writes $tmp/ds.json
config() {
    cat >"$tmp/ds.json" <<JSON
{
  # as DeepSpeed reads it: comments and trailing commas
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 2,
  "$1": {"enabled": true},
  "gradient_clipping": $2,
  "wall_clock_breakdown": true, "steps_per_print": 2, # changes no bit
  "zero_optimization": {"stage": 2, "overlap_comm": true, "reduce_bucket_size": 5e8},
  "optimizer": {"type": "AdamW", "params": {$params}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 0.004, "warmup_num_steps": 3, "total_num_steps": "auto"}},
}
JSON
}

# run FOLDER [argument ...]
run() {
    log=$tmp/$1.log
    on_ranks 2 train "${base[@]}" "save_folder=$tmp/$1" "${@:2}" >"$log" 2>&1
}

for type in bf16 fp16; do
    config $type 0.05
    run $type "${empty[@]}" --deepspeed "$tmp/ds.json" || { fail "$type"; tail -n 5 "$tmp/$type.log"; }
    run $type.yaml global_train_batch_size=8 device_train_microbatch_size=2 precision=amp_$type cltrain.zero_stage=2 \
        'algorithms={gradient_clipping: {clipping_type: norm, clipping_threshold: 0.05}}' optimizer=null \
        "optimizer={name: adamw, ${params//\"/}}" scheduler=null \
        'scheduler={name: warmup_decay_lr, warmup_max_lr: 0.004, warmup_num_steps: 3, total_num_steps: 4}' ||
        { fail "$type, YAML"; tail -n 5 "$tmp/$type.yaml.log"; }
    want=$("$cltrain" ckpt hash "$tmp/$type.yaml")
    [ -n "$want" ] && [ "$("$cltrain" ckpt hash "$tmp/$type")" = "$want" ] && [ "$(steps_of "$tmp/$type")" = "$(steps_of "$tmp/$type.yaml")" ]
    report "$type: the same bits as with the YAML's keys" $?
done

config bf16 0.05
run stopped "${empty[@]}" --deepspeed "$tmp/ds.json" --stop-after 2ba
[ $? = 75 ] || fail "the stop"
run stopped "${empty[@]}" --deepspeed "$tmp/ds.json" || fail "the resume"
[ "$("$cltrain" ckpt hash "$tmp/stopped")" = "$("$cltrain" ckpt hash "$tmp/bf16")" ]
report "the same bits after a stop" $?

config bf16 0.06
run other "${empty[@]}" "deepspeed=$tmp/ds.json" || fail "another clipping"
[ "$("$cltrain" ckpt hash "$tmp/other")" != "$("$cltrain" ckpt hash "$tmp/bf16")" ]
report "the file's clipping counts" $?

run refused "${empty[@]}" --deepspeed "$tmp/ds.json" cltrain.zero_stage=3
[ $? = 78 ] && grep -q "ds.json:8:34: key 'zero_optimization.stage' contradicts key 'cltrain.zero_stage'" "$tmp/refused.log"
report "a contradiction is refused with both places" $?
finish
