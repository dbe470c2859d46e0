"""Runs the kernels for AMD's matrix units on an emulator, at small shapes with every kind of edge, against sums in double.
They add in the hardware's order, so each output must be within the bound of the oracle of fast rows
(runtime/ops/ref/clt_ref_gemm.c): k * 2^-22 of the sum of absolute products, and half a step of the stored type.

    matrix.py --emulator TREE --target gfx942 --work DIR

Prints one line a case with the largest part of its bound that an output used; exit 1 if one used more than all of it."""
import argparse
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
F32, BF16, F16 = 0, 1, 2
BIAS, PRE, ACT, GRAD, RESIDUAL, ACCUMULATE = 1, 2, 4, 8, 16, 32
NT, NN, TN = 0, 1, 2


# --- numbers ---

def pack(kind, x):
    """The bytes of the nearest number of a type."""
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


def half_step(kind, x):
    return {F32: 2.0 ** -24, BF16: 2.0 ** -8, F16: 2.0 ** -11}[kind] * abs(x) + (2.0 ** -25 if kind == F16 else 0)


class Tensor:
    """rows x cols numbers, rows ld apart, `offset` numbers from the start of its buffer; NaN everywhere else."""

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
        """The largest part of the bound that an output used."""
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


def gemm_rows(target):
    """The rows of gemm.vt for the target's matrix unit: (id, file, options)."""
    unit = 'mfma' if codeobject.TARGETS[target][2] == 'on' else 'wmma'
    with open(f'{KERNELS}/gemm/gemm.vt') as f:
        for line in f:
            word = line.split('#')[0].split()
            if len(word) == 5 and unit in word[3].split(','):
                yield word[0], word[1], [f'-D{p}' for p in word[4].split(',')]


def compiled(a, file, options):
    path = os.path.join(a.work, f'{a.target}-matrix.co')
    codeobject.compile_kernels(f'{KERNELS}/{file}', a.target, OPTIONS + options, path)
    code = codeobject.CodeObject(path, a.target)
    emulator.renumber(code)
    return code


def check_gemm(a):
    failed = 0
    for row, file, params in gemm_rows(a.target):
        size = {k: int(v) for k, v in (p[2:].split('=') for p in params)}
        for case in gemm_cases():
            case.run(compiled(a, file, params + case.options()), size['BM'], size['BN'])
            worst = case.worst()
            failed += worst > 1
            print(f"{a.target:8} {'FAIL' if worst > 1 else 'ok  '} gemm={row} {case.name():55} {case.m * case.n:6} outputs, "
                  f'{worst:.2f} of the bound', flush=True)
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
    return 1 if check_gemm(a) else 0


if __name__ == '__main__':
    sys.exit(main())
