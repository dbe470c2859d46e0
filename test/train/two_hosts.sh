#!/bin/bash
# Training on two hosts with two ranks each is bit-identical to one rank, over a fast cable and over one with 1 Gbit/s
# and 20 ms; the command lines of docs/launching.md for several hosts; what happens when a rank on the other host is
# killed, or the cable is cut.
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh && . test/hosts.sh || exit 1
needs_mpirun
two_hosts
set=$golden/mpt-learned
settings=("train_loader.dataset.local=$set/mds" "load_path=$set/hf" scheduler.t_warmup=1ba log_config=false)
mkdir "$tmp/bin"
ln -s "$cltrain" "$tmp/bin/cltrain"
cp "$set/train.yaml" "$tmp/run.yaml"
export CLTRAIN_COMM_TIMEOUT=60 OMPI_MCA_plm_rsh_agent=$tmp/agent

on_hosts 4 bash -c 'echo "$(hostname) $(stat -c %d /dev/shm)"' >"$log" 2>&1
[ "$(sort -u "$log" | wc -l)" = 2 ] && [ "$(grep -c '^host-b ' "$log")" = 2 ]
report "two ranks see the name and the shared memory of host-b" $?

"$cltrain" train "$tmp/run.yaml" "${settings[@]}" max_duration=6ba "save_folder=$tmp/one" >"$log" 2>&1
want=$("$cltrain" ckpt hash "$tmp/one")

# train_on_hosts RANKS SETTING...: half of the ranks on each host
train_on_hosts() {
    printf '10.77.0.%d slots=%d\n' 1 $(($1 / 2)) 2 $(($1 / 2)) >"$tmp/halves"
    "$tmp/enter" "$host_a" host-a "$cltrain" launch -n "$1" --hosts "$tmp/halves" train "$tmp/run.yaml" \
        "${settings[@]}" "save_folder=$tmp/run" "${@:2}"
}

# same_bits NAME COMMAND...: the command trains 6 batches on two hosts with two ranks each
same_bits() {
    local began
    began=$(now)
    "${@:2}" >"$log" 2>&1 && grep -q "^device: .*, 4 ranks on 2 hosts, exact numerics" "$log" &&
        [ "$("$cltrain" ckpt hash "$tmp/run")" = "$want" ]
    report "$1: the weights of one rank" $? "$(($(now) - began)) ms"
    rm -rf "$tmp/run"
}
# documented PATTERN: runs the command of docs/launching.md whose first line matches, in a folder with the page's
# hosts.txt. The names of these hosts and the configuration are put in.
page() { sed 's/node1/10.77.0.1/; s/node2/10.77.0.2/' docs/launching.md; }
documented() {
    local command
    command=$(page | awk -v first="^    $1" '$0 ~ first { on = 1 } on { print; if (!/\\$/) exit }' |
        sed "s|run\.yaml.*|$tmp/run.yaml ${settings[*]} save_folder=$tmp/run max_duration=6ba|")
    [ "$(grep -c "save_folder=$tmp/run" <<<"$command")" = 1 ] || { echo "not one command: $command"; return 1; }
    page | sed -n 's/^    \([0-9.]* slots=.*\)/\1/p' >"$tmp/hosts.txt"
    PATH=$tmp/bin:$PATH "$tmp/enter" "$host_a" host-a bash -c "cd $tmp && $command"
}
same_bits "the documented cltrain launch" documented "cltrain launch -n 4 --hosts"
mkdir "$tmp/cache" # for the ranks on host-b, which do not get CLTRAIN_CACHE_DIR; PoCL's own cache is there, too
find "${XDG_CACHE_HOME:-$HOME/.cache}" -maxdepth 1 -name pocl -exec ln -s {} "$tmp/cache" \; 2>/dev/null
ln -s "$CLTRAIN_CACHE_DIR" "$tmp/cache/cltrain"
XDG_CACHE_HOME=$tmp/cache same_bits "the documented mpirun" documented "mpirun .*--host "
network=$(page | sed -n 's/^    export \(OMPI_MCA_.*\)/\1/p')
# shellcheck disable=SC2086 # several settings
same_bits "the documented choice of a network" env ${network:-false} "$tmp/enter" "$host_a" host-a \
    "$cltrain" launch -n 4 --hosts "$tmp/hosts" train "$tmp/run.yaml" "${settings[@]}" "save_folder=$tmp/run" max_duration=6ba

# Stand-ins for Slurm: sbatch runs the script on the first host, srun starts the ranks on both.
cat >"$tmp/bin/srun" <<EOF
#!/bin/bash
n=\$2
shift 4 # -n N --kill-on-bad-exit=1 --cpu-bind=none
exec env -u SLURM_JOB_ID ${by_hand[*]} --hostfile "$tmp/hosts" -x CLTRAIN_CACHE_DIR -np "\$n" "\$@"
EOF
cat >"$tmp/bin/sbatch" <<'EOF'
#!/bin/bash
for word; do [[ $word != --ntasks=* ]] || export SLURM_NTASKS=${word#*=}; done
while [[ $1 == --* ]]; do shift; done
SLURM_JOB_ID=7 exec bash "$@"
EOF
chmod +x "$tmp/bin/srun" "$tmp/bin/sbatch"
cp tools/examples/slurm.sbatch "$tmp"
same_bits "the documented job of Slurm" documented "sbatch --nodes=2"

CLTRAIN_TRANSPORT=shm train_on_hosts 4 max_duration=6ba >"$log" 2>&1
code=$?
[ $code = 78 ] && [ "$(grep -c '^error: .*(shm: the ranks are on several hosts)' "$log")" = 1 ]
report "shared memory alone is refused" $? "exit $code"

# pid_of RANK: a rank's process; the namespaces of these hosts share process numbers
pid_of() {
    local pid
    for pid in $(pgrep -f "^$cltrain train .*save_folder=$tmp/run"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$pid"
    done
}
rm -rf "$tmp/run"
long=(max_duration=20000ba scheduler.t_max=20000ba save_interval=5ba)
in_background train_on_hosts 4 "${long[@]}"
until_there "checkpoint saved"
kill -USR1 "$(pid_of 2)"
wait "$started"
code=$?
[ $code = 75 ] && grep -q "^stopped at batch [0-9]* after a save" "$log"
report "SIGUSR1 to a rank on the other host" $? "exit $code"

# killed RANK RANKS: kills a rank of host-b and waits for the end; $victim was its process. One rank per host: nobody
# there can report it, and mpirun says which one it was.
killed() {
    in_background train_on_hosts "$2" "${long[@]}"
    until_there "checkpoint saved"
    victim=$(pid_of "$1")
    kill -9 "$victim"
    began=$(now)
    wait "$started"
    code=$?
    took=$(($(now) - began))
}
killed 3 4
[ $code = 1 ] && soon 5000 && [ "$(grep -c "is gone" "$log")" = 1 ] &&
    grep -q "rank 3 (host host-b, process $victim) is gone: it was at step [0-9]" "$log"
report "SIGKILL to one of two ranks on the other host" $? "exit $code after $took ms"
killed 1 2
[ $code = 1 ] && soon 5000 && [ "$(grep -c "is gone" "$log")" = 1 ] &&
    grep -q "^error: rank 1 (host 10.77.0.2, process $victim) is gone: signal 9 ended it" "$log"
report "SIGKILL to the only rank on the other host" $? "exit $code after $took ms"

silent=$(patience 6)
CLTRAIN_COMM_TIMEOUT=$silent in_background train_on_hosts 4 "${long[@]}"
until_there "checkpoint saved"
ip -n "$host_b" link set "v$host_b" down
began=$(now)
wait "$started"
code=$?
took=$(($(now) - began))
[ $code = 75 ] && soon $((silent * 1000 + 15000)) &&
    grep -q "a rank on another host than host-a does not respond: the ranks here are at step [0-9]" "$log"
report "the cable is cut: the job ends after the time-out of $silent s" $? "exit $code after $took ms"
ip -n "$host_b" link set "v$host_b" up
nobody_left "^$cltrain train .*save_folder=$tmp/run"
report "no process is left on either host" $? "$left"
rm -rf "$tmp/run"

# Milliseconds until the other host has refused a connection: a round trip.
round_trip() {
    "$tmp/enter" "$host_a" host-a python3 -c '
import socket, time
start = time.monotonic()
try:
    socket.create_connection(("10.77.0.2", 9))
except ConnectionRefusedError:
    print(round(1000 * (time.monotonic() - start)))'
}
if slow_cable 20; then
    ms=$(round_trip)
    [ "${ms:-0}" -ge 40 ]
    report "the slow cable is slow" $? "round trip in ${ms:-?} ms"
    same_bits "1 Gbit/s and 20 ms" train_on_hosts 4 max_duration=6ba
else
    echo "skipped: no slow cable here ($why)"
fi
finish
