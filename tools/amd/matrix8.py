"""Runs the products of 8-bit blocks on AMD's matrix units on an emulator, at small shapes with every kind of edge, and
compares every word with the definition (docs/numerics.md): the sums of a block are integers, so the result is exact. The
memory around the tensors is NaN and must not change. A program that spills registers fails.

    matrix8.py --emulator TREE --target gfx942 --work DIR

Prints one line per case; exit code 1 if a word differs."""
import argparse
import ctypes
import os
import random
import struct
import sys

import emulator
from matrix import ACCUMULATE, BF16, BIAS, F16, F32, NONE, RESIDUAL, Tensor, compiled, pack, rows_of
from replay import Memory

PRODUCT, SAMPLES, CHAIN = 0, 1, 2

_libm = ctypes.CDLL('libm.so.6')
_libm.fmaf.restype, _libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
fma = _libm.fmaf


def f32(x):
    """x, an exact product or sum of fp32 numbers in double, rounded to fp32."""
    return ctypes.c_float(x).value


def stored(kind, x):
    """The bytes of x rounded to a type; beyond its range infinity."""
    return struct.pack('<H', 0x7c00 | (x < 0) << 15) if kind == F16 and abs(x) >= 65520 else pack(kind, x)


class Blocks:
    """A matrix [rows, blocks * block] of bytes with its scales, powers of two that include 0 and the extremes."""

    def __init__(self, rows, blocks, block, tiled):
        self.rows, self.block, self.tiled = rows, block, tiled
        k = blocks * block
        self.ld, self.q_offset = k + 32, 16
        scales = -(-rows // block) if tiled else rows
        self.ld_scale, self.scale_offset = scales + 3, 1
        draw = lambda: random.choice([-127, 127, 0, random.randint(-127, 127), random.randint(-127, 127)])
        self.q = [[draw() for _ in range(k)] for _ in range(rows)]
        self.scale = [[random.choice([0.0] + [2.0 ** random.randint(-9, -5)] * 8 + [2.0 ** -126, 2.0 ** 50])
                       for _ in range(scales)] for _ in range(blocks)]
        data = bytearray(b'\x55' * (self.q_offset + rows * self.ld))
        for r, row in enumerate(self.q):
            struct.pack_into(f'{k}b', data, self.q_offset + r * self.ld, *row)
        words = bytearray(pack(F32, float('nan')) * (self.scale_offset + blocks * self.ld_scale))
        for t, row in enumerate(self.scale):
            struct.pack_into(f'<{scales}f', words, 4 * (self.scale_offset + t * self.ld_scale), *row)
        self.memory, self.scale_memory = Memory(bytes(data)), Memory(bytes(words))

    def scale_of(self, t, row):
        return self.scale[t][row // self.block if self.tiled else row]

    def args(self):
        word = lambda *v: [struct.pack('<Q', x) for x in v]
        return (word(self.memory.address, self.q_offset, self.ld)
                + word(self.scale_memory.address, self.scale_offset, self.ld_scale))


class Gemm8:
    def __init__(self, form, m, n, blocks, group, block=128, tiled=(False, False), kind=F32, flags=0):
        self.form, self.m, self.n, self.blocks, self.group, self.block = form, m, n, blocks, group, block
        self.tiled, self.kind, self.flags = tiled, kind, flags
        self.a, self.b = Blocks(m, blocks, block, tiled[0]), Blocks(n, blocks, block, tiled[1])
        self.c = Tensor(kind, m, n, n + 7, 3, 1)
        have = lambda flag, *args: Tensor(*args) if flags & flag else None
        self.bias, self.residual = have(BIAS, F32, 1, n, n, 2, 1), have(RESIDUAL, F32, m, n, n + 5, 9, 1)

    def name(self):
        words = [w for f, w in ((BIAS, 'bias'), (RESIDUAL, 'residual'), (ACCUMULATE, 'added')) if self.flags & f]
        scales = {(False, False): 'rows', (False, True): 'b tiled', (True, False): 'a tiled', (True, True): 'tiled'}
        return (f"{['product', 'samples', 'chain'][self.form]} {self.m} x {self.n} x {self.blocks} blocks of {self.block} "
                f"{scales[self.tiled]} to {['fp32', 'bf16', 'fp16'][self.kind]} {' '.join(words)}")

    def options(self):
        return [f'-DFORM={self.form}', f'-DBLOCK={self.block}', f'-DA_TILE={int(self.tiled[0])}',
                f'-DB_TILE={int(self.tiled[1])}', f'-DC_TYPE={self.kind}']

    def run(self, code, bm, bn):
        u32 = lambda v: struct.pack('<I', v)
        nothing = [struct.pack('<Q', 0)]
        args = [u32(self.m), u32(self.n), u32(self.blocks), u32(self.group), *self.a.args(), *self.b.args(), u32(self.flags),
                *self.c.args(), *(self.bias.args(False) if self.bias else NONE), *(NONE + nothing) * 2,
                *(self.residual.args() if self.residual else NONE + nothing)]
        emulator.run(code, 'gemm8', [-(-self.n // bn) * 256, -(-self.m // bm)], [256, 1], args)

    def chain(self, acc, i, j, first, count):
        for t in range(first, first + count):
            at = slice(t * self.block, (t + 1) * self.block)
            total = sum(x * y for x, y in zip(self.a.q[i][at], self.b.q[j][at]))
            acc = fma(float(total), f32(self.a.scale_of(t, i) * self.b.scale_of(t, j)), acc)
        return acc

    def want(self, i, j):
        old = self.c.at(self.c.start, i, j) if self.flags & ACCUMULATE else 0.0
        if self.form == CHAIN:
            return self.chain(old, i, j, 0, self.blocks)
        if self.form == SAMPLES:
            for first in range(0, self.blocks, self.group):
                old = f32(old + self.chain(0.0, i, j, first, self.group))
            return old
        v = self.chain(0.0, i, j, 0, self.blocks)
        if self.bias:
            v = f32(v + self.bias.at(self.bias.start, 0, j))
        if self.residual:
            v = f32(self.residual.at(self.residual.start, i, j) + v)
        return f32(old + v) if self.flags & ACCUMULATE else v

    def differing(self):
        """The number of words that differ, or -1 if the kernel wrote outside the result."""
        tensors = [t for t in (self.c, self.bias, self.residual) if t]
        if not all(t.outside_holds() for t in tensors) or not self.a.memory.guards_hold():
            return -1
        data, bytes_each = self.c.memory.contents(), 4 if self.kind == F32 else 2
        place = lambda i, j: (self.c.offset + i * self.c.ld + j) * bytes_each
        return sum(data[place(i, j):place(i, j) + bytes_each] != stored(self.kind, self.want(i, j))
                   for i in range(self.m) for j in range(self.n))


def cases():
    yield Gemm8(PRODUCT, 37, 83, 3, 3)
    yield Gemm8(PRODUCT, 130, 70, 2, 2, tiled=(False, True), kind=BF16, flags=BIAS)
    yield Gemm8(PRODUCT, 70, 131, 1, 1, tiled=(False, True), flags=BIAS | RESIDUAL)
    yield Gemm8(PRODUCT, 5, 140, 5, 5, block=64, tiled=(False, True), flags=ACCUMULATE)
    yield Gemm8(PRODUCT, 66, 65, 3, 3, block=64, tiled=(True, True), kind=F16)
    yield Gemm8(SAMPLES, 69, 101, 4, 2, flags=ACCUMULATE)
    yield Gemm8(SAMPLES, 33, 129, 6, 2, block=64)
    yield Gemm8(CHAIN, 129, 7, 3, 3, flags=ACCUMULATE)
    yield Gemm8(CHAIN, 64, 64, 2, 2, tiled=(True, False))


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--emulator', required=True)
    p.add_argument('--target', required=True)
    p.add_argument('--work', required=True)
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    random.seed(19)
    emulator.load(a.emulator)
    failed = 0
    for row, file, params in rows_of(a.target, 'gemm8/gemm8.vt'):
        size = {k: int(v) for k, v in (p[2:].split('=') for p in params)}
        for case in cases():
            case.run(compiled(a, file, params + case.options()), size['BM'], size['BN'])
            n = case.differing()
            failed += n != 0
            said = 'wrote outside the result' if n < 0 else f'{n} of {case.m * case.n} words differ'
            print(f"{a.target:8} {'FAIL' if n else 'ok  '} {'gemm8=' + row:23} {case.name():62} {said}", flush=True)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
