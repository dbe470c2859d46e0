#!/usr/bin/env python3
"""Computes the sample order of an epoch with mosaicml-streaming and with clbench order, alternately; prints
processor time, wall time and peak memory of both. With --compare also whether the orders are equal.

    tools/anchors/streaming_order.py [--samples N] [--passes N] [--compare] [--clbench build/clbench]

Each pass is a process of its own, so that the memory is that of one order. Needs numpy and mosaicml-streaming.
"""
import argparse
import json
import subprocess
import sys

SHARD = 8180
REFERENCE = r"""
import importlib.util, json, os, resource, sys, time, types
import numpy as np
# The package's own start imports PyTorch and much more, which the shuffle does not need.
at = importlib.util.find_spec("streaming").submodule_search_locations[0]
for name, path in (("streaming", ""), ("streaming.base", "base"), ("streaming.base.shuffle", "base/shuffle")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [os.path.join(at, path)]
from streaming.base.shuffle.py1e import get_shuffle_py1e
n, shard, compare = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "1"
sizes = np.full((n + shard - 1) // shard, shard, dtype=np.int64)
sizes[-1] = n - shard * (len(sizes) - 1)
start, cpu = time.monotonic(), time.process_time()
ids = get_shuffle_py1e(sizes, 1, 9176, 0, 4_000_000)
out = {"seconds": time.monotonic() - start, "cpu_seconds": time.process_time() - cpu}
out["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
if compare:
    mixed, mask = 0, 2**64 - 1
    for x in ids.tolist():
        mixed = (mixed * 6364136223846793005 + x) & mask
    out["order"] = "%016x" % mixed
print(json.dumps(out))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--clbench", default="build/clbench")
    args = parser.parse_args()
    ours = [args.clbench, "order", "--samples", str(args.samples), "--shard", str(SHARD)]
    theirs = [sys.executable, "-c", REFERENCE, str(args.samples), str(SHARD), str(int(args.compare))]
    for _ in range(args.passes):
        rows = []
        for name, command in (("cltrain", ours), ("mosaicml-streaming", theirs)):
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
            print("%-20s %10d samples  %8.2f s  %8.2f s of processor time  %6.2f GiB"
                  % (name, args.samples, rows[-1]["seconds"], rows[-1]["cpu_seconds"], rows[-1]["peak_gib"]))
        if args.compare:
            print("orders are", "equal" if rows[0]["order"] == rows[1]["order"] else "DIFFERENT")


main()
