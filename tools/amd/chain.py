#!/usr/bin/env python3
"""Runs all launches of a recorded training run in order as AMD machine code. Each launch starts from the buffers that
the previous launches left, as on a real device. Only words that the host wrote (uploads, fills, copies) come from the
record; they are those that changed between two launches. At the end the program hashes weights and optimizer state
(docs/checkpoint-format.md) and compares with the hash of the checkpoint that the recorded run wrote.

    chain.py --emulator TREE --target gfx90a --work DIR --cltrain PROGRAM --checkpoint FOLDER RECORD

Needs slabs of one piece and the C library libxxhash. Exit code 1 if a launch writes other words than recorded, or
if the hashes differ."""
import argparse
import ctypes
import ctypes.util
import json
import os
import struct
import subprocess
import sys

import emulator
from codeobject import TARGETS
from replay import Memory, Replayer, cpu_only, differences

CHUNK, PACK = 65536, 64  # alignment of large and small tensors in a slab (runtime/device/clt_slab.h), in elements
ROLES = {'weight': 'weights', 'exp_avg': 'exp_avg', 'exp_avg_sq': 'exp_avg_sq'}  # names of their buffers


class Chain:
    def __init__(self, folder, replayer):
        self.folder, self.replayer = folder, replayer
        self.state, self.recorded = {}, {}  # for each buffer number: our bytes; the recorded bytes
        self.last = {}                      # for each name: the number of the newest buffer
        self.first = {}                     # the first contents of each buffer
        self.uploaded = self.launches = 0

    def read(self, name):
        with open(os.path.join(self.folder, name), 'rb') as f:
            return f.read()

    def contents(self, buffer):
        """Contents of the buffer before a launch: our bytes, with the words that the host has changed since."""
        number, before = buffer['number'], self.read(buffer['before'])
        if number not in self.state:
            self.uploaded += len(before) // 4
            self.first[number] = before
            return before
        ours, then = bytearray(self.state[number]), self.recorded[number]
        for i in differences(before, then):
            ours[4 * i:4 * i + 4] = before[4 * i:4 * i + 4]
            self.uploaded += 1
        return bytes(ours)

    def run(self, launch):
        """Runs a launch; returns a message if a word differs from the record, else None."""
        memory = [Memory(self.contents(b)) for b in launch['buffers']]
        self.replayer.execute(self.folder, launch, memory)
        self.launches += 1
        for b, m in zip(launch['buffers'], memory):
            number = self.last[b['name']] = b['number']
            self.state[number], self.recorded[number] = m.contents(), self.read(b['after'])
            bad = differences(self.state[number], self.recorded[number])
            if bad or not m.guards_hold():
                return f"launch {launch['launch']} ({launch['kernel']}): {len(bad)} words of '{b['name']}' differ from the record"
        return None

    def slab(self, role):
        return self.state[self.last[ROLES[role]]]

    def trained(self):
        """Number of weights that differ from their first values."""
        return len(differences(self.slab('weight'), self.first[self.last[ROLES['weight']]]))


def xxh3(data):
    library = ctypes.CDLL(ctypes.util.find_library('xxhash'))

    class Hash(ctypes.Structure):
        _fields_ = [('low', ctypes.c_uint64), ('high', ctypes.c_uint64)]

    library.XXH3_128bits.restype, library.XXH3_128bits.argtypes = Hash, (ctypes.c_char_p, ctypes.c_size_t)
    h = library.XXH3_128bits(data, len(data))
    return f'{h.high:016x}{h.low:016x}'


def state_hash(tensors, slab_of, roles):
    """The hash of a state (docs/checkpoint-format.md). tensors: from the manifest; slab_of(role): bytes of a slab."""
    data = []
    for role in roles:
        at = 0
        for t in (t for t in tensors if t['role'] == role):
            count = 1
            for n in t['shape']:
                count *= n
            step = CHUNK if count >= CHUNK else PACK
            at = -(-at // step) * step
            data += [role.encode(), b'\0', t['name'].encode(), b'\0', struct.pack('<Q', len(t['shape'])),
                     struct.pack(f"<{len(t['shape'])}Q", *t['shape']), slab_of(role)[4 * at:4 * (at + count)]]
            at += count
    return xxh3(b''.join(data))


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--emulator', required=True)
    p.add_argument('--target', required=True, choices=list(TARGETS))
    p.add_argument('--work', required=True)
    p.add_argument('--cltrain', required=True)
    p.add_argument('--checkpoint', required=True)
    p.add_argument('record')
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    with open(os.path.join(a.checkpoint, 'manifest.json')) as f:
        tensors = json.load(f)['tensors']
    want = json.loads(subprocess.run([a.cltrain, 'ckpt', 'hash', '--json', a.checkpoint], check=True, capture_output=True).stdout)
    with open(os.path.join(a.record, 'launches.jsonl')) as f:
        launches = [x for x in map(json.loads, f) if 'launch' in x]
    emulator.load(a.emulator)
    chain = Chain(a.record, Replayer(a.target, a.work))
    for launch in launches:
        message = f"{launch['file']} is a kernel for CPUs" if cpu_only(launch) else chain.run(launch)
        if message:
            print(f'{a.target:8} FAIL chain: {message}')
            return 1
    got = {'weights': state_hash(tensors, chain.slab, ['weight']),
           'optimizer': state_hash(tensors, chain.slab, ['exp_avg', 'exp_avg_sq'])}
    same = all(got[k] == want[k] for k in got) and chain.trained() > 0
    print(f"{a.target:8} {'ok  ' if same else 'FAIL'} chain of {chain.launches} launches, {chain.uploaded} words from the host "
          f"(uploads, fills, copies), {chain.trained()} weights changed")
    for k in got:
        print(f'         {k:9} {got[k]} on {a.target}\n         {k:9} {want[k]} cltrain ckpt hash', flush=True)
    return 0 if same else 1


if __name__ == '__main__':
    sys.exit(main())
