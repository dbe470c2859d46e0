"""Time measurement on a GPU, as in clbench (bench_calibrate and bench_time in tools/clbench/bench.c)."""
import statistics
import time

import need_torch
import torch

need_torch.gpu()


def timed(call, seconds):
    """Median seconds per call over blocks of calls, timed with device events. Before the measurement the calls run for
    the same time, because at the power limit the clock needs some tenths of a second to settle."""
    for _ in range(3):
        call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def block(n):
        start.record()
        for _ in range(n):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / n

    def blocks(n):
        took, began = [], time.perf_counter()
        while len(took) < 3 or time.perf_counter() - began < seconds:
            took.append(block(n))
        return took

    n = max(1, int(min(seconds / 8, 0.05) / block(3)))
    blocks(n)
    return statistics.median(blocks(n))
