#!/usr/bin/env python3
"""Matrix products of PyTorch (cuBLAS) on one GPU at the shapes of a `clbench gemm --json FILE`, and the ratios.

    clbench gemm --suite mpt-1b --type bf16 --numerics fast --device nvidia --json ours.json
    torch_gemm.py ours.json ... [--seconds S] [--json FILE]

Rows of `clbench gemm8` are compared with the product of --type, and rows of `clbench fp8` with torch._scaled_mm with one
scale per tensor: forward products with its fast accumulation, gradients with the split one, as in the usual recipe.

fp32 is measured without tf32. cuBLAS writes a matrix of the inputs' type, except for rows that add to an fp32 matrix
(+c), where it does the same. For rows with another fused operation (+gelu, +dgelu, +add, +sums) only the product is
measured. ratio: cuBLAS's time divided by clbench's.
"""
import argparse
import json

import need_torch  # noqa: F401, before torch
import torch

from timing import timed

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measure(form, m, n, k, dtype, added, seconds):
    def make(rows, cols):
        return torch.rand(rows, cols, device="cuda", dtype=dtype) * 2 - 1

    if form == "NT":
        a, b = make(m, k), make(n, k).t()
    elif form == "NN":
        a, b = make(m, k), make(k, n)
    else:
        a, b = make(k, m).t(), make(k, n)
    if not added:
        c = torch.empty(m, n, device="cuda", dtype=dtype)
        return timed(lambda: torch.mm(a, b, out=c), seconds)
    c = torch.zeros(m, n, device="cuda")
    if dtype == torch.float32:
        return timed(lambda: torch.addmm(c, a, b, out=c), seconds)
    return timed(lambda: torch.addmm(c, a, b, torch.float32, out=c), seconds)


def measure_fp8(m, n, k, split, seconds):
    def make(rows, cols):
        return (torch.rand(rows, cols, device="cuda") * 2 - 1).to(torch.float8_e4m3fn)

    a, b, one = make(m, k), make(n, k).t(), torch.ones((), device="cuda")
    return timed(lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=not split), seconds)


def read(row):
    """What a row is compared with: the arguments of a measurement."""
    m, n, k = (int(x) for x in row["shape"].split()[-1].split("x"))
    kind, form = row["op"].split(None, 1)
    if kind == "fp8":
        return "fp8", m, n, k, form != "forward"
    if kind == "gemm8":
        form = "NT" if form == "forward" else "NN" if form == "data grad" else "TN"
        return form, m, n, k, row["dtype"], False
    return form.split()[0], m, n, k, row["dtype"], row["op"].endswith("+c")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ours", nargs="+")
    p.add_argument("--seconds", type=float, default=0.5)
    p.add_argument("--json")
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for path in a.ours:
        with open(path, encoding="utf-8") as f:
            rows += json.load(f)
    known = {}
    for row in rows:
        if "gemm_seconds" not in row and row["op"].split()[0] != "gemm":
            continue  # casts
        key = read(row)
        if key not in known:
            known[key] = (measure_fp8(*key[1:], a.seconds) if key[0] == "fp8" else
                          measure(*key[:4], TYPES[key[4]], key[5], a.seconds))
        row["torch_seconds"] = known[key]
        flops = 2e-12 * key[1] * key[2] * key[3]
        print(f"{row['op']:16} {row['shape']:26} {row['dtype']} {row['variant']:16} ours {flops / row['seconds']:7.1f} "
              f"torch {flops / known[key]:7.1f} TFLOP/s  ratio {known[key] / row['seconds']:.3f}", flush=True)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
