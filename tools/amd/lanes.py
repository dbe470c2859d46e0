"""Addresses of local memory (LDS) that the lanes of a wave use, and the clocks that its banks need for them.

Addresses come from the machine code itself: the integer instructions before a use are computed for the lanes of the
group's first wave, in the order of the listing. What depends on memory or on an argument is unknown (None); an unknown
summand that all lanes share counts as 0, because it moves all of them alike.

Banks: 32 of 4 bytes, one word each per clock, and lanes that read the same word share it. An access of all lanes is
divided into sets of lanes that need a clock each if no bank holds two of their words, otherwise one per word:
  8 lanes for 16 bytes; CDNA reads with the sets in _READ_16 (ROCm's documentation of composable_kernel and its blog
    "Avoiding LDS bank conflicts on AMD GPUs using CK-Tile")
  16 lanes for 8 bytes (AMD's OpenCL optimization guide: quarter waves, checked per half wave)
  32 lanes for 4 bytes and less
For 8-byte reads hardware may treat 32 lanes in two clocks together; the sets here are the stricter reading. AMD documents no
sets for RDNA: consecutive lanes are assumed."""
import re

_READ_16 = [[h + a + i for a in pair for i in range(4)] for h in (0, 32) for pair in ((0, 20), (4, 16), (8, 28), (12, 24))]
_MODIFIERS = re.compile(r' (offset|op_sel|quad_perm|row_|dst_sel|src\d_sel|clamp).*')
_MASK = 0xffffffff


def lane_sets(wave, size, cdna_read):
    """The sets of lanes of a wave whose accesses of `size` bytes are treated in one clock."""
    if size == 16 and cdna_read:
        return _READ_16
    n = {16: 8, 12: 8, 8: 16}.get(size, 32)
    return [list(range(at, at + n)) for at in range(0, wave, n)]


def clocks(addresses, size, sets):
    """(clocks that the banks need, clocks without conflicts)."""
    total = 0
    for lanes in sets:
        words = {a // 4 + w for a in (addresses[lane] for lane in lanes) for w in range((size + 3) // 4)}
        banks = [0] * 32
        for w in words:
            banks[w % 32] += 1
        total += max(banks)
    return total, len(sets)


def _signed(x, bits=32):
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


_TWO = {
    'and_b32': lambda a, b: a & b, 'or_b32': lambda a, b: a | b, 'xor_b32': lambda a, b: a ^ b,
    'add_u32': lambda a, b: a + b, 'add_nc_u32': lambda a, b: a + b, 'add_i32': lambda a, b: a + b,
    'sub_u32': lambda a, b: a - b, 'sub_nc_u32': lambda a, b: a - b, 'sub_i32': lambda a, b: a - b,
    'subrev_u32': lambda a, b: b - a, 'subrev_nc_u32': lambda a, b: b - a,
    'lshlrev_b32': lambda a, b: b << (a & 31), 'lshrrev_b32': lambda a, b: b >> (a & 31),
    'ashrrev_i32': lambda a, b: _signed(b) >> (a & 31), 'lshl_b32': lambda a, b: a << (b & 31),
    'lshr_b32': lambda a, b: a >> (b & 31), 'mul_i32': lambda a, b: a * b, 'mul_lo_u32': lambda a, b: a * b,
    'mul_u32_u24': lambda a, b: (a & 0xffffff) * (b & 0xffffff), 'min_u32': min, 'max_u32': max,
    'lshlrev_b16': lambda a, b: (b << (a & 15)) & 0xffff, 'lshrrev_b16': lambda a, b: (b & 0xffff) >> (a & 15),
    'mul_lo_u16': lambda a, b: (a * b) & 0xffff, 'add_u16': lambda a, b: (a + b) & 0xffff,
    'sub_u16': lambda a, b: (a - b) & 0xffff, 'sub_nc_u16': lambda a, b: (a - b) & 0xffff,
}
_THREE = {
    'lshl_add_u32': lambda a, b, c: (a << (b & 31)) + c, 'lshl_or_b32': lambda a, b, c: (a << (b & 31)) | c,
    'add_lshl_u32': lambda a, b, c: (a + b) << (c & 31), 'add3_u32': lambda a, b, c: a + b + c,
    'and_or_b32': lambda a, b, c: (a & b) | c, 'or3_b32': lambda a, b, c: a | b | c, 'xad_u32': lambda a, b, c: (a ^ b) + c,
    'mad_u32_u24': lambda a, b, c: (a & 0xffffff) * (b & 0xffffff) + c, 'bfe_u32': lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    'bfi_b32': lambda a, b, c: (a & b) | (~a & c & _MASK), 'mad_u32': lambda a, b, c: a * b + c, 'mad_u16': lambda a, b, c: (a * b + c) & 0xffff,
}
_SUMS = ('add_u32', 'add_nc_u32', 'add3_u32', 'sub_u32', 'sub_nc_u32', 'mad_u32')
_COPY = ('mov_b32', 'accvgpr_write_b32', 'accvgpr_read_b32', 'movk_i32', 'accvgpr_mov_b32')


class Lanes:
    """The registers of a wave, each a list of a number per lane, or absent."""

    def __init__(self, wave):
        self.wave, self.registers = wave, {'v0': list(range(wave))}

    def value(self, word):
        word = word.strip()
        if re.fullmatch(r'-?\d+|0x[0-9a-f]+', word):
            return [int(word, 0) & _MASK] * self.wave
        return self.registers.get(re.sub(r'^([sva])\[(\d+):\d+\]$', r'\1\2', word))

    def step(self, name, operands):
        """Computes one instruction."""
        if name.startswith('v_dual'):  # two, which read before either writes
            parts = [part.split(None, 1) for part in f'{name} {operands}'.split(' :: ')]
            written = [self.result(n.replace('v_dual_', 'v_'), text) for n, text in parts]
        else:
            written = [self.result(name, operands)]
        for registers, values in written:
            for r in registers:
                self.registers.pop(r, None)
                if values is not None:
                    self.registers[r] = values
                    values = None if '64' in name else values  # only the low half is known

    def result(self, name, operands):
        """The registers that an instruction writes, and their values or None."""
        words = [w.strip() for w in re.split(r',(?![^\[]*\])', _MODIFIERS.sub('', operands))]
        if name[:2] not in ('v_', 's_'):
            loads = 'read' in name or 'load' in name or 'permute' in name
            return (self.names(words[0]) if loads else []), None
        base = re.sub(r'^[vs]_|_e(32|64)$', '', name)
        if base in ('mad_u64_u32', 'mad_co_u64_u32'):  # its second word is a carry
            words, base = words[:1] + words[2:], 'mad_u32'
        values = [self.value(w) for w in words[1:]]
        if base in _SUMS:
            values = [[0] * self.wave if v is None and w[0] == 's' else v for v, w in zip(values, words[1:])]
        f, done = {2: _TWO, 3: _THREE}.get(len(values), {}).get(base), None
        if base in _COPY and len(values) == 1:
            done = values[0]
        elif f and None not in values:
            done = [f(*row) & _MASK for row in zip(*values)]
        return self.names(words[0]), done

    @staticmethod
    def names(word):
        """The registers of an operand."""
        m = re.fullmatch(r'([sva])\[(\d+):(\d+)\]', word)
        return [f'{m[1]}{i}' for i in range(int(m[2]), int(m[3]) + 1)] if m else [word]


def local_addresses(code, wave):
    """For each access to local memory of a kernel, by its place in the listing: the byte addresses of the lanes for each of
    its one or two accesses, or None."""
    lanes, found = Lanes(wave), {}
    for i in code:
        if i.kind in ('read', 'write'):
            words = i.operands.split(',')
            # The address is the first register of a write and the last one of a read.
            register = words[0] if i.kind == 'write' else i.operands.split()[-1] if ' offset' not in i.operands else \
                i.operands.split(' offset')[0].split()[-1]
            base = lanes.value(register)
            unit = i.size * (64 if 'st64' in i.name or 'stride64' in i.name else 1)
            if i.count == 2:
                offsets = [int((re.search(fr'offset{n}:(\d+)', i.operands) or [0, 0])[1]) * unit for n in (0, 1)]
            else:
                offsets = [int((re.search(r'offset:(\d+)', i.operands) or [0, 0])[1])]
            found[i.address] = [[b + o for b in base] for o in offsets] if base else None
        lanes.step(i.name, i.operands)
    return found
