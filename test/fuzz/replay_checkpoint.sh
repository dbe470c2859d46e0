#!/bin/bash
# Mutations of real files through the readers of safetensors and checkpoints (fuzz_safetensors.c, fuzz_manifest.c).
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=${FUZZ_MUTATIONS:-1500}
"$BUILD"/test/fuzz/fuzz_safetensors -n "$((n / 5))" test/golden/safetensors/*/*
"$BUILD/cltrain" -q ckpt import test/golden/mpt-learned/hf "$tmp/ba0" >"$tmp/log"
head -c -45 "$tmp/ba0/manifest.json" >"$tmp/manifest"
# A chunk of 64 floats.
read -r offset stored < <(sed -n 's/^\[[0-9]*,0,64,0,\([0-9]*\),\([0-9]*\),.*/\1 \2/p' "$tmp/ba0/manifest.json")
{ printf '\x40\x00'; tail -c "+$((offset + 1))" "$tmp/ba0/data.00000.bin" | head -c "$stored"; } >"$tmp/chunk"
# And one that compresses.
head -c 4096 /dev/zero | zstd -q --check >"$tmp/zeros" 2>/dev/null || : >"$tmp/zeros"
{ printf '\x00\x04'; cat "$tmp/zeros"; } >"$tmp/chunk0"
"$BUILD"/test/fuzz/fuzz_manifest -n "$n" "$tmp/manifest"
"$BUILD"/test/fuzz/fuzz_manifest -n "$((n * 10))" "$tmp/chunk" "$tmp/chunk0"
