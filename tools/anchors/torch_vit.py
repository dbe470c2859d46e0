#!/usr/bin/env python3
"""PyTorch training the Vision Transformers of `clbench step --suite vit` and `vit-cpu`, for comparison.

usage: torch_vit.py [--model NAME,NAME] [--batch N] [--eager] [--fp32] [--no-clip] [--seconds S] [--threads N] [--ours FILE]...

timm's arithmetic: patches by a convolution, class token, learned positions, blocks with biases and full attention
from scaled_dot_product_attention, exact GELU, head of 1,000 classes on the class token. bf16 by autocast with fp32
weights, fused AdamW, torch.compile, random images of 224 x 224. --ours: rows of `clbench step --json` of the same
precision and batch, whose images per second are printed for comparison.
"""
import argparse
import time

import need_torch  # noqa: F401, before torch
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_step import Block, rows_of, wait

# name: width, heads, blocks, patch
MODELS = {
    'vit-base-16': (768, 12, 12, 16),
    'vit-huge-14': (1280, 16, 32, 14),
    'vit-huge-16': (1280, 16, 32, 16),
}
IMAGE, CLASSES = 224, 1000


class Model(nn.Module):
    def __init__(self, width, heads, blocks, patch):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (IMAGE // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, True, causal=False) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)
        for name, p in self.named_parameters():
            if name.endswith('bias'):
                nn.init.zeros_(p)
            elif p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)

    def forward(self, images, labels):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1).to(x.dtype), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])).float(), labels)


def measure(name, opt, device):
    torch.manual_seed(0)
    model = Model(*MODELS[name]).to(device)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.0, fused=True)
    run = model if opt.eager else torch.compile(model)
    images = torch.randn(opt.batch, 3, IMAGE, IMAGE, device=device)
    labels = torch.randint(0, CLASSES, (opt.batch,), device=device)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=not opt.fp32):
            loss = run(images, labels)
        loss.backward()
        if not opt.no_clip:
            nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    first = step().item()
    for _ in range(3):
        step()
    wait(device)
    steps, began = 0, time.perf_counter()
    while steps < 4 or time.perf_counter() - began < opt.seconds:
        loss = step()
        steps += 1
        if device == 'cuda' and steps % 4 == 0:
            wait(device)
    last = loss.item()
    rate = opt.batch * steps / (time.perf_counter() - began)
    memory = f'{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB' if device == 'cuda' else '-'
    precision = 'fp32' if opt.fp32 else 'amp_bf16'
    ours = [r['images_per_second'] for r in opt.rows if r['model'] == name and r['precision'] == precision and
            r['microbatch'] * r['accumulation'] == opt.batch and r['clipping'] != opt.no_clip]
    print(f'{name:12} {precision:8} batch {opt.batch}: {rate:.3f} images/s, loss {first:.3f} to {last:.4f}, memory {memory}' +
          ''.join(f'   ours {o:.3f}, ratio {o / rate:.3f}' for o in ours), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', default='vit-huge-16')
    parser.add_argument('--batch', type=int, default=128)
    parser.add_argument('--eager', action='store_true')
    parser.add_argument('--fp32', action='store_true')
    parser.add_argument('--no-clip', action='store_true', help='as clbench step --no-clip')
    parser.add_argument('--seconds', type=float, default=3.0)
    parser.add_argument('--threads', type=int, default=0)
    parser.add_argument('--ours', action='append', default=[], help='output of clbench step --json; may be repeated')
    opt = parser.parse_args()
    opt.rows = rows_of(opt.ours)
    if opt.threads:
        torch.set_num_threads(opt.threads)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    for name in opt.model.split(','):
        measure(name, opt, device)
        if device == 'cuda':
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == '__main__':
    main()
