#!/usr/bin/env python3
"""Matrix products of PyTorch (cuBLAS) on one GPU at the shapes of a `clbench gemm --json FILE`, and the ratios.

    clbench gemm --suite mpt-1b --type bf16 --numerics fast --device nvidia --json ours.json
    torch_gemm.py ours.json ... [--seconds S] [--json FILE]

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
        form = row["op"].split()[1]
        m, n, k = (int(x) for x in row["shape"].split()[-1].split("x"))
        added = row["op"].endswith("+c")
        key = (form, m, n, k, row["dtype"], added)
        if key not in known:
            known[key] = measure(form, m, n, k, TYPES[row["dtype"]], added, a.seconds)
        row["torch_seconds"] = known[key]
        flops = 2e-12 * m * n * k
        print(f"{row['op']:14} {row['shape']:26} {row['dtype']} {row['variant']:16} ours {flops / row['seconds']:7.1f} "
              f"torch {flops / known[key]:7.1f} TFLOP/s  ratio {known[key] / row['seconds']:.3f}", flush=True)
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump({"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
