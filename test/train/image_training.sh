#!/bin/bash
# A Vision Transformer trains on pictures from MDS shards and from a folder of classes, with every augmentation: the
# same weights on 1 and 3 ranks, with other numbers of decoding threads, and after a stop and a resume.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
images=$golden/vit/images
cat >"$tmp/run.yaml" <<'YAML'
model: {name: vit, image_size: 32, patch_size: 8, width: 32, depth: 2, heads: 2, classes: 10}
tokenizer: {name: bytes}
optimizer: {name: adamw, lr: 0.001}
scheduler: {name: constant_with_warmup, t_warmup: 0ba}
train_loader:
  name: image
  dataset: {local: null, shuffle: true, random_resized_crop: true, hflip: 0.5, randaugment: 2,
            label_smoothing: 0.1, mixup: 0.8, cutmix: 1.0, decode_threads: 3}
eval_loader:
  name: image
  label: val
  dataset: {local: null, crop_pct: 0.9}
eval_interval: 3ba
max_duration: 6ba
global_train_batch_size: 8
device_eval_batch_size: 4
device_train_microbatch_size: 2
precision: fp32
cltrain: {numerics: exact, exact_lanes: 8}
YAML
conf=("$tmp/run.yaml" "eval_loader.dataset.local=$images/mds/png")

# run FOLDER RANKS SOURCE [key=value ...]: one training run
run() {
    local folder=$tmp/$1 ranks=$2 source=$images/$3
    shift 3
    on_ranks "$ranks" train -q --device pocl "${conf[@]}" train_loader.dataset.local="$source" save_folder="$folder" \
        "$@" >"$folder.log" 2>&1 && return 0
    tail -n 5 "$folder.log"
    fail "${folder##*/}"
}
if ! "$cltrain" train --device pocl "${conf[@]}" train_loader.dataset.local="$images/mds/jpeg" max_duration=1ba \
    >"$log" 2>&1 && grep -q "IMAGES=0" "$log"; then
    echo "skipped: built without pictures (IMAGES=0)"
    exit 0
fi

for source in mds/jpeg imagefolder/train; do
    rm -rf "$tmp"/{one,three,threads,stop}
    run one 1 $source
    want=$("$cltrain" ckpt hash "$tmp/one")
    run three 3 $source
    run threads 1 $source train_loader.dataset.decode_threads=1
    run stop 1 $source max_duration=4ba
    run stop 2 $source
    for name in three threads stop; do
        got=$("$cltrain" ckpt hash "$tmp/$name")
        [ -n "$want" ] && [ "$got" = "$want" ] || fail "$source, run '$name': hashes differ: $got, not $want"
    done
    run other 1 $source train_loader.dataset.shuffle_seed=1 train_loader.dataset.shuffle=false
    [ "$("$cltrain" ckpt hash "$tmp/other")" != "$want" ] || fail "$source: another seed makes no difference"
    rm -rf "$tmp/other"
    echo "same: $source with mixup and cutmix on 1 and 3 ranks, other threads, and resumed: $(echo $want)"
done

# A picture that is damaged ends the run with its name.
mkdir -p "$tmp/set/a" && cp "$images/bad/truncated.jpg" "$images/files/rgb.png" "$tmp/set/a"
"$cltrain" train --device pocl "${conf[@]}" train_loader.dataset.local="$tmp/set" global_train_batch_size=2 \
    eval_loader=null cltrain.exact_lanes=2 >"$log" 2>&1
[ $? = 65 ] && grep -q "set/a/truncated.jpg .*the JPEG data end early" "$log"
report "a damaged picture" $?
finish
