#!/usr/bin/env python3
"""16-bit matrix products of Triton without wgmma on one GPU, at the shapes of a `clbench gemm --json FILE`.

    clbench gemm --suite mpt-1b --type bf16 --numerics fast --device nvidia --disable-row wgmma --json ours.json
    triton_gemm.py ours.json ... [--seconds S] [--json FILE]

Triton compiles for sm_80 (TRITON_OVERRIDE_ARCH), so that its kernels multiply with mma.sync and load with cp.async on a
Hopper GPU, too; the program stops if one has wgmma in it. Each shape runs the fastest of CONFIGS. The result has the
inputs' type; rows of clbench that add to an fp32 matrix (+c) are compared with the same. For rows with another fused
operation only the product is measured. ratio: Triton's time divided by clbench's.
"""
import argparse
import json
import os

os.environ["TRITON_OVERRIDE_ARCH"] = "sm80"  # read when Triton is imported

import need_torch  # noqa: E402, F401, before torch
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from timing import timed  # noqa: E402
from torch_gemm import TYPES, read  # noqa: E402

# rows, columns and k of a tile, warps, stages
CONFIGS = [(128, 128, 32, 4, 4), (128, 128, 32, 4, 5), (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 256, 32, 8, 4),
           (256, 128, 32, 8, 4), (128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 64, 32, 4, 5), (64, 128, 32, 4, 5)]


@triton.jit
def product(a, b, c, m, n, k, am, ak, bk, bn, ADD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    # groups of eight rows of tiles, so that tiles that run together share operands in the L2 cache
    tile, rows, columns = tl.program_id(0), tl.cdiv(m, BM), tl.cdiv(n, BN)
    first = tile // (8 * columns) * 8
    high = min(rows - first, 8)
    i = first + tile % (8 * columns) % high
    j = tile % (8 * columns) // high
    row, column = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    pa = a + (row % m)[:, None] * am + depth[None, :] * ak
    pb = b + depth[:, None] * bk + (column % n)[None, :] * bn
    sums = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, k, BK):  # every k of the suites is a multiple of BK
        sums = tl.dot(tl.load(pa), tl.load(pb), sums)
        pa += BK * ak
        pb += BK * bk
    pc = c + row.to(tl.int64)[:, None] * n + column[None, :]
    inside = (row < m)[:, None] & (column < n)[None, :]
    if ADD:
        sums += tl.load(pc, mask=inside)
    tl.store(pc, sums.to(c.dtype.element_ty), mask=inside)


def measure(form, m, n, k, dtype, added, seconds):
    """Seconds of the fastest configuration, and its name."""
    def make(rows, cols):
        return torch.rand(rows, cols, device="cuda", dtype=dtype) * 2 - 1

    a = make(k, m).t() if form == "TN" else make(m, k)
    b = make(n, k).t() if form == "NT" else make(k, n)
    c = torch.zeros(m, n, device="cuda", dtype=torch.float32 if added else dtype)

    def call(config):
        bm, bn, bk, warps, stages = config
        return product[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](
            a, b, c, m, n, k, *a.stride(), *b.stride(), added, bm, bn, bk, num_warps=warps, num_stages=stages)

    took = {}
    for config in CONFIGS:
        if k % config[2]:
            continue
        try:
            kernel = call(config)
        except triton.runtime.errors.OutOfResources:
            continue
        text = kernel.asm["ptx"]
        if "wgmma" in text or "mma.sync" not in text:
            raise SystemExit(f"Triton did not compile {config} to mma.sync; this program needs one that reads TRITON_OVERRIDE_ARCH")
        took[config] = timed(lambda: call(config), min(seconds, 0.05))
    if not added:  # spot check: the first rows against PyTorch
        call(min(took, key=took.get))
        want = (a[:64].float() @ b.float()).cpu()
        error = (c[:64].float().cpu() - want).abs().max().item()
        if error > 0.02 * want.abs().max().item():
            raise SystemExit(f"wrong product {form} {m}x{n}x{k}: error {error:.3g}")
    best = min(took, key=took.get)
    return timed(lambda: call(best), seconds), "x".join(str(x) for x in best)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ours", nargs="+")
    p.add_argument("--seconds", type=float, default=0.3)
    p.add_argument("--json")
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows, known = [], {}
    for path in a.ours:
        with open(path, encoding="utf-8") as f:
            rows += [row for row in json.load(f) if row["op"].split()[0] == "gemm"]
    for row in rows:
        key = read(row)
        if key not in known:
            known[key] = measure(*key[:4], TYPES[key[4]], key[5], a.seconds)
        row["triton_seconds"], row["triton_config"] = known[key]
        flops = 2e-12 * key[1] * key[2] * key[3]
        print(f"{row['op']:16} {row['shape']:26} {row['dtype']} {row['variant']:16} ours {flops / row['seconds']:7.1f} "
              f"triton {flops / known[key][0]:7.1f} TFLOP/s ({known[key][1]})  ratio {known[key][0] / row['seconds']:.3f}",
              flush=True)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"triton": triton.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
