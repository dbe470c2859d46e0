#!/usr/bin/env bash
# Compares training on the GPUs of this machine with PyTorch (DDP, FSDP2, NCCL), with one GPU and with the goals, in one
# run that alternates between the sides: `make bench-multi`. Prints Markdown.
#
#   tools/bench_multi.sh [options]
#     --parts LIST   of step1b step125m step7b step13b step30b collectives exact hashes cpu (default: all but step30b)
#     --ranks LIST   numbers of ranks, one per GPU (default: 1 and 2). Parts that need several take those above 1; step7b,
#                    step13b and step30b the largest
#     --sides LIST   of cltrain pytorch (default: both). Calls that each measure one side may run at the same time on
#                    different GPUs, with an OUT of their own; join their files and print --report
#     --rounds N     rounds of every training part; the mean counts (default 1)
#     --steps N      steps per run of cltrain, of which the first three are not measured (default 24, but at most 12 where
#                    a step takes seconds: step7b, step13b, step30b, exact, cpu)
#     --stages LIST  sharding stages on several GPUs in step1b, step125m and exact (default 1)
#     --microbatches LIST  of step7b, step13b and step30b, in turn until one fits both sides (default 8 4 2 1)
#     --limit S      seconds that each part may take (default: each its own, about five minutes)
#     --report       only prints the tables of earlier parts
#     --tiny         tiny models and short samples, as a test of this script; PyTorch may then use the CPU
# Logs, metrics and results are kept in $OUT (default build/bench-multi). A part replaces its own earlier results there,
# and the table of goals uses all of them, so the parts may be run by several commands. Without PyTorch only cltrain is
# measured. Exits with 1 if a run failed or hashes differ; a missed goal is no failure.
# Environment: CLTRAIN, DEVICE, PYTHON, PEAK (tools/bench/lib.sh), CLBENCH (default build/clbench; may be several words),
# LINK (GB/s that a GPU can write to the host's memory, default 34).
# Files in $OUT, tab-separated: records.tsv (tools/bench/lib.sh);
#   collectives.tsv  devices op size us busbw wrong mpi_us mpi_busbw type ranks
#   nccl.tsv         op size us busbw wrong ranks
#   hashes.tsv       name ranks stage devices hash note precision
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tools/bench/lib.sh

usage() { sed -n '2,/^set/{/^#/p}' "$0"; exit "$1"; }
every='step1b step125m step7b step13b step30b collectives exact hashes cpu'
parts=${every/ step30b/} ranks='1 2' sides='cltrain pytorch' microbatches='' rounds=1 steps=24 stages=1 limit='' report=no tiny=no out=${OUT:-build/bench-multi} LINK=${LINK:-34}
while [ $# -gt 0 ]; do
    case $1 in
    --tiny | --report) declare "${1#--}=yes" && shift && continue ;;
    -h | --help) usage 0 ;;
    --parts | --ranks | --sides | --rounds | --steps | --stages | --microbatches | --limit) [ $# -gt 1 ] || usage 2 >&2 ;;
    *) echo "unknown option '$1'" >&2; usage 2 >&2 ;;
    esac
    declare "${1#--}=${2//,/ }" && shift 2
done
for p in $parts; do
    [[ " $every " == *" $p "* ]] || { echo "unknown part '$p' ($every)" >&2; exit 2; }
done
for p in $ranks; do
    [[ $p =~ ^[1-9][0-9]*$ ]] || { echo "--ranks: '$p' is not a number of ranks" >&2; exit 2; }
done
for p in $sides; do
    [[ $p =~ ^(cltrain|pytorch)$ ]] || { echo "unknown side '$p' (cltrain pytorch)" >&2; exit 2; }
done
several=$(tr ' ' '\n' <<<"$ranks" | sort -n | awk '$1 > 1' | paste -sd' ')
most=${several##* }
: "${most:=1}"
measures() { [[ " $sides " == *" $1 "* ]]; }
bench_setup
read -r -a clbench <<<"${CLBENCH:-${BUILD:-build}/clbench}"
failed=0

# --- the two sides ---

find_torch() {
    torch='' torch_options=()
    measures pytorch || { torch="--sides $sides" && return; }
    if [ $tiny = yes ]; then
        "$PYTHON" -c 'import torch' 2>/dev/null || torch="$PYTHON cannot import torch"
        torch_options=(--eager)
    else
        "$PYTHON" -c 'import torch, sys; sys.exit(torch.cuda.device_count() < int(sys.argv[1]))' "$most" 2>/dev/null ||
            torch="$PYTHON cannot import torch, or it finds fewer than $most GPU(s)"
    fi
    [ -z "$torch" ] || say "PyTorch is skipped: $torch"
}

# ours PART CASE MODEL RANKS STAGE MICROBATCH ACCUMULATION RECOMPUTE PEAK SETTING...: one run, one record; false if it failed.
# A run that the plan refuses is a record with the reason. The record's stage is that of the plan.
ours() {
    measures cltrain || return 0
    local part=$1 name=$2 ranks=$4 stage=$5 mb=$6 acc=$7 peak=$9
    bench_settings "mpt-$3" "$ranks" "$stage" "$mb" "$acc" "$8"
    settings+=("${@:10}")
    bench_plan "$ranks" "${settings[@]}"
    stage=${plan[stage]}
    if [ -n "${plan[reason]}" ]; then
        run=([rate]=- [first]=- [last]=- [memory]=- [reason]=${plan[reason]})
        bench_record "$part" "$name" "${side:-cltrain}" "$ranks" "$stage" "$mb" "$acc" "$peak"
        return 1
    fi
    bench_train "$name-$ranks-stage$stage-mb$mb" 200 "$steps" "$ranks" "${settings[@]}"
    bench_record "$part" "$name" "${side:-cltrain}" "$ranks" "$stage" "$mb" "$acc" "$peak"
    [ -z "${run[reason]}" ]
}

# theirs PART CASE MODE MODEL RANKS MICROBATCH ACCUMULATION OPTION...: the same with PyTorch; true without PyTorch
theirs() {
    local part=$1 name=$2 mode=$3 model=mpt-$4 n=$5 mb=$6 acc=$7 stage=0
    [ -z "$torch" ] || return 0
    shift 7
    [ $tiny = no ] || model=tiny
    [ "$mode" = ddp ] || stage=3
    bench_torch "$name-$mode-$n-mb$mb" 240 $((steps > SKIP ? steps - SKIP : 1)) "$n" --mode "$mode" --model "$model" \
        --microbatch "$mb" --accumulation "$acc" "${torch_options[@]}" "$@"
    [[ " $* " != *" --checkpoint "* ]] || plan[recompute]=blocks
    bench_record "$part" "$name" "PyTorch $mode" "$n" $stage "$mb" "$acc" "$PEAK"
    [ -z "${run[reason]}" ]
}

# --- parts: training ---

# against_ddp PART CASE MODEL MICROBATCH ACCUMULATION: each number of ranks, and DDP on as many GPUs
against_ddp() {
    local s r n
    for ((r = 0; r < rounds; r++)); do
        for n in $ranks; do
            for s in $([ "$n" = 1 ] && echo 0 || echo "$stages"); do ours "$1" "$2" "$3" "$n" "$s" "$4" "$5" default "$PEAK" || failed=1; done
            theirs "$1" "$2" ddp "$3" "$n" "$4" "$5" || failed=1
        done
    done
}

part_step1b() {
    against_ddp step1b 1b-8x1 1b $mb8 1
    against_ddp step1b 1b-8x4 1b $mb8 4
}

part_step125m() { against_ddp step125m 125m-16x4 125m $mb16 4; }

# against_fsdp PART MODEL RECOMPUTE STAGES OPTION...: the largest microbatch that fits both sides, in the first stage that
# fits it, with $accumulation microbatches and the settings of `extra`
extra=() accumulation=1
against_fsdp() {
    local part=$1 model=$2 recompute=$3 mb stage fits r reason='' steps=$((steps < 12 ? steps : 12))
    for mb in $mbs; do
        fits=''
        for stage in $4; do
            bench_settings "mpt-$model" "$most" "$stage" "$mb" "$accumulation" "$recompute"
            settings+=("${extra[@]}")
            bench_plan "$most" "${settings[@]}"
            reason=${plan[reason]}
            [ "${plan[stage]}" = "$stage" ] || reason="this cltrain does not support stage $stage"
            [ -n "$reason" ] || { fits=$stage && break; }
        done
        [ -n "$fits" ] || continue
        for ((r = 0; r < rounds; r++)); do
            ours "$part" "$model" "$model" "$most" "$fits" "$mb" "$accumulation" "$recompute" "$PEAK" "${extra[@]}" || failed=1
            theirs "$part" "$model" fsdp2 "$model" "$most" "$mb" "$accumulation" "${@:5}" && continue
            [[ ${run[reason],,} != *"out of memory"* && ${run[reason]} != *OutOfMemory* ]] || continue 2
            failed=1
        done
        return
    done
    [ -n "$reason" ] || return 0 # PyTorch failed with every microbatch, and has records
    run=([rate]=- [first]=- [last]=- [memory]=- [reason]=$reason)
    bench_record "$part" "$model" cltrain "$most" "$stage" "$mb" "$accumulation" "$PEAK"
}

part_step7b() { against_fsdp step7b 7b norms '1 2 3 0'; }
part_step13b() { against_fsdp step13b 13b blocks 3 --checkpoint; }
# Weights and moments in host memory; FSDP2's offload updates them on the CPU, which takes minutes.
part_step30b() {
    local extra=(cltrain.offload=host) torch='the optimizer of an offloaded FSDP2 runs on the CPU'
    against_fsdp step30b 30b blocks 3
}

# The same batch on any number of GPUs: with exact numerics the same bits, too. A microbatch never contains samples of
# two of the eight lanes.
part_exact() {
    local s r n steps=$((steps < 12 ? steps : 12)) exact=(precision=fp32 cltrain.numerics=exact)
    for ((r = 0; r < rounds; r++)); do
        for n in $ranks; do
            for s in $([ "$n" = 1 ] && echo 0 || echo "$stages"); do
                ours exact exact 125m "$n" "$s" $mb8 $((8 / n)) none - "${exact[@]}" || failed=1
            done
        done
    done
}

# index_of TYPE: the index of the first device of a type
index_of() { sed 's/},{/}\n{/g' <<<"$devices" | grep "\"type\":\"$1\"" | sed -n '1s/.*"index":"\([^"]*\)".*/\1/p'; }

# Two cores of the CPU as one rank and as two. PoCL's threads are limited by hand, because taskset does not change what it
# takes the number of cores for.
part_cpu() {
    local seq=256 DEVICE side before=() r steps=$((steps < 12 ? steps : 12)) exact=(precision=fp32 cltrain.numerics=exact)
    [ $tiny = no ] || seq=32
    DEVICE=$(index_of CPU)
    [ -n "$DEVICE" ] && [ "$(nproc)" -ge 2 ] || { say "cpu: skipped, no OpenCL device on two CPU cores"; return; }
    bench_data $seq || { failed=1 && return; }
    for ((r = 0; r < rounds; r++)); do
        side='cltrain, 2 cores per rank' before=(env POCL_MAX_PTHREAD_COUNT=2 taskset -c '0,1')
        ours cpu cpu 125m 1 0 1 8 none - "${exact[@]}" || failed=1
        side='cltrain, 1 core per rank' before=(env POCL_MAX_PTHREAD_COUNT=1 taskset -c '0,1')
        ours cpu cpu 125m 2 0 1 4 none - "${exact[@]}" || failed=1
    done
    sed -i '/^cpu\t/d' "$out/collectives.tsv" 2>/dev/null
    collective cpu allreduce 8K 2
}

# --- parts: collectives ---

# collective DEVICES OP SIZE RANKS: one row of clbench in collectives.tsv
collective() {
    local file=$work/collective.json log=$out/clbench-$1-$2-$3-$4.log time
    "${clbench[@]}" "$2" --help >/dev/null 2>&1 || { say "collectives: skipped, this clbench has no benchmark $2"; return; }
    time=$(bench_limit 60) || { say "clbench $2 $3: not run, the time limit is used up"; return; }
    say "clbench $2 $3 on $4 ranks ($1 devices)"
    rm -f "$file"
    timeout --foreground -k 20 "$time" "${clbench[@]}" "$2" -n "$4" -b "$3" -e "$3" ${DEVICE:+--device "$DEVICE"} --json "$file" >"$log" 2>&1 ||
        { failed=1 && say "clbench $2 $3: $(bench_error "$log")"; }
    [ -s "$file" ] || return
    local type=$device_type
    [ "$1" = default ] || type=CPU
    grep '"op"' "$file" | awk -v devices="$1" -v type="$type" -v ranks="$4" '
        function value(key,  s) { s = $0; if (!sub(".*\"" key "\": *\"?", "", s)) return "-"; sub(/[",}].*/, "", s); return s }
        BEGIN { OFS = "\t" }
        { print devices, value("op"), value("size"), value("seconds") * 1e6, value("busbw"), value("wrong"),
              value("mpi_seconds") * 1e6, value("mpi_busbw"), type, ranks }' >>"$out/collectives.tsv"
}

part_collectives() {
    local op size n sizes='8K 1M 64M 1G' time
    [ $tiny = no ] || sizes='8K 64K'
    sed -i '/^default\t/d' "$out/collectives.tsv" 2>/dev/null
    for n in $several; do
        for op in allreduce reduce-scatter all-gather; do
            for size in $sizes; do ! measures cltrain || collective default $op $size "$n"; done
        done
    done
    [ -z "$torch" ] || return
    : >"$out/nccl.tsv"
    for n in $several; do
        time=$(bench_limit 120) || return
        say "NCCL through PyTorch on $n ranks"
        timeout --foreground -k 20 "$time" "$PYTHON" tools/anchors/torch_collectives.py --ranks "$n" --sizes "${sizes// /,}" >"$out/nccl.log" 2>&1 ||
            { failed=1 && say "torch_collectives.py: $(bench_error "$out/nccl.log")"; }
        awk -v ranks="$n" 'BEGIN { OFS = "\t" } NF == 8 && $2 ~ /^[0-9]+$/ { print $1, $2, $5, $7, $8, ranks }' "$out/nccl.log" >>"$out/nccl.tsv"
    done
}

print_collectives() {
    [ -s "$out/collectives.tsv" ] || [ -s "$out/nccl.tsv" ] || return
    echo
    echo "### Collectives"
    echo "| op | ranks | devices | size | cltrain us | busbw GB/s | wrong | MPI on host memory, us | busbw GB/s | PyTorch us | busbw GB/s |"
    echo "|---|---|---|---|---|---|---|---|---|---|---|"
    touch "$out/collectives.tsv" "$out/nccl.tsv"
    awk -F '\t' '
        function row(op, ranks, where, size, rest) { printf "| %s | %s | %s | %s | %s |\n", op, ranks, where, size, rest }
        FILENAME ~ /nccl/ { k = $1 FS $2 FS $6; us[k] = $3; bus[k] = $4; next }
        { k = $2 FS $3 FS $10; both = $1 == "default" && k in us; used[k] += both
          row($2, $10, $1 " (" $9 ")", $3, sprintf("%.1f | %.2f | %s | %.1f | %.2f | %s | %s", $4, $5, $6, $7, $8,
              both ? sprintf("%.1f", us[k]) : "-", both ? sprintf("%.2f", bus[k]) : "-")) }
        END { for (k in us) if (!used[k]) { split(k, f, FS)
                  row(f[1], f[3], "PyTorch", f[2], sprintf("- | - | - | - | - | %.1f | %.2f", us[k], bus[k])) } }' \
        "$out/nccl.tsv" "$out/collectives.tsv"
    [ ! -s "$out/nccl.log" ] || { echo && sed -n '1p' "$out/nccl.log"; }
}

# --- parts: hashes ---

# hash NAME PRECISION RANKS STAGE DEVICES: three batches with exact numerics, and the hash of weights and optimizer state
hash() {
    local folder=$work/hash log=$out/hash-$2-$1.log value=- note=- time
    bench_settings mpt-125m 1 "$4" 1 8 none
    bench_plan "$3" "${settings[@]}" precision="$2" cltrain.numerics=exact
    if [ "${plan[stage]}" != "$4" ]; then
        value=skipped note="this cltrain does not support stage $4"
    elif ! time=$(bench_limit 120); then
        note='not run: the time limit is used up'
    else
        say "hash of $2, $1"
        rm -rf "$folder"
        timeout --foreground -k 20 "$time" "$CLTRAIN" launch -n "$3" ${5:+--device "$5"} train "${settings[@]}" precision="$2" \
            cltrain.numerics=exact max_duration=3ba save_folder="$folder" save_interval=1000ba >"$log" 2>&1 </dev/null &&
            value=$("$CLTRAIN" ckpt hash "$folder" 2>>"$log" | awk '{ printf "%s%s", sep, $2; sep = " " }') ||
            { failed=1 note=$(bench_error "$log"); }
        rm -rf "$folder"
    fi
    [ "$note" = - ] || say "hash of $2, $1: $note"
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$3" "$4" "${5:-default}" "${value:--}" "$note" "$2" >>"$out/hashes.tsv"
}

part_hashes() {
    local seq=128 s n cpu gpu precision
    [ $tiny = no ] || seq=32
    bench_data $seq || { failed=1 && return; }
    cpu=$(index_of CPU) gpu=$(index_of GPU)
    rm -f "$out/hashes.tsv"
    for precision in fp32 exact8; do
        [ -z "$cpu" ] || hash "1 CPU" $precision 1 0 "$cpu"
        [ -z "$gpu" ] || hash "1 GPU" $precision 1 0 "$gpu"
        for n in $several; do
            for s in $([ "$n" = "${several%% *}" ] && echo 0 1 2 3 || echo 1 3); do hash "$n ranks, stage $s" $precision "$n" $s "$DEVICE"; done
        done
        [ -z "$cpu" ] || [ -z "$gpu" ] || for s in 0 3; do hash "GPU + CPU, stage $s" $precision 2 "$s" "$gpu,$cpu"; done
    done
    awk -F '\t' '$5 == "skipped" { next } $5 == "-" || (n[$7]++ && $5 != first[$7]) { bad = 1 } n[$7] == 1 { first[$7] = $5 }
        END { for (p in n) bad += n[p] < 2; exit bad > 0 }' "$out/hashes.tsv" || failed=1
}

print_hashes() {
    [ -s "$out/hashes.tsv" ] || return
    echo
    echo "### Hashes of weights and optimizer state after three batches"
    echo "| precision | run | ranks | stage | devices | hash | note |"
    echo "|---|---|---|---|---|---|---|"
    awk -F '\t' '{ printf "| %s | %s | %s | %s | %s | %s | %s |\n", $7, $1, $2, $3, $4, $5, $6 }' "$out/hashes.tsv"
}

# --- all ---

limit_of() {
    case $1 in
    step13b) echo 400 ;;
    step125m | collectives | exact) echo 180 ;;
    *) echo 300 ;;
    esac
}

print_report() {
    bench_machine
    [ -z "$torch" ] || echo "- PyTorch was skipped: $torch"
    [ -n "$torch" ] || echo "- $("$PYTHON" -c 'import torch; print("PyTorch", torch.__version__)')"
    [ "$gpus" -ge "$most" ] || echo "- the goals are for one GPU per rank; this machine has $gpus, so ranks share a device"
    [ $tiny = no ] || echo "- tiny models: these figures say nothing about speed"
    echo
    echo "### Training"
    bench_rows case $every
    print_collectives
    print_hashes
    echo
    echo "### Goals"
    touch "$out"/{records,collectives,hashes}.tsv
    awk -F '\t' -v link="$LINK" -f tools/bench/goals.awk "$out"/{records,collectives,hashes}.tsv
}

mb8=8 mb16=16 mbs=${microbatches:-8 4 2 1}
[ $tiny = no ] || { mb8=2 mb16=2 mbs='2 1'; }
find_torch
if [ $report = no ]; then
    say "text and data set"
    bench_data $seq || { echo "the data set cannot be made: $(bench_error "$out/data.log")" >&2; exit 1; }
    for p in $parts; do
        deadline=$((SECONDS + ${limit:-$(limit_of "$p")}))
        say "part $p, at most $((deadline - SECONDS)) s"
        bench_forget "$p"
        "part_$p"
        print_report >"$out/table.md" # complete after each part, if the next one is interrupted
    done
fi
print_report | tee "$out/table.md"
exit $failed
