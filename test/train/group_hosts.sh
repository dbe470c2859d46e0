#!/bin/bash
# Ranks on two hosts: network namespaces with host names of their own, joined by a virtual cable, and an agent in the
# place of ssh. Needs root and the right to make namespaces.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-learned
tag=clt$$
a=${tag}a
b=${tag}b

for need in ip unshare; do
    command -v $need >/dev/null || { echo "skipped: $need is not installed"; exit 0; }
done
mpirun_by_hand || { echo "skipped: mpirun is not Open MPI's, whose words these are"; exit 0; }
# The first namespace makes ip create /run/netns and mount it on itself, and the last one leaves it so.
netns_mounted() { grep -q ' /run/netns ' /proc/self/mounts; }
had_mount=0 had_folder=0
netns_mounted && had_mount=1
[ -e /run/netns ] && had_folder=1
cleanup() {
    ip netns del $a 2>/dev/null
    ip netns del $b 2>/dev/null
    [ $had_mount = 1 ] || { netns_mounted && umount /run/netns; } # fails if others have namespaces there by now
    [ $had_folder = 1 ] || rmdir /run/netns 2>/dev/null
    rm -rf "$tmp"
}
trap '[ $BASHPID != $$ ] || cleanup' EXIT
if ! { ip netns add $a && ip netns add $b && ip link add v$a netns $a type veth peer name v$b netns $b &&
    ip netns exec $a unshare --uts true; } 2>"$tmp/why"; then # in a plain chroot the last one fails
    echo "skipped: no network namespaces here ($(head -n 1 "$tmp/why"))"
    exit 0
fi
ip -n $a addr add 10.77.0.1/24 dev v$a
ip -n $b addr add 10.77.0.2/24 dev v$b
for n in $a $b; do
    ip -n $n link set lo up
    ip -n $n link set v$n up
done
printf '10.77.0.1 slots=4\n10.77.0.2 slots=4\n' >"$tmp/hosts"
cat >"$tmp/agent" <<EOF
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
shift
exec ip netns exec $b unshare --uts bash -c 'hostname host-b; exec bash -c "\$0"' "\$*"
EOF
chmod +x "$tmp/agent"

export CLTRAIN_COMM_TIMEOUT=60
on_hosts() { # RANKS PROGRAM ...: ranks go to the two hosts in turn
    timeout -k 5 600 ip netns exec $a unshare --uts bash -c 'hostname host-a; exec "$@"' _ \
        mpirun --oversubscribe --quiet --bind-to none --hostfile "$tmp/hosts" --mca plm_rsh_agent "$tmp/agent" \
        --mca btl vader,tcp,self --mca btl_vader_single_copy_mechanism none --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 -x CLTRAIN_CACHE_DIR -x CLTRAIN_COMM_TIMEOUT --map-by node -np "$@"
}

for ranks in 2 3 4; do
    began=$(now)
    on_hosts $ranks "$BUILD/test/train/test_group" >"$log" 2>&1 && grep -qx "$ranks ranks, mpi: all the same" "$log"
    report "$ranks ranks on two hosts" $?
    slow_start "$began"
done

on_hosts 4 -x CLTRAIN_TRANSPORT=shm "$BUILD/test/train/test_group" >"$log" 2>&1
code=$?
[ $code = 78 ] && [ "$(grep -c 'no exchange of gradients serves these 4 ranks (shm: the ranks are on several hosts)' "$log")" = 1 ]
report "shared memory alone is refused" $? "exit $code"

settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" max_duration=6ba
    scheduler.t_warmup=1ba log_config=false)
"$cltrain" train "${settings[@]}" "save_folder=$tmp/one" >"$log" 2>&1 &&
    on_hosts 4 "$cltrain" train "${settings[@]}" "save_folder=$tmp/four" >"$log" 2>&1 &&
    [ "$("$cltrain" ckpt hash "$tmp"/one/ep*-ba6)" = "$("$cltrain" ckpt hash "$tmp"/four/ep*-ba6)" ]
report "training on two hosts gives the weights of one rank" $?

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

"$cltrain" train "${settings[@]}" "save_folder=$tmp/run" max_duration=1ba >"$log" 2>&1
CLTRAIN_COMM_TIMEOUT=60
in_background on_hosts 4 "$cltrain" train "${settings[@]}" "save_folder=$tmp/run" max_duration=2000ba scheduler.t_max=2000ba \
    save_interval=5ba
job=$started
until_there "checkpoint saved"
for pid in $(pgrep -f "^$cltrain train .*save_folder=$tmp/run"); do
    tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=1 && kill -USR1 "$pid"
done
wait $job
[ $? = 75 ] && grep -q "^stopped at batch [0-9]* after a save" "$log"
report "SIGUSR1 to a rank on the other host" $?
finish
