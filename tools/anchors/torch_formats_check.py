#!/usr/bin/env python3
"""Checks torch_formats.py on a CPU: quantisers bit by bit against a scalar oracle, gradients, short runs.

usage: torch_formats_check.py [--runs|--compiled]     exits with 1 if anything differs
--runs also trains every format (minutes). --compiled only compares products and their gradients, compiled, on a GPU if
there is one, with those of a CPU without compilation.

The oracle computes with Python's integers and fractions and shares nothing with the program except its random bits'
definition. FP8 rounding is also compared to PyTorch's own casts for every bf16 value.
"""
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
from fractions import Fraction

import need_torch  # noqa: F401, before torch
import numpy as np
import torch
import torch.nn.functional as F
import torch_formats as tf
import formats_table as table

HERE = os.path.dirname(os.path.abspath(__file__))
FAILED = []


def expect(name, good):
    print(f'{"ok  " if good else "FAIL"}  {name}', flush=True)
    if not good:
        FAILED.append(name)


# --- oracle: one block at a time, exact rational numbers ---
def scale_of(values, top):
    """The smallest power of two s, at least 2^-126, with every |x| <= top * s: tried from below."""
    amax, exponent = max(abs(Fraction(v)) for v in values), -126
    while amax > top * Fraction(2)**exponent:
        exponent += 1
    return Fraction(2)**exponent


def half_even(v):
    low = v.numerator // v.denominator
    rest = v - low
    return low + (1 if rest > Fraction(1, 2) or rest == Fraction(1, 2) and low % 2 else 0)


def e4m3_values():
    """All values of E4M3 that are not negative, in order of their codes: an even place is an even mantissa."""
    codes = itertools.product(range(16), range(8))
    return [Fraction(m, 512) if e == 0 else Fraction(8 + m, 8) * Fraction(2)**(e - 7) for e, m in codes][:127]


E4M3 = e4m3_values()


def nearest_e4m3(v):
    size = abs(v)
    i = min(range(127), key=lambda k: (abs(E4M3[k] - size), k % 2))
    return -E4M3[i] if v < 0 else E4M3[i]


def random16(index, key):
    def hashed(x):
        x = ((x ^ x >> 16) * 0x7feb352d) & 0xffffffff
        x = ((x ^ x >> 15) * 0x846ca68b) & 0xffffffff
        return x ^ x >> 16
    return hashed(hashed(index) ^ (key & 0xffffffff)) & 0xffff


def quantized_block(values, kind, noise=None):
    """[one list of values for each slice]"""
    s = scale_of(values, {'i8': 127, 'x2': 16256, 'e4': 448}[kind])
    v = [Fraction(x) / s for x in values]
    if kind == 'e4':
        return [[float(nearest_e4m3(x) * s) for x in v]]
    if noise is not None:
        return [[float(math.floor(x + Fraction(2 * n + 1, 1 << 17)) * s) for x, n in zip(v, noise)]]
    q = [half_even(x) for x in v]
    if kind == 'i8':
        return [[float(x * s) for x in q]]
    high = [half_even(Fraction(x, 128)) for x in q]
    return [[float(128 * h * s) for h in high], [float((x - 128 * h) * s) for x, h in zip(q, high)]]


def fine_block(values):
    """int8 with a scale of four significant bits: tried from below, 8/8 to 15/8 of each power of two."""
    amax, e, m = max(abs(Fraction(v)) for v in values), -126, 8
    while amax > 127 * Fraction(m, 8) * Fraction(2)**e:
        e, m = (e, m + 1) if m < 15 else (e + 1, 8)
    s = np.float32(float(Fraction(m, 8) * Fraction(2)**e))
    inverse = np.float32(1) / s
    return [[float(np.rint(np.float32(v) * inverse) * s) for v in values]]


def groups(shape, axis, block, tile):
    """Lists of indices, one per scale, of one matrix."""
    rows, cols = shape
    size = min(block or shape[axis], shape[axis])
    r, c = (min(size, rows) if tile or axis == -2 else 1), (min(size, cols) if tile or axis == -1 else 1)
    for i, j in itertools.product(range(0, rows, r), range(0, cols, c)):
        yield [(y, x) for y in range(i, min(i + r, rows)) for x in range(j, min(j + c, cols))]


def oracle(x, axis, fmt, role, key):
    kind, block, tile, noisy, fine, _ = fmt
    matrices = x.reshape(-1, *x.shape[-2:])
    parts = np.zeros((2 if kind == 'x2' else 1,) + matrices.shape)
    for n, m in enumerate(matrices):
        for group in groups(m.shape, axis, block, tile and role == 'w'):
            noise = None
            if noisy and role == 'g':
                noise = [random16(n * m.size + y * m.shape[1] + x_, key) for y, x_ in group]
            values = [float(m[p]) for p in group]
            got = fine_block(values) if fine else quantized_block(values, kind, noise)
            for part, values in zip(parts, got):
                for p, v in zip(group, values):
                    part[(n,) + p] = v
    return [p.reshape(x.shape) for p in parts]


def samples(shape, seed, least):
    """Normal values over many magnitudes, and hard ones: ties, powers of two, zeros, a row times least."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0**rng.integers(-20, 20, shape[:-1] + (1,))
    flat = x.reshape(-1)
    flat[::7] = np.round(flat[::7] * 64) / 64
    flat[::11] = 2.0**np.round(np.log2(np.abs(flat[::11]) + 1e-30))
    x.reshape(-1, shape[-1])[0] = 0
    x.reshape(-1, shape[-1])[1] *= least
    x.reshape(-1, shape[-1])[2] = np.sign(x.reshape(-1, shape[-1])[2]) * 127 * 2.0**-3
    return x.astype(np.float32)


def check_blocks():
    key = 12345
    for name in ('i8b8', 'i8b8t', 'i8b8s', 'i8b8f', 'i8b16tf', 'i8b16t', 'i8', 'x2b8', 'x2b8t', 'x2', 'e4b8', 'e4b8t', 'i8b5'):
        fmt, bad = tf.parse_format(name), 0
        shapes = ((16, 24), 'w'), ((2, 16, 24), 'x'), ((2, 13, 21), 'g'), ((13, 21), 'w')
        for (shape, role), axis in itertools.product(shapes, (-1, -2)):
            if fmt[3] and role == 'g' and (shape[-2] % fmt[1] or shape[-1] % fmt[1]):
                shape = (2, 16, 24)   # random bits count padded elements: only whole blocks are compared
            x = samples(shape, len(name) + axis, 2.0**-80 if fmt[0] == 'e4' else 2.0**-140)
            got, _ = tf.quantize(torch.from_numpy(x), axis, fmt, role, None, torch.tensor(key, dtype=torch.int32))
            want = oracle(x, axis, fmt, role, key)
            bad += len(got) != len(want)
            bad += sum(int((g.double().numpy() != w).sum()) for g, w in zip(got, want))
        expect(f'{name}: {bad} values differ from the oracle', bad == 0)
    for value in (math.inf, math.nan):
        x = torch.ones(4, 16)
        x[1, 3] = value
        q = tf.quantize(x, -1, tf.parse_format('i8b8'), 'x', None, None)[0][0]
        good = bool(q[1, :8].isnan().all()) and int(q.isnan().sum()) == 8
        expect(f'a block with {value} is NaN, others are not', good)


def check_fp8():
    v = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    v = v[v.isfinite()]
    for role, kind in (('x', torch.float8_e4m3fn), ('g', torch.float8_e5m2)):
        top, mantissa, lowest = tf.fp8_type(role)
        near = (v.unsqueeze(1) * torch.tensor([1.0, 1 + 2.0**-20, 1 - 2.0**-20])).clamp(-top, top)
        got = tf.snap_fp8(near, mantissa, lowest)
        expect(f'{kind}: as the cast of PyTorch', torch.equal(got, near.to(kind).float()))


def check_uniform():
    u = tf.uniform(torch.zeros(1 << 20), torch.tensor(7, dtype=torch.int32)).double()
    expect('random numbers: mean, variance, range',
           abs(u.mean() - 0.5) < 1e-3 and abs(u.var() - 1 / 12) < 1e-3 and 0 < u.min() and u.max() < 1)


def check_delayed():
    """Against the recipe step by step, in plain Python."""
    rng, tops = np.random.default_rng(1), [448.0, 448.0, 57344.0]
    history, scales = torch.zeros(tf.HISTORY, 3), torch.ones(3)
    h, s, bad = [[0.0] * tf.HISTORY for _ in range(3)], [1.0] * 3, 0
    for step in range(60):
        last = [abs(rng.standard_normal()) * 10.0**rng.integers(-8, 8) for _ in range(3)]
        last[step % 3] = [0.0, math.inf, 1e-42, last[0]][step % 4]
        last = [float(np.float32(v)) for v in last]
        history, scales = tf.delayed_update(history, scales, torch.tensor(last), torch.tensor(tops))
        for t in range(3):
            amax = max(h[t][1:] + [last[t]])
            if last[t] != 0:
                h[t] = [0.0] + h[t][2:] + [last[t]]
            if 0 < amax < math.inf:
                s[t] = float(np.float32(min(tops[t] / amax, 3.4028234663852886e38)))
        bad += [[float(v) for v in history[:, t]] for t in range(3)] != h or scales.tolist() != s
    expect(f'delayed scaling: {bad} of 60 steps differ', bad == 0)


def check_gradients():
    """fp32 equals PyTorch's gradients; formats are near; every product uses its own format."""
    torch.manual_seed(0)
    x, w = torch.randn(3, 16, 32, requires_grad=True), torch.randn(24, 32, requires_grad=True)
    g, ones, key = torch.randn(3, 16, 24), torch.ones(3), torch.tensor(1, dtype=torch.int32)
    want = torch.autograd.grad(F.linear(x, w), (x, w), g)

    def grads(fwd, dx, dw):
        fmts = tuple(tf.parse_format(n) for n in (fwd, dx, dw)) + (None,)
        y = tf.Gemm.apply(x, w, torch.zeros((), requires_grad=True), ones, key, fmts)
        return (y.detach(),) + torch.autograd.grad(y, (x, w), g.to(y.dtype))

    def error(got, which):
        right = ((F.linear(x, w).detach(),) + want)[which].double()
        return float((got[which].double() - right).norm() / right.norm())

    expect('fp32: gradients of PyTorch', max(error(grads('fp32', 'fp32', 'fp32'), k) for k in range(3)) < 1e-6)
    bounds = {'bf16': 4e-3, 'i8b8': 1.2e-2, 'i8b8t': 1.5e-2, 'i8b8s': 2e-2, 'x2b8': 4e-3, 'x2': 4e-3,
              'e4b8': 5e-2, 'tec': 8e-2, 'te': 8e-2}
    for name, bound in bounds.items():
        worst = max(error(grads(name, name, name), k) for k in range(3))
        expect(f'{name}: error {worst:.1e}', worst < bound)
    for place in range(3):
        names = ['fp32'] * 3
        names[place] = 'i8b8'
        got = [error(grads(*names), k) > 5e-3 for k in range(3)]
        expect(f'int8 in product {place} alone', got == [k == place for k in range(3)])
    q, k, v = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    keys, probe = torch.zeros(6, dtype=torch.int32), torch.zeros(())
    gout = torch.randn(2, 4, 16, 8)
    want = torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), gout)
    got = torch.autograd.grad(tf.attention(q, k, v, tf.parse_format('fp32'), probe, ones, keys), (q, k, v), gout)
    expect('attention in fp32: gradients of PyTorch', all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want)))


def check_head():
    """Suffix o gives PyTorch's gradients in fp32, and is nearer to them than without in 8 bits."""
    torch.manual_seed(2)
    x, w = torch.randn(2, 256, 64, requires_grad=True), torch.randn(512, 64).mul(0.15).requires_grad_()
    targets, ones, key = torch.randint(0, 64, (2, 256)), torch.ones(3), torch.tensor(1, dtype=torch.int32)

    def grads(name):
        fmts = (tf.parse_format(name),) * 3 + (None,)
        if fmts[0][5]:
            return torch.autograd.grad(tf.HeadLoss.apply(x, w, targets, ones, key, fmts), (x, w))
        logits = tf.Gemm.apply(x, w, torch.zeros((), requires_grad=True), ones, key, fmts).float()
        return torch.autograd.grad(F.cross_entropy(logits.view(-1, 512), targets.view(-1)), (x, w))

    want = torch.autograd.grad(F.cross_entropy(F.linear(x, w).view(-1, 512), targets.view(-1)), (x, w))
    error = {n: max(float((a - b).norm() / b.norm()) for a, b in zip(grads(n), want)) for n in ('fp32o', 'i8b64t', 'i8b64to')}
    expect(f'head: {error}', error['fp32o'] < 1e-6 and error['i8b64to'] < 0.8 * error['i8b64t'])


def products(fmts, device, compiled):
    """y, dx, dw of a linear layer and of a batch of matrices."""
    out, one = [], torch.ones(3, device=device)
    for x_shape, w_shape in (((4, 256, 128), (384, 128)), ((2, 3, 128, 64), (2, 3, 192, 64))):
        rng = torch.Generator().manual_seed(1)
        x, w = (torch.randn(s, generator=rng).to(device).requires_grad_() for s in (x_shape, w_shape))
        g = torch.randn(*x_shape[:-1], w_shape[-2], generator=rng)

        def call(x, w, key):
            return tf.Gemm.apply(x, w, torch.zeros((), device=device), one, key, fmts)

        call = torch.compile(call, dynamic=False, fullgraph=True) if compiled else call
        y = call(x, w, torch.tensor(9, dtype=torch.int32, device=device))
        out += [y.detach()] + list(torch.autograd.grad(y, (x, w), g.to(device, y.dtype)))
    return [t.double().cpu() for t in out]


def check_compiled():
    """A wrong quantiser or operand is an error of 1e-2 and more. Other fp32 sums change some bf16 by one unit, and
    torch.compile drops roundings to bf16 whose result it reads in the same fused loop."""
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    tf.configure()
    print(f'{device}, PyTorch {torch.__version__}, bf16 into fp32: {tf.has_wide()}', flush=True)
    for name in ('bf16', 'i8b128t', 'i8b64s', 'x2', 'e4b128t', 'tec', 'te'):
        fmts = (tf.parse_format(name),) * 3 + (None,)
        pairs = zip(products(fmts, device, True), products(fmts, 'cpu', False))
        worst = max(float((a - b).norm() / b.norm()) for a, b in pairs)
        expect(f'{name}: compiled and not, relative difference {worst:.1e}', worst < 5e-3)


def check_table():
    base = {'size': 's', 'steps': 1, 'batch': 1, 'seq': 1, 'lr': 1, 'params': 1e6}
    rows = [dict(base, format=f, seed=s, final=v) for f, s, v in
            (('bf16', 1, 2.0), ('bf16', 2, 2.02), ('near', 1, 2.002), ('near', 2, 2.022), ('far', 1, 2.1),
             ('far', 2, 2.13), ('one', 2, 2.02))]
    text = table.markdown(rows, ('bf16', 'near', 'far'))
    wanted = ('| near | 2 | 2.0120 | 0.0141 | +0.100 ± 0.000 | within 0.2 % |',
              '| far | 2 | 2.1150 | 0.0212 | +5.223 ± 0.223 | outside |',
              '| one | 1 | 2.0200 | - | +0.000 ± - | within 0.2 % |')
    expect('table', all(t in text for t in wanted))


def check_runs():
    """Every format learns, a second call does nothing, a budget stops, workers share the file."""
    with tempfile.TemporaryDirectory() as work:
        data, results = os.path.join(work, 'tokens.u16'), os.path.join(work, 'results.jsonl')
        rng = np.random.default_rng(0)
        words = [rng.integers(0, 200, rng.integers(2, 7)) for _ in range(40)]
        np.concatenate([words[i] for i in rng.integers(0, 40, 40000)]).astype('<u2').tofile(data)
        program = [sys.executable, os.path.join(HERE, 'torch_formats.py'), '--data', data, '--results', results,
                   '--sizes', 'tiny', '--steps', '120', '--eager']
        subprocess.run(program + ['--seeds', '1'], check=True)
        rows = table.read(results)
        expect('all formats ran', [r['format'] for r in rows] == list(tf.FORMATS))
        expect('all formats learn', all(r['final'] < r['train'][0] - 0.5 for r in rows))
        reference = rows[0]['final']
        expect('all are near bf16', all(abs(r['final'] - reference) < 0.05 * reference for r in rows))
        expect('formats differ', len({r['final'] for r in rows}) == len(rows))
        again = subprocess.run(program + ['--seeds', '1'], check=True, capture_output=True, text=True).stdout
        expect('nothing runs twice', again.startswith('0 of') and len(table.read(results)) == len(rows))
        subprocess.run(program + ['--seeds', '2', '--formats', 'bf16', '--budget', '0.1'], check=True)
        expect('the budget stops', len(table.read(results)) == len(rows))
        subprocess.run(program + ['--seeds', '2,3', '--formats', 'bf16,te', '--workers', '2'], check=True)
        expect('workers', len(table.read(results)) == len(rows) + 4)
        print(table.markdown(table.read(results), tf.FORMATS), json.dumps(rows[-1]), sep='\n')


def main():
    if '--compiled' in sys.argv:
        check_compiled()
        return 1 if FAILED else 0
    for check in (check_blocks, check_fp8, check_uniform, check_delayed, check_gradients, check_head,
                  check_table):
        check()
    if '--runs' in sys.argv:
        check_runs()
    return 1 if FAILED else 0


if __name__ == '__main__':
    sys.exit(main())
