#!/usr/bin/env python3
"""PyTorch with NCCL: allreduce, reduce-scatter and all-gather, with the sizes and columns of clbench.

    torchrun --nproc-per-node N torch_collectives.py [allreduce|reduce-scatter|all-gather]... [-b SIZE] [-e SIZE]
                                                     [-f FACTOR] [--type fp32|bf16]

Sizes (8, 64K, 1G; at most 4G) are those of the whole buffer. The collectives work in place, one GPU per rank. As in
clbench, small sizes have blocks of up to 32 calls, each on a buffer of its own; the time is that of a call on the slowest
rank, the median over 10 blocks after 3 for warm-up; every element of every result is compared. The time of small sizes
includes Python's time per call, some microseconds; nccl-tests measures without it.
"""
import argparse
import os
import statistics
import sys
import time

import need_torch
import torch
import torch.distributed as dist

OPS = {"allreduce": "sum", "reduce-scatter": "sum", "all-gather": "none"}
TYPES = {"fp32": ("float", torch.float32), "bf16": ("bfloat16", torch.bfloat16)}
WARM, BLOCKS, MOST_CALLS, BLOCK_BYTES = 3, 10, 32, 1 << 20


def size_of(text):
    unit = "KMG".find(text[-1]) + 1
    return int(text[:-1] if unit else text) << 10 * unit


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("ops", nargs="*", metavar="collective", help=", ".join(OPS) + " (default: all)")
    p.add_argument("-b", "--min", type=size_of, default=8, help="smallest size (default 8)")
    p.add_argument("-e", "--max", type=size_of, default=1 << 30, help="largest size (default 1G)")
    p.add_argument("-f", "--factor", type=int, default=2, help="between sizes (default 2)")
    p.add_argument("--type", choices=TYPES, default="fp32")
    a = p.parse_args()
    if not (set(a.ops) <= set(OPS) and a.factor > 1 and 4 <= a.min <= a.max <= 1 << 32):
        p.error("collectives: " + ", ".join(OPS) + "; sizes: 4 to 4G, min to max; factor: at least 2")
    return a


def numbers(rank, call, first, count):
    """What `rank` puts into elements [first, first + count): 0 to 10, so that bf16 holds the sums of 25 ranks exactly."""
    return (torch.arange(first, first + count, device="cuda") * (rank + 1) + 3 * call + rank) % 11


def sums(call, first, count):
    return sum(numbers(r, call, first, count) for r in range(dist.get_world_size()))


def parts(call, count):
    return torch.cat([numbers(r, call, r * count, count) for r in range(dist.get_world_size())])


def run(op, x, part):
    if op == "allreduce":
        dist.all_reduce(x)
    elif op == "reduce-scatter":
        dist.reduce_scatter_tensor(part, x)
    else:
        dist.all_gather_into_tensor(x, part)


def wrong(op, x, part, call):
    """Wrong elements in this rank's result."""
    if op == "allreduce":
        return (x != sums(call, 0, x.numel())).sum().item()
    if op == "reduce-scatter":
        return (part != sums(call, dist.get_rank() * part.numel(), part.numel())).sum().item()
    return (x != parts(call, part.numel())).sum().item()


def over_ranks(value, how):
    t = torch.tensor([value], dtype=torch.float64, device="cuda")
    dist.all_reduce(t, how)
    return t.item()


def measure(op, dtype, count):
    """Seconds of a call, and wrong elements on all ranks."""
    rank, part = dist.get_rank(), count // dist.get_world_size()
    calls = min(max(BLOCK_BYTES // (count * dtype.itemsize), 1), MOST_CALLS)
    buffers = [torch.empty(count, dtype=dtype, device="cuda") for _ in range(calls)]
    pairs = [(x, x[rank * part:(rank + 1) * part]) for x in buffers]
    times, bad = [], 0
    for block in range(WARM + BLOCKS):
        for i, x in enumerate(buffers):
            x.copy_(numbers(rank, block * calls + i, 0, count))
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for x, own in pairs:
            run(op, x, own)
        torch.cuda.synchronize()
        took = over_ranks(time.perf_counter() - start, dist.ReduceOp.MAX)
        bad += sum(wrong(op, x, own, block * calls + i) for i, (x, own) in enumerate(pairs))
        if block >= WARM:
            times.append(took / calls)
    return statistics.median(times), int(over_ranks(bad, dist.ReduceOp.SUM))


def table(op, a):
    """Prints the rows of one collective; returns the number of wrong elements."""
    ranks, (name, dtype), bad, last = dist.get_world_size(), TYPES[a.type], 0, 0
    if dist.get_rank() == 0:
        print(f"\n# {op}, {ranks} ranks, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, PyTorch {torch.__version__},"
              f" {torch.cuda.get_device_name()}\n#{'size':>11}  {'count':>12}  {'type':>8}  {'redop':>6}  {'time':>10}"
              f" {'algbw':>7} {'busbw':>7} {'#wrong':>8}\n#{'(B)':>11}  {'(elements)':>12}  {'':8}  {'':6}  {'(us)':>10}"
              f" {'(GB/s)':>7} {'(GB/s)':>7}", flush=True)
    shares = 1 if op == "allreduce" else ranks
    factor = (2 if op == "allreduce" else 1) * (ranks - 1) / ranks
    size = a.min
    while size <= a.max:
        rounded = max(size // (4 * shares), 1) * 4 * shares
        size *= a.factor
        if rounded == last:
            continue
        last = rounded
        seconds, wrongs = measure(op, dtype, rounded // dtype.itemsize)
        bad += wrongs
        rate = rounded / seconds * 1e-9
        if dist.get_rank() == 0:
            print(f"{rounded:12}  {rounded // dtype.itemsize // shares:12}  {name:>8}  {OPS[op]:>6}  {seconds * 1e6:10.2f}"
                  f" {rate:7.2f} {rate * factor:7.2f} {wrongs:8}", flush=True)
    return bad


args = arguments()
need_torch.gpu()
if "LOCAL_RANK" not in os.environ:
    sys.exit(f"{sys.argv[0]}: start it with torchrun --nproc-per-node N")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
total = sum(table(op, args) for op in args.ops or OPS)
dist.destroy_process_group()
sys.exit(1 if total else 0)
