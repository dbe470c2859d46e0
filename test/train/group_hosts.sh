#!/bin/bash
# The functions of a group on two hosts (test/hosts.sh): all of them on 3 and 4 ranks, with TEST_COMPLETE=1
# (test/long/group_hosts.sh) on 2, too, and what the other ranks do when one stalls. Needs root and the right to make
# namespaces.
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/hosts.sh || exit 1
needs_mpirun
two_hosts
export CLTRAIN_COMM_TIMEOUT=60
for ranks in ${TEST_COMPLETE:+2} 3 4; do
    began=$(now)
    on_hosts $ranks "$BUILD/test/train/test_group" >"$log" 2>&1 && grep -qx "$ranks ranks, mpi: all the same" "$log"
    report "$ranks ranks on two hosts" $?
    slow_start "$began"
done

map_by=slot on_hosts 4 "$BUILD/test/train/test_group" >"$log" 2>&1 && grep -qx "4 ranks, hosts: all the same" "$log"
report "neighbouring ranks on each of two hosts: sums inside the hosts first" $?

on_hosts 4 -x CLTRAIN_TRANSPORT=shm "$BUILD/test/train/test_group" >"$log" 2>&1
code=$?
[ $code = 78 ] && [ "$(grep -c 'no exchange of gradients serves these 4 ranks (shm: the ranks are on several hosts)' "$log")" = 1 ]
report "shared memory alone is refused" $? "exit $code"

CLTRAIN_COMM_TIMEOUT=$(patience 3) # joining has it, too
stalls() { # RANK, more arguments
    local rank=$1
    on_hosts 4 "$BUILD/test/train/test_group" --do stall --rank "$rank" "${@:2}" >"$log" 2>&1
    code=$?
    # Hosts that run out of patience in the same moment both speak; the host of the stalled rank always names it.
    [ $code = 75 ] && [ "$(grep -c 'does not respond' "$log")" -le 2 ] &&
        grep -q "rank $rank (host host-[ab], .*) does not respond: step 7, a phase of the test" "$log"
    report "rank $rank stalls${2:+ in the group of its host}: its host names it" $?
}
stalls 0
stalls 1
stalls 3 --in child # ranks go to the hosts in turn: those of even and of odd number are on one host each
finish
