"""Drift of PyTorch's 16-bit training from the losses in double precision of test/golden (mpt-learned, mpt-alibi).

usage: torch_drift.py [bf16|fp16|fp32 ...]     in the project's root; CPU only

Weights, batches, learning rates, decoupled AdamW and clipping are those of the golden runs; the model is plain
PyTorch with fp32 weights, under torch.autocast for 16 bits. fp32 shows that the script computes the same run. Each
line has the largest absolute difference of a loss in 30 steps and the largest relative one of a gradient norm."""
import json, math, struct, sys
import need_torch
import torch
import torch.nn.functional as F

DTYPES = {"F32": (torch.float32, 4), "I32": (torch.int32, 4), "I64": (torch.int64, 8)}


def tensors(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        flat = torch.frombuffer(bytearray(data[8 + n + a : 8 + n + b]), dtype=DTYPES[t["dtype"]][0])
        out[name] = flat.reshape(t["shape"]).clone()
    return out


def forward(w, c, ids):
    b, t = ids.shape
    h, d = c["n_heads"], c["d_model"]
    x = F.embedding(ids, w["transformer.wte.weight"])
    if "transformer.wpe.weight" in w:
        x = x + w["transformer.wpe.weight"][:t]
    bias = torch.full((t, t), -math.inf).triu(1)
    if c["attn_config"]["alibi"]:
        up = 2 ** math.ceil(math.log2(h))
        s = [2 ** (-c["attn_config"]["alibi_bias_max"] * (i + 1) / up) for i in range(up)]
        s = s if up == h else (s[1::2] + s[::2])[:h]
        bias = bias + torch.tensor(s).view(h, 1, 1) * (torch.arange(t) - torch.arange(t).view(-1, 1))
    norm = lambda x, n: F.layer_norm(x, (d,), w[n + ".weight"], w.get(n + ".bias"))
    lin = lambda x, n: F.linear(x, w[n + ".weight"], w.get(n + ".bias"))
    for i in range(c["n_layers"]):
        p = f"transformer.blocks.{i}."
        q, k, v = (z.view(b, t, h, d // h).transpose(1, 2) for z in lin(norm(x, p + "norm_1"), p + "attn.Wqkv").chunk(3, -1))
        a = torch.softmax((q @ k.transpose(-1, -2)).float() / math.sqrt(d // h) + bias, -1) @ v.to(q.dtype)
        x = x + lin(a.transpose(1, 2).reshape(b, t, d), p + "attn.out_proj")
        x = x + lin(F.gelu(lin(norm(x, p + "norm_2"), p + "ffn.up_proj")), p + "ffn.down_proj")
    return F.linear(norm(x, "transformer.norm_f"), w["transformer.wte.weight"])


def run(name, precision):
    folder = f"test/golden/{name}/"
    c = json.load(open(folder + "hf/config.json"))
    steps = json.load(open(folder + "train.json"))["steps"]
    tokens = tensors(folder + "tokens.safetensors")["input_ids"].long()
    w = {k: v.float().requires_grad_() for k, v in tensors(folder + "hf/model.safetensors").items() if k != "lm_head.weight"}
    state = {k: (torch.zeros_like(v), torch.zeros_like(v)) for k, v in w.items()}
    worst = [0.0, 0.0]
    for i, want in enumerate(steps):
        ids = tokens[i % 8 * 8 : i % 8 * 8 + 8]
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        with torch.autocast("cpu", dtype=kind or torch.bfloat16, enabled=kind is not None):
            logits = forward(w, c, ids)
        loss = F.cross_entropy(logits[:, :-1].float().reshape(-1, c["vocab_size"]), ids[:, 1:].reshape(-1))
        scale = 65536.0 if precision == "fp16" else 1.0
        grads = torch.autograd.grad(loss * scale, list(w.values()))
        grads = [g / scale for g in grads]
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads))
        clip = min(1.0, 1.0 / (norm + 1e-6))
        lr, t = want["lr"], i + 1
        with torch.no_grad():
            for (k, p), g in zip(w.items(), grads):
                m, v = state[k]
                m.lerp_(g * clip, 0.1)
                v.mul_(0.95).addcmul_(g * clip, g * clip, value=0.05)
                p.mul_(1 - lr / 0.004 * 1e-4)
                p.addcdiv_(m, (v.sqrt() / math.sqrt(1 - 0.95**t)).add_(1e-8), value=-lr / (1 - 0.9**t))
        worst = [max(worst[0], abs(loss.item() - want["loss"])), max(worst[1], abs(norm / want["grad_norm"] - 1))]
    print(f"{name:12} {precision}  loss {worst[0]:.2e}  gradient norm {worst[1]:.2e}", flush=True)


if not set(sys.argv[1:]) <= {"fp32", "bf16", "fp16"}:
    need_torch.usage(2)
for precision in sys.argv[1:] or ["fp32", "bf16"]:
    for name in ("mpt-learned", "mpt-alibi"):
        run(name, precision)
