#!/bin/bash
# Universal checkpoints of DeepSpeed through `cltrain ckpt`: export then import gives equal weights and moments, a
# run resumes from an import, names of other programs are found, and what cannot be read is refused.
cd "$(dirname "$0")/../.." && . test/lib.sh

# expect CODE TEXT ARGS...: `cltrain ckpt ARGS` ends with CODE and prints TEXT (on stdout or stderr).
expect() {
    local code=$1 text=$2 got
    shift 2
    "$cltrain" ckpt "$@" >"$log" 2>&1
    got=$?
    [ "$got" = "$code" ] && grep -qF -- "$text" "$log" || report "ckpt $*" 1 "exit $got (wanted $code), wanted '$text'"
}
same_hash() {
    [ -n "$("$cltrain" ckpt hash "$1")" ] && [ "$("$cltrain" ckpt hash "$1")" = "$("$cltrain" ckpt hash "$2")" ] ||
        report "hashes of $1 and $2" 1 "they differ"
}
# train FOLDER ARGS...: in a folder of golden data
train() { (cd "$1" && shift && "$cltrain" -q train train.yaml "$@") >"$log" 2>&1; }

# Names of the model itself (MPT), fused and transposed matrices (GPT-2), joined and interleaved ones.
mpt=$golden/mpt-learned
train "$mpt" max_duration=2ba save_folder="$tmp/mpt/run" || report "training MPT" 1
for family in gpt2 llama3 gpt-neox; do
    train "$golden/families/$family" max_duration=2ba save_folder="$tmp/$family/run" || report "training $family" 1
done
for m in mpt gpt2 llama3 gpt-neox; do
    prefix=model.
    [ $m != gpt2 ] || prefix=module.
    expect 0 'tensors (float32)' export "$tmp/$m/run" "$tmp/$m/ds" --deepspeed-universal --prefix $prefix
    [ "$(cat "$tmp/$m/ds/latest_universal")" = global_step2_universal ] || report "$m: latest_universal" 1
    expect 0 'weights and 2 moments of adamw after 2 steps, 16 samples' import "$tmp/$m/ds" "$tmp/$m/new/ba2"
    same_hash "$tmp/$m/run" "$tmp/$m/new/ba2"
    same_hash "$tmp/$m/run" "$tmp/$m/ds"
    expect 0 'ok ' verify "$tmp/$m/ds"
    expect 74 'exists already' export "$tmp/$m/run" "$tmp/$m/ds" --deepspeed-universal
done
[ -d "$tmp/mpt/ds/global_step2_universal/zero/model.transformer.wte.weight" ] || report "names with a prefix" 1
expect 0 'tensors (float32)' export "$tmp/mpt/run" "$tmp/mpt/ds" --deepspeed-universal --overwrite
[ -d "$tmp/mpt/ds/global_step2_universal/zero/transformer.wte.weight" ] || report "names without a prefix" 1
[ ! -d "$tmp/mpt/ds/global_step2_universal/zero/model.transformer.wte.weight" ] || report "--overwrite left old files" 1
same_hash "$tmp/mpt/run" "$tmp/mpt/ds"

# An export into a folder of the other form replaces it.
expect 0 'tensors (float32)' export "$tmp/gpt2/run" "$tmp/both"
expect 74 'exists already' export "$tmp/mpt/run" "$tmp/both" --deepspeed-universal
expect 0 'tensors (float32)' export "$tmp/mpt/run" "$tmp/both" --deepspeed-universal --overwrite
same_hash "$tmp/mpt/run" "$tmp/both"

# A Vision Transformer of timm, without moments
mkdir "$tmp/vit"
cp "$golden/vit/model.safetensors" "$golden/vit/timm/config.json" "$tmp/vit"
expect 0 'tensors (float32)' export "$tmp/vit" "$tmp/vit/ds" --deepspeed-universal --prefix module.
expect 0 'bit-identical' diff "$tmp/vit" "$tmp/vit/ds"

# The model by --config: a config.json, the YAML of a run; another model is refused.
mv "$tmp/mpt/ds/config.json" "$tmp/config.json"
expect 0 'exp_avg_sq   [512, 64]' show "$tmp/mpt/ds"
expect 0 '"role": "exp_avg"' show "$tmp/mpt/ds" --json
expect 65 'name a config.json or the YAML of a run with --config' import "$tmp/mpt/ds" "$tmp/mpt/none/ba2"
expect 0 'tensors from' import "$tmp/mpt/ds" "$tmp/mpt/json/ba2" --config "$tmp/config.json"
expect 0 'tensors from' import "$tmp/mpt/ds" "$tmp/mpt/yaml/ba2" --config "$mpt/train.yaml" --optimizer decoupled_adamw
same_hash "$tmp/mpt/run" "$tmp/mpt/json"
same_hash "$tmp/mpt/run" "$tmp/mpt/yaml"
expect 65 'this model needs' import "$tmp/mpt/ds" "$tmp/mpt/none/ba2" --config "$golden/mpt-alibi/hf/config.json"
[ ! -e "$tmp/mpt/none/ba2" ] || report "a refused import left a checkpoint" 1

# A run resumes from the import: the third batch by count, the first by data, the optimizer's steps go on.
train "$mpt" save_folder="$tmp/mpt/yaml" max_duration=3ba || report "resuming an import" 1
expect 0 'timestamp.batch                  3' show "$tmp/mpt/yaml"
expect 0 'run.optimizer_step               3' show "$tmp/mpt/yaml"
expect 0 'timestamp.batch_in_epoch         1' show "$tmp/mpt/yaml"
expect 0 'run.lanes                        8' show "$tmp/mpt/yaml"
# The same batch and step with the moments of the original: equal bits. load_path of the weights alone differs.
train "$mpt" save_folder="$tmp/mpt/again" load_path="$tmp/mpt/yaml/ba2" max_duration=3ba || report "load_path" 1
same_hash "$tmp/mpt/yaml" "$tmp/mpt/again"
train "$mpt" save_folder="$tmp/mpt/weights" load_path="$tmp/mpt/ds" max_duration=1ba || report "load_path of a folder" 1
[ "$("$cltrain" ckpt hash "$tmp/mpt/weights")" != "$("$cltrain" ckpt hash "$tmp/mpt/yaml")" ] ||
    report "moments" 1 "have no effect"
# adamw's moments are not those of another optimizer.
(cd "$mpt" && "$cltrain" -q train train.yaml save_folder="$tmp/mpt/json" max_duration=3ba) >"$log" 2>&1
[ $? = 78 ] && grep -q 'was saved with optimizer adamw' "$log" || report "another optimizer" 1 "is not refused"

# options
expect 0 'weights only' import "$tmp/mpt/ds" "$tmp/mpt/w/ba0" --config "$tmp/config.json" --weights-only
expect 1 'differ' diff "$tmp/mpt/w" "$tmp/mpt/yaml"
expect 0 'bit-identical' diff "$tmp/mpt/w" "$tmp/mpt/run"
expect 0 'after 7 steps, 9 samples, 11 tokens' import "$tmp/mpt/ds" "$tmp/mpt/n/ba7" --config "$tmp/config.json" \
    --steps 7 --samples 9 --tokens 11
expect 2 'is no optimizer.name' import "$tmp/mpt/ds" "$tmp/mpt/n/ba8" --config "$tmp/config.json" --optimizer adam
expect 2 'has 1 moment, the checkpoint has 2' import "$tmp/mpt/ds" "$tmp/mpt/n/ba8" --config "$tmp/config.json" \
    --optimizer sgd
expect 2 'is no universal checkpoint' import "$mpt/hf" "$tmp/mpt/n/ba8" --steps 3
expect 2 '--dtype has no meaning' export "$tmp/mpt/run" "$tmp/x" --deepspeed-universal --dtype bf16
expect 2 '--prefix needs' export "$tmp/mpt/run" "$tmp/x" --prefix model.
expect 0 'weights and no moments' export "$mpt/hf" "$tmp/mpt/bare" --deepspeed-universal
expect 0 'because the checkpoint has no moments' import "$tmp/mpt/bare" "$tmp/mpt/b/ba0"

# Shards of ranks name the program that converts them.
mkdir -p "$tmp/shards/global_step6"
touch "$tmp/shards/global_step6/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
echo global_step6 >"$tmp/shards/latest"
expect 65 "ds_to_universal --input_folder $tmp/shards/global_step6 --output_folder" import "$tmp/shards" "$tmp/x"
expect 65 'add --inject_missing_state' import "$tmp/shards/global_step6" "$tmp/x"

mkdir "$tmp/shards/global_step2_universal"
touch "$tmp/shards/global_step2_universal/mp_rank_00_model_states.pt"
expect 65 "--input_folder $tmp/shards/global_step6" import "$tmp/shards" "$tmp/x"

# Hostile folders: names, pickles, shapes, missing and damaged files
# broken NAME CODE TEXT: imports the copy $tmp/broken
copy() { rm -rf "$tmp/broken" && cp -r "$tmp/mpt/ds" "$tmp/broken" && zero=$tmp/broken/global_step2_universal/zero; }
broken() { expect "$1" "$2" import "$tmp/broken" "$tmp/x/ba2" --config "$tmp/config.json"; }
copy
echo ../mpt/ds/global_step2_universal >"$tmp/broken/latest_universal"
broken 65 'names no universal checkpoint of its folder'
copy
rm "$zero/transformer.wte.weight/fp32.pt"
broken 74 'transformer.wte.weight/fp32.pt'
copy
rm "$zero/transformer.norm_f.weight/exp_avg.pt"
broken 65 'some parameters have exp_avg.pt, and transformer.norm_f.weight has none'
copy
cp "$zero/transformer.wpe.weight/fp32.pt" "$zero/transformer.wte.weight/fp32.pt"
broken 65 'exp_avg.pt: the tensor has another shape'
copy
rm -r "$zero/transformer.wpe.weight"
broken 65 "tensor 'transformer.wpe.weight' (weight) is missing"
copy
cp -r "$zero/transformer.wte.weight" "$zero/module.transformer.wte.weight"
broken 65 "tensor 'transformer.wte.weight' appears twice"
copy
cp -r "$zero/transformer.wte.weight" "$zero/other.weight"
broken 65 "this model has no tensor 'other.weight'"
copy
truncate -s -10 "$zero/transformer.wte.weight/exp_avg.pt"
broken 65 'not a whole archive of torch.save'
copy
printf 'cos\nsystem\n' >"$zero/transformer.wte.weight/fp32.pt"
broken 65 'not a whole archive'
copy
# a byte in the middle of the data
printf '\x55' | dd of="$zero/transformer.wte.weight/exp_avg_sq.pt" bs=1 seek=9000 conv=notrunc 2>/dev/null
broken 65 'another CRC-32'
[ ! -e "$tmp/x/ba2" ] || report "a refused import left a checkpoint" 1
copy
cp "$zero/transformer.wte.weight/step.pt" "$zero/transformer.wte.weight/step.pt.old"
cp "$golden/deepspeed/universal/zero1-fp32/global_step6_universal/zero/fc1.bias/step.pt" "$zero/transformer.wte.weight/"
broken 65 'number of steps differs'
copy
# Counters that cannot be read are not needed.
echo x >"$tmp/broken/global_step2_universal/mp_rank_00_model_states.pt"
broken 0 'after 2 steps, 16 samples'
# Without them the number of steps has to be given. Without the second moment it is Lion's.
copy
rm "$zero"/*/step.pt "$zero/optimizer_state.pt" "$tmp"/broken/*/*.pt
broken 65 'give it (--steps)'
expect 0 'after 5 steps, 0 samples' import "$tmp/broken" "$tmp/five/ba5" --config "$tmp/config.json" --steps 5
rm "$zero"/*/exp_avg_sq.pt
expect 0 '1 moment of decoupled_lionw after 5 steps' import "$tmp/broken" "$tmp/five/ba6" --config "$tmp/config.json" \
    --steps 5
exit "$failed"
