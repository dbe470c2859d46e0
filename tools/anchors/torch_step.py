#!/usr/bin/env python3
"""PyTorch training the models of `clbench step`, on a GPU or a CPU, for comparison.

usage: torch_step.py [--model NAME,NAME] [--bias] [--eager] [--fp32] [--seq T] [--microbatch N] [--seconds S] [--clip]
                     [--peak TFLOPS] [--ours FILE]...

MPT with learned positions, tied embeddings, exact GELU and causal attention from scaled_dot_product_attention (cuDNN
or flash kernels on a GPU); without biases as `clbench step --no-bias`, or with --bias as `clbench step`. bf16 by
autocast with fp32 weights, fused AdamW, torch.compile, random tokens. --ours: rows of `clbench step --json`, whose
tokens per second are printed for comparison. MFU as MosaicML counts it: 6 N + 12 layers d_model T FLOP per token,
divided by the peak.
"""
import argparse
import json
import time

import need_torch  # noqa: F401, before torch
import torch
import torch.nn as nn
import torch.nn.functional as F

# name: d_model, heads, layers, vocabulary, microbatch
MODELS = {
    'tiny': (64, 2, 2, 32640, 2),
    'small': (256, 4, 4, 4096, 4),
    'mpt-125m': (768, 12, 12, 50368, 16),
    'mpt-350m': (1024, 16, 24, 50368, 16),
    'mpt-760m': (1536, 12, 24, 50368, 8),
    'mpt-1b': (2048, 16, 24, 50368, 8),
    'mpt-3b': (2560, 20, 32, 50368, 4),
    'mpt-7b': (4096, 32, 32, 50368, 2),
    'mpt-13b': (5120, 40, 40, 50368, 1),
}
NOMINAL = {'H100': 989.5, 'H200': 989.5, 'A100': 312.0}  # dense 16-bit TFLOP/s of the data sheets


class Block(nn.Module):
    def __init__(self, width, heads, bias, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def token_loss(logits, targets):
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


class Model(nn.Module):
    def __init__(self, width, heads, layers, vocab, seq, bias):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.loss = token_loss
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)
        for name, p in self.named_parameters():
            if name.endswith('bias'):
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return self.loss(F.linear(self.norm(x), self.tokens.weight), targets)


def rows_of(paths):
    """The rows of several outputs of `clbench step --json`."""
    rows = []
    for path in paths:
        with open(path, encoding='utf-8') as f:
            rows += json.load(f)
    return rows


def wait(device):
    if device == 'cuda':
        torch.cuda.synchronize()


def measure(name, opt, device):
    width, heads, layers, vocab, batch = MODELS[name]
    batch, seq = opt.microbatch or batch, opt.seq
    torch.manual_seed(0)
    model = Model(width, heads, layers, vocab, seq, opt.bias).to(device)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    run = model if opt.eager else torch.compile(model)
    ids = torch.randint(0, vocab, (batch, seq), device=device)

    def step(clip):
        with torch.autocast(device, torch.bfloat16, enabled=not opt.fp32):
            loss = run(ids, ids)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    began = time.perf_counter()
    for _ in range(4):
        step(False)
    wait(device)
    warm = time.perf_counter() - began
    count = sum(p.numel() for p in params)
    card = torch.cuda.get_device_name() if device == 'cuda' else ''
    peak = opt.peak or next((v for k, v in NOMINAL.items() if k in card and not opt.fp32), 0)
    ours = [('with' if r.get('clipping', True) else 'without', r['tokens_per_second']) for r in opt.rows
            if r['model'] == name and r['seq'] == seq and r.get('biases', True) == opt.bias]
    for clip in (False, True) if opt.clip else (False,):
        steps, began = 0, time.perf_counter()
        while steps < 4 or time.perf_counter() - began < opt.seconds:
            for _ in range(4 if device == 'cuda' else 1):
                step(clip)
                steps += 1
            wait(device)
        seconds = (time.perf_counter() - began) / steps
        tokens = batch * seq / seconds
        flops = tokens * (6 * count + 12 * layers * width * seq)
        share = f'{flops / peak * 1e-10:.1f} %' if peak else '-'
        memory = f'{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB' if device == 'cuda' else '-'
        print(f'{name:10} {count / 1e6:7.1f}M {seq:6} {batch:9} {"yes" if clip else "no":>4} {tokens:11.0f} {flops * 1e-12:9.2f} {share:>9}'
              f' {memory:>10} {warm:7.1f} s' + ''.join(f'   ours {how} clipping {o:.0f}, ratio {o / tokens:.3f}' for how, o in ours), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='mpt-125m,mpt-1b')
    parser.add_argument('--bias', action='store_true', help='with biases')
    parser.add_argument('--eager', action='store_true')
    parser.add_argument('--fp32', action='store_true')
    parser.add_argument('--clip', action='store_true', help='also measure with clipping at norm 1, as clbench step without --no-clip')
    parser.add_argument('--seq', type=int, default=2048)
    parser.add_argument('--microbatch', type=int, default=0)
    parser.add_argument('--seconds', type=float, default=3.0)
    parser.add_argument('--peak', type=float, default=0.0, help='TFLOP/s for MFU')
    parser.add_argument('--ours', action='append', default=[], help='output of clbench step --json; may be repeated')
    opt = parser.parse_args()
    opt.rows = rows_of(opt.ours)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    print(f'PyTorch {torch.__version__}, {torch.cuda.get_device_name() if device == "cuda" else "CPU"}, '
          f'{"fp32" if opt.fp32 else "bf16 autocast"}, {"eager" if opt.eager else "torch.compile"}, {"with" if opt.bias else "without"} biases')
    print(f'{"model":10} {"params":>8} {"seq":>6} {"mb":>9} {"clip":>4} {"tok/s":>11} {"TFLOP/s":>9} {"MFU":>9} {"memory":>10} {"4 steps":>9}')
    for name in opt.model.split(','):
        measure(name, opt, device)
        if device == 'cuda':
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == '__main__':
    main()
