"""Estimates, from the machine code alone, what bounds the main loops of the kernels for AMD's matrix units: no card is
needed, and none was. Compiles every row of gemm, gemm8, attention and attention_backward that requires mfma or wmma.

    estimate.py [--target gfx942] [--markdown] [word ...]

--target: only this target; word: only rows whose "table=row case" contains one of the words; --markdown: a table for
docs/performance.md. Exit code 1 if a row does not compile, spills, or has other matrix instructions than its tile needs.

For each row: registers, LDS and spills of the code object's metadata; work-groups per unit (cards.py); and of one pass of the
main loop, on the path of full tiles, the instructions, the bytes and the clocks that LDS banks need (lanes.py). The estimate:

    matrix, LDS, memory   clocks that a group's pass occupies the unit's resource at its data-sheet rate
    vector                the same of other vector instructions; on RDNA they and matrix instructions share the SIMD
    cache                 the same of the L1 or L2 cache; what a pass reads again comes from L1
    latency               all of them one after the other, with the latencies of barriers, LDS and, as far as matrix
                          instructions do not cover them, global loads, divided by the groups that a unit holds

The largest bounds the loop; the matrix clocks divided by it are the part of the matrix peak that the loop can reach. Groups that
share an L2 cache and run together are taken as a square of tiles of a GEMM, so that each tile comes from memory once; blocks of
attention come from the L2 cache. Start and end of the kernels are left out."""
import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from math import sqrt

import cards
import codeobject
import lanes
import listing

KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'clkernels')
OPTIONS = ['-cl-std=CL1.2', '-cl-fp32-correctly-rounded-divide-sqrt']
ITEMS = 256  # of every row's groups


class Case:
    """A kernel of a row with options. matrix: matrix instructions of a wave in one pass of the loop, by construction."""

    def __init__(self, table, row, name, target, file, options, kernel, size):
        self.label, self.target, self.file, self.options = f'{table}={row} {name}', target, file, options
        self.kernel, self.wave, self.square = kernel, cards.CARDS[target].wave, table.startswith('gemm')
        get = lambda name, other=None: size.get(name, other)
        self.levels = self.trips_tile = self.trips_depth = 0
        self.trips_load = 0
        if self.square:
            steps8 = {'gfx942': 32}.get(target, 16)
            waves_m, waves_n = get('WAVES_M'), ITEMS // self.wave // get('WAVES_M')
            tiles = get('BM') // waves_m // 16 * (get('BN') // waves_n // 16)
            self.matrix = tiles * get('BK') // (16 if table == 'gemm' else steps8)
            if table == 'gemm8':
                # A block of 128: the sums of its steps are added to the chains once.
                self.levels, self.trips_tile = 1, 128 // get('BK')
                self.matrix *= self.trips_tile
            return
        depth = size['D'] // 16
        few = size['D'] > (64 if self.wave == 64 else 80)
        rows = (16 if few and self.wave == 64 else 32) if table == 'attention_backward' else 32 if few else 64
        self.trips_load, self.trips_tile, self.trips_depth = rows // 4 * depth * 4 / ITEMS, rows // 16, depth
        self.matrix = rows // 16 * depth * {'attention_forward': 2, 'attention_backward_q': 3, 'attention_backward_kv': 4}[kernel]

    def set_trips(self, loop):
        """Passes of the inner loops: those without matrix instructions load a block, the innermost with two walk along the
        head, others walk over tiles or steps."""
        for inner in loop.loops:
            count = sum(i.kind == 'matrix' for n in inner.blocks for i in inner.graph.blocks[n])
            self.set_trips(inner)
            if count == 0:
                inner.trips = self.trips_load
            elif count == 2 and not inner.loops and self.trips_depth:
                inner.trips = self.trips_depth
            else:
                inner.trips = self.trips_tile


def cases(target):
    unit = 'mfma' if codeobject.TARGETS[target][2] == 'on' else 'wmma'
    for path in ('gemm/gemm.vt', 'gemm8/gemm8.vt', 'attention/attention.vt', 'attention/attention_backward.vt'):
        table = os.path.basename(path)[:-3]
        for line in open(f'{KERNELS}/{path}'):
            word = line.split('#')[0].split()
            if len(word) != 5 or unit not in word[3].split(','):
                continue
            size = {k: int(v) for k, v in (p.split('=') for p in word[4].split(','))}
            make = lambda name, more, kernel, **over: Case(table, word[0], name, target, word[1],
                                                           [f'-D{p}' for p in word[4].split(',')] + more, kernel, {**size, **over})
            if table == 'gemm':
                for form, name in enumerate(('NT', 'NN', 'TN')):
                    yield make(name, [f'-DFORM={form}'], 'gemm')
            elif table == 'gemm8':
                yield make('int8', [], 'gemm8')
            else:
                for d in (64, 128):
                    for kernel in ['attention_forward'] if table == 'attention' else ['attention_backward_q', 'attention_backward_kv']:
                        part = {'attention_backward_q': ' dq', 'attention_backward_kv': ' dk dv'}.get(kernel, '')
                        yield make(f'D{d}{part}', [f'-DHEAD_DIM={d}'], kernel, D=d)


class Estimate:
    def __init__(self, case, path):
        """path: of the compiled code object."""
        self.case, self.card = case, cards.CARDS[case.target]
        meta = codeobject._metadata(path)[case.kernel]
        self.spills = int(meta['vgpr_spill_count']) + int(meta['private_segment_fixed_size'])
        self.agprs = int(meta.get('agpr_count', 0))
        self.registers, self.sgprs = int(meta['vgpr_count']), int(meta['sgpr_count'])  # the first includes agprs
        self.local = int(meta['group_segment_fixed_size'])
        self.groups, self.limit = cards.groups_per_unit(self.card, ITEMS, self.registers, self.local)
        self.waves = self.groups * ITEMS // case.wave // cards.SIMDS  # per SIMD
        code = listing.read(path)[case.kernel]
        loop = listing.main_loop(code, case.levels)
        if loop is None:
            raise ValueError(f'{case.label}: no loop with matrix instructions and barriers')
        case.set_trips(loop)
        self.path = loop.path()
        self.count()
        self.count_local(lanes.local_addresses(code, case.wave))
        self.ahead, self.serial_loads = listing.loads_ahead(self.path)
        self.bound()

    def count(self):
        """Of one wave and one pass."""
        n = Counter()
        for i, t in self.path:
            n[i.kind] += t
            n['first bytes'] += i.size * self.case.wave * (t if self.case.square else min(t, max(1, self.case.trips_load))) * (i.kind == 'load')
            n[i.kind + ' bytes'] += t * i.size * i.count * self.case.wave
            if i.kind == 'matrix':
                n['flop'] += t * i.flop()
                n['matrix clocks'] += t * cards.matrix_clocks(self.card, i)
            if i.kind == 'vector':
                n['vector clocks'] += t * i.size * self.card.valu
        self.n = n

    def count_local(self, addresses):
        """Clocks of LDS for one wave: needed, without conflicts, and the accesses whose addresses are unknown."""
        self.lds = self.lds_free = self.unknown = 0
        for i, t in self.path:
            if i.kind == 'lanes':
                self.lds, self.lds_free = (x + t * self.case.wave / 32 for x in (self.lds, self.lds_free))
            if i.kind not in ('read', 'write'):
                continue
            sets = lanes.lane_sets(self.case.wave, i.size, self.case.wave == 64 and i.kind == 'read')
            for a in addresses[i.address] or [None] * i.count:
                need, free = lanes.clocks(a, i.size, sets) if a else (len(sets), len(sets))
                self.lds, self.lds_free, self.unknown = self.lds + t * need, self.lds_free + t * free, self.unknown + t * (a is None)

    def bound(self):
        """Clocks of one pass of one group."""
        card, waves = self.card, ITEMS // self.case.wave
        per_simd, loaded = waves / cards.SIMDS, waves * self.n['first bytes']
        matrix, vector = per_simd * self.n['matrix clocks'], per_simd * self.n['vector clocks']
        lds = waves * self.lds * 128 / card.lds
        self.parts = {'matrix': matrix, 'vector': vector + matrix * card.shared, 'LDS': lds,
                      'cache': max(loaded / card.l2, waves * self.n['load bytes'] / card.l1)}
        if self.case.square:
            together = sqrt(max(1, self.groups * card.l2_units))
            self.parts['memory'] = loaded / together / (card.hbm / card.units / card.ghz / 1e9)
        waits = 0 if not self.n['load'] else max(0, cards.LOAD_LATENCY - self.ahead * (matrix + lds))
        waits += cards.LOAD_LATENCY if self.n['load'] and self.serial_loads else 0
        alone = matrix + vector + lds + waits + 2 * cards.LOCAL_LATENCY + self.n['barrier'] * cards.BARRIER
        self.parts['latency'] = alone / max(1, self.groups)
        self.bounded = max(self.parts, key=self.parts.get)
        self.reach = matrix / self.parts[self.bounded]

    def faults(self):
        if self.spills:
            yield 'spills registers'
        if self.n['matrix'] != self.case.matrix:
            yield f"{self.n['matrix']:g} matrix instructions instead of {self.case.matrix}"

    def row(self):
        """The columns of COLUMNS as text. "?" after conflicts: some addresses are unknown and count as without; "!" after
        ahead: the first loads are waited for before the last ones."""
        n, p = self.n, self.parts
        return [self.case.label, f'{self.registers - self.agprs}+{self.agprs}, {self.sgprs}', f'{self.local / 1024:.1f}',
                f'{self.groups}, {self.waves} ({self.limit})', f"{n['matrix']:g}, {n['vector']:.0f}",
                f"{self.lds / max(1, self.lds_free):.2f}" + '?' * (self.unknown > 0),
                f'{100 * self.ahead:.0f} %' + '!' * (n['load'] > 0 and self.serial_loads),
                ', '.join(f'{p[k]:.0f}' if k in p else '-' for k in PARTS), self.bounded, f'{self.reach:.2f}']


PARTS = ('matrix', 'vector', 'LDS', 'cache', 'memory', 'latency')
COLUMNS = ['row, case', 'V+A, S registers', 'LDS KiB', 'groups, waves (limit)', 'matrix, vector', 'conflicts', 'ahead',
           'clocks: ' + ', '.join(PARTS), 'bound by', 'of peak']
WIDTHS = (38, 16, 7, 22, 14, 9, 6, 46, 8, 7)


def compiled(case, folder):
    path = os.path.join(folder, 'row.co')
    codeobject.compile_kernels(f'{KERNELS}/{case.file}', case.target, OPTIONS + case.options, path)
    return path


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--target', choices=list(codeobject.TARGETS), action='append')
    p.add_argument('--markdown', action='store_true')
    p.add_argument('word', nargs='*')
    a = p.parse_args()
    missing = codeobject.missing_tools()
    if missing:
        print(f'estimate: skipped: not installed: {missing}')
        return 0
    failed = found = 0
    print('Estimates from machine code; nothing ran on a card.')
    form = (lambda row: '| ' + ' | '.join(row) + ' |') if a.markdown else \
        (lambda row: ' '.join(w.ljust(n) for w, n in zip(row, WIDTHS)).rstrip())
    with tempfile.TemporaryDirectory() as folder:
        for target in a.target or codeobject.TARGETS:
            print(f"\n{'### ' if a.markdown else ''}{target}: {cards.CARDS[target].name}\n")
            print(form(COLUMNS))
            if a.markdown:
                print('|' + '---|' * len(COLUMNS))
            for case in cases(target):
                if a.word and not any(w in case.label for w in a.word):
                    continue
                found += 1
                try:
                    e = Estimate(case, compiled(case, folder))
                except (codeobject.CompileError, subprocess.CalledProcessError, ValueError) as error:
                    print(f'FAIL {target} {case.label}: {error}')
                    failed += 1
                    continue
                print(form(e.row()), flush=True)
                for fault in e.faults():
                    print(f'FAIL {target} {case.label}: {fault}')
                    failed += 1
    if not found:
        print(f'estimate: no row\'s "table=row case" contains {" or ".join(a.word)}')
    return 1 if failed or not found else 0


if __name__ == '__main__':
    sys.exit(main())
