#!/usr/bin/env python3
"""PyTorch on a GPU: the memory-bound parts of a training step, at the shapes of clbench norm, loss, activation and
optimizer.

usage: torch_memory.py [mpt-125m|mpt-1b]...

Prints one line per operation: milliseconds, and GB/s of the bytes that must at least be moved, counted as in clbench.
"""
import sys

import need_torch
import torch
import torch.nn.functional as F

from timing import timed

SHAPES = {"mpt-125m": (32768, 768, 16384, 125_173_760), "mpt-1b": (16384, 2048, 4096, 1_312_030_720)}


def report(name, call, size):
    ms = timed(call, 0.3) * 1e3
    print(f"{name:24s} {ms:9.4f} ms {size / ms * 1e-6:9.1f} GB/s", flush=True)


def measure(suite):
    rows, cols, tokens, parameters = SHAPES[suite]
    print(suite)
    dev, vocab, half = "cuda", 50368, torch.bfloat16
    x = torch.randn(rows, cols, device=dev)
    y = torch.empty_like(x)
    report("copy", lambda: y.copy_(x), 8 * x.numel())
    norm = torch.nn.LayerNorm(cols, bias=False, device=dev)
    with torch.no_grad():
        report("layer norm forward", lambda: norm(x).to(half), 6 * x.numel())
    xg = x.clone().requires_grad_()
    out = norm(xg)
    dy = torch.randn_like(out)
    report("layer norm backward", lambda: torch.autograd.grad(out, (xg, norm.weight), dy, retain_graph=True),
           14 * x.numel())
    del xg, out, dy, y
    h = torch.randn(rows, 4 * cols, device=dev, dtype=half)
    with torch.no_grad():
        report("gelu forward, bf16", lambda: F.gelu(h), 4 * h.numel())
    hg = h.clone().requires_grad_()
    g = F.gelu(hg)
    report("gelu backward, bf16", lambda: torch.autograd.grad(g, hg, h, retain_graph=True), 6 * h.numel())
    del h, hg, g
    logits = torch.randn(tokens, vocab, device=dev, dtype=half, requires_grad=True)
    target = torch.randint(0, vocab, (tokens,), device=dev)
    report("cross entropy, bf16",
           lambda: torch.autograd.grad(F.cross_entropy(logits, target, reduction="sum"), logits), 4 * logits.numel())
    del logits
    p = torch.nn.Parameter(torch.randn(parameters, device=dev))
    p.grad = torch.randn_like(p)
    adam = torch.optim.AdamW([p], fused=True)
    report("AdamW fused, fp32", adam.step, 28 * parameters)
    report("gradient norm", lambda: torch.nn.utils.get_total_norm([p.grad]), 4 * parameters)


if not set(sys.argv[1:]) <= set(SHAPES):
    need_torch.usage(2)
for name in sys.argv[1:] or ["mpt-125m"]:
    measure(name)
