#!/bin/bash
# PyTorch and DeepSpeed themselves: torch.load(weights_only=True) reads every file of an exported universal checkpoint
# with the tensors of its safetensors export; files that torch.save wrote are imported; DeepSpeed loads the export at
# ZeRO 1, 2 and 3, and what it saves and converts then is imported with equal bits. PYTHON names a Python that has
# torch and, for the last part, deepspeed.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
PYTHON=${PYTHON:-python3}
cltrain=$PWD/$BUILD/cltrain
has() { (cd / && "$PYTHON" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"); }
command -v "$PYTHON" >/dev/null || { echo "SKIP: python3 is not installed"; exit 0; }
has torch || { echo "SKIP: the package torch is not installed"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
(cd test/golden/families/gpt2 && "$cltrain" -q train train.yaml max_duration=2ba save_folder="$tmp/run")
"$cltrain" ckpt export "$tmp/run" "$tmp/ds" --deepspeed-universal >/dev/null
"$cltrain" -q ckpt export "$tmp/run" "$tmp/hf" --dtype f32 >/dev/null
want=$("$cltrain" ckpt hash "$tmp/run")
expect_equal() {
    [ "$("$cltrain" ckpt hash "$1")" = "$want" ] || { echo "FAIL: $1 has other hashes"; exit 1; }
}

"$PYTHON" - "$tmp" <<'P'
import json, struct, sys, torch, zipfile
from pathlib import Path
tmp = Path(sys.argv[1])
raw = (tmp / "hf/model.safetensors").read_bytes()
n = struct.unpack("<Q", raw[:8])[0]
head = json.loads(raw[8:8 + n])
weights = {k: torch.frombuffer(bytearray(raw[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]),
                               dtype=torch.float32).view(v["shape"]) for k, v in head.items() if k != "__metadata__"}
tag = tmp / "ds" / (tmp / "ds/latest_universal").read_text()
files = sorted(tag.rglob("*.pt"))
for f in files:
    assert zipfile.ZipFile(f).testzip() is None, f
    torch.load(f, weights_only=True, mmap=True)
module = torch.load(tag / "mp_rank_00_model_states.pt", weights_only=True)
assert module["global_steps"] == 2 and module["module"].keys() == weights.keys()
state = {}
for name, w in weights.items():
    state[name] = [torch.load(tag / "zero" / name / f"{s}.pt", weights_only=True) for s in ("fp32", "exp_avg", "exp_avg_sq")]
    assert torch.equal(state[name][0]["param"], w) and torch.equal(module["module"][name], w), name
    assert all(d["param"].shape == w.shape and d["cat_dim"] == 0 for d in state[name]), name
    assert torch.load(tag / "zero" / name / "step.pt", weights_only=True).item() == 2
print(f"torch {torch.__version__} reads {len(files)} files with weights_only=True")

# The same by torch.save: ZeRO 3 with views into larger storages, and ZeRO 1 in bf16 and fp64 with protocol 4.
for stage, protocol in (3, 2), (1, 4):
    for name, dicts in state.items():
        folder = tmp / f"zero{stage}" / "tag" / "zero" / f"module.{name}"
        folder.mkdir(parents=True)
        for key, d in zip(("fp32", "exp_avg", "exp_avg_sq"), dicts):
            x = torch.cat([torch.ones(3), d["param"].flatten()])[3:] if stage == 3 else {"param": d["param"].double()}
            torch.save(x, folder / f"{key}.pt", pickle_protocol=protocol)
        if stage == 1:
            torch.save(torch.tensor(2, dtype=torch.float64), folder / "step.pt")
    (tmp / f"zero{stage}/latest_universal").write_text("tag")
    (tmp / f"zero{stage}/config.json").write_text((tmp / "ds/config.json").read_text())
class Unknown: pass
torch.save({"optimizer_state_dict": {"state": {0: {"step": torch.tensor(2.)}}}, "loss_scaler": Unknown()},
           tmp / "zero3/tag/zero/optimizer_state.pt")
P
for stage in 3 1; do
    "$cltrain" -q ckpt import "$tmp/zero$stage" "$tmp/from$stage/ba2" >/dev/null
    expect_equal "$tmp/from$stage"
done
echo "imports of what torch.save writes are equal"

has deepspeed || { echo "SKIP: the package deepspeed is not installed: its own loader was not run"; exit 0; }
cat >"$tmp/load.py" <<'P'
import os, sys, torch
from pathlib import Path
os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4])
import deepspeed
folder, stage, out = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
zero = next(folder.glob("*/zero"))
class Node(torch.nn.Module):
    pass
model = Node()
for name in sorted(p.name for p in zero.iterdir() if p.is_dir()):
    at = model
    *path, last = name.split(".")
    for key in path:
        if not hasattr(at, key):
            at.add_module(key, Node())
        at = getattr(at, key)
    shape = torch.load(zero / name / "fp32.pt", weights_only=True)["param"].shape
    at.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
matrices, rest = [[p for p in model.parameters() if (p.dim() > 1) == m] for m in (True, False)]
engine, *_ = deepspeed.initialize(model=model, model_parameters=[{"params": matrices}, {"params": rest, "weight_decay": 0.0}], config={
    "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "checkpoint": {"load_universal": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}})
before = [{k: v for k, v in g.items() if k != "params"} for g in engine.optimizer.param_groups]
path, _ = engine.load_checkpoint(str(folder))
assert path and engine.global_steps == 2 and engine.global_samples == 16 and engine.lr_scheduler.last_batch_iteration == 1
for old, group in zip(before, engine.optimizer.param_groups):
    now = {k: v for k, v in group.items() if k != "params"}
    assert now == old, (now, old)
engine.save_checkpoint(out)
P
for stage in 1 2 3; do
    (
        set -e
        cd "$tmp"
        "$PYTHON" load.py ds $stage "saved$stage" $((20000 + RANDOM % 20000))
        "$PYTHON" -m deepspeed.checkpoint.ds_to_universal --input_folder "saved$stage/global_step2" \
            --output_folder "back$stage/global_step2_universal" --inject_missing_state
    ) >"$tmp/log" 2>&1 &
    wait $! || { tail -n 30 "$tmp/log"; exit 1; }
    cp "$tmp/ds/config.json" "$tmp/back$stage"
    "$cltrain" -q ckpt import "$tmp/back$stage" "$tmp/again$stage/ba2" >/dev/null
    expect_equal "$tmp/again$stage"
    echo "ZeRO $stage of DeepSpeed loads the export, and its universal checkpoint is imported with equal bits"
done
