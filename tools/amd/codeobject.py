"""AMD code objects without an AMD GPU: compiles OpenCL C for a target with clang and loads machine code and kernel
descriptors into memory as a driver does."""
import ctypes
import os
import re
import struct
import subprocess

DEVICE_LIBS = '/usr/lib/x86_64-linux-gnu/amdgcn/bitcode'
# For each target: the emulator's name of the instruction set; the nearest isa_version of the packaged device
# libraries, which are older than the compiler; whether waves have 64 lanes.
TARGETS = {
    'gfx90a': ('cdna', '90a', 'on'),
    'gfx942': ('cdna', '940', 'on'),
    'gfx1100': ('rdna3', '1036', 'off'),
    'gfx1201': ('rdna4', '1036', 'off'),
}


class CompileError(Exception):
    pass


def missing_tools():
    """The tools that are not installed, as text; empty if none is missing."""
    tools = ['clang-19', 'llvm-readelf-19', 'ld.lld-19']
    absent = [t for t in tools if not any(os.access(os.path.join(d, t), os.X_OK) for d in os.get_exec_path())]
    if not os.path.exists(f'{DEVICE_LIBS}/ocml.bc'):
        absent.append('rocm-device-libs')
    return ' '.join(absent)


def compile_kernels(source, target, options, out):
    """Compiles the file `source` for `target` with the build options of a run (a list) into the file `out`."""
    _, isa, wave64 = TARGETS[target]
    parts = ['opencl', 'ocml', 'ockl', f'oclc_isa_version_{isa}', f'oclc_wavefrontsize64_{wave64}', 'oclc_daz_opt_off',
             'oclc_correctly_rounded_sqrt_on', 'oclc_unsafe_math_off', 'oclc_finite_only_off', 'oclc_abi_version_500']
    libs = [w for p in parts for w in ('-Xclang', '-mlink-builtin-bitcode', '-Xclang', f'{DEVICE_LIBS}/{p}.bc')]
    command = ['clang-19', '-x', 'cl', '-target', 'amdgcn-amd-amdhsa', f'-mcpu={target}', '-nogpulib', '-O3', '-w',
               *libs, *options, source, '-o', out]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        lines = [line for line in run.stderr.splitlines() if 'error' in line]
        raise CompileError(lines[0] if lines else run.stderr[-200:])


def _metadata(path):
    """The kernels of a code object by name: arguments as (kind, offset, size), registers and memory used."""
    text = subprocess.run(['llvm-readelf-19', '--notes', path], capture_output=True, text=True, check=True).stdout
    kernels, kernel, args = {}, None, None
    for line in text.splitlines():
        m = re.match(r'( *)(- )?\.(\w+): *(.*)', line)
        if not m:
            continue
        depth, item, key, value = len(m[1]), m[2], m[3], m[4].strip("' ")
        if item and depth == 2:
            kernel, args = {'args': []}, None
        if kernel is None:
            continue
        if key == 'args':
            args = kernel['args']
        elif depth >= 6 and args is not None:
            if item:
                args.append({})
            args[-1][key] = value
        else:
            kernel[key] = value
            if key == 'name':
                kernels[value] = kernel
    for k in kernels.values():
        k['args'] = [(a['value_kind'], int(a['offset']), int(a['size'])) for a in k['args']]
    return kernels


class CodeObject:
    """A linked code object, loaded at an address of this process."""

    def __init__(self, path, target):
        self.target = target
        self.kernels = _metadata(path)
        with open(path, 'rb') as f:
            elf = f.read()
        phoff, shoff = struct.unpack_from('<QQ', elf, 32)
        phnum, _, shnum = struct.unpack_from('<HHH', elf, 56)
        segments = [struct.unpack_from('<IIQQQQQQ', elf, phoff + 56 * i) for i in range(phnum)]
        segments = [s for s in segments if s[0] == 1]  # PT_LOAD
        self.size = max(vaddr + memsz for _, _, _, vaddr, _, _, memsz, _ in segments)
        self._memory = ctypes.create_string_buffer(self.size + 3 * 4096)
        self.base = (ctypes.addressof(self._memory) + 4095) & ~4095
        for _, _, offset, vaddr, _, filesz, _, _ in segments:
            ctypes.memmove(self.base + vaddr, elf[offset:offset + filesz], filesz)
        self.symbols, self.text = {}, None
        sections = [struct.unpack_from('<IIQQQQIIQQ', elf, shoff + 64 * i) for i in range(shnum)]
        for _, kind, flags, addr, offset, size, link, _, _, _ in sections:
            if kind == 1 and flags & 4:  # PROGBITS, executable
                self.text = (self.base + addr, size)
            if kind == 11:  # DYNSYM
                strings = sections[link][4]
                for at in range(offset, offset + size, 24):
                    name, _, _, _, value, _ = struct.unpack_from('<IBBHQQ', elf, at)
                    end = elf.index(b'\0', strings + name)
                    self.symbols[elf[strings + name:end].decode()] = self.base + value

    def words(self):
        """The addresses of all instruction words."""
        start, size = self.text
        return range(start, start + size, 4)

    def descriptor(self, kernel):
        """The kernel descriptor (64 bytes) and its address."""
        at = self.symbols[kernel + '.kd']
        return ctypes.string_at(at, 64), at
