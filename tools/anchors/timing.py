"""How the programs for a GPU here measure: as `clbench` does (bench_calibrate and bench_time in tools/clbench/bench.c)."""
import statistics
import time

import need_torch
import torch

need_torch.gpu()


def timed(call, seconds):
    """Median seconds of a call over blocks of calls, timed with events of the device. Before, the card is kept busy with the
    call for as long: at its power limit the clock falls for some tenths of a second."""
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
