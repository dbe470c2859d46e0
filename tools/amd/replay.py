"""Runs recorded launches (cltrain train --record, CLTRAIN_RECORD; format: runtime/device/clt_record.h) as AMD machine
code on an emulator, and compares every buffer with the recorded one, word by word.

    replay.py --emulator TREE --target gfx942 --work DIR [--most N] RECORD ...

Each launch starts from its recorded contents, so a failure does not affect later launches. --most: at most N launches
of a kernel with the same options and work-group size, spread over the record (0: all). Prints one line per kernel.
Exit code 1 if a word differs or a kernel does not compile or run, 3 if no launch was selected."""
import argparse
import ctypes
import hashlib
import json
import os
import struct
import sys
import time
from collections import OrderedDict

import codeobject
import emulator

GUARD = 4096  # bytes of NaN words before and after each buffer
WORD = struct.pack('<I', 0x7fa5a5a5)


class Memory:
    """A buffer of a launch in this process, with guards around it."""

    def __init__(self, data):
        self.bytes = len(data)
        self._block = ctypes.create_string_buffer(2 * GUARD + len(data) + 4096)
        self.guards = WORD * (GUARD // 4)
        self._low = (ctypes.addressof(self._block) + 4095) & ~4095
        self.address = self._low + GUARD
        ctypes.memmove(self._low, self.guards, GUARD)
        ctypes.memmove(self.address, data, len(data))
        ctypes.memmove(self.address + len(data), self.guards, GUARD)

    def contents(self):
        return ctypes.string_at(self.address, self.bytes)

    def guards_hold(self):
        return (ctypes.string_at(self._low, GUARD) == self.guards
                and ctypes.string_at(self.address + self.bytes, GUARD) == self.guards)


def is_nan(word):
    return word & 0x7fffffff > 0x7f800000


def differences(got, want):
    """Indices of the words that differ; a NaN equals any NaN."""
    if got == want:
        return []
    a, b = (memoryview(x[:len(x) // 4 * 4]).cast('I') for x in (got, want))
    bad = [i for i in range(len(a)) if a[i] != b[i] and not (is_nan(a[i]) and is_nan(b[i]))]
    if got[len(a) * 4:] != want[len(a) * 4:]:
        bad.append(len(a))
    return bad


class Replayer:
    def __init__(self, target, work):
        self.target, self.work, self.objects, self.aligned = target, work, {}, 0

    def code(self, folder, launch, more):
        """The launch's program for the target; compiled once and cached in the work folder."""
        options = launch['options'].split() + more
        key = hashlib.sha256(f"{self.target} {launch['source']} {options}".encode()).hexdigest()[:24]
        if key not in self.objects:
            path = os.path.join(self.work, f'{self.target}-{key}.co')
            if not os.path.exists(path):
                source = os.path.join(folder, launch['source'])
                codeobject.compile_kernels(source, self.target, options, path + '.tmp')
                os.rename(path + '.tmp', path)
            self.objects[key] = codeobject.CodeObject(path, self.target)
            emulator.renumber(self.objects[key])
        return self.objects[key]

    def run(self, folder, launch):
        """Returns (words compared, words that the launch changed, message or None). The emulator's wide stores drop the
        lowest bits of an address. Where 16-bit rows start inside a word a launch can only be right with the compiler told
        that the target wants aligned accesses, which is then tried."""
        result = self.run_with(folder, launch, [])
        if result[2] and 'TYPE=' in launch['options']:
            result = self.run_with(folder, launch, ['-Xclang', '-target-feature', '-Xclang', '-unaligned-access-mode'])
            self.aligned += result[2] is None
        return result

    def execute(self, folder, launch, memory, more=()):
        """Runs a launch on its buffers (a list of Memory)."""
        code = self.code(folder, launch, list(more))
        values = []
        for a in launch['args']:
            (kind, v), = a.items()
            if kind == 'buffer':
                values.append(struct.pack('<Q', 0 if v is None else memory[v].address))
            elif kind == 'local':
                values.append(v)
            else:
                values.append(struct.pack({'i32': '<i', 'u32': '<I', 'u64': '<Q', 'f32': '<I'}[kind], v))
        emulator.run(code, launch['kernel'], launch['global'], local_size(launch), values)

    def run_with(self, folder, launch, more):
        read = lambda name: open(os.path.join(folder, name), 'rb').read()
        memory = [Memory(read(b['before'])) for b in launch['buffers']]
        self.execute(folder, launch, memory, more)
        words = changed = 0
        for b, m in zip(launch['buffers'], memory):
            want, got = read(b['after']), m.contents()
            words += len(want) // 4
            changed += 0 if b['before'] == b['after'] else len(differences(read(b['before']), want))
            bad = differences(got, want)
            if bad:
                at = 4 * bad[0]
                return words, changed, (f"launch {launch['launch']}: {len(bad)} of {len(want) // 4} words of '{b['name']}' differ, first "
                               f"word {bad[0]}: {got[at:at + 4][::-1].hex()} instead of {want[at:at + 4][::-1].hex()}")
            if not m.guards_hold():
                return words, changed, f"launch {launch['launch']}: it wrote outside '{b['name']}'"
        return words, changed, None


def local_size(launch):
    """The work-group size; if the driver chose it, the largest divisor of the first size up to 64."""
    if launch['local']:
        return launch['local']
    n = launch['global'][0]
    return [max(d for d in range(1, 65) if n % d == 0)] + [1] * (len(launch['global']) - 1)


def cpu_only(launch):
    """Whether this is a kernel for CPUs, with one work-item per group and vectors of 16, which GPUs never use."""
    return '_cpu.cl' in launch['file'] or '-DLANES=16' in launch['options']


def load(folder):
    with open(os.path.join(folder, 'launches.jsonl')) as f:
        lines = [json.loads(line) for line in f]
    return [x for x in lines if 'launch' in x and not cpu_only(x)]


def spread(items, most):
    """At most `most` of the items, including the first and the last."""
    if most <= 0 or len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // max(most - 1, 1)] for i in range(most)]


NOTHING = 3  # exit code: no launch was selected


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--emulator', required=True)
    p.add_argument('--target', required=True, choices=list(codeobject.TARGETS))
    p.add_argument('--work', required=True)
    p.add_argument('--most', type=int, default=0)
    p.add_argument('--only', default='', help='only kernels whose "file name" contains this')
    p.add_argument('record', nargs='+')
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    kernels = OrderedDict()
    for folder in a.record:
        for launch in load(folder):
            name = f"{launch['file']} {launch['kernel']}"
            if a.only in name:
                sets = kernels.setdefault(name, OrderedDict())
                sets.setdefault((launch['options'], str(launch['local'])), []).append((folder, launch))
    if not kernels:
        print(f'{a.target}: no launch of a kernel whose "file name" contains "{a.only}"')
        return NOTHING
    emulator.load(a.emulator)
    replayer, failed, total = Replayer(a.target, a.work), 0, [0, 0, 0, 0]
    for name, sets in sorted(kernels.items()):
        start, words, changed, launches, messages = time.time(), 0, 0, 0, []
        for chosen in sets.values():
            for folder, launch in spread(chosen, a.most):
                print(f'{name} launch {launch["launch"]} of {folder}', file=sys.stderr, flush=True)
                launches += 1
                try:
                    n, c, message = replayer.run(folder, launch)
                except (codeobject.CompileError, RuntimeError, ValueError, KeyError, NotImplementedError) as e:
                    n, c, message = 0, 0, f"launch {launch['launch']}: {type(e).__name__}: {str(e)[:300]}"
                words += n
                changed += c
                if message:
                    messages.append(f"{message} [{folder}, {launch['options']}]")
        failed += bool(messages)
        total = [t + x for t, x in zip(total, (1, launches, words, changed))]
        print(f'{a.target:8} {"FAIL" if messages else "ok  "} {name:58} {len(sets):3} programs {launches:5} launches '
              f'{words:10} words {changed:9} changed {time.time() - start:6.1f} s', flush=True)
        for m in messages[:3]:
            print(f'         {m}', flush=True)
    print(f'{a.target}: {total[0]} kernels, {total[1]} launches, {total[2]} words compared, of which {total[3]} were changed by '
          f'the launches; {failed} kernels failed, {replayer.aligned} launches ran with aligned accesses only')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
