#!/bin/bash
# tools/amd/estimate.py reads registers, matrix instructions, LDS addresses and waits from machine code. Compares them with
# what is known by construction: of GEMM's tile of 128 x 128 x 32 on an MFMA and a WMMA target, of small kernels whose accesses
# to LDS have known conflicts, and of one whose loads are used at once.
# no sanitizer: only a compiler and Python run here
set -u
cd "$(dirname "$0")/../.." || exit 2
missing=$(cd tools/amd && python3 -c 'import codeobject; print(codeobject.missing_tools(), end="")') || exit 1
command -v llvm-objdump-19 >/dev/null || missing="$missing llvm-objdump-19"
[ -z "$missing" ] || { echo "skipped: not installed: $missing"; exit 0; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# Each item writes a word and reads 16 bytes, STRIDE bytes apart, which go to a matrix product. AHEAD=1: the next word is loaded
# before the product, otherwise where it is needed.
cat >"$tmp/reads.cl" <<'CL'
typedef short short4_ __attribute__((ext_vector_type(4)));
__kernel __attribute__((reqd_work_group_size(256, 1, 1))) void reads(__global const uint *in, __global float4 *out, uint n)
{
    __local uint4 tile[256 * STRIDE / 16];
    const uint item = get_local_id(0);
    float4 acc = 0.0f;
    uint next = item;
    for (uint i = 1; i <= n; i++) {
        barrier(CLK_LOCAL_MEM_FENCE);
#if !AHEAD
        next = in[i * 256 + item];
#endif
        *(__local uint *)((__local char *)tile + item * STRIDE) = next;
        barrier(CLK_LOCAL_MEM_FENCE);
#if AHEAD
        next = in[i * 256 + item];
#endif
        const uint4 v = *(__local uint4 *)((__local char *)tile + item * STRIDE);
        acc = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(as_short4(v.xy), as_short4(v.zw), acc, 0, 0, 0);
    }
    out[item] = acc;
}
CL

PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=tools/amd python3 - "$tmp" <<'PY'
import sys
import cards, codeobject, estimate, lanes, listing

tmp, failed = sys.argv[1], 0


def expect(what, got, want):
    global failed
    if got != want:
        print(f'FAIL: {what}: {got} instead of {want}')
        failed = 1


# The row: each wave has tiles of (128 / waves of m) x (128 / waves of n), so that together they have 8 x 8 x 2 products.
for target, waves in (('gfx942', 4), ('gfx1100', 8)):
    case = next(c for c in estimate.cases(target) if c.label.startswith('gemm=') and c.label.endswith('_128 NT'))
    e = estimate.Estimate(case, estimate.compiled(case, tmp))
    expect(f'{target} matrix instructions of the group', e.n['matrix'] * waves, 8 * 8 * 2)
    expect(f'{target} FLOP of the group', e.n['flop'] * waves, 2 * 128 * 128 * 32)
    # Two waves per SIMD at least (CLT_TILE16_KERNEL): the sums, 128 * 128 words of the group, are in vector registers.
    expect(f'{target} accumulation registers', e.agprs, 0)
    expect(f'{target} registers for the sums', e.registers > 128 * 128 // 256, True)
    expect(f'{target} clocks of LDS without conflicts', e.lds, e.lds_free)
    expect(f'{target} loads ahead', (e.ahead, e.serial_loads), (1.0, False))
    expect(f'{target} loaded bytes of the group', e.n['load bytes'] * waves, (128 + 128) * 32 * 2)
    expect(f'{target} bytes written to LDS', e.n['write bytes'] * waves, (128 + 128) * 32 * 2)
    expect(f'{target} LDS', e.local, (128 + 128) * (32 + 8) * 2)
    expect(f'{target} barriers', e.n['barrier'], 2)
    expect(f'{target} accesses with unknown addresses', e.unknown, 0)
    expect(f'{target} faults', list(e.faults()), [])
    case.matrix += 1
    expect(f'{target} faults of another tile', len(list(e.faults())), 1)

# Each 8 lanes of a read of 16 bytes take all banks with rows of 16 bytes, a quarter of them with rows of 64 bytes; a write of
# 4 bytes has the words of its 32 lanes in 32 banks only with rows of 4 (or an odd number of words).
for stride, write, read in ((16, 8, 8), (64, 32, 32), (144, 8, 8), (128, 64, 64)):
    for ahead in (0, 1):
        path = f'{tmp}/{stride}.co'
        codeobject.compile_kernels(f'{tmp}/reads.cl', 'gfx942', ['-cl-std=CL1.2', f'-DSTRIDE={stride}', f'-DAHEAD={ahead}'], path)
        code = listing.read(path)['reads']
        found = lanes.local_addresses(code, 64)
        loop = listing.main_loop(code).path()
        expect(f'matrix instructions after the load, AHEAD={ahead}', listing.loads_ahead(loop), (float(ahead), False))
        for i, _ in loop:
            if i.kind in ('read', 'write'):
                expect(f'addresses of {i.name}', found[i.address], [[lane * stride for lane in range(64)]])
                sets = lanes.lane_sets(64, i.size, i.kind == 'read')
                expect(f'clocks of {i.name} with rows of {stride} bytes', lanes.clocks(found[i.address][0], i.size, sets)[0],
                       read if i.kind == 'read' else write)

# MI300X: 512 registers per lane and SIMD, and 64 KiB of LDS per compute unit.
expect('groups', [cards.groups_per_unit(cards.CARDS['gfx942'], 256, r, b)[0] for r, b in ((128, 8192), (129, 8192), (64, 33000))],
       [4, 3, 1])
sys.exit(failed)
PY
rc=$?
[ $rc = 0 ] && echo "ok    metadata, loops, LDS addresses and banks are as by construction"
exit $rc
