#!/usr/bin/env python3
"""PyTorch training an MPT model on several GPUs of this host, for comparison with `cltrain launch -n N train`.

usage: torch_multi.py [--mode ddp|fsdp2] [--ranks N] [--model NAME] [--microbatch N] [--accumulation N] [--steps N]
                      [--tokens FILE] [--checkpoint] [--keep-weights] [--eager] [--seq T] [--peak TFLOPS] [--json FILE]

The model of torch_step.py without biases, weights N(0, 0.02), targets shifted by one, gradients clipped at norm 1,
fused AdamW. Each microbatch of each rank and step has tokens of its own.
  ddp    weights, gradients and moments on every rank, bf16 by autocast, gradients exchanged as fp32 beside the backward
         pass of the last microbatch; torch.compile of the whole model. One rank: the model alone, without DDP
  fsdp2  fully_shard of every block: weights and gradients travel as bf16; torch.compile of every block and of the loss.
         Gradients are exchanged in the last microbatch only
--tokens: a file of uint16, from which samples are taken at random places, so that the loss falls; otherwise tokens are
random and the loss stays near the logarithm of the vocabulary. --checkpoint: recompute every block in the backward
pass. --keep-weights: fsdp2 keeps the gathered weights from the forward to the backward pass.
Times are those of whole steps between barriers, after 3 steps; timing.py cannot be used, because every rank must make
the same number of calls. MFU: 6 N + 12 layers d_model T FLOP per token, divided by the peak. The memory is the largest
that a rank's allocator has held. Without a GPU the ranks are CPU processes, as a test of this program.
"""
import argparse
import contextlib
import json
import time

import need_torch  # noqa: F401, before torch
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import ranks
from torch_step import MODELS, NOMINAL, Model, token_loss

WARM = 3  # steps before the measurement: compilation, allocation, clocks


def set_weights(model):
    with torch.no_grad():
        for p in model.parameters():
            nn.init.normal_(p, 0.0, 0.02) if p.dim() > 1 else nn.init.ones_(p)


class Replicated:
    """DDP: one copy of the model per rank."""

    def __init__(self, opt, shape, device):
        width, heads, layers, vocab, _ = shape
        with torch.device(device):
            model = Model(width, heads, layers, vocab, opt.seq, False)
        set_weights(model)
        if opt.checkpoint:
            for i, block in enumerate(model.blocks):
                model.blocks[i] = checkpoint_wrapper(block, preserve_rng_state=False)
        self.model, self.device = model, device
        self.ddp = DistributedDataParallel(model, gradient_as_bucket_view=True) if dist.get_world_size() > 1 else None
        self.run = self.ddp or model
        if not opt.eager:
            self.run = torch.compile(self.run)

    def forward_backward(self, ids, targets, scale, last):
        with contextlib.nullcontext() if last or not self.ddp else self.ddp.no_sync():
            with torch.autocast(self.device, torch.bfloat16):
                loss = self.run(ids, targets)
            (loss * scale).backward()
        return loss.detach()


class Sharded:
    """FSDP2: every rank holds a part of every tensor."""

    def __init__(self, opt, shape, device):
        width, heads, layers, vocab, _ = shape
        with torch.device('meta'):
            model = Model(width, heads, layers, vocab, opt.seq, False)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for i, block in enumerate(model.blocks):
            if opt.checkpoint:
                block = model.blocks[i] = checkpoint_wrapper(block, preserve_rng_state=False)
            if not opt.eager:
                block.compile()
            fully_shard(block, mp_policy=policy, reshard_after_forward=not opt.keep_weights)
        fully_shard(model, mp_policy=policy)
        if not opt.eager:
            model.loss = torch.compile(token_loss)
        model.to_empty(device=device)
        set_weights(model)
        self.model = model

    def forward_backward(self, ids, targets, scale, last):
        self.model.set_requires_gradient_sync(last)
        self.model.set_is_last_backward(last)
        loss = self.model(ids, targets)
        (loss * scale).backward()
        return loss.detach()


class Tokens:
    """Microbatches of this rank: inputs and, shifted by one, targets."""

    def __init__(self, opt, vocab, rank, device):
        self.batch, self.seq, self.vocab, self.device = opt.microbatch, opt.seq, vocab, device
        self.random = torch.Generator().manual_seed(1 + rank)
        self.file = None
        if opt.tokens:
            with open(opt.tokens, 'rb') as f:
                self.file = torch.frombuffer(bytearray(f.read()), dtype=torch.uint16).to(torch.int64)
            if len(self.file) <= self.seq or int(self.file.max()) >= vocab:
                raise ValueError(f'{opt.tokens} has {len(self.file)} tokens up to {int(self.file.max())}; the model needs '
                                 f'more than {self.seq} tokens below {vocab}')

    def take(self):
        if self.file is None:
            rows = torch.randint(0, self.vocab, (self.batch, self.seq + 1), generator=self.random)
        else:
            first = torch.randint(0, len(self.file) - self.seq, (self.batch, 1), generator=self.random)
            rows = self.file[first + torch.arange(self.seq + 1)]
        if self.device == 'cuda':
            rows = rows.pin_memory()
        rows = rows.to(self.device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def train(opt, trained, tokens):
    """Warm steps and timed steps: seconds of the warm ones, seconds per timed step, the losses of all steps."""
    params = list(trained.model.parameters())
    optimizer = torch.optim.AdamW(params, lr=2e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    losses = []

    def step():
        total = 0
        for i in range(opt.accumulation):
            total = total + trained.forward_backward(*tokens.take(), 1 / opt.accumulation, i == opt.accumulation - 1)
        nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total / opt.accumulation)

    def steps(n):
        began = time.perf_counter()
        for _ in range(n):
            step()
        ranks.wait()
        return time.perf_counter() - began

    warm = steps(WARM)
    return warm, steps(opt.steps) / opt.steps, torch.stack(losses)


def work(rank, count, opt):
    device, shape = ranks.kind(), MODELS[opt.model]
    torch.manual_seed(0)
    trained = (Replicated if opt.mode == 'ddp' else Sharded)(opt, shape, device)
    parameters = sum(p.numel() for p in trained.model.parameters())
    warm, seconds, losses = train(opt, trained, Tokens(opt, shape[3], rank, device))
    dist.all_reduce(losses)
    first, last = (losses[[0, -1]] / count).tolist()
    memory = ranks.largest(torch.cuda.max_memory_reserved() if device == 'cuda' else 0)
    if rank != 0:
        return
    name = torch.cuda.get_device_name() if device == 'cuda' else 'CPU'
    peak = opt.peak or next((v for k, v in NOMINAL.items() if k in name), 0)
    rate = count * opt.microbatch * opt.accumulation * opt.seq / seconds
    flops = 6 * parameters + 12 * shape[2] * shape[0] * opt.seq
    tflops = rate / count * flops * 1e-12
    row = {'model': opt.model, 'mode': opt.mode, 'ranks': count, 'microbatch': opt.microbatch,
           'accumulation': opt.accumulation, 'checkpoint': opt.checkpoint, 'parameters': parameters, 'flops_per_token': flops,
           'tokens_per_second': rate, 'step_seconds': seconds, 'warm_seconds': warm, 'tflops_per_device': tflops,
           'mfu': tflops / peak if peak else None, 'memory_bytes': int(memory), 'loss_first': first, 'loss_last': last,
           'torch': torch.__version__, 'device': name}
    print(f'{opt.model} {opt.mode} on {count} x {name}, PyTorch {torch.__version__}, {opt.microbatch} x {opt.accumulation}: '
          f'{rate:.0f} tokens/s, {tflops:.1f} TFLOP/s per device, MFU {f"{100 * tflops / peak:.1f} %" if peak else "-"}, '
          f'{memory / 2**30:.1f} GiB, loss {first:.4f} to {last:.4f}, {WARM} warm steps {warm:.1f} s', flush=True)
    if opt.json:
        with open(opt.json, 'w', encoding='utf-8') as f:
            json.dump(row, f)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--mode', choices=('ddp', 'fsdp2'), default='ddp')
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--model', choices=sorted(MODELS), default='mpt-125m')
    parser.add_argument('--microbatch', type=int, default=8)
    parser.add_argument('--accumulation', type=int, default=1)
    parser.add_argument('--steps', type=int, default=12, help='timed steps')
    parser.add_argument('--tokens')
    parser.add_argument('--checkpoint', action='store_true')
    parser.add_argument('--keep-weights', action='store_true')
    parser.add_argument('--eager', action='store_true')
    parser.add_argument('--seq', type=int, default=2048)
    parser.add_argument('--peak', type=float, default=0.0, help='TFLOP/s for MFU')
    parser.add_argument('--json')
    opt = parser.parse_args()
    ranks.start(opt.ranks, work, opt)


if __name__ == '__main__':
    main()
