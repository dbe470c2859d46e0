#!/bin/bash
# The memory that a checkpoint of 2 GiB needs on its way to an object store and back does not grow with it: at most
# 64 MiB + 16 MiB for each of 8 connections more than a checkpoint of a few KiB. Needs 7 GB of disk.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/store.sh
store_start
hf=$golden/mpt-learned/hf
bound=$(((64 + 8 * 16) << 10)) # KiB
up=0 down=0 small_up=0 small_down=0

# peak VARIABLE COMMAND...: the most memory that `cltrain ckpt COMMAND` had, in KiB, into VARIABLE
peak() {
    local -n kib=$1
    shift
    kib=$(python3 -c '
import resource, subprocess, sys
subprocess.run(sys.argv[2:], stdout=open(sys.argv[1], "w"), stderr=subprocess.STDOUT, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$log" "$cltrain" ckpt "$@")
    report "ckpt $*" $? "${kib:-no} KiB"
}

# within NAME LARGE SMALL: whether the growth is within the bound, and the measurement plausible
within() {
    [ $(($2 - $3)) -le $bound ] && [ $(($2 - $3)) -gt 16384 ]
    report "$1" $? "$((($2 - $3) >> 10)) MiB, at most $((bound >> 10))"
}

# A model of 505M parameters with random bits.
python3 - "$hf/config.json" "$tmp/hf" <<'PY'
import json, math, os, struct, sys
d, layers, vocab, length = 1024, 36, 50368, 2048
config = json.load(open(sys.argv[1]))
config.update(d_model=d, n_layers=layers, n_heads=16, vocab_size=vocab, max_seq_len=length)
shapes = {"transformer.wte.weight": [vocab, d], "transformer.wpe.weight": [length, d]}
for i in range(layers):
    block = f"transformer.blocks.{i}."
    for name, shape in (("attn.Wqkv", [3 * d, d]), ("attn.out_proj", [d, d]), ("ffn.up_proj", [4 * d, d]),
                        ("ffn.down_proj", [d, 4 * d])):
        shapes[block + name + ".weight"], shapes[block + name + ".bias"] = shape, shape[:1]
    for name in ("norm_1", "norm_2"):
        shapes[block + name + ".weight"] = shapes[block + name + ".bias"] = [d]
shapes["transformer.norm_f.weight"] = shapes["transformer.norm_f.bias"] = [d]
header, at = {}, 0
for name, shape in shapes.items():
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * math.prod(shape)]}
    at += 4 * math.prod(shape)
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
os.mkdir(sys.argv[2])
json.dump(config, open(sys.argv[2] + "/config.json", "w"))
with open(sys.argv[2] + "/model.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    while at:
        n = min(at, 1 << 24)
        f.write(os.urandom(n))
        at -= n
PY
peak small_up import "$hf" "s3://$TEST_BUCKET/small/ba0"
peak small_down verify "s3://$TEST_BUCKET/small/ba0"
peak up import "$tmp/hf" "s3://$TEST_BUCKET/large/ba0"
peak down verify "s3://$TEST_BUCKET/large/ba0"
within "an upload of 2 GiB" "$up" "$small_up"
within "a download of 2 GiB" "$down" "$small_down"
finish
