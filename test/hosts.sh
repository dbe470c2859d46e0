# shellcheck shell=bash disable=SC2154
# hosts.sh: two hosts on one machine, for scripts that have sourced lib.sh. A host is a network namespace; what runs
# there also has a host name and an empty /dev/shm that the other host does not see. A virtual cable joins the two,
# and an agent takes the place of ssh. Needs root and the right to make namespaces.
#   two_hosts              makes host-a and host-b; ends the script as skipped where that is not possible
#   on_hosts N COMMAND...  starts N ranks from host-a; ranks go to the two hosts in turn, so odd ranks are on host-b;
#                          with map_by=slot host-a gets the first two
#   slow_cable MS          shapes the cable: 1 Gbit/s, MS milliseconds in each direction; false: not possible, see $why
tag=clt$$
host_a=${tag}a host_b=${tag}b # the namespaces

# The first namespace makes ip create /run/netns and mount it on itself, and the last one leaves it so.
netns_mounted() { grep -q ' /run/netns ' /proc/self/mounts; }

end_hosts() {
    [ -z "$cable" ] || kill "$cable"
    ip netns del "$host_a" 2>/dev/null
    ip netns del "$host_b" 2>/dev/null
    [ $had_mount = 1 ] || { netns_mounted && umount /run/netns; } # fails if others have namespaces there by now
    [ $had_folder = 1 ] || rmdir /run/netns 2>/dev/null
    rm -rf "$tmp"
}

# enter NAMESPACE HOSTNAME COMMAND...
write_enter() {
    cat >"$tmp/enter" <<'ENTER'
#!/bin/bash
exec ip netns exec "$1" unshare --uts --mount bash -c 'mount -t tmpfs shm /dev/shm && hostname "$0" && exec "$@"' "${@:2}"
ENTER
    cat >"$tmp/agent" <<AGENT
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
shift # the host: mpirun is on the other one
unset "\${!CLTRAIN_@}" # as ssh
exec "$tmp/enter" $host_b host-b bash -c "\$*"
AGENT
    chmod +x "$tmp/enter" "$tmp/agent"
}

join_hosts() { # DEVICE-A DEVICE-B
    ip -n "$host_a" addr add 10.77.0.1/24 dev "$1" && ip -n "$host_b" addr add 10.77.0.2/24 dev "$2" &&
        ip -n "$host_a" link set "$1" up && ip -n "$host_b" link set "$2" up
}

two_hosts() {
    local need
    for need in ip unshare; do
        command -v $need >/dev/null || { echo "skipped: $need is not installed"; exit 0; }
    done
    mpirun_by_hand || { echo "skipped: mpirun is not Open MPI's, whose words these are"; exit 0; }
    had_mount=0 had_folder=0 cable=
    netns_mounted && had_mount=1
    [ -e /run/netns ] && had_folder=1
    trap '[ $BASHPID != $$ ] || end_hosts' EXIT
    write_enter
    if ! { ip netns add "$host_a" && ip netns add "$host_b" &&
        ip link add "v$host_a" netns "$host_a" type veth peer name "v$host_b" netns "$host_b" &&
        "$tmp/enter" "$host_a" host-a true; } 2>"$tmp/why"; then # in a plain chroot the last one fails
        echo "skipped: no network namespaces here ($(head -n 1 "$tmp/why"))"
        exit 0
    fi
    ip -n "$host_a" link set lo up
    ip -n "$host_b" link set lo up
    join_hosts "v$host_a" "v$host_b"
    printf '10.77.0.1 slots=2\n10.77.0.2 slots=2\n' >"$tmp/hosts"
}

on_hosts() {
    timeout -k 5 600 "$tmp/enter" "$host_a" host-a \
        mpirun --oversubscribe --quiet --bind-to none --hostfile "$tmp/hosts" --mca plm_rsh_agent "$tmp/agent" \
        --mca btl vader,tcp,self --mca btl_vader_single_copy_mechanism none --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 -x CLTRAIN_CACHE_DIR -x CLTRAIN_COMM_TIMEOUT --map-by "${map_by:-node}" -np "$@"
}

# Kernels without netem, which delays packets, get a cable that a program serves.
slow_cable() {
    local ns
    for ns in "$host_a" "$host_b"; do
        tc -n "$ns" qdisc add dev "v$ns" root netem delay "$1ms" rate 1gbit limit 100000 2>"$tmp/why" && continue
        why="tc: $(grep -v '^$' "$tmp/why" | head -n 1)"
        python_cable "$1"
        return
    done
}

python_cable() { # MS
    local ns
    coproc cable_program { exec python3 test/slow_cable.py "t$host_a" "t$host_b" "$1" 1000 2>"$tmp/why"; }
    cable=$cable_program_PID
    if ! read -r -t 10 -u "${cable_program[0]}"; then
        why="$why; $(tail -n 1 "$tmp/why")"
        cable=
        return 1
    fi
    ip -n "$host_a" link del "v$host_a"
    for ns in "$host_a" "$host_b"; do ip link set "t$ns" netns "$ns" mtu 65000 || return 1; done
    join_hosts "t$host_a" "t$host_b"
}
