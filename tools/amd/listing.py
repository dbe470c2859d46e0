"""The instructions of a kernel as llvm-objdump lists them: loops, the path that full tiles take through a loop, and
what its instructions do."""
import re
import subprocess

_LINE = re.compile(r'^\t(\S+)\s*(.*?)\s*// ([0-9A-F]+):[^<]*(?:<[^+>]*(?:\+0x([0-9a-f]+))?>)?$')
_SIZES = {'b8': 1, 'u8': 1, 'i8': 1, 'ubyte': 1, 'sbyte': 1, 'b16': 2, 'u16': 2, 'i16': 2, 'ushort': 2, 'sshort': 2, 'short': 2,
          'byte': 1, 'b32': 4, 'dword': 4, 'b64': 8, 'dwordx2': 8, 'b96': 12, 'dwordx3': 12, 'b128': 16, 'dwordx4': 16}
_SLOW = re.compile(r'v_(exp|log|rcp|rsq|sqrt|sin|cos)_')  # a quarter of the rate on all targets


class Instruction:
    """Address, name, operands as text, the address that a branch names (or None) and what the name says:
    kind    'matrix', 'read', 'write' (LDS), 'lanes' (exchange between lanes), 'load', 'store' (global), 'wait', 'barrier',
            'vector', 'scalar'
    size    bytes per lane and access; count: accesses (2 of ds_read2)"""

    def __init__(self, address, name, operands, target):
        self.address, self.name, self.operands, self.target = address, name, operands, target
        self.kind, self.size, self.count = 'scalar', 0, 1
        word = name.split('_')
        if name.startswith(('v_mfma', 'v_wmma')):
            self.kind = 'matrix'
        elif name.startswith(('ds_bpermute', 'ds_permute', 'ds_swizzle')):
            self.kind, self.size = 'lanes', 4
        elif word[0] == 'ds' and word[1].startswith(('read', 'load', 'write', 'store')):
            self.kind = 'read' if word[1].startswith(('read', 'load')) else 'write'
            self.count = 2 if '2' in word[1] or '2addr' in word[2] else 1
            self.size = next(_SIZES[w] for w in word if w in _SIZES)
        elif word[0] in ('global', 'buffer', 'flat') and word[1] in ('load', 'store'):
            self.kind = word[1]
            self.size = next((_SIZES[w] for w in word if w in _SIZES), 4)
        elif name.startswith('s_wait') and not name.startswith('s_wait_alu'):
            self.kind = 'wait'
        elif name.startswith('s_barrier'):
            # gfx12 has a signal and a wait for each barrier.
            self.kind = 'scalar' if name.startswith('s_barrier_signal') else 'barrier'
        elif word[0] == 'v':
            self.kind, self.size = 'vector', 4 if _SLOW.match(name) else 1  # size: cost in plain instructions

    def flop(self):
        """Multiplications and additions of a matrix instruction of one wave."""
        m, n, k = map(int, re.search(r'_(\d+)x(\d+)x(\d+)', self.name).groups())
        return 2 * m * n * k

    def waits_for_loads(self):
        """The number of loads that may remain under way after this wait, or None if it does not wait for loads."""
        if self.name == 's_wait_loadcnt' or self.name.startswith('s_wait_loadcnt_dscnt'):
            n = int(self.operands.split()[0], 16) if self.operands.startswith('0x') else 0
            return n >> 8 if 'dscnt' in self.name else n
        m = re.search(r'vmcnt\((\d+)\)', self.operands)
        return int(m[1]) if m else None


def read(path):
    """The kernels of a code object by name: a list of Instruction each."""
    text = subprocess.run(['llvm-objdump-19', '-d', path], capture_output=True, text=True, check=True).stdout
    kernels, body, start = {}, None, 0
    for line in text.splitlines():
        m = re.match(r'^([0-9a-f]+) <(.*)>:', line)
        if m:
            body, start = kernels.setdefault(m[2], []), int(m[1], 16)
            continue
        m = _LINE.match(line)
        if m and body is not None:
            branch = m[1].startswith(('s_branch', 's_cbranch'))
            body.append(Instruction(int(m[3], 16), m[1], m[2], start + int(m[4] or '0', 16) if branch else None))
    return kernels


class Graph:
    """Basic blocks of a kernel: lists of instructions, and the numbers of the blocks that may follow each."""

    def __init__(self, code):
        starts = {code[0].address} | {i.target for i in code if i.target is not None}
        starts |= {b.address for a, b in zip(code, code[1:]) if a.target is not None or a.name == 's_endpgm'}
        self.blocks, at = [], {}
        for i in code:
            if i.address in starts:
                at[i.address] = len(self.blocks)
                self.blocks.append([])
            self.blocks[-1].append(i)
        self.next = []
        for n, block in enumerate(self.blocks):
            last = block[-1]
            to = [at[last.target]] if last.target is not None else []
            if last.name not in ('s_branch', 's_endpgm', 's_setpc_b64') and n + 1 < len(self.blocks):
                to.append(n + 1)
            self.next.append(to)

    def cycles(self, nodes, cut=None):
        """The sets of blocks that can reach each other (Tarjan), without the edges into block `cut`."""
        index, low, stack, found, order = {}, {}, [], [], 0
        for root in sorted(nodes):
            if root in index:
                continue
            work = [(root, 0)]
            while work:
                n, edge = work.pop()
                if edge == 0:
                    index[n] = low[n] = order
                    order += 1
                    stack.append(n)
                to = [t for t in self.next[n] if t in nodes and t != cut]
                if edge > 0:
                    low[n] = min(low[n], low[to[edge - 1]])
                while edge < len(to) and to[edge] in index:
                    if to[edge] in stack:
                        low[n] = min(low[n], index[to[edge]])
                    edge += 1
                if edge < len(to):
                    work += [(n, edge + 1), (to[edge], 0)]
                elif low[n] == index[n]:
                    part = set(stack[stack.index(n):])
                    del stack[stack.index(n):]
                    if len(part) > 1 or n in self.next[n] and n != cut:
                        found.append(part)
        return found


class Loop:
    """A loop, the loops in it, and the number of its passes for one of the loop around it (trips, set by the caller)."""

    def __init__(self, graph, blocks, inside):
        self.graph, self.blocks, self.trips = graph, blocks, 1
        entries = {t for n in inside - blocks for t in graph.next[n] if t in blocks} or {min(blocks)}
        self.header = min(entries)
        self.loops = [Loop(graph, part, blocks) for part in graph.cycles(blocks, self.header)]

    def all(self):
        return [self] + [x for loop in self.loops for x in loop.all()]

    def own(self, kind):
        """Instructions of a kind outside the inner loops."""
        inner = set().union(*[loop.blocks for loop in self.loops]) if self.loops else set()
        return [i for n in sorted(self.blocks - inner) for i in self.graph.blocks[n] if i.kind == kind]

    def path(self):
        """(instruction, times) of one pass, in order: the path of full tiles, which has the most matrix instructions and the
        widest accesses, without loads of single numbers, which only edges need. A path that loads a register twice before
        it writes to LDS is none: the two loads are alternatives."""
        inner = {n: loop for loop in self.loops for n in loop.blocks}
        worth = lambda i: {'matrix': 1e6, 'read': 1e3, 'write': 1e3}.get(i.kind, (-1e4 if i.size < 4 else 1e4) if i.kind == 'load' else -1)
        best = {}

        def loaded(body):
            """The registers that are loaded before the first write to LDS, and after the last one; whether there is one."""
            writes = [n for n, i in enumerate(body) if i.kind == 'write']
            of = lambda part: frozenset(i.operands.split(', ')[0] for i in part if i.kind == 'load')
            return of(body[:writes[0]] if writes else body), of(body[writes[-1]:] if writes else body), bool(writes)

        def follow(n):
            """The best ways from block n to the end of a pass: (value, registers loaded before a write, path)."""
            if n in best:
                return best[n]
            best[n] = []  # while it is computed: a way back into itself is none
            if n in inner:
                loop = inner[n]
                body = [(i, t * loop.trips) for i, t in loop.path()]
                out = {t for b in loop.blocks for t in self.graph.next[b] if t not in loop.blocks}
            else:
                body, out = [(i, 1) for i in self.graph.blocks[n]], set(self.graph.next[n])
            first, last, writes = loaded([i for i, _ in body])
            value = sum(worth(i) * t for i, t in body)
            ways = [(0, frozenset(), [])] if self.header in out else []
            ways += [w for t in sorted(out) if t in self.blocks and t != self.header for w in follow(t)]
            ways = [(value + v, first if writes else first | more, body + rest) for v, more, rest in ways if not last & more]
            kept = {}
            for w in sorted(ways, key=lambda w: -w[0]):
                kept.setdefault(w[1], w)
            best[n] = list(kept.values())[:16]
            return best[n]
        return max(follow(self.header), key=lambda w: w[0])[2]


def main_loop(code, levels=0):
    """The innermost loop that contains barriers and the most matrix instructions, or the loop `levels` around it; None if
    there is none."""
    graph = Graph(code)
    everything = set(range(len(graph.blocks)))
    loops = [x for part in graph.cycles(everything) for x in Loop(graph, part, everything).all()]
    count = lambda loop, kind: sum(i.kind == kind for n in loop.blocks for i in graph.blocks[n])
    good = [x for x in loops if count(x, 'barrier') and count(x, 'matrix')]
    most = max((count(x, 'matrix') for x in good), default=0)
    nest = sorted((x for x in good if count(x, 'matrix') == most), key=lambda x: len(x.blocks))
    return nest[levels] if levels < len(nest) else None


def loads_ahead(path):
    """Of one pass of a loop, which repeats: the share of the matrix instructions between its last global load and the first
    wait for one, which covers the loads' latency; and whether all loads so far are waited for between the first and the last."""
    order = [i for i, _ in path]
    loads = [n for n, i in enumerate(order) if i.kind == 'load']
    if not loads:
        return 1.0, False
    covered = 0
    for i in (order + order)[loads[-1] + 1:]:
        if i.kind == 'wait' and i.waits_for_loads() is not None:
            break
        covered += i.kind == 'matrix'
    all_matrix = sum(i.kind == 'matrix' for i in order)
    return min(1.0, covered / max(1, all_matrix)), any(
        i.kind == 'wait' and i.waits_for_loads() == 0 for i in order[loads[0]:loads[-1]])
