#!/bin/bash
# An independent reader (test/golden/read_checkpoint.py) reads imported checkpoints: every tensor has the bytes that the
# safetensors file had.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
command -v python3 >/dev/null || { echo "SKIP: python3 is not there"; exit 0; }
command -v zstd >/dev/null || { echo "SKIP: the zstd program is not there"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for set in mpt-learned mpt-variants; do
    hf=test/golden/$set/hf
    "$BUILD/cltrain" -q ckpt import "$hf" "$tmp/$set/ba0"
    python3 test/golden/read_checkpoint.py "$tmp/$set/ba0" | sort >"$tmp/ours"
    python3 - "$hf/model.safetensors" <<'P' | sort >"$tmp/theirs"
import hashlib, json, struct, sys
raw = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", raw[:8])[0]
for name, t in json.loads(raw[8:8 + n]).items():
    if name == "__metadata__":
        continue
    begin, end = t["data_offsets"]
    data = raw[8 + n + begin:8 + n + end]
    print("weight", name, "x".join(map(str, t["shape"])), hashlib.sha256(data).hexdigest())
P
    diff "$tmp/ours" "$tmp/theirs"
    echo "$set: $(wc -l <"$tmp/ours") tensors equal"
    # And back: the exported file has the same tensors again.
    "$BUILD/cltrain" -q ckpt export "$tmp/$set/ba0" "$tmp/$set/hf"
    "$BUILD/cltrain" -q ckpt diff "$tmp/$set/hf" "$hf"
done
