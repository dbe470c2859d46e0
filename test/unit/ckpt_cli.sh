#!/bin/bash
# `cltrain ckpt`: output, exit codes, messages.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
cltrain=$BUILD/cltrain
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

# expect CODE TEXT ARGS...: `cltrain ckpt ARGS` ends with CODE and prints TEXT (on stdout or stderr).
expect() {
    local code=$1 text=$2 got
    shift 2
    timeout 600 "$cltrain" ckpt "$@" >"$tmp/out" 2>&1
    got=$?
    if [ "$got" != "$code" ] || ! grep -qF -- "$text" "$tmp/out"; then
        echo "FAIL: ckpt $*: exit $got (wanted $code), wanted '$text' in:"
        sed 's/^/    /' "$tmp/out"
        failed=1
    fi
}

hf=test/golden/mpt-learned/hf
other=test/golden/mpt-alibi/hf
run=$tmp/run

# usage
expect 2 'Usage: cltrain ckpt'
expect 0 'Examples' --help
expect 2 'did you mean verify' verfy
expect 2 'expected SOURCE' show
expect 2 'did you mean --json' show --jsno "$hf"
expect 0 'cltrain ckpt import' import --help

# safetensors: every file of the golden set, valid and not
for f in test/golden/safetensors/valid/*; do
    expect 0 '"tensors":[' show "$f" --json
    expect 0 'tensors' show "$f"
done
for f in test/golden/safetensors/invalid/*; do expect 65 "error: $f" show "$f" --json; done
expect 0 '{"name":"layers.0.attn.weight","dtype":"F32","shape":[2,3,1],"data_offsets":[24,48]}' \
    show test/golden/safetensors/valid/f32_basic.safetensors --json

# import, and what it wrote
expect 0 '28 tensors' import "$hf" "$run/ba0"
expect 74 'exists already' import "$hf" "$run/ba0"
expect 0 '28 tensors' import --overwrite "$hf" "$run/ba0/"
expect 0 'ba0' ls "$run"
expect 0 '"valid":true' ls "$run" --json
expect 0 'transformer.blocks.1.ffn.up_proj.weight' show "$run"
expect 0 '"d_model": 64' show "$run" --json
expect 0 'ok ' verify "$run"
expect 0 'ok ' verify "$run/ba0" "$hf" "$hf/model.safetensors"
expect 0 'bit-identical: 28 tensors' diff "$run" "$hf"
expect 0 'bit-identical: 28 tensors' diff "$run/ba0" "$hf/model.safetensors"
expect 1 'differ' diff "$run" test/golden/mpt-learned/final.safetensors
expect 0 'within the tolerance' diff -t 10 "$run" test/golden/mpt-learned/final.safetensors
expect 1 'shapes [512, 64] and [512, 96]' diff "$run" "$other"
expect 1 '"state":"differs"' diff "$run" test/golden/mpt-learned/final.safetensors --json

# equal weights have equal hashes in any source
a=$("$cltrain" ckpt hash "$run")
b=$("$cltrain" ckpt hash "$hf")
c=$("$cltrain" ckpt hash "$other")
if [ -z "$a" ] || [ "$a" != "$b" ] || [ "$a" = "$c" ]; then
    echo "FAIL: hashes: '$a', '$b', '$c'"
    failed=1
fi

# missing and invalid sources
expect 74 'does not exist: name a checkpoint' show "$tmp/nothing"
expect 74 'nothing' ls "$tmp/nothing"
mkdir "$tmp/empty"
expect 65 'no usable checkpoint; it is neither' show "$tmp/empty"
mkdir "$tmp/unsaved"
touch "$tmp/unsaved/metrics.jsonl"
expect 65 'its run saved none: set save_folder' show "$tmp/unsaved"
expect 65 'has no checkpoints' verify "$tmp/empty"
expect 0 '' ls "$tmp/empty"
mkdir "$tmp/mixed"
cp "$hf/config.json" "$tmp/mixed/"
cp "$other/model.safetensors" "$tmp/mixed/"
expect 65 "tensor 'transformer.wte.weight' (weight) has shape [512, 96], this model needs [512, 64]" \
    import "$tmp/mixed" "$run/ba1"
expect 65 'no model configuration' import "$hf/model.safetensors" "$run/ba1"

# the tokenizer of the folder comes along
mkdir "$tmp/text"
cp "$hf"/* test/golden/finetune/tokenizers/plain/* "$tmp/text/"
expect 0 '28 tensors' import "$tmp/text" "$tmp/with_text"
cmp -s "$tmp/text/tokenizer.json" "$tmp/with_text/tokenizer/tokenizer.json" || fail "import: no tokenizer"
[ ! -e "$run/ba0/tokenizer" ] || fail "import: a tokenizer of a folder that has none"
expect 0 'ok ' verify "$tmp/with_text"

# pipes in the place of files: no waiting for a writer
mkdir -p "$tmp/pipes/ba1"
mkfifo "$tmp/pipes/ba1/manifest.json" "$tmp/pipe.safetensors"
touch "$tmp/pipes/ba1/data.00000.bin"
expect 0 'damaged' ls "$tmp/pipes"
expect 65 'too few' show "$tmp/pipe.safetensors"

# a folder that is not a checkpoint is not replaced
mkdir -p "$tmp/runs/one"
cp -r "$run/ba0" "$tmp/runs/one/"
expect 74 'not a checkpoint, and is not overwritten' import --overwrite "$hf" "$tmp/runs/one"
expect 0 'ok ' verify "$tmp/runs/one"

# damage
cp -r "$run" "$tmp/bad"
printf '\x55' | dd of="$tmp/bad/ba0/data.00000.bin" bs=1 seek=140000 conv=notrunc 2>/dev/null
expect 65 "data.00000.bin is damaged: tensor 'transformer." verify "$tmp/bad"
expect 65 'is damaged' hash "$tmp/bad/ba0"
expect 65 'is damaged' diff "$tmp/bad" "$hf"
cp -r "$run" "$tmp/cut"
truncate -s 100000 "$tmp/cut/ba0/data.00000.bin"
expect 65 'the manifest says' verify "$tmp/cut"
expect 0 'damaged' ls "$tmp/cut"
cp -r "$run" "$tmp/gone"
rm "$tmp/gone/ba0/data.00000.bin"
expect 65 'is missing' verify "$tmp/gone/ba0"
cp -r "$run" "$tmp/link"
mv "$tmp/link/ba0/data.00000.bin" "$tmp/link/data"
ln -s ../data "$tmp/link/ba0/data.00000.bin"
expect 0 'damaged' ls "$tmp/link"
expect 74 'a symbolic link is not followed here' verify "$tmp/link/ba0"
[ "$(grep -c '^error' "$tmp/out")" = 1 ] || { echo "FAIL: more than one error for one file"; failed=1; }
cp -r "$run" "$tmp/edit"
sed -i 's/"d_model":64/"d_model":65/' "$tmp/edit/ba0/manifest.json"
expect 65 'its own hash does not match' show "$tmp/edit/ba0"

# export, in both types
expect 0 '28 tensors' export "$run" "$tmp/hf32"
expect 0 'bit-identical' diff "$tmp/hf32" "$hf"
expect 0 '28 tensors' export "$run" "$tmp/hf16" --dtype bf16
expect 0 'within the tolerance' diff "$tmp/hf16" "$hf" --tolerance 0.004
expect 2 'f32, bf16 or f16' export "$run" "$tmp/hf8" --dtype fp8

# prune: what a killed save left, then old checkpoints; not while a run holds the lock
runs=$tmp/pruned
expect 0 '28 tensors' import "$hf" "$runs/ba1"
left=$runs/ba2.tmp.0123456789abcdef
mkdir "$left" "$runs/ba3.tmp.mine" "$runs/ba0.superseded.0123456789abcdef"
head -c 2048 /dev/zero >"$left/data.00000.bin"
expect 0 "would remove $left (temporary folder, 2.00 KiB)" prune "$runs" --dry-run
[ -d "$left" ] || { echo "FAIL: a dry run removed something"; failed=1; }
echo 'host elsewhere, process 1' >"$runs/run.lock"
(exec 9>>"$runs/run.lock" && flock 9 && exec sleep 60) &
holder=$!
until ! flock -n "$runs/run.lock" true; do sleep 0.01; done
export CLTRAIN_LOCK_WAIT=0
expect 74 "$runs/run.lock: host elsewhere, process 1)" prune "$runs"
expect 74 "$runs/run.lock: host elsewhere, process 1)" import "$hf" "$runs/ba2"
unset CLTRAIN_LOCK_WAIT
kill $holder
wait $holder 2>/dev/null
[ -d "$left" ] || { echo "FAIL: prune did not heed the lock"; failed=1; }
expect 0 '1 removed, 2.00 KiB freed' prune "$runs"
[ "$(ls "$runs")" = "$(printf '%s\n' ba0.superseded.0123456789abcdef ba1 ba3.tmp.mine run.lock)" ] ||
    { echo "FAIL: prune left:"; ls "$runs"; failed=1; }
expect 0 '28 tensors' import "$hf" "$runs/ba2"
expect 0 'would remove' prune "$runs" --keep 1 --dry-run
expect 0 '0 removed, 0 B freed' prune "$runs" --keep 2
expect 0 '(checkpoint, ' prune "$runs" --keep 1
expect 0 'ok ' verify "$runs"
expect 65 'name the folder that holds it' prune "$(find "$runs" -name 'ba[12]')"
expect 74 'does not exist' prune "$tmp/nothing"
[ ! -e "$tmp/nothing" ] || { echo "FAIL: prune made a folder"; failed=1; }
expect 2 'must be at least 1' prune "$runs" --keep 0
expect 2 'is no time' prune "$runs" --uploads-older-than soon

[ $failed = 0 ] && echo "all as expected"
exit $failed
