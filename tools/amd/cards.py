"""Rates of the cards that estimate.py assumes, per clock, and limits of the instruction sets.

A unit is what shares LDS and holds work-groups: a compute unit of CDNA, a work-group processor (two compute units) of RDNA.
Both have four SIMDs. Sources: AMD's data sheets (units, clock, matrix rates, memory bandwidth), AMD CDNA 2 and CDNA 3 white
papers (L2, LDS), instruction set documents of CDNA 3, RDNA 3 and RDNA 4 (LDS, registers), LLVM's AMDGPU guide (how registers
and LDS are allocated). No source gives RDNA's L2 bandwidth per clock, nor latencies under load: those are assumed."""
from collections import namedtuple

# units, GHz: of the card; wave: lanes; half, eight: matrix operations (multiplications and additions) per clock of a SIMD, for
# 16-bit and for 8-bit operands; valu: clocks of a SIMD for an instruction of a wave; shared: whether matrix instructions occupy
# the SIMD's other arithmetic; lds, l1, l2: bytes per clock of a unit; l2_units: units that share an L2;
# hbm: memory's bytes per second; registers: per lane of a SIMD; grain: of their allocation; waves: of a SIMD; local: bytes of a
# unit; local_grain: of their allocation
Card = namedtuple('Card', 'name units ghz wave half eight valu shared lds l1 l2 l2_units hbm registers grain waves local local_grain')
CARDS = {
    'gfx90a': Card('MI250X, one die', 110, 1.7, 64, 256, 256, 4, False, 128, 64, 4096 / 110, 110, 1.6e12, 512, 8, 8, 65536, 512),
    'gfx942': Card('MI300X', 304, 2.1, 64, 512, 1024, 4, False, 128, 64, 2048 / 38, 38, 5.3e12, 512, 8, 8, 65536, 512),
    'gfx1100': Card('RX 7900 XTX', 48, 2.5, 32, 256, 256, 1, True, 256, 128, 32, 48, 0.96e12, 1536, 24, 16, 131072, 1024),
    'gfx1201': Card('RX 9070 XT', 32, 2.97, 32, 512, 1024, 1, True, 256, 128, 32, 32, 0.64e12, 1536, 24, 16, 131072, 1024),
}
SIMDS = 4
LOAD_LATENCY = 500  # clocks from a global load to its data, assumed: a hit in the L2 cache under load
LOCAL_LATENCY = 64  # clocks from an LDS read to its data, assumed
BARRIER = 32  # clocks of a barrier, assumed


def up(n, grain):
    return -(-n // grain) * grain


def groups_per_unit(card, items, registers, local):
    """Work-groups that a unit holds, and what limits them. registers: of a lane, of both kinds; local: bytes."""
    waves = items // card.wave
    by_registers = card.registers // up(max(registers, 1), card.grain)
    limits = {'registers': min(by_registers, card.waves) * SIMDS // waves, 'LDS': card.local // up(max(local, 1), card.local_grain)}
    why = min(limits, key=limits.get)
    return limits[why], why


def matrix_clocks(card, instruction):
    """Clocks that an instruction of a wave occupies the SIMD's matrix unit."""
    return instruction.flop() / (card.eight if '_i32_' in instruction.name else card.half)
