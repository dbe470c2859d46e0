#!/bin/bash
# The deepspeed launcher's host file and filters: a table of what cltrain launch --dry-run makes of them.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
printf '%s\n' '# two nodes' 'worker-0 slots=4' '' $'  worker-1\tslots=2 # more' 'worker-2 slots=0' >"$tmp/hosts"

# dry FILE [OPTION ...]: "HOST:SLOTS ... ranks N"
dry() {
    "$cltrain" launch --launcher mpirun ${1:+--hostfile "$1"} "${@:2}" --dry-run train x.yaml 2>"$log" |
        sed -n 's/^host \(.*\): slots /\1:/p; s/^ranks: /ranks /p' | paste -sd ' '
}

# WANT | OPTIONS
while IFS='|' read -r want options; do
    read -ra words <<<"$options"
    got=$(dry "$tmp/hosts" "${words[@]}")
    [ "$got" = "$want" ]
    report "${options:-the whole file}" $? "$got"
done <<'TABLE'
worker-0:0,1,2,3 worker-1:0,1 ranks 6|
worker-1:0,1 ranks 2|--include worker-1
worker-0:0,1,2,3 worker-1:1 ranks 5|--include worker-0@worker-1:1
worker-0:2,0 worker-1:0,1 ranks 4|--include worker-1@worker-0:2,0,2
worker-0:1,3 worker-1:0,1 ranks 4|--exclude worker-0:0,2
worker-0:0,1,2,3 ranks 4|--exclude worker-1
worker-0:0,1,2,3 ranks 4|--exclude worker-1:0@worker-1:1
worker-0:0,1,2,3 ranks 4|--num_nodes 1
worker-0:0,1,2 worker-1:0,1,2 worker-2:0,1,2 ranks 9|--num_gpus 3
worker-0:0 worker-1:0 ranks 2|--num_nodes 2 --num_gpus 1
worker-0:0,1,2,3 worker-1:0,1 ranks 6|-n 6
TABLE

[ "$(dry "" --num_gpus 2)" = "localhost:0,1 ranks 2" ] && [ "$(dry "" --include localhost:0,3)" = "localhost:0,3 ranks 2" ]
report "this host without a file" $?

# refused CODE WORDS [OPTION ...]
refused() {
    "$cltrain" launch --launcher mpirun "${@:3}" --dry-run train x.yaml >"$log" 2>&1
    [ $? = "$1" ] && grep -qF -- "$2" "$log"
    report "refused: $2" $?
}
h=(--hostfile "$tmp/hosts")
refused 2 "mutually exclusive" "${h[@]}" --include worker-0 --exclude worker-1
refused 2 "cannot be combined with --num_nodes" "${h[@]}" --include worker-0 --num_gpus 1
refused 2 "host 'worker-9' is not among the hosts" "${h[@]}" --include worker-9
refused 2 "host 'worker-1' has no slot 2" "${h[@]}" --exclude worker-1:2
refused 2 "'x' is no slot of host 'worker-1'" "${h[@]}" --include worker-1:x
refused 2 "no slot is left" "${h[@]}" --exclude worker-0@worker-1
refused 2 "--num_nodes is 4, but there are 3 hosts" "${h[@]}" --num_nodes 4
refused 2 "-n is 5, but the hosts have 6 slots" "${h[@]}" -n 5
refused 2 "--exclude needs --hostfile" --exclude localhost:0
refused 2 "--hosts cannot be combined" "${h[@]}" --hosts "$tmp/hosts"
refused 74 "$tmp/none" --hostfile "$tmp/none"
while IFS='|' read -r text words; do
    printf '%b' "$text" >"$tmp/bad"
    refused 78 "$words" --hostfile "$tmp/bad"
done <<'BAD'
node1 slots=2\nnode2\n|bad:2: 'node2' is no host
node1 slots=two\n|bad:1: 'node1 slots=two' is no host
node1slots=2\n|is no host
node1 slots=1\nnode1 slots=2\n|bad:2: host 'node1' is named twice
# nothing\n|no hosts
BAD

# mpirun takes the host file and the order of the slots.
for host in localhost "$(hostname)"; do
    printf '%s slots=4\n' "$host" >"$tmp/here"
    "$cltrain" launch --launcher mpirun --hostfile "$tmp/here" --include "$host:3,1" clbench allreduce --device pocl --min 4K \
        --max 4K --seconds 0.01 >"$log" 2>&1 && grep -q '^ranks *2,' "$log"
    report "two slots of $host run" $?
done
finish
