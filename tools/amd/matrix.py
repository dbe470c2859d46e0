"""Runs the kernels for AMD's matrix units on an emulator, at small shapes with every kind of edge, and compares with
sums in double. Matrix units add in an order of their own, so each output must be within the bound of the oracle of fast
rows (clt_ref_gemm_near_at, clt_ref_attention_row and clt_ref_attention_gradients in runtime/ops/ref). The memory around
the tensors is NaN and must not change. A program that spills registers fails.

    matrix.py --emulator TREE --target gfx942 --work DIR

Prints one line per case with the largest error as a fraction of its bound; exit code 1 if one exceeds its bound."""
import argparse
import ctypes
import math
import os
import random
import struct
import sys

import codeobject
import emulator
from replay import Memory

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'clkernels')
OPTIONS = ['-cl-std=CL1.2', '-cl-fp32-correctly-rounded-divide-sqrt']
# For heads that end inside a tile, whose last numbers the compiler may store as words at odd places: the emulator's stores drop
# the lowest bits of an address.
ALIGNED = ['-Xclang', '-target-feature', '-Xclang', '-unaligned-access-mode']
F32, BF16, F16 = 0, 1, 2
BIAS, PRE, ACT, GRAD, RESIDUAL, ACCUMULATE = 1, 2, 4, 8, 16, 32
NT, NN, TN = 0, 1, 2


# --- numbers ---

def pack(kind, x):
    """The bytes of x rounded to a type."""
    if kind == F32:
        return struct.pack('<f', x)
    if kind == F16:
        return struct.pack('<e', x)
    word = struct.unpack('<I', struct.pack('<f', x))[0]
    return struct.pack('<H', (word + 0x7fff + (word >> 16 & 1)) >> 16)


def unpack(kind, data):
    n = len(data) // (4 if kind == F32 else 2)
    if kind == F32:
        return list(struct.unpack(f'<{n}f', data))
    if kind == F16:
        return list(struct.unpack(f'<{n}e', data))
    return [struct.unpack('<f', struct.pack('<I', w << 16))[0] for w in struct.unpack(f'<{n}H', data)]


def philox(counter, key):
    """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xffffffff, a >> 32 ^ c[3] ^ k[1], a & 0xffffffff]
        k = [k[0] + 0x9E3779B9 & 0xffffffff, k[1] + 0xBB67AE85 & 0xffffffff]
    return c


def half_step(kind, x):
    return {F32: 2.0 ** -24, BF16: 2.0 ** -8, F16: 2.0 ** -11}[kind] * abs(x) + (2.0 ** -25 if kind == F16 else 0)


class Tensor:
    """rows x cols numbers with row stride ld, `offset` numbers from the start of the buffer; NaN everywhere else."""

    def __init__(self, kind, rows, cols, ld, offset, scale):
        self.kind, self.rows, self.cols, self.ld, self.offset = kind, rows, cols, ld, offset
        nan = pack(kind, math.nan)
        data = [nan] * (offset + rows * ld + 5)
        for r in range(rows):
            for c in range(cols):
                data[offset + r * ld + c] = pack(kind, random.uniform(-scale, scale))
        self.memory = Memory(b''.join(data))
        self.start = self.values()

    def values(self):
        return unpack(self.kind, self.memory.contents())

    def set(self, values):
        """Rounds the values, in the order of values(), to the type and stores them."""
        data = b''.join(pack(self.kind, x) for x in values)
        ctypes.memmove(self.memory.address, data, len(data))
        self.start = self.values()

    def at(self, values, r, c):
        return values[self.offset + r * self.ld + c]

    def outside_holds(self):
        now = self.values()
        inside = {self.offset + r * self.ld + c for r in range(self.rows) for c in range(self.cols)}
        return self.memory.guards_hold() and all(math.isnan(v) for i, v in enumerate(now) if i not in inside)

    def args(self, with_ld=True):
        return [struct.pack('<Q', self.memory.address), struct.pack('<Q', self.offset)] + (
            [struct.pack('<Q', self.ld)] if with_ld else [])


NONE = [struct.pack('<Q', 0)] * 2


def gelu(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_grad(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2))) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# --- GEMM ---

class Gemm:
    def __init__(self, form, m, n, k, kind, flags, wide):
        self.form, self.m, self.n, self.k, self.kind, self.flags = form, m, n, k, kind, flags
        self.c_kind = F32 if wide else kind
        ld = lambda cols: cols + 3
        shape_a = (k, m) if form == TN else (m, k)
        shape_b = (n, k) if form == NT else (k, n)
        self.a = Tensor(kind, *shape_a, ld(shape_a[1]), 5, 1)
        self.b = Tensor(kind, *shape_b, ld(shape_b[1]), 1, 1)
        self.c = Tensor(self.c_kind, m, n, n + 7, 3, 1)
        have = lambda flag, *args: Tensor(*args) if flags & flag else None
        self.bias = have(BIAS, F32, 1, n, n, 2, 1)
        self.pre = have(PRE, kind, m, n, n + 1, 7, 1)
        self.grad = have(GRAD, kind, m, n, n + 2, 1, 2)
        self.residual = have(RESIDUAL, F32, m, n, n + 5, 9, 1)

    def name(self):
        words = [w for f, w in ((BIAS, 'bias'), (PRE, 'pre'), (ACT, 'gelu'), (GRAD, 'derivative'), (RESIDUAL, 'residual'),
                                (ACCUMULATE, 'added')) if self.flags & f]
        return (f"{['NT', 'NN', 'TN'][self.form]} {self.m} x {self.n} x {self.k} {['', 'bf16', 'fp16'][self.kind]} to "
                f"{['fp32', 'bf16', 'fp16'][self.c_kind]} {' '.join(words)}")

    def options(self):
        return [f'-DFORM={self.form}', f'-DIN_TYPE={self.kind}', f'-DC_TYPE={self.c_kind}', f'-DAUX_TYPE={self.kind}',
                f'-DACT={1 if self.flags & ACT else 0}', f'-DGRAD_ACT={1 if self.flags & GRAD else 0}']

    def run(self, code, bm, bn):
        u32 = lambda v: struct.pack('<I', v)
        optional = lambda t, with_ld=True: t.args(with_ld) if t else NONE + ([struct.pack('<Q', 0)] if with_ld else [])
        args = [u32(self.m), u32(self.n), u32(self.k), u32(self.k), *self.a.args(), *self.b.args(), u32(self.flags),
                *self.c.args(), *optional(self.bias, False), *optional(self.pre), *optional(self.grad),
                *optional(self.residual)]
        emulator.run(code, 'gemm', [-(-self.n // bn) * 256, -(-self.m // bm)], [256, 1], args)

    def products(self, i, j):
        a = lambda kk: self.a.at(self.a.start, *((kk, i) if self.form == TN else (i, kk)))
        b = lambda kk: self.b.at(self.b.start, *((j, kk) if self.form == NT else (kk, j)))
        return [a(kk) * b(kk) for kk in range(self.k)]

    def worst(self):
        """The largest error as a fraction of its bound."""
        c, pre, most = self.c.values(), self.pre.values() if self.pre else None, 0.0
        for i in range(self.m):
            for j in range(self.n):
                ab = self.products(i, j)
                v, off = math.fsum(ab), self.k * 2.0 ** -22 * math.fsum(map(abs, ab))
                largest = abs(v)
                if self.bias:
                    v, largest = v + self.bias.at(self.bias.start, 0, j), largest + 1
                if self.pre:
                    bound = off + half_step(F32, v) + half_step(self.kind, v)
                    most = max(most, abs(self.pre.at(pre, i, j) - v) / bound)
                if self.flags & ACT:
                    v = gelu(v)
                if self.grad:
                    v *= gelu_grad(self.grad.at(self.grad.start, i, j))
                for t, on in ((self.residual, RESIDUAL), (self.c, ACCUMULATE)):
                    if self.flags & on:
                        old = t.at(t.start, i, j)
                        v, largest = v + old, largest + abs(old)
                bound = 2 * off + 2.0 ** -20 * largest + half_step(self.c_kind, abs(v) + 2 * off)
                error = abs(self.c.at(c, i, j) - v) / bound
                most = math.inf if math.isnan(error) else max(most, error)
        tensors = [t for t in (self.a, self.b, self.c, self.bias, self.pre, self.grad, self.residual) if t]
        return most if all(t.outside_holds() for t in tensors) else math.inf


def gemm_cases():
    for kind in (BF16, F16):
        yield Gemm(NT, 37, 83, 71, kind, BIAS | PRE | ACT, False)
        yield Gemm(NT, 150, 20, 40, kind, BIAS | RESIDUAL | ACCUMULATE, True)
        yield Gemm(NN, 66, 97, 33, kind, GRAD, False)
        yield Gemm(NN, 5, 131, 64, kind, 0, True)
        yield Gemm(TN, 69, 101, 50, kind, ACCUMULATE, True)
        yield Gemm(TN, 130, 7, 3, kind, 0, False)
    # With whole tiles of the largest rows, and steps of k that follow one another.
    yield Gemm(NT, 131, 134, 134, BF16, 0, True)
    yield Gemm(NN, 130, 129, 67, F16, 0, True)
    yield Gemm(TN, 129, 131, 129, BF16, 0, True)


def rows_of(target, table):
    """The rows of a variant table for the target's matrix unit: (id, file, options)."""
    unit = 'mfma' if codeobject.TARGETS[target][2] == 'on' else 'wmma'
    with open(f'{KERNELS}/{table}') as f:
        for line in f:
            word = line.split('#')[0].split()
            if len(word) == 5 and unit in word[3].split(','):
                yield word[0], word[1], [f'-D{p}' for p in word[4].split(',')]


def compiled(a, file, options):
    path = os.path.join(a.work, f'{a.target}-matrix.co')
    codeobject.compile_kernels(f'{KERNELS}/{file}', a.target, OPTIONS + options, path)
    code = codeobject.CodeObject(path, a.target)
    for name, kernel in code.kernels.items():
        if int(kernel['vgpr_spill_count']) + int(kernel['private_segment_fixed_size']):
            raise RuntimeError(f'{name} of {file} spills registers with {options}')
    emulator.renumber(code)
    return code


def report(a, what, case, outputs):
    worst = case.worst()
    print(f"{a.target:8} {'FAIL' if worst > 1 else 'ok  '} {what:23} {case.name():55} {outputs:6} outputs, "
          f'{worst:.2f} of the bound', flush=True)
    return worst > 1


def check_gemm(a):
    failed = 0
    for row, file, params in rows_of(a.target, 'gemm/gemm.vt'):
        size = {k: int(v) for k, v in (p[2:].split('=') for p in params)}
        for case in gemm_cases():
            case.run(compiled(a, file, params + case.options()), size['BM'], size['BN'])
            failed += report(a, f'gemm={row}', case, case.m * case.n)
    return failed


# --- attention ---

class Attention:
    """The forward pass."""

    def __init__(self, batch, seq, heads, group, size, kind, alibi=False, window=-1, seq_ids=False, softcap=0.0, dropout=0.0,
                 causal=True):
        self.causal, self.batch, self.seq, self.heads, self.group, self.size, self.kind = causal, batch, seq, heads, group, size, kind
        self.window, self.softcap, self.scale, self.dropout = window, softcap, 1 / math.sqrt(size), dropout
        rows, kv = batch * seq, heads // group
        self.q = Tensor(kind, rows, heads * size, heads * size + 8, 3, 2)
        self.k = Tensor(kind, rows, kv * size, kv * size + 5, 1, 2)
        self.v = Tensor(kind, rows, kv * size, kv * size, 7, 1)
        # Rows of o start at whole words, because the emulator's wide stores drop the lowest bits of an
        # address.
        self.o = Tensor(kind, rows, heads * size, heads * size + 2, 2, 1)
        self.lse = Tensor(F32, 1, batch * heads * seq, batch * heads * seq, 4, 1)
        self.slopes = Tensor(F32, 1, heads, heads, 1, 0.5) if alibi else None
        self.ids = [r % seq * 3 // seq for r in range(rows)] if seq_ids else None
        self.id_memory = Memory(struct.pack(f'<{rows}i', *self.ids)) if seq_ids else None

    def name(self):
        words = [w for w, on in (('unmasked', not self.causal), ('alibi', self.slopes), ('window', self.window >= 0), ('ids', self.ids),
                                 ('softcap', self.softcap), ('dropout', self.dropout)) if on]
        return (f"B {self.batch} H {self.heads}/{self.group} T {self.seq} D {self.size} "
                f"{['', 'bf16', 'fp16'][self.kind]} {' '.join(words)}")

    def options(self):
        return [f'-DHEAD_DIM={self.size}', f'-DTYPE={self.kind}', f'-DALIBI={int(self.slopes is not None)}',
                f'-DSOFTCAP={int(self.softcap > 0)}', f'-DWINDOW={int(self.window >= 0)}',
                f'-DSEQ_IDS={int(self.ids is not None)}', f'-DDROPOUT={int(self.dropout > 0)}', f'-DCAUSAL={int(self.causal)}',
                *(ALIGNED if self.size % 16 else [])]

    DROP = [11, 13, 17, 19, 23]  # key, step, first sample, layer and site, as the kernel takes them

    def common_args(self):
        u32 = lambda x: struct.pack('<I', x)
        matrix = lambda t: t.args(False) + [u32(t.ld)]
        ids = [struct.pack('<QQ', self.id_memory.address, 0)[i:i + 8] for i in (0, 8)] if self.ids else NONE
        return [*matrix(self.q), *matrix(self.k), *matrix(self.v), *(self.slopes.args(False) if self.slopes else NONE), *ids,
                u32(self.seq), u32(self.heads), u32(self.group), struct.pack('<f', self.scale),
                struct.pack('<f', self.softcap), u32(max(self.window, 0)), *map(u32, self.DROP),
                u32(int(self.dropout * 2 ** 32)), struct.pack('<f', 1 / (1 - self.dropout))]

    def run(self, code, rows, items):
        emulator.run(code, 'attention_forward', [-(-self.seq // rows) * items, self.heads, self.batch], [items, 1, 1],
                     [*self.common_args(), *self.o.args(False), struct.pack('<I', self.o.ld), *self.lse.args(False)])

    def keep(self, b, h, i, j):
        """The dropout factor of a pair (query, key)."""
        if not self.dropout:
            return 1.0
        element, (key0, key1, step, sample, place) = (h * self.seq + i) * self.seq + j, self.DROP
        words = philox((step, sample + b, place, element // 4), (key0, key1))
        return 1 / (1 - self.dropout) if words[element % 4] >= int(self.dropout * 2 ** 32) else 0.0

    def keys(self, b, i):
        """The keys that a row attends to."""
        ids = self.ids and self.ids[b * self.seq:][:self.seq]
        begin = max(0, i - self.window) if self.window >= 0 else 0
        end = i + 1 if self.causal else min(self.seq, i + self.window + 1) if self.window >= 0 else self.seq
        return [j for j in range(begin, end) if not ids or ids[i] == ids[j]]

    def row(self, b, h, i):
        """The output row and its bounds, the log-sum-exp and its bound, as in clt_ref_attention_row."""
        n, hk = self.size, h // self.group
        q = [self.q.at(self.q.start, b * self.seq + i, h * n + d) for d in range(n)]
        scores, largest = {}, 0.0
        for j in self.keys(b, i):
            products = [x * self.k.at(self.k.start, b * self.seq + j, hk * n + d) for d, x in enumerate(q)]
            s, size = math.fsum(products) * self.scale, math.fsum(map(abs, products)) * self.scale
            if self.softcap:
                s, size = self.softcap * math.tanh(s / self.softcap), size + self.softcap
            if self.slopes:
                bias = self.slopes.at(self.slopes.start, 0, h) * -abs(i - j)
                s, size = s + bias, size + abs(bias)
            scores[j], largest = s, max(largest, size)
        top = max(scores.values())
        lse = top + math.log(math.fsum(math.exp(s - top) for s in scores.values()))
        u = {BF16: 2.0 ** -8, F16: 2.0 ** -11}[self.kind]
        e, adding = (n + 8) * 2.0 ** -23 * largest, 2.0 ** -21 * (1 + (i + 1 if self.causal else self.seq) / 64)
        want, bound = [], []
        for d in range(n):
            wv = [(math.exp(s - lse) * self.keep(b, h, i, j), self.v.at(self.v.start, b * self.seq + j, hk * n + d)) for j, s in scores.items()]
            far = 2.0 ** -25 * (1 + math.fsum(abs(v) for _, v in wv)) if self.kind == F16 else 0
            want.append(math.fsum(w * v for w, v in wv))
            bound.append(1.01 * (2 * u + 2 * e + adding) * math.fsum(w * abs(v) for w, v in wv) + far)
        return want, bound, lse, 1.01 * (2 * e + adding) + 2.0 ** -22 * abs(lse)

    def outputs(self):
        return self.batch * self.heads * self.seq * (self.size + 1)

    def worst(self):
        o, lse, most = self.o.values(), self.lse.values(), 0.0
        for b in range(self.batch):
            for h in range(self.heads):
                for i in range(self.seq):
                    want, bound, want_lse, lse_bound = self.row(b, h, i)
                    errors = [abs(self.o.at(o, b * self.seq + i, h * self.size + d) - w) / bound[d] for d, w in enumerate(want)]
                    errors.append(abs(self.lse.at(lse, 0, (b * self.heads + h) * self.seq + i) - want_lse) / lse_bound)
                    most = math.inf if any(map(math.isnan, errors)) else max(most, *errors)
        return most if all(t.outside_holds() for t in (self.q, self.k, self.v, self.o, self.lse)) else math.inf


class AttentionGradients(Attention):
    """The backward pass; o and lse are those of the formula."""

    def __init__(self, *args, add=False, **features):
        super().__init__(*args, **features)
        n, rows, kv = self.size, self.batch * self.seq, self.heads // self.group
        self.add, wide, narrow = add, self.heads * n, kv * n
        even = lambda cols: cols + cols % 2
        self.dout = Tensor(self.kind, rows, wide, wide + 4, 5, 1)
        self.dq = Tensor(self.kind, rows, wide, even(wide), 2, 1)
        self.dk = Tensor(self.kind, rows, narrow, even(narrow) + 6, 4, 1)
        self.dv = Tensor(self.kind, rows, narrow, even(narrow) + 2, 0, 1)
        self.delta = Tensor(F32, 1, self.batch * self.heads * self.seq, self.batch * self.heads * self.seq, 0, 1)
        o, lse = self.o.start, self.lse.start
        for b, h, i in self.places():
            want, _, row_lse, _ = self.row(b, h, i)
            for d, x in enumerate(want):
                o[self.o.offset + (b * self.seq + i) * self.o.ld + h * n + d] = x
            lse[self.lse.offset + (b * self.heads + h) * self.seq + i] = row_lse
        self.o.set(o)
        self.lse.set(lse)

    def places(self):
        return [(b, h, i) for b in range(self.batch) for h in range(self.heads) for i in range(self.seq)]

    def name(self):
        return super().name() + (' added' if self.add else '')

    def run(self, code, rows, items):
        u32 = lambda x: struct.pack('<I', x)
        matrix = lambda t: t.args(False) + [u32(t.ld)]
        delta = struct.pack('<Q', self.delta.memory.address)
        common = [*self.common_args(), *self.lse.args(False), delta, *matrix(self.dout)]
        tiles, kv = -(-self.seq // rows) * items, self.heads // self.group
        emulator.run(code, 'attention_delta', [-(-self.seq // 64) * 64, self.heads, self.batch], [64, 1, 1],
                     [*matrix(self.dout), *matrix(self.o), delta, u32(self.seq), u32(self.heads)])
        emulator.run(code, 'attention_backward_q', [tiles, self.heads, self.batch], [items, 1, 1],
                     [*common, *matrix(self.dq)])
        emulator.run(code, 'attention_backward_kv', [tiles, kv, self.batch], [items, 1, 1],
                     [*common, *matrix(self.dk), *matrix(self.dv), u32(self.add)])

    def pair(self, q, k, dout, v, bias, lse, delta, delta_size, keep):
        """p, its error, ds without the scale and its error, as pair_of in clt_ref_attention_row.c."""
        u, step = {BF16: (2.0 ** -8, 2.0 ** -126), F16: (2.0 ** -11, 2.0 ** -25)}[self.kind]
        e, products = (self.size + 8) * 2.0 ** -23, [x * y for x, y in zip(q, k)]
        s, size = math.fsum(products) * self.scale, math.fsum(map(abs, products)) * self.scale
        slope = slope_error = t = 0.0
        if self.softcap:
            t = math.tanh(s / self.softcap)
            s, size, slope_error = self.softcap * t, size + self.softcap, 2.0 ** -20
        s, size, slope = s + bias, size + abs(bias), 1 - t * t
        products = [x * y for x, y in zip(dout, v)]
        dp, dp_size, w = keep * math.fsum(products), keep * math.fsum(map(abs, products)), math.exp(s - lse)
        w_error = w * (e * size + 2.0 ** -21 + 2.0 ** -22 * abs(lse)) + 2.0 ** -126
        p, ds = w * keep, w * (dp - delta) * slope
        p_error = w_error * keep + p * u + step
        ds_error = w_error * abs(dp - delta) + abs(ds) * (u + 2.0 ** -22) + step
        ds_error += w * (e * (dp_size + delta_size) + slope_error * abs(dp - delta))
        return p, p_error, ds, ds_error

    def gradients(self):
        """dq, dk, dv as {(row, column): [value, bound]}, without the previous contents."""
        n, adding = self.size, 2.0 ** -21 * (1 + self.seq / 64)
        cut = lambda t, r, head: t.start[t.offset + r * t.ld + head * n:][:n]
        dq, dk, dv = ([[[0.0, 0.0] for _ in range(t.cols)] for _ in range(t.rows)] for t in (self.dq, self.dk, self.dv))
        for b, h, i in self.places():
            r, g = b * self.seq + i, h // self.group
            q, dout, o = cut(self.q, r, h), cut(self.dout, r, h), cut(self.o, r, h)
            lse = self.lse.at(self.lse.start, 0, (b * self.heads + h) * self.seq + i)
            products = [x * y for x, y in zip(dout, o)]
            delta, delta_size = math.fsum(products), math.fsum(map(abs, products))
            for j in self.keys(b, i):
                c = b * self.seq + j
                k, v = cut(self.k, c, g), cut(self.v, c, g)
                bias = self.slopes.at(self.slopes.start, 0, h) * -abs(i - j) if self.slopes else 0.0
                p, p_error, ds, ds_error = self.pair(q, k, dout, v, bias, lse, delta, delta_size, self.keep(b, h, i, j))
                for out, x, error, y in ((dq[r][h * n:(h + 1) * n], ds, ds_error, k), (dk[c][g * n:(g + 1) * n], ds, ds_error, q),
                                         (dv[c][g * n:(g + 1) * n], p, p_error, dout)):
                    error += adding * abs(x)
                    for d in range(n):
                        out[d][0] += x * y[d]
                        out[d][1] += error * abs(y[d])
        return dq, dk, dv

    def outputs(self):
        return self.batch * self.seq * (self.dq.cols + self.dk.cols + self.dv.cols)

    def worst(self):
        u, step = {BF16: (2.0 ** -8, 2.0 ** -126), F16: (2.0 ** -11, 2.0 ** -25)}[self.kind]
        most = 0.0
        for t, want, scale in zip((self.dq, self.dk, self.dv), self.gradients(), (self.scale, self.scale, 1.0)):
            got = t.values()
            for r in range(t.rows):
                for c in range(t.cols):
                    x, bound = want[r][c][0] * scale, want[r][c][1] * scale
                    x += t.at(t.start, r, c) if self.add and t is not self.dq else 0.0
                    error = abs(t.at(got, r, c) - x) / (1.01 * (bound + u * (abs(x) + bound)) + step)
                    most = math.inf if math.isnan(error) else max(most, error)
        tensors = (self.q, self.k, self.v, self.o, self.lse, self.dout, self.dq, self.dk, self.dv)
        return most if all(t.outside_holds() for t in tensors) else math.inf


def gradient_cases():
    yield AttentionGradients(2, 83, 2, 2, 64, BF16)
    yield AttentionGradients(1, 150, 2, 1, 64, F16, alibi=True)
    yield AttentionGradients(1, 70, 1, 1, 128, BF16, window=40, add=True)
    yield AttentionGradients(1, 67, 2, 2, 80, F16, seq_ids=True, softcap=3.0, add=True)
    yield AttentionGradients(1, 75, 2, 2, 32, F16, alibi=True, window=20, dropout=0.25)
    yield AttentionGradients(1, 33, 1, 1, 20, BF16)
    yield AttentionGradients(1, 83, 2, 1, 80, BF16, causal=False, add=True)
    yield AttentionGradients(1, 75, 2, 2, 32, F16, causal=False, alibi=True, window=20, seq_ids=True, dropout=0.25)


def attention_cases():
    yield Attention(2, 83, 2, 2, 64, BF16)
    yield Attention(1, 150, 2, 1, 64, F16, alibi=True)
    yield Attention(1, 70, 1, 1, 128, BF16, window=40)
    yield Attention(1, 67, 2, 2, 80, F16, seq_ids=True, softcap=3.0)
    yield Attention(1, 75, 2, 2, 32, F16, alibi=True, window=20, dropout=0.25)
    yield Attention(1, 33, 1, 1, 20, BF16)
    yield Attention(1, 210, 1, 1, 128, F16)
    yield Attention(1, 140, 1, 1, 64, BF16, causal=False)
    yield Attention(2, 83, 2, 1, 80, BF16, causal=False)
    yield Attention(1, 75, 2, 2, 32, F16, causal=False, alibi=True, window=20, seq_ids=True, dropout=0.25)


def check_attention(a, op, cases):
    failed = 0
    for row, file, params in rows_of(a.target, f'attention/{op}.vt'):
        size = {k: int(v) for k, v in (p[2:].split('=') for p in params)}
        for case in cases():
            case.run(compiled(a, file, params + case.options()), size['ROWS'], size['ITEMS'])
            failed += report(a, f'{op}={row}', case, case.outputs())
    return failed


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--emulator', required=True)
    p.add_argument('--target', required=True, choices=list(codeobject.TARGETS))
    p.add_argument('--work', required=True)
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    random.seed(17)
    emulator.load(a.emulator)
    failed = check_gemm(a) + check_attention(a, 'attention', attention_cases)
    failed += check_attention(a, 'attention_backward', gradient_cases)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
