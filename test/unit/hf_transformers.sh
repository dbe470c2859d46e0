#!/bin/bash
# A checkpoint is imported, trained for eight steps and exported; the transformers package loads the export and
# computes the same logits as cltrain. PYTHON names a Python that has torch and transformers.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
cltrain=$PWD/$BUILD/cltrain
command -v "$PYTHON" >/dev/null || { echo "SKIP: python3 is not installed"; exit 0; }
"$PYTHON" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("torch", "transformers"))))' ||
    { echo "SKIP: the packages torch and transformers are not installed"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for family in llama3 qwen2-bf16 gpt2 mistral gpt-neox gemma2; do
    (
        cd "test/golden/families/$family"
        "$cltrain" -q ckpt import hf "$tmp/$family/start/ba0" >/dev/null
        "$cltrain" -q train train.yaml model.pretrained=false load_path="$tmp/$family/start/ba0" \
            load_weights_only=true save_folder="$tmp/$family/run"
        "$cltrain" -q ckpt export "$tmp/$family/run" "$tmp/$family/out" --shard-bytes 60000 >/dev/null
        "$cltrain" -q eval "$tmp/$family/run" --logits tokens.safetensors "$tmp/$family/logits.safetensors"
        cp tokens.safetensors "$tmp/$family"
    )
done
HF_HUB_OFFLINE=1 "$PYTHON" - "$tmp" <<'P'
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
for folder in sorted(Path(sys.argv[1]).iterdir()):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder / "out", torch_dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    assert not wrong, (folder.name, wrong)
    AutoTokenizer.from_pretrained(folder / "out")
    ours = load_file(folder / "logits.safetensors")["logits"]
    with torch.no_grad():
        theirs = model(load_file(folder / "tokens.safetensors")["input_ids"].long()).logits
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{folder.name}: logits differ by {error:.2g} of the largest")
    assert error < 1e-5, folder.name
P
