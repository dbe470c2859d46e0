#!/bin/bash
# The functions of a group under mpirun: all of them on up to 4 ranks over both transports, and what the other ranks do
# when one stalls, dies, fails or cannot take part. With TEST_COMPLETE=1 (test/long/group_mpi.sh) on more numbers of ranks.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
program=$BUILD/test/train/test_group
mpirun_by_hand
run=(timeout -k 5 600 "${by_hand[@]}")

complete=${TEST_COMPLETE:-}
declare -A numbers=([shm]="2 4" [mpi]="3") # one rank: test_group alone
[ -z "$complete" ] || numbers=([shm]="1 2 3 4 8" [mpi]="1 2 3 4 8")
for transport in shm mpi; do
    for ranks in ${numbers[$transport]}; do
        CLTRAIN_TRANSPORT=$transport "${run[@]}" -np $ranks "$program" >"$log" 2>&1
        code=$?
        want="$ranks ranks, $transport: all the same"
        [ $ranks = 1 ] && want="1 ranks, loopback: all the same"
        [ $code = 0 ] && grep -qx "$want" "$log"
        report "$ranks ranks over $transport" $?
    done
done

# hosts NUMBER RANKS WIRE [NAME=VALUE ...]: the same on hosts that are only said to be several
hosts() {
    env CLTRAIN_HOSTS="$1" "${@:4}" "${run[@]}" -np "$2" "$program" >"$log" 2>&1
    code=$?
    [ $code = 0 ] && grep -qx "$2 ranks, $3: all the same" "$log"
    report "$2 ranks on $1 hosts over $3 ${*:4}" $?
}
hosts 2 4 hosts
[ -z "$complete" ] || { hosts 2 8 hosts; hosts 4 8 hosts; hosts 3 6 hosts; }
hosts 2 4 hosts CLTRAIN_QUEUES=3 # sums are copied to the device before they are added
hosts 2 4 mpi CLTRAIN_TRANSPORT=mpi
hosts 2 3 mpi CLTRAIN_LOG=debug
grep -q "not hosts: hosts have different numbers of ranks" "$log"
report "hosts with different numbers of ranks: the reason" $?

# NAME, text that must come exactly once, arguments of mpirun
refused() {
    "${run[@]}" "${@:3}" >"$log" 2>&1
    code=$?
    [ $code = 78 ] && [ "$(grep -c "$2" "$log")" = 1 ]
    report "$1: exit $code" $?
}
CLTRAIN_TRANSPORT=pigeons refused "an exchange that does not exist" \
    "error: CLTRAIN_TRANSPORT is 'pigeons', it must be one of loopback, shm, hosts, mpi" -np 2 "$program"
CLTRAIN_TRANSPORT=loopback refused "an exchange that cannot serve" \
    "error: no exchange of gradients serves these 2 ranks (loopback: there are several ranks)" -np 2 "$program"
refused "ranks that ask for different exchanges" "error: no exchange of gradients serves these 2 ranks (shm: another rank" \
    -np 1 env CLTRAIN_TRANSPORT=shm "$program" : -np 1 env CLTRAIN_TRANSPORT=mpi "$program"

# mpirun_remains PID: follows the command timeout of process PID, which runs mpirun. Returns true if mpirun remains 5 s
# without a rank, false when it ends.
mpirun_remains() {
    local mpirun begun="" alone=0
    while [ -d "/proc/$1" ]; do
        sleep 0.1
        mpirun=$(pgrep -P "$1") || continue
        if ps -o stat= --ppid "$mpirun" | grep -qv "^Z"; then
            begun=1 alone=0
        elif [ -n "$begun" ] && [ $((++alone)) = 50 ]; then
            return 0
        fi
    done
    return 1
}

# NAME, WHAT, RANK, wanted exit code, text that must come exactly once, time-out, number of ranks, more arguments
misbehave() {
    local began code took limit remains
    limit=$(($6 + $(patience 30)))
    # About one time in 30 mpirun (Open MPI 4.1 with PMIx 4.2) does not survive the end of its ranks: two of its threads
    # wait for one mutex, or it crashes in PMIx_server_finalize. cltrain launch would end it.
    for _ in 1 2 3; do
        began=$(now)
        CLTRAIN_COMM_TIMEOUT=$6 timeout -k 5 $limit "${by_hand[@]}" -np "${7:-3}" "$program" --do "$2" --rank "$3" "${@:8}" >"$log" 2>&1 &
        remains=
        mpirun_remains $! && pkill -KILL -P $! && remains=1
        wait $! 2>/dev/null
        code=$?
        [ -n "$remains" ] || grep -q PMIx_server_finalize "$log" || break
        echo "note  $1: mpirun did not end with its ranks, once more"
    done
    took=$(($(now) - began))
    [ $code = "$4" ] && { [ -z "$5" ] || [ "$(grep -c "$5" "$log")" = 1 ]; } && soon $(($6 * 1000 + 7000))
    report "$1: exit $code after $took ms" $?
    [ "$2" = stall ] || slow_start "$began"
}
misbehave "a rank cannot take part" refuse 1 65 "^\[rank 1\] error: the file is not here" 60
misbehave "rank 0 cannot take part" refuse 0 65 "^error: the file is not here" 60
misbehave "a rank fails alone" fail 1 65 "^\[rank 1\] error: sample 12 is broken" 60
silent=$(patience 3) # joining has it, too
misbehave "a rank stalls" stall 2 75 "rank 2 .* does not respond: step 7, a phase of the test" "$silent"
misbehave "rank 0 stalls" stall 0 75 "rank 0 .* does not respond: step 7, a phase of the test" "$silent"

# In children the same: errors name ranks of the run, and end the job of all ranks. Of 4 ranks the children are 2, 0 and
# 3, 1, in this order.
misbehave "a rank of a child fails alone" fail 1 65 "^\[rank 1\] error: sample 12 is broken" 60 4 --in child
for rank in 0 3; do
    misbehave "rank $rank of a child stalls" stall $rank 75 "rank $rank .* does not respond: step 7, a phase of the test" \
        "$silent" 4 --in child
    grep -q "waited [0-9]* s for a barrier\( of 2 ranks\)\? (dist_timeout" "$log"
    report "the message says what was waited for" $?
done
misbehave "a signal reaches all children" stop 2 0 "" 60 4 --in child
misbehave "a warning of a rank of a child" warn 3 0 "^\[rank 3\] warning: one rank says this" 60 4 --in child
[ "$(grep -c "^warning: all ranks say this" "$log")" = 1 ] && [ "$(grep -c "^\[rank 1\] warning: all ranks" "$log")" = 1 ] &&
    [ "$(grep -c "all ranks say this" "$log")" = 2 ]
report "a warning of all ranks: once for each child" $?

# The launcher's own exit code and the survivors' race; the line about the rank comes from one of the two.
for child in "" "--in child"; do
    began=$(now)
    # shellcheck disable=SC2086
    "${run[@]}" -np 4 "$program" --do die --rank 1 $child >"$log" 2>&1
    code=$?
    took=$(($(now) - began))
    [ $code != 0 ] && soon 8000 && grep -q "rank 1 .*\(is gone: it was at step 7\|signal 9\)" "$log"
    report "a rank dies${child:+ in a child}: exit $code after $took ms" $?
done

# Shared memory has no name any more when it is reserved.
CLTRAIN_COMM_TIMEOUT=60 "${run[@]}" -np 2 "$program" --do shm --rank 0 >"$log" 2>&1
pid=$(sed -n 's/.*rank 0 (host .*, process \([0-9]*\)) is gone.*/\1/p' "$log")
[ -n "$pid" ] && ! compgen -G "/dev/shm/cltrain.*$pid.*" >/dev/null
report "a rank dies while it reserves shared memory: nothing is left there" $?

nobody_left "^$program --do"
report "no process is left" $?
finish
