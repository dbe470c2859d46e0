#!/bin/bash
# Compiles every row of the variant tables (clkernels/*/*.vt) for every GPU target that the row admits, without the
# hardware, and fails on a compile error, an unresolved function, a register spilled to memory or scratch memory.
# Printed as a note only: AMD's scalar registers kept in lanes of vector registers, which touches no memory.
#
#     test/ops/offline_gates.sh [--no-fetch] [--verbose] [word ...]
#
#   --no-fetch fetches nothing. Otherwise a missing libclc-19 is fetched with apt-get download, a missing ptxas with pip
#              (nvidia-cuda-nvcc; pip from a virtual environment), and unpacked into $BUILD/tools; nothing is installed
#   --verbose  one line per compilation (with registers, if the tool reports them), not only failures
#   word       only rows whose "table/id" contains one of the words, and probes whose "probe/name" does
#
# Targets: gfx90a gfx942 gfx1100 gfx1201 (clang-19 with ROCm's device libraries), sm_75 sm_80 sm_86 sm_89 sm_90 (clang-19
# with libclc, then ptxas), Intel dg2 and, for rows that require block_reads, pvc and bmg (ocloc; old ones lack bmg). A
# target without tools is skipped with the reason. gfx942 and gfx1201 have the registers and wave sizes of gfx90a and
# gfx1100, so they compile only rows for matrix units, which differ; with TEST_COMPLETE=1 (test/long/offline_gates.sh)
# gfx942 compiles every row. NVIDIA's older targets compile only rows for matrix units (mma*): those of mma_f16 for sm_75,
# those of mma_bf16 for sm_86 or, if they need more than 48 KiB of local memory, sm_90; with TEST_COMPLETE=1 for sm_90 and,
# of mma_bf16, sm_80 and sm_89, too.
#
# A table may add option sets for the gates, one per line; every row, or each named row, is also compiled with each of
# them:
#     #gate -DACT=12
#     #gate mfma,wmma -DHEAD_DIM=128
# A row that requires no kind of GPU is compiled without them for one of gfx90a, gfx1100, sm_90 and dg2 in turn, and so
# with every fifth of them, other rows with every third; with words or TEST_COMPLETE=1 with all for every target.
# The probes of clkernels/probe/ are compiled for the targets in the line "Targets" at their start, or for all.
# A row of attention (MIN_D, MAX_D) is compiled only for head sizes that it supports. Programs that two tables share are
# compiled once.
# timeout: 3000
# at leisure: only compilers run here
# no sanitizer: only compilers run here
set -u
cd "$(dirname "$0")/../.." || exit 2
BUILD=${BUILD:-build}
FETCH=1 VERBOSE=0 WORDS=()
for a in "$@"; do
    case $a in
    --no-fetch) FETCH=0 ;;
    --verbose) VERBOSE=1 ;;
    -*) echo "usage: $0 [--no-fetch] [--verbose] [word ...]" >&2; exit 2 ;;
    *) WORDS+=("$a") ;;
    esac
done
TOOLS=$BUILD/tools
WORK=$(mktemp -d) || exit 2
trap 'rm -rf "$WORK"' EXIT
COMMON="-x cl -cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -O3 -Wall -Wno-unused -Werror"
ROCM=/usr/lib/x86_64-linux-gnu/amdgcn/bitcode

# --- tools --------------------------------------------------------------------------------------------------

fetch_tools() {
    mkdir -p "$TOOLS"
    if ! find_libclc >/dev/null; then
        (cd "$TOOLS" && apt-get download -qq libclc-19 && dpkg -x libclc-19_*.deb libclc) >/dev/null 2>&1
    fi
    if ! find_ptxas >/dev/null; then
        (cd "$TOOLS" && python3 -m venv pip && pip/bin/pip download -q --no-deps -d . "nvidia-cuda-nvcc==$PTXAS_RELEASE.*" &&
            python3 -m zipfile -e nvidia_cuda_nvcc-*.whl nvcc && chmod +x nvcc/nvidia/*/bin/ptxas) >"$TOOLS/ptxas.log" 2>&1 ||
            { echo "ptxas could not be fetched:" && tail -n 3 "$TOOLS/ptxas.log"; }
        rm -rf "$TOOLS/pip" "$TOOLS"/nvidia_cuda_nvcc-*.whl
    fi
}
find_libclc() {
    find /usr/lib/clc "$TOOLS/libclc" -name 'nvptx64--nvidiacl.bc' 2>/dev/null | grep -m1 .
}
# Of one release: 12.9 refuses kernels for their large local memory, and 13.5 spills where 13.0 does not.
PTXAS_RELEASE=13.0
find_ptxas() {
    local p
    for p in $(command -v ptxas) /usr/local/cuda*/bin/ptxas "$TOOLS"/nvcc/nvidia/*/bin/ptxas; do
        if "$p" --version 2>/dev/null | grep -qF "release $PTXAS_RELEASE,"; then echo "$p" && return; fi
    done
    return 1
}

TARGETS=() BLOCKS=""
choose_targets() {
    local missing
    CLANG=$(command -v clang-19) READELF=$(command -v llvm-readelf-19) NM=$(command -v llvm-nm-19)
    missing=""
    [ -n "$CLANG" ] || missing="clang-19"
    [ -n "$READELF" ] && [ -n "$NM" ] || missing="$missing llvm-19"
    command -v ld.lld-19 >/dev/null || missing="$missing lld-19"
    [ -f $ROCM/ocml.bc ] || missing="$missing rocm-device-libs"
    if [ -z "$missing" ]; then TARGETS+=(gfx90a gfx942 gfx1100 gfx1201); else echo "skipped: gfx90a gfx942 gfx1100 gfx1201 (not found: $missing)"; fi
    LIBCLC=$(find_libclc) PTXAS=$(find_ptxas) missing=""
    [ -n "$CLANG" ] || missing="clang-19"
    [ -n "$LIBCLC" ] || missing="$missing libclc-19"
    [ -n "$PTXAS" ] || missing="$missing ptxas $PTXAS_RELEASE"
    LLC=$(command -v llc-19) || missing="$missing llvm-19"
    if [ -z "$missing" ]; then TARGETS+=(sm_75 sm_80 sm_86 sm_89 sm_90); else echo "skipped: sm_75 sm_80 sm_86 sm_89 sm_90 (not found: $missing)"; fi
    if ! command -v ocloc >/dev/null; then
        echo "skipped: dg2 pvc bmg (not found: ocloc, package intel-opencl-icd)"
        return
    fi
    TARGETS+=(dg2 pvc)
    case $(gate_intel pvc clkernels/gemm/probe_dpas_2d.cl "" blocks) in
    unresolved:*) BLOCKS=" -DBLOCK2D_OLD=1" && echo "note: this ocloc has reads of blocks only under their older names (clt_dpas.clh)" ;;
    esac
    echo "__kernel void empty(void) {}" >"$WORK/empty.cl"
    if ocloc compile -file "$WORK/empty.cl" -device bmg -output empty -out_dir "$WORK" >"$WORK/empty.log" 2>&1; then TARGETS+=(bmg); else echo "skipped: bmg (ocloc: $(grep -m1 -i error "$WORK/empty.log"))"; fi
}

# --- one compilation: prints "ok ..." or the reason; $1 file, $2 options, $3 work name ------------------------

gate_amd() {
    local isa wave libs="" o="$WORK/$4" out
    case $1 in
    gfx90a) isa=90a wave=on ;;
    gfx942) isa=940 wave=on ;; # the nearest that the packaged device libraries have
    *) isa=1036 wave=off ;;
    esac
    for f in opencl ocml ockl oclc_isa_version_$isa oclc_wavefrontsize64_$wave oclc_daz_opt_off \
        oclc_correctly_rounded_sqrt_on oclc_unsafe_math_off oclc_finite_only_off oclc_abi_version_500; do
        libs="$libs -Xclang -mlink-builtin-bitcode -Xclang $ROCM/$f.bc"
    done
    # shellcheck disable=SC2086
    "$CLANG" $COMMON -target amdgcn-amd-amdhsa -mcpu="$1" -nogpulib $libs $3 "$2" -o "$o.co" 2>"$o.log" ||
        { grep -m1 -E 'error|warning' "$o.log"; return; }
    out=$("$NM" -u "$o.co")
    [ -z "$out" ] || { echo "unresolved: $out"; return; }
    "$READELF" --notes "$o.co" | awk '
        /\.symbol:/ { n = $NF } /private_segment_fixed/ { p = $NF } /\.sgpr_spill/ { ss = $NF } /\.vgpr_count/ { v = $NF }
        /\.vgpr_spill/ { if (p || $NF) bad = bad " " n " scratch=" p " sgpr_spill=" ss " vgpr_spill=" $NF
                         else if (ss) lanes = lanes " " n " keeps " ss " scalar registers in vector lanes"
                         if (v > most) most = v }
        END { if (bad) print "spills:" bad; else if (lanes) print "note:" lanes; else print "ok vgpr<=" most }'
}

# clang does not tell NVIDIA's assembler a kernel's work-group size, and the assembler then grants registers that a large
# group does not have. So the sizes are read from the intermediate code. For groups of up to 256, whose work-items may
# have all 255 registers, one group per unit is requested: otherwise the assembler saves registers, and spills, to fit a
# second one.
work_groups() { # IR on stdin: "kernel items" a line
    awk '/^define .*!reqd_work_group_size/ { match($0, /@[A-Za-z0-9_]+/); name = substr($0, RSTART + 1, RLENGTH - 1)
             match($0, /!reqd_work_group_size ![0-9]+/); split(substr($0, RSTART, RLENGTH), word, " "); size[name] = word[2] }
         /^![0-9]+ = !\{i32/ { id = $1; gsub(/[!{},]|i32/, " "); $0 = $0; items[id] = $3 * $4 * $5 }
         END { for (name in size) print name, items[size[name]] }'
}

gate_nvidia() {
    local o="$WORK/$4" alone="" arch=${1/sm_90/sm_90a}
    # shellcheck disable=SC2086
    "$CLANG" $COMMON -target nvptx64--nvidiacl -Xclang -target-cpu -Xclang $arch -Xclang -target-feature -Xclang +ptx83 \
        -Xclang -mlink-builtin-bitcode -Xclang "$LIBCLC" $3 -emit-llvm -S "$2" -o "$o.ll" 2>"$o.log" &&
        "$LLC" -mcpu="$arch" -mattr=+ptx83 -O3 "$o.ll" -o "$o.ptx" 2>"$o.log" ||
        { grep -m1 -E 'error|warning' "$o.log"; return; }
    # Instructions for the assembler only (clt_ptx.h).
    if grep -q '//@' "$o.ptx"; then
        "$BUILD/test/unit/test_ptx" --rewrite <"$o.ptx" >"$o.second" && mv "$o.second" "$o.ptx" || { echo "not rewritten"; return; }
    fi
    # A kernel may set the number of groups that share a unit.
    grep -q minnctapersm "$o.ptx" || alone='\n.minnctapersm 1'
    work_groups <"$o.ll" | awk -v alone="$alone" 'sizes { items[$1] = $2; next }
        /\.entry / { match($0, /\.entry [A-Za-z0-9_]+/); name = substr($0, RSTART + 7, RLENGTH - 7) }
        { print } /^\)/ && items[name] {
            print ".reqntid " items[name] ", 1, 1" (items[name] > 256 ? "" : alone); items[name] = 0 }' sizes=1 - sizes=0 "$o.ptx" >"$o.sized.ptx"
    "$PTXAS" -arch="$arch" -v "$o.sized.ptx" -o "$o.cubin" >"$o.log" 2>&1 || { grep -m1 -E 'error|fatal' "$o.log"; return; }
    awk '/Function properties for/ { n = $NF }
         /bytes stack frame/ { if ($1 + $5 + $9 > 0) bad = bad " " n ": " $0 }
         /Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used" && $(i + 1) + 0 > most) most = $(i + 1) + 0 }
         END { if (bad) print "spills:" bad; else print "ok registers<=" most }' "$o.log"
}

gate_intel() {
    local o="$WORK/$4" found
    mkdir -p "$o/listing"
    # If a kernel requests its sub-group size, ocloc does not report most spills; its listing shows them. A function that
    # nothing defines is no error for ocloc: the intermediate code that it writes beside the listing declares it.
    IGC_ShaderDumpEnable=1 IGC_ShaderDumpFilter='.*(\.asm|_optimized\.ll)' IGC_DumpToCustomDir="$o/listing" \
        ocloc compile -file "$2" -device "$1" -output k -out_dir "$o" \
        -options "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -I $(dirname "$2") $3$BLOCKS" >"$o.log" 2>&1 ||
        { grep -m1 -i 'error' "$o.log" || echo "ocloc failed: $(tail -1 "$o.log")"; return; }
    cat "$o"/listing/*.asm >"$o.asm" 2>/dev/null && cat "$o"/listing/*_optimized.ll >"$o.ll" 2>/dev/null ||
        { echo "ocloc writes no listing"; return; }
    found=$(sed -n 's/^declare spir_func [^@]*@\([A-Za-z0-9_]*\).*/\1/p' "$o.ll" | grep -v '^__builtin_IB_' | sort -u | paste -sd ' ')
    [ -z "$found" ] || { echo "unresolved: $found"; return; }
    # Otherwise the listing also holds widths that ocloc tried and gave up.
    grep -q '!intel_reqd_sub_group_size' "$o.ll" || : >"$o.asm"
    found=$(grep -m1 '^//\.spill size' "$o.asm" || grep -m1 -i 'spill' "$o.log")
    if [ -n "$found" ]; then echo "spills: $found"; else echo ok; fi
}

gate() { # target file options label number
    local result
    case $1 in
    gfx*) result=$(gate_amd "$1" "$2" "$3" "$5") ;;
    sm_*) result=$(gate_nvidia "$1" "$2" "$3" "$5") ;;
    *) result=$(gate_intel "$1" "$2" "$3" "$5") ;;
    esac
    case $result in
    note:*) echo "note $1 $4 [$3 ] ${result#note: }" && result="ok" ;;
    ok*) [ "$VERBOSE" = 0 ] || echo "ok   $1 $4 [$3 ] ${result#ok}" ;;
    *) echo "FAIL $1 $4 [$3 ] ${result:-no result}" ;;
    esac
    echo "${result:-failed}" >"$WORK/result.$5"
    rm -rf "${WORK:?}/$5" "${WORK:?}/$5".*
}

# Whether the probe of a kernel file (word probe=FILE) compiles for a target. Compiled once each.
declare -A PROBED
probe_compiles() { # target file
    if [ -z "${PROBED[$1 $2]:-}" ]; then
        case $(gate "$1" "clkernels/$2" " -DPROBE=1" "probe of $2" probe >/dev/null; cat "$WORK/result.probe") in
        ok*) PROBED[$1 $2]=yes ;;
        *) PROBED[$1 $2]=no ;;
        esac
        rm -f "$WORK/result.probe"
        [ ${PROBED[$1 $2]} = yes ] || echo "skipped: rows with probe=$2 for $1 (the probe does not compile)"
    fi
    [ "${PROBED[$1 $2]}" = yes ]
}

# The same of a row for NVIDIA's products of warps. The assembler gives arrays in local memory 48 KiB before sm_90.
admits_warps() { # target requires
    local least=sm_86
    [[ ,$2, != *,mma_f16,* ]] || least=sm_75
    [[ ,$2, =~ ,local_mem\>=([0-9]+), ]] && [ "${BASH_REMATCH[1]}" -gt 49152 ] && least=sm_90
    [ -z "${TEST_COMPLETE:-}" ] || [ $least != sm_86 ] || [[ $1 != sm_80 && $1 != sm_89 ]] || return 0
    [[ $1 == "$least" || ($1 == sm_90 && -n ${TEST_COMPLETE:-}) ]]
}

# Whether a row with these requirements can run on this target.
admits() { # target requires id
    local word
    [[ $1 != gfx942 || ,$2, == *,mfma,* || -n ${TEST_COMPLETE:-} ]] || return 1
    [[ $1 != gfx1201 || ,$2, == *,wmma,* ]] || return 1
    [[ $1 != sm_[78]* || ,$2, == *,mma_* ]] || return 1
    [[ ($1 != pvc && $1 != bmg) || ,$2, == *,block_reads,* ]] || return 1
    case ",$2," in
    *,type=cpu,*) return 1 ;;
    *,mma_f16,* | *,mma_bf16,*) if [[ $3 == mma* ]]; then admits_warps "$1" "$2"; else [[ $1 == sm_90 ]]; fi ;;
    *,vendor=NVIDIA,* | *,ptx,* | *,wgmma,*) [[ $1 == sm_90 ]] ;;
    *,mfma,*) [[ $1 == gfx9* ]] ;;
    *,wmma,*) [[ $1 == gfx1[12]* ]] ;;
    *,vendor=AMD,* | *,vendor=Advanced,*) [[ $1 == gfx* ]] ;;
    *,vendor=Intel,* | *,block_reads,*) [[ $1 == dg2 || $1 == pvc || $1 == bmg ]] ;;
    esac || return 1
    for word in ${2//,/ }; do
        [[ $word != probe=* ]] || probe_compiles "$1" "${word#probe=}" || return 1
    done
}

# Whether a target compiles a row with option set K (0: none), which is the program of this number; counts in $left what
# it does not.
takes_set() { # target requires K number
    local at=$4
    [ ${#WORDS[@]} -eq 0 ] && [ -z "${TEST_COMPLETE:-}" ] || return 0
    case ",$2," in
    *,vendor=* | *,ptx,* | *,mma_f16,* | *,mma_bf16,* | *,wgmma,* | *,mfma,* | *,wmma,* | *,block_reads,*)
        [ "$3" != 0 ] && [ $(($4 % 3)) != 0 ] || return 0
        left=$((left + 1))
        return 1
        ;;
    esac
    [ "$3" = 0 ] || at=$((at / 5))
    if [ "$3" = 0 ] || [ $(($4 % 5)) = 0 ]; then
        [ "$1" != "${ANY[at % ${#ANY[@]}]}" ] || return 0
    fi
    left=$((left + 1))
    return 1
}

# The options with a head size that the row supports: 64 without one, or the limit of its params. Fails if the options name
# another size.
with_head_size() { # params options
    local min=1 max=65536 size=64
    [[ ,$1, =~ ,MIN_D=([0-9]+), ]] && min=${BASH_REMATCH[1]}
    [[ ,$1, =~ ,MAX_D=([0-9]+), ]] && max=${BASH_REMATCH[1]}
    if [[ $2 =~ -DHEAD_DIM=([0-9]+) ]]; then
        size=${BASH_REMATCH[1]}
        echo "$2"
    elif [ "$min" -gt "$size" ]; then
        size=$((max < 128 ? max : 128))
        echo "$2 -DHEAD_DIM=$size"
    else
        echo "$2"
    fi
    [ "$size" -ge "$min" ] && [ "$size" -le "$max" ]
}

wanted() {
    [ ${#WORDS[@]} -eq 0 ] && return 0
    for w in "${WORDS[@]}"; do [[ $1 == *"$w"* ]] && return 0; done
    return 1
}

# --- all of them, as many at once as there are processors ------------------------------------------------------

[ $FETCH = 1 ] && fetch_tools
choose_targets
[ ${#TARGETS[@]} -gt 0 ] || { echo "this machine has no compiler for any target"; exit 0; }
n=0 rows=0 left=0 jobs=$(nproc)
ANY=() # the targets that share the option sets of rows for all GPUs
for target in gfx90a gfx1100 sm_90 dg2; do [[ " ${TARGETS[*]} " != *" $target "* ]] || ANY+=("$target"); done
declare -A STARTED NUMBER=()
compile() { # target file options label: starts it, once
    [ -z "${STARTED[$1 $2 $3]:-}" ] || return 0
    STARTED[$1 $2 $3]=1
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    n=$((n + 1))
    gate "$1" "clkernels/$2" "$3" "$4" $n &
}
for table in clkernels/*/*.vt; do
    op=$(basename "$table" .vt)
    mapfile -t extra < <(sed -n 's/^#gate //p' "$table")
    while read -r id file _ requires params; do
        case $id in '' | \#*) continue ;; esac
        options=""
        wanted "$op/$id" || continue
        rows=$((rows + 1))
        [ "$params" = - ] || options=" -D${params//,/ -D}"
        for target in "${TARGETS[@]}"; do
            admits "$target" "$requires" "$id" || continue
            k=-1
            for more in "" "${extra[@]}"; do
                case $more in
                '' | -*) ;;
                *) [[ ,${more%% *}, == *,$id,* ]] || continue ;;
                esac
                k=$((k + 1))
                more=${more#[a-z]* }
                all=$(with_head_size "$params" "$options${more:+ $more}") || continue
                NUMBER[$file $all]=${NUMBER[$file $all]:-${#NUMBER[@]}}
                takes_set "$target" "$requires" $k "${NUMBER[$file $all]}" || continue
                compile "$target" "$file" "$all" "$op/$id"
            done
        done
    done <"$table"
done
# Probes. pvc and bmg add nothing where dg2 compiles, and NVIDIA's older targets nothing where sm_90 does.
for file in clkernels/probe/*.cl; do
    wanted "probe/$(basename "$file" .cl)" || continue
    rows=$((rows + 1))
    names=$(sed -n 's/^ \* Targets *//p' "$file")
    for target in "${TARGETS[@]}"; do
        [[ $target != gfx942 || $names == *gfx942* || -n ${TEST_COMPLETE:-} ]] || continue
        [[ $target != sm_[78]* || $names == *$target* ]] || continue
        [[ $target != pvc && $target != bmg && " ${names:-$target} " == *" $target "* ]] || continue
        compile "$target" "${file#clkernels/}" "" "probe/$(basename "$file" .cl)"
    done
done
wait
# A probe that compiles for no target would leave its rows out unseen.
declare -A COMPILES
for probe in "${!PROBED[@]}"; do
    file=${probe#* }
    COMPILES[$file]=${COMPILES[$file]:-}${PROBED[$probe]}
done
for file in "${!COMPILES[@]}"; do
    [[ ${COMPILES[$file]} != *yes* ]] || continue
    echo "FAIL probe $file compiles for no target"
    echo failed >"$WORK/result.probe.${file//\//.}"
done
[ $rows -gt 0 ] || { echo "offline gates: no row's table/id contains ${WORDS[*]}" >&2; exit 2; }
[ $left = 0 ] || echo "skipped: $left compilations of programs that another target compiles (make check-long: all)"
failed=$(cat "$WORK"/result.* 2>/dev/null | grep -vc '^ok')
echo "offline gates: $n compilations for ${TARGETS[*]}, $failed failed"
[ "$failed" -eq 0 ]
