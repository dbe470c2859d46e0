#!/usr/bin/env bash
# Trains MPT models of several sizes with every sharding stage that fits, and prints speed, MFU, memory and scaling as a
# Markdown table: MosaicML's throughput table for the devices of this machine.
#
#   tools/throughput_table.sh [options] >table.md
#     --models LIST    of 125m 350m 760m 1b 3b 7b 13b 30b 70b (default: 125m 350m 760m 1b 3b 7b 13b)
#     --ranks LIST     numbers of ranks (default: 1, 2, 4 ... up to the number of GPUs; on a CPU 1 and 2)
#     --stages LIST    sharding stages of runs of several ranks (default: 0 1 2 3); one rank always has stage 0
#     --accumulation N microbatches per rank and step (default 4)
#     --steps N        steps per run, of which the first three are not measured (default 12)
#     --limit S        seconds that one run may take (default 300)
#     --total S        seconds that all runs together may take (default: no limit)
#     --out DIR        keeps logs, metrics, records.tsv and table.md (default build/throughput)
#     --tiny           tiny models and short samples, as a test of this script
# cltrain plan chooses microbatch and recomputation: the largest microbatch of a list that fits, without recomputed
# blocks if possible. A model that does not fit, or a run that fails, is a row with the reason. Exits with 1 if a run
# failed. Environment: CLTRAIN, DEVICE, PEAK (tools/bench/lib.sh).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. tools/bench/lib.sh

usage() { sed -n '2,/^set/{/^#/p}' "$0"; exit "$1"; }
models='125m 350m 760m 1b 3b 7b 13b' ranks='' stages='0 1 2 3' accumulation=4 steps=12 limit=300 total=0
out=build/throughput tiny=no
while [ $# -gt 0 ]; do
    case $1 in
    --tiny) tiny=yes && shift && continue ;;
    -h | --help) usage 0 ;;
    --models | --ranks | --stages | --accumulation | --steps | --limit | --total | --out) [ $# -gt 1 ] || usage 2 >&2 ;;
    *) echo "unknown option '$1'" >&2; usage 2 >&2 ;;
    esac
    declare "${1#--}=${2//,/ }" && shift 2
done

# The microbatches that are tried, largest first.
microbatches() {
    case $1 in
    125m) echo 32 16 8 4 ;;
    350m | 760m) echo 16 8 4 2 ;;
    1b | 3b | 7b | 13b) echo 8 4 2 1 ;;
    30b | 70b) echo 4 2 1 ;;
    *) return 1 ;;
    esac
}
for m in $models; do
    microbatches "$m" >/dev/null || { echo "unknown model '$m' (125m 350m 760m 1b 3b 7b 13b 30b 70b)" >&2; exit 2; }
done
bench_setup
if [ -z "$ranks" ]; then
    ranks=1
    [ "$gpus" -gt 0 ] || ranks='1 2'
    for ((n = 2; n <= gpus; n *= 2)); do ranks+=" $n"; done
fi
[ "$total" = 0 ] || deadline=$((SECONDS + total))

# choose MODEL RANKS STAGE: sets microbatch and settings to the first choice that fits; false, with plan[reason], if none
# does or if the stage is not supported
choose() {
    local recompute tried
    tried=$(microbatches "$1")
    [ $tiny = no ] || tried=2
    for recompute in default blocks; do
        for microbatch in $tried; do
            bench_settings "mpt-$1" "$2" "$3" "$microbatch" "$accumulation" $recompute
            bench_plan "$2" "${settings[@]}"
            [ "${plan[stage]}" = "$3" ] || break 2
            [ -n "${plan[reason]}" ] || return 0
        done
    done
    [ "${plan[stage]}" = "$3" ] || plan[reason]="this cltrain does not support stage $3 here"
    return 1
}

# measure MODEL RANKS STAGE: one row; false if a run failed
measure() {
    run=([rate]=- [first]=- [last]=- [memory]=-)
    if ! choose "$@"; then
        run[reason]=${plan[reason]}
        bench_record table "$1" cltrain "$2" "$3" "$microbatch" "$accumulation" "$PEAK"
        return
    fi
    bench_train "$1-$2-stage$3" "$limit" "$steps" "$2" "${settings[@]}"
    bench_record table "$1" cltrain "$2" "$3" "$microbatch" "$accumulation" "$PEAK"
    [ -z "${run[reason]}" ]
}

say "text and data set"
bench_data $seq || { echo "the data set cannot be made: $(bench_error "$out/data.log")" >&2; exit 1; }
bench_forget table
failed=0
for m in $models; do
    for n in $ranks; do
        for s in $([ "$n" = 1 ] && echo 0 || echo "$stages"); do measure "$m" "$n" "$s" || failed=1; done
    done
done
{
    bench_machine
    [ $tiny = no ] || echo "- tiny models: these figures say nothing about speed"
    echo
    bench_rows model table
} | tee "$out/table.md"
exit $failed
