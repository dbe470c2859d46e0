#!/usr/bin/env python3
"""Estimates the rows of gemm.vt for Intel's matrix units (dpas*) from their tiles and from data sheets.

    tools/bench/intel_estimate.py [--check] [--form N] [--size M,N,K]

No GPU takes part. Per step of 32 along k it counts what a work-group needs: cycles of the matrix units, bytes from and
to local memory, bytes from the second-level cache; and for the whole product bytes from memory. Each is divided by the
rate of a card; the largest time bounds the row. Barriers, latency, instructions besides DPAS, the epilogue and work-groups
that wait for others are left out, so the result is an upper bound of the speed.

--check compiles the rows with ocloc and compares the counts of DPAS and of the bytes that they read with the compiler's
listing. Prints the table of docs/performance.md.
"""
import argparse
import collections
import glob
import os
import re
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
Card = collections.namedtuple("Card", "name target sg cores units macs ghz gbs local l2")
# cores: Xe-cores; units: matrix units of each; macs: products of 16-bit numbers a unit adds per cycle. Xe-HPG: 16 units of
# 1024 bits, Xe-HPC: 8 of 4096 (4,096 operations per core and cycle), Xe2: 8 of 2048. ghz, gbs: clock and memory bandwidth
# of the data sheets. local, l2: bytes per cycle and core. 128 from local memory is what Intel's optimization guide gives
# for a data port (of Xe-LP); no such figure was found for the others, and none for l2, where 64 is assumed.
CARDS = [
    Card("Arc A770", "dg2", 8, 32, 16, 64, 2.1, 560, 128, 64),
    Card("Data Center GPU Max 1550", "pvc", 16, 128, 8, 256, 1.6, 3277, 128, 64),
    Card("Arc B580", "bmg", 16, 20, 8, 128, 2.67, 456, 128, 64),
]
STEP = 32  # BK of gemm_dpas.cl


def rows():
    for line in open(os.path.join(ROOT, "clkernels/gemm/gemm.vt")):
        word = line.split()
        if len(word) == 5 and word[1] == "gemm/gemm_dpas.cl":
            yield word[0], {k: int(v) for k, v in (p.split("=") for p in word[4].split(","))}, word[4]


def per_step(p):
    """Sub-groups; DPAS of one and bytes that it reads; bytes that a group reads and writes in local memory (with BLOCK2D:
    reads from the first-level cache); and bytes that it copies."""
    groups = p["ITEMS"] // p["SG"]
    dpas = p["WM"] // 8 * (p["WN"] // p["SG"]) * (STEP // 16)
    read = (p["WM"] + p["WN"]) * STEP * 2
    copied = (p["BM"] + p["BN"]) * STEP * 2
    return groups, dpas, read, groups * read + (0 if p.get("BLOCK2D") else copied), copied


def estimate(card, p, size):
    groups, dpas, _, local, copied = per_step(p)
    m, n, k = size
    macs = p["BM"] * p["BN"] * STEP
    unit = macs / (card.units * card.macs)
    near = "L1 cache" if p.get("BLOCK2D") else "local memory"
    bound = {"matrix units": unit, near: local / card.local, "L2 cache": copied / card.l2}
    steps = -(-m // p["BM"]) * -(-n // p["BN"]) * (k / STEP) / card.cores
    seconds = {what: cycles * steps / (card.ghz * 1e9) for what, cycles in bound.items()}
    seconds["memory"] = 2.0 * (m * k + n * k + m * n) / (card.gbs * 1e9)
    what = max(seconds, key=seconds.get)
    peak = 2 * card.cores * card.units * card.macs * card.ghz / 1000
    return list(bound.values()), what, 2e-12 * m * n * k / seconds[what], peak


def listing(target, params, form):
    """DPAS and bytes that they read in ocloc's listing of the multiplying loop. With BLOCK2D there are two loops, of which
    the one for edges reads local memory."""
    blocks = "BLOCK2D=1" in params
    with tempfile.TemporaryDirectory() as tmp:
        options = " ".join("-D" + p for p in params.split(",")) + " -DBLOCK2D_OLD=1"
        folder = os.path.join(ROOT, "clkernels/gemm")
        subprocess.run(["ocloc", "compile", "-file", folder + "/gemm_dpas.cl", "-device", target, "-output", "k", "-out_dir", tmp,
                        "-options", "-cl-std=CL1.2 -I %s -DFORM=%d %s" % (folder, form, options)], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env=dict(os.environ, IGC_ShaderDumpEnable="1", IGC_DumpToCustomDir=tmp))
        for name in glob.glob(tmp + "/*.asm"):
            text = open(name).read()
            if "dpas" in text:
                found = len(re.findall(r"^\s+dpas", text, re.M))
                planes = [int(n) * 64 for n in re.findall(r"load_block2d\.ugm\S+ +\(16\|M0\) +r\d+:(\d+)", text)]
                wide = [int(n) * 4 for n in re.findall(r"load\.slm\.d32x(\d+)t", text)]
                words = [int(n) * 16 for n in re.findall(r"send\.dc0 .*oword block read x(\d+)", text)]
                return (found // 2, sum(planes)) if blocks else (found, sum(wide) + sum(words))
    raise SystemExit("ocloc wrote no listing with DPAS")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--check", action="store_true")
    a.add_argument("--form", type=int, default=0)
    a.add_argument("--size", default="8192,3072,768")
    a = a.parse_args()
    size = [int(x) for x in a.size.split(",")]
    print("| card | row | DPAS of a sub-group | cycles: matrix units | local memory or L1 cache | L2 cache | slowest | TFLOP/s, at most |")
    print("|---|---|---|---|---|---|---|---|")
    for card in CARDS:
        for name, p, params in rows():
            if p["SG"] != card.sg:
                continue
            bound, what, speed, peak = estimate(card, p, size)
            _, dpas, read, _, _ = per_step(p)
            print("| %s | `%s` | %d | %.0f | %.0f | %.0f | %s | %.0f of %.0f |" %
                  (card.name, name, dpas, *bound, what, speed, peak))
            if a.check and card.target != "bmg":
                got = listing(card.target, params, a.form)
                if got != (dpas, read):
                    raise SystemExit("%s for %s: the listing has %d DPAS, which read %d bytes; counted are %d and %d"
                                     % ((name, card.target) + got + (dpas, read)))


main()
