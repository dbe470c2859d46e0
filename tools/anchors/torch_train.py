#!/usr/bin/env python3
"""PyTorch on the CPU, training the shapes of tools/bench.sh, for its comparison.

usage: torch_train.py mpt|gpt2 D_MODEL LAYERS HEADS SEQ VOCAB BATCH [STEPS] [THREADS] [fp32|bf16]

mpt: no biases, ALiBi, tied embeddings, exact GELU.   gpt2: biases, learned positions, tied embeddings, tanh GELU.
bf16: autocast, fp32 weights. Prints one line: tokens per second (median and best over the steps after the third),
AdamW included.
"""
import statistics
import sys
import time

import need_torch
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads, self.bias = heads, bias
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x, bias):
        batch, seq, width = x.shape
        q, k, v = (t.view(batch, seq, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1))
        if bias is None:
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.out(a.transpose(1, 2).reshape(batch, seq, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate='tanh' if self.bias else 'none'))


class Model(nn.Module):
    def __init__(self, kind, width, layers, heads, seq, vocab):
        super().__init__()
        bias = kind == 'gpt2'
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(seq, width) if bias else None
        self.blocks = nn.ModuleList(Block(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0.0, 0.02)
        alibi = None
        if not bias:
            place = torch.arange(seq)
            distance = place[None, :] - place[:, None]
            slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
            alibi = (slopes[:, None, None] * distance).masked_fill(distance > 0, float('-inf'))[None]
        self.register_buffer('alibi', alibi)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[None]
        for block in self.blocks:
            x = block(x, self.alibi)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def main():
    if len(sys.argv) < 8 or sys.argv[1] not in ('mpt', 'gpt2'):
        need_torch.usage(2)
    kind = sys.argv[1]
    width, layers, heads, seq, vocab, batch = map(int, sys.argv[2:8])
    steps = int(sys.argv[8]) if len(sys.argv) > 8 else 12
    torch.set_num_threads(int(sys.argv[9]) if len(sys.argv) > 9 else torch.get_num_threads())
    narrow = len(sys.argv) > 10 and sys.argv[10] == 'bf16'
    torch.manual_seed(0)
    model = Model(kind, width, layers, heads, seq, vocab)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    ids, targets = torch.randint(0, vocab, (batch, seq)), torch.randint(0, vocab, (batch, seq))
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        with torch.autocast('cpu', torch.bfloat16, enabled=narrow):
            loss = model(ids, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        seconds.append(time.perf_counter() - start)
    kept = seconds[3:] or seconds
    tokens = batch * seq
    print(f'{tokens / statistics.median(kept):.1f} {tokens / min(kept):.1f} torch {torch.__version__}')


if __name__ == '__main__':
    main()
