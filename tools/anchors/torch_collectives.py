#!/usr/bin/env python3
"""NCCL through PyTorch on the GPUs of this host, for comparison with `clbench allreduce | reduce-scatter | all-gather`.

usage: torch_collectives.py [--ranks N] [--sizes BYTES,BYTES] [--op NAME,NAME] [--type fp32|bf16] [--seconds S]

Columns as nccl-tests has them. size: bytes of the whole buffer (reduce-scatter: of each rank's input, all-gather: of
each rank's result). algbw: size / time. busbw: algbw times 2 (N - 1) / N for allreduce, (N - 1) / N for the others.
wrong: elements with a wrong value in one call before the timed ones. Without a GPU the ranks are CPU processes with
gloo, as a test of this program.
"""
import argparse
import time

import need_torch  # noqa: F401, before torch
import torch
import torch.distributed as dist

import ranks

TYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16}
UNITS = {'K': 10, 'M': 20, 'G': 30}


def size_of(text):
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) << unit if unit else int(text)


def prepare(op, elements, dtype, count):
    """A call, its result, the value of every element of the result and the factor of busbw. Rank r puts in r + 1."""
    device, mine = ranks.kind(), dist.get_rank() + 1
    total = count * (count + 1) // 2
    full = lambda n: torch.full((n,), mine, dtype=dtype, device=device)
    if op == 'allreduce':
        source, result = full(elements), torch.empty(elements, dtype=dtype, device=device)

        def call():
            dist.all_reduce(result)
        return call, result, lambda: result.copy_(source), torch.tensor([total]), 2 * (count - 1) / count
    if op == 'reduce-scatter':
        source, result = full(elements), torch.empty(elements // count, dtype=dtype, device=device)
        return lambda: dist.reduce_scatter_tensor(result, source), result, result.zero_, torch.tensor([total]), (count - 1) / count
    source, result = full(elements // count), torch.empty(elements, dtype=dtype, device=device)
    return lambda: dist.all_gather_into_tensor(result, source), result, result.zero_, torch.arange(1, count + 1), (count - 1) / count


def measure(op, size, dtype, count, seconds):
    """Microseconds per call and wrong elements, the largest and the sum over the ranks, and the factor of busbw."""
    elements = size // dtype.itemsize
    call, result, reset, value, factor = prepare(op, elements, dtype, count)
    reset()
    call()
    want = value.to(result).repeat_interleave(result.numel() // value.numel())
    wrong = (result != want).sum().double().reshape(1)
    dist.all_reduce(wrong)

    def block(n):
        ranks.wait()
        began = time.perf_counter()
        for _ in range(n):
            call()
        ranks.wait()
        return ranks.largest((time.perf_counter() - began) / n)

    # Every rank makes the same number of calls, because the times are those of the slowest rank. The barriers are
    # part of a block, so a block has many calls.
    block(5)
    return block(max(5, min(20000, int(seconds / block(10))))) * 1e6, int(wrong.item()), factor


def work(rank, count, opt):
    if rank == 0:
        name = torch.cuda.get_device_name() if ranks.kind() == 'cuda' else 'CPU'
        print(f'PyTorch {torch.__version__}, {dist.get_backend()}, {count} x {name}')
        print(f'{"op":14} {"size":>12} {"count":>12} {"type":>6} {"time(us)":>12} {"algbw(GB/s)":>12} {"busbw(GB/s)":>12} {"wrong":>6}')
    for op in opt.op.split(','):
        for size in map(size_of, opt.sizes.split(',')):
            dtype = TYPES[opt.type]
            size -= size % (dtype.itemsize * count)
            us, wrong, factor = measure(op, size, dtype, count, opt.seconds)
            if rank == 0:
                rate = size / us * 1e-3
                print(f'{op:14} {size:12} {size // dtype.itemsize:12} {opt.type:>6} {us:12.2f} {rate:12.3f} {rate * factor:12.3f} {wrong:6}',
                      flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--sizes', default='8K,1M,64M,1G')
    parser.add_argument('--op', default='allreduce,reduce-scatter,all-gather')
    parser.add_argument('--type', choices=sorted(TYPES), default='fp32')
    parser.add_argument('--seconds', type=float, default=0.5)
    opt = parser.parse_args()
    ranks.start(opt.ranks, work, opt)


if __name__ == '__main__':
    main()
