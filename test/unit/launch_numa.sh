#!/bin/bash
# How cltrain launch divides hosts that are not here: simulated topologies of 1 to 8 NUMA nodes and up to 192 cores.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
# With HWLOC_COMPONENTS hwloc does not read HWLOC_SYNTHETIC and HWLOC_XMLFILE.
unset POCL_AFFINITY POCL_MAX_PTHREAD_COUNT POCL_CPU_MAX_CU_COUNT CLTRAIN_BIND HWLOC_COMPONENTS
unset SLURM_JOB_ID

"$cltrain" launch --bind numa -n 2 --dry-run clbench allreduce >"$log" 2>&1
if grep -q "make HWLOC=1" "$log"; then
    echo "skipped: this build has no hwloc"
    exit 0
fi
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 0; }
python3 test/unit/launch_numa.py "$cltrain" "$tmp" >"$log" 2>&1
report "simulated hosts" $? "$(tail -n 1 "$log")"

# dry [NAME=VALUE ...] -- OPTION ...: how many ranks, and how many of them are bound, on two nodes of 32 cores
dry() {
    local words=()
    while [ "$1" != -- ]; do words+=("$1") && shift; done
    shift
    env HWLOC_SYNTHETIC="node:2 core:32 pu:1" "${words[@]}" "$cltrain" launch --launcher mpirun --dry-run "$@" 2>"$log" |
        awk '/^ranks:/ { n = $2 } /^rank / { bound++ } END { print n + 0, bound + 0 }'
}

# WANT | VARIABLES | OPTIONS AND COMMAND; @: a configuration with eight lanes
run=$golden/mpt-learned/train.yaml
while IFS='|' read -r want variables options; do
    read -ra words <<<"${options//@/$run}"
    read -ra set <<<"$variables"
    got=$(dry "${set[@]}" -- "${words[@]}")
    [ "$got" = "$want" ]
    report "${variables:+$variables }${options}" $? "$got"
done <<'TABLE'
2 2||--device pocl train @
2 2||train @ --device pocl
2 2||train @ --device=pocl
2 2||train @ cltrain.device=pocl
1 0||train @ cltrain.device=pocl cltrain.exact_lanes=1
1 0||--device pocl train @ cltrain.numerics=fast global_train_batch_size=3 device_train_microbatch_size=1
1 0||-n 1 --device pocl train @
2 0||--bind none --device pocl train @
2 0|CLTRAIN_BIND=none|--device pocl train @
2 2|CLTRAIN_BIND=none|--bind numa --device pocl train @
2 0|POCL_MAX_PTHREAD_COUNT=2|--device pocl train @
2 0|POCL_AFFINITY=1|-n 2 --device pocl train @
2 2|POCL_AFFINITY=1|-n 2 --bind numa --device pocl train @
1 0||--device nosuchdevice train @
3 0||-n 3 --device nosuchdevice train @
2 2||--device pocl train absent.yaml max_duration=abc nosuchkey=1 cltrain.device=nosuchdevice --frob
2 2||--num_gpus 2 --device pocl train @
TABLE

# What the ranks are told: ranks on GPUs (here on no device at all) bind themselves unless that is turned off.
mkdir "$tmp/bin" # a launcher that starts nothing
# shellcheck disable=SC2016
printf '#!/bin/sh\n[ "$1" = --version ] || echo "told ${CLTRAIN_BIND-nothing}"\n' >"$tmp/bin/mpirun"
chmod +x "$tmp/bin/mpirun"
while IFS='|' read -r want variables options; do
    read -ra words <<<"$options"
    read -ra set <<<"$variables"
    got=$(env PATH="$tmp/bin:$PATH" HWLOC_SYNTHETIC="node:2 core:32 pu:1" "${set[@]}" "$cltrain" launch -n 2 \
        --launcher mpirun "${words[@]}" clbench allreduce 2>"$log" | sed -n 's/^told //p')
    [ "$got" = "$want" ]
    report "CLTRAIN_BIND of ranks: ${variables:+$variables }${options}" $? "$got"
done <<'TABLE'
numa||--device pocl
none||--device pocl --bind none
nothing||--device nosuchdevice
none||--device nosuchdevice --bind none
none|CLTRAIN_BIND=none|--device nosuchdevice
numa||--device nosuchdevice --bind numa
nothing|POCL_AFFINITY=1|--device pocl
TABLE

"$cltrain" launch --bind cores -n 2 --dry-run clbench allreduce >"$log" 2>&1
[ $? = 2 ] && grep -q -- "--bind must be numa or none, not 'cores'" "$log"
report "an unknown --bind" $?
finish
