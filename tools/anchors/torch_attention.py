#!/usr/bin/env python3
"""Attention of PyTorch on one GPU, causal or --mask none, for comparison with `clbench attention --suite large`.

    torch_attention.py [--backend cudnn|flash ...] [--shape B,H,T,D ...] [--mask none] [--seconds S] [--json FILE]

q, k and v are bf16 [B, T, H, D], the layout of a model's packed projection. The forward pass counts as
4 * B * H * T * T * D / 2 operations (twice that without the mask), the backward pass as 2.5 times that.
"""
import argparse
import json

import need_torch  # noqa: F401, before torch
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from timing import timed

SHAPES = ["16,12,2048,64", "8,16,2048,128", "2,32,4096,128"]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def measure(shape, backend, causal, seconds):
    b, h, t, d = shape
    make = lambda: torch.randn(b, t, h, d, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
    q, k, v = make(), make(), make()
    flops = 4 * b * h * t * t * d / (2 if causal else 1)
    with sdpa_kernel([BACKENDS[backend]]):
        forward = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        with torch.no_grad():
            f = timed(forward, seconds)
        o = forward()
        do = torch.randn_like(o)
        w = timed(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), seconds)
    name = f"B{b} T{t} H{h} D{d}" + ("" if causal else " unmasked")
    return {"backend": backend, "shape": name, "forward_seconds": f, "backward_seconds": w,
            "forward_tflops": flops / f * 1e-12, "backward_tflops": 2.5 * flops / w * 1e-12}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--backend", action="append", choices=sorted(BACKENDS))
    p.add_argument("--shape", action="append")
    p.add_argument("--mask", choices=["causal", "none"], default="causal")
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--json")
    a = p.parse_args()
    rows = []
    for text in a.shape or SHAPES:
        for backend in a.backend or ["cudnn", "flash"]:
            row = measure([int(x) for x in text.split(",")], backend, a.mask == "causal", a.seconds)
            rows.append(row)
            print(f"{row['shape']:26} {backend:6} forward {row['forward_seconds'] * 1e3:8.3f} ms "
                  f"{row['forward_tflops']:7.1f} TFLOP/s   backward {row['backward_seconds'] * 1e3:8.3f} ms "
                  f"{row['backward_tflops']:7.1f} TFLOP/s", flush=True)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
