"""Runs kernels of an AMD code object on the instruction-set emulator in tinygrad's source tree (test/mockgpu/amd),
whose semantics are generated from AMD's instruction-set documents. Kernels access the memory of this process, so an
out-of-bounds access may end the process; checks therefore run in a process of their own.

Corrections to the emulator, which was made for other code:
- the general flush of denormals is off: our kernels run with denormals (FP32_DENORM in their descriptors);
- conversions to fp16 produce denormals;
- square roots are one correctly rounded operation of the host instead of exp2(log2(x) / 2), within hardware's 1 ulp;
- the host code of an instruction keeps signed zeros and divides as written; only fma is contracted;
- V_DIV_SCALE, V_DIV_FMAS and V_DIV_FIXUP follow the document also for denormals; where the document is ambiguous (the
  sign of a scale, how often a scaled result is rounded), they use the reading that makes the compiler's division
  correctly rounded;
- S_GETPC_B64, S_SETPC_B64 and S_SWAPPC_B64 are added: long kernels use them to reach constants and call functions;
- WMMA accepts a constant as accumulator input; stores to local memory read accumulation registers if the instruction
  says so (CDNA);
- cache instructions do nothing; CDNA2's opcodes of the bf16_1k matrix instructions are mapped to CDNA3's numbers, which
  the tables use, and its v_mfma_i32_16x16x16i8 to the number of v_mfma_i32_16x16x32_i8, which CDNA2 lacks, with half of
  the sum."""
import ctypes
import os
import struct
import sys
import types

HAVE = 'test/mockgpu/amd/emu.py'
_emu = None
_target = None  # of the last renumber: instructions are compiled once, so a process emulates one target

# exponent() is the biased exponent. "Denormal" quotients are decided in double, where they are normal numbers.
_DIV_SCALE = """VCC.u64[laneId] = 0;
if ((64'F(S2.f32) == 0.0) || (64'F(S1.f32) == 0.0)) then
D0.f32 = NAN.f32
elsif exponent(S2.f32) - exponent(S1.f32) >= 96 then
VCC.u64[laneId] = 1;
if S0.f32 == S1.f32 then
D0.f32 = ldexp(S0.f32, 64)
else
D0.f32 = S0.f32
endif
elsif isDENORM(S1.f32) then
D0.f32 = ldexp(S0.f32, 64)
elsif exponent(S1.f32) >= 253 then
if quotientIsDenorm(S2.f32, S1.f32) then
VCC.u64[laneId] = 1;
if S0.f32 == S1.f32 then
D0.f32 = ldexp(S0.f32, -64)
else
D0.f32 = S0.f32
endif
else
D0.f32 = ldexp(S0.f32, -64)
endif
elsif quotientIsDenorm(S2.f32, S1.f32) then
VCC.u64[laneId] = 1;
if S0.f32 == S2.f32 then
D0.f32 = ldexp(S0.f32, 64)
else
D0.f32 = S0.f32
endif
elsif exponent(S2.f32) <= 23 then
D0.f32 = ldexp(S0.f32, 64)
else
D0.f32 = S0.f32
endif"""
_DIV_FMAS = """if VCC.u64[laneId] then
D0.f32 = scaledFma(S0.f32, S1.f32, S2.f32)
else
D0.f32 = fma(S0.f32, S1.f32, S2.f32)
endif"""
_DIVISION = {'V_DIV_SCALE_F32': _DIV_SCALE, 'V_DIV_FMAS_F32': _DIV_FMAS}


def _render_sqrt(ctx, x):
    name = {4: 'float', 8: 'double'}[x.dtype.itemsize]
    return f'  {ctx[x]} = call {name} @llvm.sqrt.f{8 * x.dtype.itemsize}({name} {ctx[x.src[0]]})'


def _fix_arithmetic():
    from tinygrad.codegen.decomp.dtype import f2f
    from tinygrad.dtype import dtypes
    from tinygrad.renderer import llvmir
    from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
    from test.mockgpu.amd import pcode

    for op, text in llvmir.float_lop.items():
        llvmir.float_lop[op] = text.replace(llvmir.flags, ' contract')
    cpu = llvmir.CPULLVMRenderer
    cpu.code_for_op = {**cpu.code_for_op, Ops.SQRT: lambda: None}
    cpu.string_rewrite = PatternMatcher([(UPat(Ops.SQRT, name='x'), _render_sqrt)]) + cpu.string_rewrite

    def as_double(x):
        return (x.bitcast(dtypes.float32) if x.dtype == dtypes.uint32 else x).cast(dtypes.float64)

    def quotient_is_denorm(n, d):
        q = as_double(n) * UOp(Ops.RECIPROCAL, src=(as_double(d),))
        q = (q < UOp.const(0.0, dtypes.float64)).where(q.neg(), q)
        return q < UOp.const(2.0 ** -126, dtypes.float64)

    def scaled_fma(a, b, c):
        x = as_double(a) * as_double(b) + as_double(c)
        large = (x < UOp.const(0.0, dtypes.float64)).where(x.neg(), x) >= UOp.const(2.0, dtypes.float64)
        return (x * large.where(UOp.const(2.0 ** 64, dtypes.float64), UOp.const(2.0 ** -64, dtypes.float64))).cast(dtypes.float32)

    def to_half(x):  # as bits: what has the type fp16 loses its denormals later
        size = (x < UOp.const(0.0, dtypes.float32)).where(x.neg(), x)
        steps = (size + UOp.const(0.5, dtypes.float32)).bitcast(dtypes.uint32) - UOp.const(0x3f000000, dtypes.uint32)  # of 2^-24
        sign = (x.bitcast(dtypes.uint32) >> UOp.const(16, dtypes.uint32)) & UOp.const(0x8000, dtypes.uint32)
        normal = f2f(x.bitcast(dtypes.uint32), dtypes.float32, dtypes.half, sat=False)
        return (size < UOp.const(2.0 ** -14, dtypes.float32)).where((steps | sign).cast(dtypes.uint16), normal)

    pcode._FUNCS['f32_to_f16'] = to_half
    pcode._FUNCS['quotientIsDenorm'] = quotient_is_denorm
    pcode._FUNCS['scaledFma'] = scaled_fma


def _add_memory(emu):
    from tinygrad.uop.ops import UOp

    class DataInAccumulators(emu._Ctx):
        __slots__ = ()
        address = None

        def rvgpr_dyn(self, reg, lane, valid=None):
            return (super().rvgpr_dyn if reg is self.address else self.raccvgpr_dyn)(reg, lane, valid)

    def local(inst, ctx):
        if getattr(inst, 'acc', 0):
            DataInAccumulators.address = ctx.inst_field(type(inst).addr)
            ctx.__class__ = DataInAccumulators
        return emu._compile_mem_op(inst, ctx)

    def vector_memory(inst, ctx):
        if inst.op.name in ('GLOBAL_INV', 'GLOBAL_WB', 'GLOBAL_WBINV'):
            return UOp.sink(*ctx.inc_pc())
        return emu._compile_mem_op(inst, ctx)

    emu._INST_HANDLERS[emu.irc.DS] = local
    emu._INST_HANDLERS[emu.ir4.VGLOBAL] = vector_memory


def _add_constant_accumulators(emu):
    class ConstantAccumulator(emu._Ctx):
        __slots__ = ()
        source = None
        registers = ()

        def rvgpr_dyn(self, reg, lane, valid=None):
            value = super().rvgpr_dyn(reg, lane, valid)
            if not any(reg is r for r in self.registers):
                return value
            return (self.source >= 256).where(value, self.rsgpr_dyn(self.source))

    def packed(inst, ctx):
        if 'WMMA' in getattr(inst.op, 'name', ''):
            source = ctx.inst_field(type(inst).src2)
            first = (source >= 256).where(source - emu._c(256), source)
            ConstantAccumulator.source = source
            ConstantAccumulator.registers = [first + emu._c(i) for i in range(8)]
            ctx.__class__ = ConstantAccumulator
        return emu._compile_vop3p(inst, ctx)

    for kind in (emu.ir3.VOP3P, emu.ir4.VOP3P):
        emu._INST_HANDLERS[kind] = packed


def _add_program_counter(emu):
    from tinygrad.dtype import dtypes
    from tinygrad.uop.ops import UOp

    def scalar(inst, ctx):
        op = getattr(inst.op, 'name', '')
        if op == 'S_GETPC_B64':
            to = ctx.inst_field(type(inst).sdst)
            low, high = emu._split64(ctx.rpc() + UOp.const(4, dtypes.uint64))
            return UOp.sink(ctx.wsgpr_dyn(to, low), ctx.wsgpr_dyn(to + emu._c(1), high), *ctx.inc_pc())
        if op in ('S_SETPC_B64', 'S_SWAPPC_B64'):
            at = ctx.inst_field(type(inst).ssrc0)
            stores = [ctx.wsgpr_dyn(emu._c(emu.PC_LO_IDX), ctx.rsgpr_dyn(at)),
                      ctx.wsgpr_dyn(emu._c(emu.PC_HI_IDX), ctx.rsgpr_dyn(at + emu._c(1)))]
            if op == 'S_SWAPPC_B64':
                to = ctx.inst_field(type(inst).sdst)
                low, high = emu._split64(ctx.rpc() + UOp.const(4, dtypes.uint64))
                stores += [ctx.wsgpr_dyn(to, low), ctx.wsgpr_dyn(to + emu._c(1), high)]
            return UOp.sink(*stores)
        return emu._compile_sop(inst, ctx)

    for kind in (emu.ir3.SOP1, emu.ir4.SOP1, emu.irc.SOP1):
        emu._INST_HANDLERS[kind] = scalar


def _add_cdna2_bytes(emu):
    """The name of an instruction says its sizes; see _CDNA2_MATRIX."""
    plain = emu._op_name

    def op_name(inst):
        name = plain(inst)
        return 'V_MFMA_I32_16X16X16_I8' if _target == 'gfx90a' and name == 'V_MFMA_I32_16X16X32_I8' else name

    emu._op_name = op_name


def _let_waves_run(emu):
    """Raises the emulator's limit of a million instructions per wave, which it takes for an endless loop: a work-item
    that computes a block of 64 rows alone needs more."""
    def longer(code):
        return code.replace(co_consts=tuple(
            longer(c) if isinstance(c, types.CodeType) else 100 * c if type(c) is int and c == 1_000_000 else c
            for c in code.co_consts))
    for f in vars(emu).values():
        if isinstance(f, types.FunctionType) and f.__module__ == emu.__name__:
            f.__code__ = longer(f.__code__)


def load(tree):
    """Imports the emulator from the source tree. Call it once, before any other function of this module."""
    global _emu
    os.environ['DEV'] = 'CPU:LLVM'  # the emulator's C back end fails on some matrix instructions
    os.environ.setdefault('CACHELEVEL', '0')
    sys.path.insert(0, tree)
    from test.mockgpu.amd import emu

    class AsItIs:
        def __enter__(self):
            return self

        def __exit__(self, *args):
            return None

    emu._MXCSRContext = AsItIs
    _fix_arithmetic()
    _add_program_counter(emu)
    _add_memory(emu)
    _add_constant_accumulators(emu)
    _add_cdna2_bytes(emu)
    _let_waves_run(emu)
    plain = emu.get_pcode

    def get_pcode(op):
        name = op.name.replace('_E64', '')
        if name in _DIVISION:
            return _DIVISION[name]
        text = plain(op).replace('D0.f16 = f32_to_f16', 'D0.u16 = f32_to_f16')
        return text.replace('UNDERFLOW_F32', '0.0F') if name == 'V_DIV_FIXUP_F32' else text

    emu.get_pcode = get_pcode
    _emu = emu


# v_mfma_f32_32x32x8bf16_1k, v_mfma_f32_16x16x16bf16_1k, v_mfma_i32_16x16x16i8
_CDNA2_MATRIX = {0xd3e6: 0xd3e0, 0xd3e7: 0xd3e1, 0xd3d5: 0xd3d7}

_NO_OP = 0xbf800000
_CACHE_INVALIDATE = (0xe0ac0000, 0xe0ad0000)  # buffer_gl1_inv, buffer_gl0_inv of gfx11: two words


def renumber(code):
    """Replaces instructions of the loaded code object that the emulator's tables lack. Call it before `run`."""
    global _target
    _target = code.target
    for at in code.words():
        word = ctypes.c_uint32.from_address(at)
        if code.target == 'gfx90a' and word.value >> 16 in _CDNA2_MATRIX:
            word.value = _CDNA2_MATRIX[word.value >> 16] << 16 | word.value & 0xffff
        if code.target == 'gfx1100' and word.value & ~1 in _CACHE_INVALIDATE:
            word.value = _NO_OP
            ctypes.c_uint32.from_address(at + 4).value = _NO_OP


def _arguments(kernel, values, groups, local, dims):
    """The kernel's argument memory. values: bytes of the visible arguments, in order; sizes of local memory as integers."""
    size = max([o + s for _, o, s in kernel['args']], default=0)
    memory = bytearray(max(size, int(kernel['kernarg_segment_size'])) + 64)
    lds = int(kernel['group_segment_fixed_size'])
    hidden = {'hidden_grid_dims': dims}
    for i, axis in enumerate('xyz'):
        hidden[f'hidden_block_count_{axis}'] = groups[i]
        hidden[f'hidden_group_size_{axis}'] = local[i]
    visible = [a for a in kernel['args'] if not a[0].startswith('hidden_')]
    if len(visible) != len(values):
        raise ValueError(f'the kernel takes {len(visible)} arguments, not {len(values)}')
    for (kind, offset, size), value in zip(visible, values):
        if kind == 'dynamic_shared_pointer':
            lds = (lds + 15) // 16 * 16
            value, lds = struct.pack('<I', lds), lds + value
        memory[offset:offset + size] = value[:size].ljust(size, b'\0')
    for kind, offset, size in kernel['args']:
        if kind in hidden:
            memory[offset:offset + size] = hidden[kind].to_bytes(size, 'little')
    return memory, lds


def run(code, name, global_size, local_size, values):
    """Runs a kernel. Sizes are lists of one to three numbers; local divides global. values: as in _arguments."""
    from codeobject import TARGETS
    arch = TARGETS[code.target][0]
    grid = [*global_size, 1, 1][:3]
    local = [*local_size, 1, 1][:3]
    groups = [g // n for g, n in zip(grid, local)]
    memory, lds = _arguments(code.kernels[name], values, groups, local, len(global_size))
    block = ctypes.create_string_buffer(bytes(memory), len(memory))
    pointer = ctypes.addressof(block)
    descriptor, at = code.descriptor(name)
    private = struct.unpack_from('<I', descriptor, 4)[0]
    entry = at + struct.unpack_from('<q', descriptor, 16)[0]
    rsrc2, properties = struct.unpack_from('<I', descriptor, 52)[0], struct.unpack_from('<H', descriptor, 56)[0]
    packet = ctypes.create_string_buffer(64)  # the dispatch packet
    struct.pack_into('<HHHHHHIIIII', packet, 0, 0, len(global_size), *local, 0, *grid, private, lds)
    # The user registers in their fixed order; each is present if its bit of the properties is set.
    pieces = [(1, [0, 0, 0, 0]), (2, ctypes.addressof(packet)), (4, 0), (8, pointer), (16, 0), (32, 0), (64, [private])]
    user = []
    for bit, value in pieces:
        if properties & bit:
            user += value if isinstance(value, list) else [value & 0xffffffff, value >> 32]
    count = rsrc2 >> 1 & 31
    user = (user + [0] * count)[:count]
    rsrc2 = rsrc2 & ~(0x1ff << 15) | (lds + 511) // 512 << 15  # LDS in units of 512 bytes
    _emu.run_asm(entry, code.size, *groups, *local, pointer, rsrc2, private, arch, user)
