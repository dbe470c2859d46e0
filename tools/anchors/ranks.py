"""Processes of one host, one per GPU (or, without GPUs, per CPU process), that work together as PyTorch's ranks."""
import os
import socket

import need_torch  # noqa: F401, before torch
import torch
import torch.distributed as dist


def kind():
    return 'cuda' if torch.cuda.is_available() else 'cpu'


def wait():
    """Waits until this rank's device and then all ranks have nothing left to do."""
    if kind() == 'cuda':
        torch.cuda.synchronize()
    dist.barrier()


def largest(value):
    """The largest `value` of all ranks."""
    t = torch.tensor(float(value), dtype=torch.float64, device=kind())
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item()


def _enter(rank, count, port, work, args):
    backend, where = ('nccl', torch.device('cuda', rank)) if kind() == 'cuda' else ('gloo', None)
    if where is not None:
        torch.cuda.set_device(where)
    dist.init_process_group(backend, init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=count, device_id=where)
    try:
        work(rank, count, *args)
    finally:
        dist.destroy_process_group()


def start(count, work, *args):
    """Calls work(rank, count, *args) in `count` processes. The first that fails ends the others and raises here."""
    if kind() == 'cuda' and count > torch.cuda.device_count():
        raise SystemExit(f'{count} ranks need {count} GPUs, PyTorch finds {torch.cuda.device_count()}')
    if kind() == 'cpu':
        os.environ.setdefault('OMP_NUM_THREADS', str(max(1, (os.cpu_count() or 1) // count)))
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    torch.multiprocessing.spawn(_enter, (count, port, work, args), nprocs=count)
