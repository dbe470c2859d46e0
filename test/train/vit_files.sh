#!/bin/bash
# Weights of timm become a checkpoint and come back with the same bits; what a Vision Transformer cannot do is said.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
log=$tmp/log
mkdir "$tmp/timm"
cp "$golden/vit/model.safetensors" "$tmp/timm/"
cat >"$tmp/timm/config.json" <<END
{"model_type": "timm_vit", "image_size": 32, "patch_size": 8, "width": 160, "depth": 3, "heads": 2, "mlp_ratio": 1.2,
 "classes": 10}
END
"$cltrain" ckpt import "$tmp/timm" "$tmp/run" >"$log" 2>&1
report "import" $?
"$cltrain" ckpt export "$tmp/run" "$tmp/out" >"$log" 2>&1
report "export" $?
"$cltrain" ckpt diff "$tmp/timm/model.safetensors" "$tmp/out/model.safetensors" >"$log" 2>&1
report "the same bits under the same names" $?
grep -q '"architecture": "vit_base_patch16_224"' "$tmp/out/config.json" && grep -q '"embed_dim": 160' "$tmp/out/config.json"
report "config.json is one of timm's" $?
grep -q '"pretrained_cfg": {' "$tmp/out/config.json" && grep -q '^    "global_pool": "token"' "$tmp/out/config.json"
report "config.json has what timm builds a model of" $?
if "${PYTHON:-python3}" -c 'import timm' 2>/dev/null; then
    "${PYTHON:-python3}" -c 'import sys, timm; timm.create_model("local-dir:" + sys.argv[1], pretrained=True)' "$tmp/out" >"$log" 2>&1
    report "timm loads it" $?
else
    echo "skipped: timm loads it (${PYTHON:-python3} has no package timm)"
fi
"$cltrain" ckpt import "$tmp/out" "$tmp/again" >"$log" 2>&1 && "$cltrain" ckpt diff "$tmp/run" "$tmp/again" >>"$log" 2>&1
report "an export imports" $?
"$cltrain" ckpt export "$tmp/run" "$tmp/shards" --shard-bytes 400000 >"$log" 2>&1 && [ -e "$tmp/shards/model-00002-of-00003.safetensors" ] &&
    "$cltrain" ckpt export "$tmp/run" "$tmp/shards" --overwrite >>"$log" 2>&1 && [ "$(echo "$tmp"/shards/*.safetensors)" = "$tmp/shards/model.safetensors" ]
report "no shards of an earlier export remain" $?
mkdir "$tmp/hub"
cp "$golden/vit/model.safetensors" "$golden/vit/timm/config.json" "$tmp/hub/"
"$cltrain" ckpt import "$tmp/hub" "$tmp/hub_run" >"$log" 2>&1 && "$cltrain" ckpt diff "$tmp/run" "$tmp/hub_run" >>"$log" 2>&1
report "a folder as timm writes it imports" $?
sed -i 's/"depth": 3/"depth": 4/' "$tmp/hub/config.json"
"$cltrain" ckpt import "$tmp/hub" "$tmp/deeper" >"$log" 2>&1
[ $? != 0 ] && grep -q 'blocks.3.norm1.weight' "$log"
report "a missing block is named" $?
"$cltrain" generate "$tmp/run" --prompt x >"$log" 2>&1
[ $? = 78 ] && grep -q "generates no text" "$log"
report "no text comes from it" $?
sed 's/name: image/name: text/' tools/presets/vit-huge-16.yaml >"$tmp/text.yaml"
"$cltrain" train "$tmp/text.yaml" "variables.data_local=$golden/e2e/mds" model.image_size=32 model.depth=1 \
    global_train_batch_size=4 device_train_microbatch_size=2 save_folder="$tmp/text" max_duration=1ba >"$log" 2>&1
[ $? = 78 ] && grep -q 'the model reads pixels, and train_loader.name is text: set it to image' "$log"
report "data of another kind are refused" $?
finish
