#!/usr/bin/env python3
"""Which operand formats train? GPTs with simulated formats in every GEMM, forward, data gradient and weight gradient.

usage: torch_formats.py --data TOKENS --results FILE.jsonl [--sizes 25m,125m] [--formats SPEC,SPEC...] [--seeds 1,2,3]
                        [--steps N] [--budget SECONDS] [--workers N] [--eager]
       torch_formats.py --results FILE.jsonl --table

Runs every (size, format, seed) that the results file lacks and appends a line for each. TOKENS: uint16 ids, raw or
.xz (prose.py makes them). A seed sets initial weights and data order, the same for all formats, so that formats are
compared in pairs.

SPEC is FORMAT[+PART=FORMAT]..., PART one of fwd, dx, dw (the three products), head, ends (first and last layer), attn
(the six products of attention; default: PyTorch's attention in bf16). Formats:
  fp32       products in fp32 (no TF32)
  bf16       operands rounded to bf16, sums in fp32
  i8bN       int8 in blocks of N along the contraction, scales are powers of two; i8: one scale per row
  x2bN, x2   15 bits in two int8 slices, three products (low * low is dropped)
  e4bN       FP8 E4M3 in blocks
  te, tec    FP8 per tensor, E4M3 and E5M2 for gradients; te: delayed scaling (16 amax, margin 0), tec: current
  suffix t   weights have one scale per N x N tile
  suffix f   int8: scales have four significant bits instead of one, so that they are close to amax / 127
  suffix s   gradients are rounded stochastically
  suffix o   of a head: its gradient is split into probabilities, which have the format, and the targets' ones, whose
             rows of weights and of inputs are added as they are (bf16)
Along tokens no block crosses a sample.

The arithmetic is that of the real format up to the order of the fp32 sums. Values of int8 blocks, of FP8 blocks (whose
scale is at least 2^-124) and of each slice are products of at most 8 significant bits and a power of two: bf16 holds
them exactly and a bf16 GEMM computes their products. te and tec multiply unscaled FP8 values and scale the fp32 result.
Outputs and data gradients are rounded to bf16 (torch.compile may skip that where te and tec scale and the reader is
fused); weight gradients and the residual stream are fp32. (A PyTorch that cannot multiply bf16 into fp32 rounds weight gradients and unscaled results too; rows then say "wide": false.)
"""
import argparse
import functools
import json
import lzma
import math
import os
import re
import subprocess
import sys
import time

import need_torch  # noqa: F401, before torch
import numpy as np
import torch
import torch.nn.functional as F
import formats_table as table

# name: d_model, heads, layers, sequence, batch, learning rate
SIZES = {
    'tiny': (64, 2, 2, 48, 4, 3e-3),
    '25m': (512, 8, 8, 512, 24, 6e-4),
    '125m': (768, 12, 12, 512, 24, 6e-4),
}
# by importance: the reference, whole formats from cheap to dear, then what each part contributes
FORMATS = ('bf16 i8b128t i8b128t+dw=x2 i8b64t te+head=bf16 i8b128ts i8b128 e4b128t i8b128t+head=x2 i8b128t+ends=x2 '
           'i8b128t+attn=i8b64 i8b128t+attn=x2 x2 i8b32 i8b64ts te tec+head=bf16 fp32').split()
PARTS = ('fwd', 'dx', 'dw', 'head', 'ends', 'attn')
SHUFFLED = 16384   # tokens of a piece of the text; pieces are shuffled once, the same way for every seed
VALIDATION = 0.03  # part of the pieces
EVAL_BATCHES = 20
HISTORY = 16       # amax values of delayed scaling
TOPS = {'i8': 0x42fe0000, 'x2': 0x467e0000, 'e4': 0x43e00000}  # largest values of a block as fp32 bits: 127, 16256, 448
MIXED = -1640531527, 2146121005, -2073254261  # 32-bit constants: golden ratio; lowbias32's multipliers


# --- formats: (kind, block or 0 for a whole row, tiles, stochastic, fine scales, targets apart) ---
def parse_format(name):
    m = re.fullmatch(r'(fp32|bf16|te|tec)(o?)|(i8|x2|e4)(?:b(\d+))?(t?)(f?)(s?)(o?)', name)
    if not m or (m[3] == 'e4' or m[5]) and not m[4] or m[6] and m[3] != 'i8' or m[1] == 'te' and m[2]:
        raise SystemExit(f'format {name} is unknown (see --help)')
    if m[1]:
        return m[1], 0, False, False, False, bool(m[2])
    return m[3], int(m[4] or 0), bool(m[5]), bool(m[7]), bool(m[6]), bool(m[8])


def parse_spec(spec, layers):
    """(fwd, dx, dw, attention) of each layer, then of the head; attention is None for PyTorch's own."""
    base, *parts = spec.split('+')
    chosen = dict(p.split('=', 1) if '=' in p else (p, '') for p in parts)
    if set(chosen) - set(PARTS):
        raise SystemExit(f'{spec}: parts are {", ".join(PARTS)}')
    three = tuple(parse_format(chosen.get(k, base)) for k in ('fwd', 'dx', 'dw'))
    attn = parse_format(chosen['attn']) if 'attn' in chosen else None
    if attn and attn[0] == 'te':
        raise SystemExit(f'{spec}: attention has no delayed scaling, use tec')
    ends = (parse_format(chosen['ends']),) * 3 if 'ends' in chosen else three
    head = (parse_format(chosen['head']),) * 3 if 'head' in chosen else three
    inner = [ends if i in (0, layers - 1) else three for i in range(layers)]
    if any(f[5] for f in three + ends):
        raise SystemExit(f'{spec}: suffix o is for head=')
    return [f + (attn,) for f in inner] + [head + (None,)]


# --- rounding ---
def power_of_two(amax, top):
    """The smallest power of two s with amax <= t * s, not below 2^-126, by exponent bits (top: those of t); and 1 / s.
    s is NaN if amax is Inf or NaN."""
    bits = amax.view(torch.int32)
    field = (bits >> 23) - (top >> 23) + 127 + ((bits & 0x7fffff) > (top & 0x7fffff)).int()
    field = field.clamp_min(1)
    s = torch.where(amax < math.inf, (field << 23).view(torch.float32), math.nan)
    return s, ((254 - field) << 23).view(torch.float32)


def four_bits(amax):
    """The smallest s of four significant bits with amax <= 127 s, not below 2^-126, and 1 / s. NaN as above."""
    bits = ((amax.double() / 127).float().view(torch.int32) + 0xfffff) & ~0xfffff
    s = torch.where(amax < math.inf, bits.clamp_min(1 << 23).view(torch.float32), math.nan)
    return s, 1.0 / s


def mix(x):
    """lowbias32 of int32, with wrapping multiplication."""
    x = (x ^ ((x >> 16) & 0xffff)) * MIXED[1]
    x = (x ^ ((x >> 15) & 0x1ffff)) * MIXED[2]
    return x ^ ((x >> 16) & 0xffff)


def uniform(like, key):
    """(n + 1/2) / 2^16, n of 16 bits, from the element's index and key: adding it to 127 is exact."""
    index = torch.arange(like.numel(), dtype=torch.int32, device=like.device).view(like.shape)
    return ((mix(mix(index) ^ key) & 0xffff).float() + 0.5) * 2.0**-16


def snap_fp8(v, mantissa, lowest):
    """v rounded to nearest even at 1 + mantissa bits, exponents from lowest on; v must not exceed the largest value."""
    field = ((v.view(torch.int32) >> 23) & 255).clamp_min(127 + lowest) - mantissa
    return torch.round(v * ((254 - field) << 23).view(torch.float32)) * (field << 23).view(torch.float32)


def blocked(x, axis, block, tile):
    """(view with blocks as dimensions of their own, these dimensions, the padded shape)"""
    rows, cols = x.shape[-2:]
    size = min(block or x.shape[axis], x.shape[axis])
    along_rows, along_cols = tile or axis == -2, tile or axis == -1
    r, c = (min(size, rows) if along_rows else 1), (min(size, cols) if along_cols else 1)
    x = F.pad(x, (0, -cols % c, 0, -rows % r)) if cols % c or rows % r else x
    shape = x.shape
    lead = tuple(shape[:-2])
    if along_rows and along_cols:
        return x.view(lead + (shape[-2] // r, r, shape[-1] // c, c)), (-3, -1), shape
    if along_cols:
        return x.view(lead + (shape[-2], shape[-1] // c, c)), (-1,), shape
    return x.view(lead + (shape[-2] // r, r, shape[-1])), (-2,), shape


def quantize_blocks(x, axis, fmt, role, key):
    kind, block, tile, noisy, fine, _ = fmt
    rows, cols = x.shape[-2:]
    b, dims, shape = blocked(x.float(), axis, block, tile and role == 'w')
    amax = b.abs().amax(dims, keepdim=True)
    s, inverse = four_bits(amax) if fine else power_of_two(amax, TOPS[kind])
    v = b * inverse
    if kind == 'e4':
        parts = [snap_fp8(v, 3, -6)]
    elif noisy and role == 'g':
        parts = [torch.floor(v + uniform(v, key))]
    else:
        parts = [torch.round(v)]
    if kind == 'x2':
        high = torch.round(parts[0] * 2.0**-7) * 128.0
        parts = [high, parts[0] - high]
    values = [(p * s).view(shape)[..., :rows, :cols] for p in parts]
    return values if fine else [v.bfloat16() for v in values]


def fp8_type(role):
    """largest value, mantissa bits, lowest exponent: E5M2 for gradients, otherwise E4M3"""
    return (57344.0, 2, -14) if role == 'g' else (448.0, 3, -6)


def current_scale(x, role):
    amax = x.detach().abs().amax().float()
    s = (fp8_type(role)[0] / amax).clamp_max(torch.finfo(torch.float32).max)
    return torch.where((amax > 0) & (amax < math.inf), s, 1.0)


def quantize(x, axis, fmt, role, scale, key):
    """(operands of the GEMMs that replace x, the scale they were multiplied by or None); the contraction is axis."""
    if fmt[0] == 'fp32':
        return [x.float()], None
    if fmt[0] == 'bf16':
        return [x.bfloat16()], None
    if fmt[0] in ('te', 'tec'):
        scale = current_scale(x, role) if fmt[0] == 'tec' else scale
        top, mantissa, lowest = fp8_type(role)
        return [snap_fp8((x.float() * scale).clamp(-top, top), mantissa, lowest).bfloat16()], scale
    return quantize_blocks(x, axis, fmt, role, key), None


# --- products ---
@torch.library.custom_op('formats::mm_wide', mutates_args=())
def mm_wide(a: torch.Tensor, b: torch.Tensor, transposed: bool) -> torch.Tensor:
    """a b, or a^T b if transposed, of bf16 matrices with an fp32 result."""
    a = a.t() if transposed else a
    return torch.mm(a, b, out_dtype=torch.float32) if has_wide() else torch.mm(a, b).float()


@mm_wide.register_fake
def _(a, b, transposed):
    return a.new_empty((a.shape[1] if transposed else a.shape[0], b.shape[1]), dtype=torch.float32)


@functools.cache
def has_wide():
    """Does this PyTorch multiply bf16 into fp32? Otherwise results are rounded to bf16."""
    if not torch.cuda.is_available():
        return False
    try:
        a = torch.full((16, 16), 1.0078125, dtype=torch.bfloat16, device='cuda')
        return torch.mm(a, a, out_dtype=torch.float32)[0, 0].item() == 16 * 1.0078125**2
    except (RuntimeError, TypeError):
        return False


def matmul(a, b, wide):
    if not a.is_cuda or a.dtype == torch.float32:
        return a.float() @ b.float()   # exact products, fp32 sums
    if wide and a.dim() == 2 and b.dim() == 2:
        return mm_wide(a, b, False)
    return a @ b


def joined(a, b, a_axis, b_axis):
    """Operands of one GEMM: slices (high, high, low) and (high, low, high), joined along the contraction."""
    if len(a) == 1:
        return a[0], b[0]
    return torch.cat([a[0], a[0], a[1]], a_axis), torch.cat([b[0], b[1], b[0]], b_axis)


def scaled(y, a_scale, b_scale, dtype):
    y = y if a_scale is None else y.float() / (a_scale * b_scale)
    return y.to(dtype)


def result_type(fmt):
    return torch.float32 if fmt[0] == 'fp32' else torch.bfloat16


def times_rows(x, w, fmt, roles, scales, key):
    """x [..., T, K] w^T for a matrix w [N, K], or for w [..., N, K] with the batch of x."""
    xq, xs = quantize(x, -1, fmt, roles[0], scales[0], key)
    wq, ws = quantize(w, -1, fmt, roles[1], scales[1], key)
    a, b = joined(xq, wq, -1, -1)
    a = a.reshape(-1, a.shape[-1]) if w.dim() == 2 else a
    y = scaled(matmul(a, b.transpose(-1, -2), xs is not None), xs, ws, result_type(fmt))
    return y.view(*x.shape[:-1], w.shape[-2])


def times_cols(g, w, fmt, roles, scales, key):
    """g [..., T, N] w for w as above."""
    gq, gs = quantize(g, -1, fmt, roles[0], scales[0], key)
    wq, ws = quantize(w, -2, fmt, roles[1], scales[1], key)
    a, b = joined(gq, wq, -1, -2)
    a = a.reshape(-1, a.shape[-1]) if w.dim() == 2 else a
    return scaled(matmul(a, b, gs is not None), gs, ws, result_type(fmt)).view(*g.shape[:-1], w.shape[-1])


def over_tokens(gq, xq, gs, xs, batched):
    """g^T x, summed over samples if not batched."""
    a, b = joined(gq, xq, -2, -2)
    if batched:
        y = matmul(a.transpose(-1, -2), b, False)
        return scaled(y, gs, xs, a.dtype)
    a, b = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    if a.is_cuda and a.dtype == torch.bfloat16:
        return scaled(mm_wide(a, b, True), gs, xs, torch.float32)
    return scaled(matmul(a.t(), b, True), gs, xs, torch.float32)


class Gemm(torch.autograd.Function):
    """y = x w^T. x [..., T, K]; w [N, K], or [..., N, K] in attention. probe's gradient is the gradient's amax."""

    @staticmethod
    def forward(ctx, x, w, probe, scales, key, fmts):
        fwd, _, dw, _ = fmts
        role = 'w' if w.dim() == 2 else 'x'
        y = times_rows(x, w, fwd, ('x', role), (scales[0], scales[1]), key)
        kept, scale = quantize(x, -2, dw, 'x', scales[0], key)
        ctx.fmts, ctx.kept = fmts, len(kept)
        ctx.save_for_backward(w, scales, key, *kept, *([] if scale is None else [scale]))
        return y

    @staticmethod
    def backward(ctx, g):
        w, scales, key, *kept = ctx.saved_tensors
        kept, xs = kept[:ctx.kept], (kept[ctx.kept] if len(kept) > ctx.kept else None)
        _, dx, dw, _ = ctx.fmts
        batched = w.dim() > 2
        amax = g.abs().amax().float() if ctx.needs_input_grad[2] else None
        grad_x = times_cols(g, w, dx, ('g', 'x' if batched else 'w'), (scales[2], scales[1]), key)
        gq, gs = quantize(g, -2, dw, 'g', scales[2], key + MIXED[0])
        return grad_x, over_tokens(gq, kept, gs, xs, batched), amax, None, None, None


class HeadLoss(torch.autograd.Function):
    """The mean cross-entropy of x w^T whose gradient's ones are apart (suffix o)."""

    @staticmethod
    def forward(ctx, x, w, targets, scales, key, fmts):
        fwd, _, dw, _ = fmts
        logits = times_rows(x, w, fwd, ('x', 'w'), (scales[0], scales[1]), key).float()
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
        kept, scale = quantize(x, -2, dw, 'x', scales[0], key)
        ctx.fmts, ctx.kept = fmts, len(kept)
        ctx.save_for_backward(x, w, targets, logits.softmax(-1).to(result_type(fwd)), scales, key, *kept,
                              *([] if scale is None else [scale]))
        return loss

    @staticmethod
    def backward(ctx, g):
        x, w, targets, p, scales, key, *kept = ctx.saved_tensors
        kept, xs = kept[:ctx.kept], (kept[ctx.kept] if len(kept) > ctx.kept else None)
        _, dx, dw, _ = ctx.fmts
        each = g / targets.numel()
        p = p * each.to(p.dtype)
        grad_x = times_cols(p, w, dx, ('g', 'w'), (scales[2], scales[1]), key)
        grad_x = (grad_x.float() - each * w[targets].to(p.dtype).float()).to(x.dtype)
        pq, ps = quantize(p, -2, dw, 'g', scales[2], key + MIXED[0])
        rows = x.reshape(-1, x.shape[-1]).to(p.dtype).float() * -each
        grad_w = over_tokens(pq, kept, ps, xs, False).float().index_add(0, targets.reshape(-1), rows)
        return grad_x, grad_w, None, None, None, None


# --- model: functions of tensors, so that all layers of a format share one compiled program ---
def attention(q, k, v, fmt, probe, scales, keys):
    if fmt is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    fmts, seq = (fmt, fmt, fmt, None), q.shape[-2]
    s = Gemm.apply(q * q.shape[-1]**-0.5, k, probe, scales, keys[4], fmts).float()
    future = torch.ones(seq, seq, dtype=torch.bool, device=q.device).triu(1)
    p = s.masked_fill(future, -math.inf).softmax(-1)
    return Gemm.apply(p, v.transpose(-1, -2), probe, scales, keys[5], fmts)


def amax_of(fmts, *tensors):
    """What delayed scaling records of a forward pass."""
    if 'te' not in [f[0] for f in fmts if f]:
        return None
    return torch.stack([t.detach().abs().amax().float() for t in tensors])


def run_block(x, weights, probes, scales, keys, fmts, heads):
    n1, n2, qkv, out, up, down = weights
    batch, seq, width = x.shape
    h = F.layer_norm(x, (width,), n1)
    qkv_ = Gemm.apply(h, qkv, probes[0], scales[0], keys[0], fmts).view(batch, seq, 3, heads, width // heads)
    q, k, v = qkv_.permute(2, 0, 3, 1, 4)
    a = attention(q, k, v, fmts[3], probes[0].detach(), scales[0], keys).transpose(1, 2).reshape(batch, seq, width)
    x = x + Gemm.apply(a, out, probes[1], scales[1], keys[1], fmts)
    m = F.layer_norm(x, (width,), n2)
    u = F.gelu(Gemm.apply(m, up, probes[2], scales[2], keys[2], fmts).float())
    x = x + Gemm.apply(u, down, probes[3], scales[3], keys[3], fmts)
    return x, amax_of(fmts, h, qkv, a, out, m, up, u, down)


def run_head(x, norm, table_, targets, probe, scales, key, fmts):
    h = F.layer_norm(x, (x.shape[-1],), norm)
    if fmts[0][5]:
        return HeadLoss.apply(h, table_, targets, scales, key, fmts), amax_of(fmts, h, table_)
    logits = Gemm.apply(h, table_, probe, scales, key, fmts)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1)), amax_of(fmts, h, table_)


class Model:
    """A GPT as MPT: norms in front, learned positions, no biases, GELU, tied head."""

    def __init__(self, size, vocab, spec, seed, device, compiled):
        width, self.heads, layers, self.seq, _, _ = SIZES[size]
        rng, deep = torch.Generator().manual_seed(seed), (2 * layers)**-0.5

        def weight(rows, cols, std=0.02):
            return (torch.randn(rows, cols, generator=rng) * std).to(device).requires_grad_()

        def ones():
            return torch.ones(width, device=device, requires_grad=True)

        self.table, self.positions, self.norm = weight(vocab, width), weight(self.seq, width), ones()
        self.blocks = [(ones(), ones(), weight(3 * width, width), weight(width, width, 0.02 * deep),
                        weight(4 * width, width), weight(width, 4 * width, 0.02 * deep)) for _ in range(layers)]
        self.params = [self.table, self.positions, self.norm] + [w for b in self.blocks for w in b]
        self.fmts = parse_spec(spec, layers)
        self.delayed = any(f and f[0] == 'te' for fmts in self.fmts for f in fmts)
        self.probes = torch.zeros(layers + 1, 4, device=device, requires_grad=self.delayed)
        self.scales = torch.ones(layers + 1, 4, 3, device=device)
        self.history = torch.zeros(HISTORY, layers + 1, 4, 3, device=device)
        self.tops = torch.tensor([fp8_type(r)[0] for r in 'xwg'], device=device)
        self.salts = mix(torch.arange((layers + 1) * 6, dtype=torch.int32, device=device)).view(layers + 1, 6) ^ seed
        self.step = torch.zeros((), dtype=torch.int32, device=device)
        self.run_block = torch.compile(run_block, dynamic=False, fullgraph=True) if compiled else run_block
        self.run_head = torch.compile(run_head, dynamic=False, fullgraph=True) if compiled else run_head

    def loss(self, ids, targets):
        x = F.embedding(ids, self.table) + self.positions
        keys, seen = mix(self.salts + self.step * MIXED[0]), []
        for i, weights in enumerate(self.blocks):
            probes, scales = self.probes[i].unbind(), self.scales[i]
            x, amax = self.run_block(x, weights, probes, scales, keys[i], self.fmts[i], self.heads)
            seen.append(amax)
        loss, amax = self.run_head(x, self.norm, self.table, targets, self.probes[-1, 0], self.scales[-1, 0],
                                   keys[-1, 0], self.fmts[-1])
        return loss, seen + [amax]

    def end_step(self, seen):
        """Delayed scaling (Transformer Engine's recipe): the amax of this step enters the history, scales follow."""
        self.step += 1
        if not self.delayed:
            return
        last = torch.zeros_like(self.scales)
        for i, amax in enumerate(seen):
            if amax is not None:
                last[i].view(-1, 3)[:amax.numel() // 2, :2] = amax.view(-1, 2)
        last[..., 2], self.probes.grad = self.probes.grad, None
        self.history, self.scales = delayed_update(self.history, self.scales, last, self.tops)


def delayed_update(history, scales, last, tops):
    """history [H, ...], row 0 free for the running step; a tensor whose amax is 0 keeps its history."""
    rolled = torch.cat([torch.zeros_like(history[:1]), history[2:], last.unsqueeze(0)])
    rolled = torch.where(last == 0, history, rolled)
    amax = torch.maximum(history[1:].amax(0), last)
    new = (tops / amax).clamp_max(torch.finfo(torch.float32).max)
    return rolled, torch.where((amax > 0) & (amax < math.inf), new, scales)


# --- data ---
def load_tokens(path, device):
    """(training pieces, validation pieces), each [n, SHUFFLED], and the vocabulary."""
    with (lzma.open if path.endswith('.xz') else open)(path, 'rb') as f:
        ids = np.frombuffer(f.read(), dtype='<u2')
    pieces = len(ids) // SHUFFLED
    if pieces < 4:
        raise SystemExit(f'{path}: {len(ids)} tokens, at least {4 * SHUFFLED} are needed')
    ids = torch.from_numpy(ids[:pieces * SHUFFLED].astype(np.int32)).view(pieces, SHUFFLED)
    vocab = -(-(int(ids.max()) + 1) // 128) * 128
    ids = ids[torch.randperm(pieces, generator=torch.Generator().manual_seed(3))].to(device)
    held = max(1, int(pieces * VALIDATION))
    return ids[:-held], ids[-held:], vocab


def windows(pieces, seq):
    """Start of every window of seq + 1 tokens; windows overlap by one token and stay inside a piece."""
    per = (SHUFFLED - 1) // seq
    return (torch.arange(len(pieces)).view(-1, 1) * SHUFFLED + torch.arange(per) * seq).view(-1)


def order(pieces, seq, batch, steps, seed, device):
    """Window starts [steps, batch]: every epoch a new permutation."""
    starts, rng, out = windows(pieces, seq), torch.Generator().manual_seed(seed + 1000), []
    while sum(len(o) for o in out) < steps * batch:
        out.append(starts[torch.randperm(len(starts), generator=rng)])
    return torch.cat(out)[:steps * batch].view(steps, batch).to(device)


def batch_of(pieces, starts, seq):
    got = pieces.view(-1)[starts.view(-1, 1) + torch.arange(seq + 1, device=pieces.device)].long()
    return got[:, :-1], got[:, 1:]


def evaluate(model, pieces, batch):
    """Mean loss of fixed windows, evenly spread. With gradients on, so that the training program is used again."""
    starts = windows(pieces, model.seq)
    count = min(EVAL_BATCHES, len(starts) // batch) * batch
    starts = starts[torch.arange(count) * len(starts) // count].view(-1, batch).to(pieces.device)
    return torch.stack([model.loss(*batch_of(pieces, s, model.seq))[0].detach() for s in starts]).mean()


# --- runs ---
class OutOfTime(Exception):
    pass


def learning_rate(peak, step, steps):
    """warm-up over 100 steps (or a tenth), then a cosine to a tenth"""
    warm = min(100, steps // 10 + 1)
    return peak * min(1.0, (step + 1) / warm) * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(key, data, device, compiled, until):
    size, spec, seed, steps = key
    _, _, _, seq, batch, peak = SIZES[size]
    train_pieces, held, vocab = data
    model = Model(size, vocab, spec, seed, device, compiled)
    adam = torch.optim.AdamW(model.params, lr=peak, betas=(0.9, 0.95), weight_decay=0.0, fused=device == 'cuda')
    starts = order(train_pieces, seq, batch, steps, seed, device)
    losses, values, began, every = torch.zeros(steps, device=device), [], time.time(), max(1, min(100, steps // 4))
    warm = 0.0
    for step in range(steps):
        adam.param_groups[0]['lr'] = learning_rate(peak, step, steps)
        loss, seen = model.loss(*batch_of(train_pieces, starts[step], seq))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.params, 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        model.end_step(seen)
        losses[step] = loss.detach()
        if (step + 1) % every and step + 1 < steps and step:
            continue
        if step == 0:
            losses[0].item()
            warm = time.time() - began
        if (step + 1) % max(every, steps // 10) == 0 or step + 1 == steps:
            values.append((step + 1, evaluate(model, held, batch)))
        losses[step].item()   # waits, so that the time below is true
        if time.time() > until:
            raise OutOfTime
    losses, values = losses.tolist(), [(s, v.item()) for s, v in values]
    means = [losses[i:i + every] for i in range(0, steps, every)]
    return {'size': size, 'format': spec, 'seed': seed, 'steps': steps, 'batch': batch, 'seq': seq, 'lr': peak,
            'vocab': vocab, 'params': sum(p.numel() for p in model.params), 'tokens': steps * batch * seq,
            'every': every, 'train': [round(table.mean(m), 5) for m in means],
            'val': [(s, round(v, 5)) for s, v in values], 'final': values[-1][1],
            'seconds': round(time.time() - began, 1), 'first_step_seconds': round(warm, 1), 'compiled': compiled,
            'wide': has_wide(), 'device': device, 'torch': torch.__version__}


def estimate(rows, key):
    """Seconds of the slowest run so far of this size, steps and format, or of any format; 0: none known."""
    same = [r for r in rows if (r['size'], r['steps']) == (key[0], key[3])]
    return max((r['seconds'] for r in [r for r in same if r['format'] == key[1]] or same), default=0.0)


def configure(spec='bf16'):
    """Products as written; a program per format is no fault. Values with fine scales are exact in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = any(f and f[4] for fmts in parse_spec(spec, 2) for f in fmts)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    limit = 'recompile_limit' if hasattr(torch._dynamo.config, 'recompile_limit') else 'cache_size_limit'
    setattr(torch._dynamo.config, limit, 64)


def run_here(keys, opt, until):
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    data = load_tokens(opt.data, device)
    compiled = not opt.eager
    for key in keys:
        need = estimate(table.read(opt.results), key)
        if time.time() + need > until:
            print(f'{key[0]} {key[1]} seed {key[2]}: not started, about {need:.0f} s needed', flush=True)
            return
        configure(key[1])
        try:
            row = train(key, data, device, compiled, until)
        except OutOfTime:
            print(f'{key[0]} {key[1]} seed {key[2]}: out of time, nothing recorded', flush=True)
            return
        except RuntimeError as e:
            if not compiled:
                raise
            print(f'{key[1]}: the compiled program failed, eager from here on: {str(e).splitlines()[0]}', flush=True)
            compiled = False
            row = train(key, data, device, compiled, until)
        table.append(opt.results, row)
        print(f'{key[0]} {key[1]} seed {key[2]}: {row["final"]:.4f}, {row["seconds"]:.0f} s '
              f'({row["first_step_seconds"]:.0f} s of them the first step)', flush=True)


def run_workers(keys, opt, until):
    """A process for each (size, format), opt.workers at a time: one compiles while another computes."""
    units, running = list(dict.fromkeys(k[:2] for k in keys)), []
    while units or running:
        running = [p for p in running if p.poll() is None]
        if units and len(running) < opt.workers and time.time() < until:
            size, spec = units.pop(0)
            need = estimate(table.read(opt.results), (size, spec, 0, opt.steps))
            if time.time() + need > until:
                print(f'{size} {spec}: not started, about {need:.0f} s needed', flush=True)
                continue
            seeds = ','.join(str(k[2]) for k in keys if k[:2] == (size, spec))
            running.append(subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), '--data', opt.data, '--results', opt.results,
                 '--sizes', size, '--formats', spec, '--seeds', seeds, '--steps', str(opt.steps),
                 '--budget', str(until - time.time())] + ['--eager'] * opt.eager))
        elif time.time() >= until:
            units = []
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data')
    parser.add_argument('--results', required=True)
    parser.add_argument('--sizes', default='25m,125m')
    parser.add_argument('--formats', default=','.join(FORMATS))
    parser.add_argument('--seeds', default='1,2,3')
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--budget', type=float, default=math.inf,
                        help='seconds: no run starts that would not end within them')
    parser.add_argument('--workers', type=int, default=1, help='processes that share the device')
    parser.add_argument('--eager', action='store_true', help='without torch.compile')
    parser.add_argument('--table', action='store_true', help='print the results as a Markdown table')
    opt = parser.parse_args()
    if opt.table:
        return print(table.markdown(table.read(opt.results), FORMATS))
    if not opt.data:
        raise SystemExit('--data is missing (see --help)')
    until = time.time() + opt.budget
    formats, sizes = opt.formats.split(','), opt.sizes.split(',')
    if set(sizes) - set(SIZES):
        raise SystemExit(f'sizes are {", ".join(SIZES)}')
    for spec in formats:
        parse_spec(spec, 2)
    done = {(r['size'], r['format'], r['seed'], r['steps']) for r in table.read(opt.results)}
    seeds = [int(s) for s in opt.seeds.split(',')]
    wanted = [(size, spec, seed, opt.steps) for size in sizes for spec in formats for seed in seeds]
    keys = [k for k in wanted if k not in done]
    print(f'{len(keys)} of {len(wanted)} runs to do', flush=True)
    (run_here if opt.workers == 1 else run_workers)(keys, opt, until)


if __name__ == '__main__':
    main()
