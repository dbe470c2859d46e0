"""What `cltrain train --dry-run --json` makes of every configuration in test/golden/deepspeed, compared with what
DeepSpeed made of it: python3 deepspeed_golden.py CLTRAIN FOLDER, where FOLDER is empty and gets scratch files."""
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

cltrain, scratch = sys.argv[1:]
golden = "test/golden/deepspeed/"
new = "0.19.8"
failed = []

YAML = """model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64, vocab_size: 512}
tokenizer: {name: bytes}
train_loader: {name: text, dataset: {local: x}}
max_seq_len: 64
max_duration: 30ba
"""
OWN_OPTIMIZER = "optimizer={name: adamw, lr: 0.5}"
OWN_SCHEDULER = "scheduler={name: constant_with_warmup, t_warmup: 0ba}"

# Verdicts that differ from DeepSpeed 0.19.8's: a word of the message where cltrain refuses what it accepts, None where
# cltrain accepts what it refuses.
DIFFERS = {
    "auto-hf.json": None,  # "auto" comes from the YAML
    "removed-later.json": None,  # 0.16.4 accepts it
    "removed-amp.json": None,
    "null-zero.json": None,
    "elasticity.json": None,
    "unknown-optimizer.json": "Adamax",
    "wrong-types.json": "must be a number",
}
# What cltrain says where DeepSpeed tolerates a key, or does something else than the file says.
SAYS = {
    "unknown-top-key.json": ["deepspeed.my_own_key", "deepspeed.gradient_clip", "deepspeed.lr"],
    "unknown-activation-key.json": ["deepspeed.activation_checkpointing."],
    "offload-param-stage-2.json": ["deepspeed.zero_optimization.offload_param.device"],
    "activation-checkpointing.json": ["deepspeed.prescale_gradients", "csv_monitor writes one table, csv/"],
    "fp16-static.json": ["deepspeed.fp16.auto_cast"],
    "minimal.json": ["has no gradient_clipping"],
}
# Defaults of what DeepSpeed builds, where expected.json has no built optimizer.
ADAM = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0, "bias_correction": True, "min_coeff": 0.01}


def run(path, ranks, overrides):
    env = dict(os.environ, OMPI_COMM_WORLD_SIZE=str(ranks), OMPI_COMM_WORLD_RANK="0")
    words = [cltrain, "train", "--dry-run", "--json", "--deepspeed", path, scratch + "/base.yaml", *overrides]
    return subprocess.run(words, env=env, capture_output=True, text=True)


def load(result):
    return json.loads(result.stdout) if result.returncode == 0 else None


def check(name, what, got, want):
    same = got == want
    if isinstance(got, float) or isinstance(want, float):
        same = isinstance(got, (int, float)) and isinstance(want, (int, float)) and float(got) == float(want)
    if not same:
        failed.append(f"{name}: {what} is {got!r}, not {want!r}")


# --- batches: every case ---


def one_batch(i, case):
    given, want = case["given"], case[new]
    name = f"batch.json, case {i} {given} on {case['world_size']}"
    path = f"{scratch}/batch{i}.json"
    with open(path, "w") as f:
        json.dump({**given, "gradient_clipping": 0}, f)
    result = run(path, case["world_size"], [OWN_OPTIMIZER, OWN_SCHEDULER])
    # Truth values, texts and fractions as sizes of batches are refused; "auto" is the same as not given.
    left = {k: v for k, v in given.items() if v != "auto"}
    odd = any(isinstance(v, (bool, str)) or int(v) != v for v in left.values())
    if left and len(left) < len(given):
        return check(name, "exit code", result.returncode, 0)
    if "error" in want or odd:
        return check(name, "exit code", result.returncode, 78)
    got = load(result) or {}
    keys = ["train_batch_size", "micro_batch_size", "gradient_accumulation_steps"]
    return check(name, "batch", [got.get(k) for k in keys], want)


def batches(pool):
    cases = json.load(open(golden + "batch.json"))["cases"]
    list(pool.map(one_batch, range(len(cases)), cases))
    return sum(isinstance(case[new], list) for case in cases)


# --- whole files ---


def overrides_of(file, text):
    out = [] if '"optimizer": {' in text or "optimizer: {" in text else [OWN_OPTIMIZER]
    out += [] if '"type": "Warmup' in text else [OWN_SCHEDULER]
    if file == "auto-hf.json":
        out += ["global_train_batch_size=8", OWN_OPTIMIZER]
    return out


def check_optimizer(name, got, want, built):
    if not want.get("optimizer_name"):
        return check(name, "the YAML's lr", got["lr"], 0.5)
    given = {k: v for k, v in (want.get("optimizer_params") or {}).items() if v != "auto"}
    group = {**ADAM, **given, **built.get("group", {})}
    lion = want["optimizer_name"] == "lion"
    if built.get("optimizer") == "torch.SGD":
        check(name, "momentum", got["momentum"], group["momentum"])
    else:
        check(name, "betas", [float(b) for b in got["betas"]], group["betas"])
    for key in ["lr", "eps", "bias_correction", "max_coeff", "min_coeff"]:
        if key in got and key in group:
            check(name, key, got[key], group[key])
    # decoupled_lionw multiplies by the ratio of the learning rates
    check(name, "weight_decay", got["weight_decay"], group["weight_decay"] * (group["lr"] if lion else 1))
    mode = built.get("adam_w_mode", given.get("adam_w_mode"))
    if "adam_w_mode" in got and mode is not None:
        check(name, "adam_w_mode", got["adam_w_mode"], bool(mode))


def check_scale(name, got, half, stage):
    if half["loss_scale"]:
        return check(name, "loss scale", got, {"rule": "static", "initial": half["loss_scale"]})
    want = {
        "rule": "deepspeed" if stage else "deepspeed_0",
        "initial": float(2 ** half["initial_scale_power"]),
        "window": half["loss_scale_window"],
        "min": float(half["min_loss_scale"]),
    }
    if stage:
        want.update(hysteresis=half["hysteresis"], consecutive_hysteresis=half["consecutive_hysteresis"])
    check(name, "loss scale", got, want)


def check_scheduler(name, got, want):
    kind = want.get("scheduler_name")
    if not kind:
        return check(name, "scheduler", got["name"], "constant_with_warmup")
    check(name, "scheduler", got["name"].replace("_", ""), kind.lower())
    for key, value in want["scheduler_params"].items():
        check(name, key, got.get(key), value)


def check_values(name, got, want, case, defaults):
    half = {**defaults["float16_config"], **want.get("float16_config", {})}
    brain = want.get("bfloat16_config", {}).get("enabled")
    zero = want.get("zero_config", {})
    stage = zero.get("stage", 0)
    clip = want.get("gradient_clipping", 1.0)
    clip = 1.0 if clip == "auto" else clip
    where = {"cpu": "host", "nvme": "file"}
    offload = where.get((zero.get("offload_optimizer") or {}).get("device"), "none")
    check(name, "ranks", got["ranks"], case["world_size"])
    check(name, "batch", got["train_batch_size"], want["train_batch_size"])
    check(name, "micro batch", got["micro_batch_size"], want.get("train_micro_batch_size_per_gpu", 1))
    check(name, "accumulation", got["gradient_accumulation_steps"], want.get("gradient_accumulation_steps", 1))
    check(name, "stage", got["zero_stage"], stage)
    check(name, "offload", got["offload"], offload if stage else "none")
    if offload == "file":
        check(name, "folder", got["offload_folder"], zero["offload_optimizer"]["nvme_path"])
    check(name, "precision", got["precision"], "amp_fp16" if half["enabled"] else "amp_bf16" if brain else "fp32")
    check(name, "clipping", got["clipping"], {"type": "norm", "threshold": clip} if clip and clip > 0 else None)
    check_optimizer(name, got["optimizer"], want, case.get("initialize") or {})
    check_scheduler(name, got["scheduler"], want)
    if half["enabled"]:
        check_scale(name, got["loss_scale"], half, stage)
    else:
        check(name, "loss scale", got["loss_scale"], None)


def one_file(case, defaults):
    file, want = case["file"], case[new]
    built = case.get("initialize") or {}
    # fp16 and Lamb are refused there only because there was no GPU.
    no_gpu = "not supported on your device" in built.get("message", "") or "CPU backend" in built.get("message", "")
    error = "error" in want or ("error" in built and not no_gpu)
    path = golden + "configs/" + file
    result = run(path, case["world_size"], overrides_of(file, open(path).read()))
    refused = DIFFERS[file] is not None if file in DIFFERS else error
    if refused:
        check(file, "exit code", result.returncode, 78)
        for word in [file, DIFFERS.get(file) or ""]:
            if word not in result.stderr:
                failed.append(f"{file}: the message lacks {word!r}: {result.stderr}")
        return 0
    got = load(result)
    if got is None:
        failed.append(f"{file}: {result.stderr}")
        return 0
    for words in SAYS.get(file, []):
        if not any(words in line for line in got["warnings"]):
            failed.append(f"{file}: no warning has {words!r}: {got['warnings']}")
    if not error:
        check_values(file, got, want, case, defaults)
    return 1


def files(pool):
    expected = json.load(open(golden + "configs/expected.json"))
    cases = expected["cases"]
    good = pool.map(one_file, cases, [expected["defaults"][new]] * len(cases))
    return sum(good), len(cases)


open(scratch + "/base.yaml", "w").write(YAML)
with ThreadPoolExecutor(4) as workers:
    n_batches = batches(workers)
    n_good, n_files = files(workers)
if n_batches < 20 or n_good < 20:
    failed.append(f"only {n_batches} batches and {n_good} files were compared")
print("\n".join(failed))
print(f"{n_batches} batches, {n_files} files, {n_good} of them accepted")
sys.exit(bool(failed))
