#!/bin/bash
# The output when a run of several ranks cannot start or ends early: one line, from one rank, and the exit code of the
# rank.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-learned
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" max_duration=3ba
    log_config=false)

# NAME, wanted exit code, wanted text, command: the text comes once, and the number of
# lines with errors or warnings is $lines (1)
once() {
    local name=$1 want=$2 text=$3 code
    shift 3
    rm -rf "$tmp/run"
    timeout -k 5 300 "$@" >"$log" 2>&1
    code=$?
    [ $code = "$want" ] && [ "$(grep -c "$text" "$log")" = 1 ] &&
        [ "$(grep -ciE 'error|mpi_abort|mpirun (noticed|detected)|-----' "$log")" = "${lines:-1}" ]
    report "$name" $? "exit $code"
}

once "more ranks than lanes" 78 "^error: .*exact_lanes.* is 8, fewer than the 9 ranks" \
    "$cltrain" launch -n 9 train "${settings[@]}" "save_folder=$tmp/run"
once "a wrong value" 78 "^error: .*max_duration" "$cltrain" launch -n 3 train "${settings[@]}" max_duration=abc
once "a wrong key" 78 "^error: .*optimizr" "$cltrain" launch -n 3 train "${settings[@]}" optimizr.lr=1
once "no such file" 78 "^error: .*absent.yaml" "$cltrain" launch -n 2 train absent.yaml
once "no such device" 69 "^error: .*nosuchdevice" \
    "$cltrain" launch -n 2 --device nosuchdevice train "${settings[@]}" "save_folder=$tmp/run"
once "a command for one process" 2 "^error: .*start generate without launch" "$cltrain" launch -n 2 generate x
once "no such host file" 74 "^error: cannot read the host file $tmp/none: No such file" \
    "$cltrain" launch -n 2 --hosts "$tmp/none" train "${settings[@]}"
once "too many ranks" 2 "^error: .*-n must be 1 to 1024" "$cltrain" launch -n 4294967298 train "${settings[@]}"
once "a wrong option" 2 "^error: .*--frob" "$cltrain" launch -n 3 train --frob
once "a wrong time-out" 78 "^error: CLTRAIN_COMM_TIMEOUT is 'soon'" \
    env CLTRAIN_COMM_TIMEOUT=soon "$cltrain" launch -n 2 train "${settings[@]}" "save_folder=$tmp/run"

cp -r "$set/mds" "$tmp/mds"
for f in "$tmp"/mds/train/shard.*.mds; do truncate -s -100 "$f"; done
once "damaged data" 65 "^error: .*shard" \
    "$cltrain" launch -n 3 train "${settings[@]}" "train_loader.dataset.local=$tmp/mds" "save_folder=$tmp/run"

# A weight that is not finite: every rank sees it, one says which operation, and what to do.
lines=2 once "a learning rate that breaks the weights" 1 "^error: batch [0-9]*: loss" \
    "$cltrain" launch -n 2 train "${settings[@]}" optimizer.lr=1e38 scheduler.t_warmup=0ba max_duration=20ba \
    "save_folder=$tmp/run"

# Processes that another MPI's mpirun starts do not know each other.
for r in 0 1; do
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$r "$cltrain" train "${settings[@]}" "save_folder=$tmp/run"
    echo "code $?"
done >"$log" 2>&1
[ "$(grep -c '^error: .*MPI sees one: this mpirun belongs to another MPI' "$log")" = 1 ] &&
    [ "$(grep -c '^code 78$' "$log")" = 2 ] && [ "$(wc -l <"$log")" = 3 ]
report "the wrong mpirun" $? "$(grep -c '^code 78$' "$log") of 2 processes end with 78"

mkdir "$tmp/empty"
env PATH="$tmp/empty" "$cltrain" launch -n 2 train "${settings[@]}" >"$log" 2>&1
code=$?
[ $code = 1 ] && [ "$(wc -l <"$log")" = 1 ] && grep -q "^error: mpirun is not on the PATH.*openmpi-bin" "$log"
report "two ranks without mpirun" $? "exit $code"
env PATH="$tmp/empty" "$cltrain" launch -n 1 train "${settings[@]}" "save_folder=$tmp/run" >"$log" 2>&1
code=$?
[ $code = 0 ] && grep -q "^done: 3 batches" "$log"
report "one rank without mpirun" $? "exit $code"

# Open MPI's texts about the end of a process are dropped, others are not.
cat >"$tmp/empty/mpirun" <<'EOF'
#!/bin/sh
[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit 0
{
    line=--------------------------------------------------------------------------
    echo before
    printf '%s\n%s\n%s\n' $line "MPI_ABORT was invoked on rank 0" $line
    printf '%s\n%s\n%s\n' $line "There are not enough slots" $line
    echo after
} >&2
exit 3
EOF
chmod +x "$tmp/empty/mpirun"
env PATH="$tmp/empty:/bin:/usr/bin" "$cltrain" launch -n 2 --bind none train x.yaml >"$log" 2>&1
code=$?
[ $code = 3 ] && [ "$(grep -v -- ------ "$log" | tr '\n' '|')" = "before|There are not enough slots|after|" ]
report "texts of Open MPI" $? "exit $code"

# mpirun --quiet prints nothing about its own errors, such as an unusable host file.
cat >"$tmp/empty/mpirun" <<'EOF'
#!/bin/sh
[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit 0
exit 3
EOF
once "an mpirun that fails and prints nothing" 3 "^error: mpirun exited with code 3 and printed nothing; to see why: mpirun -np 2 hostname" \
    env PATH="$tmp/empty:/bin:/usr/bin" "$cltrain" launch -n 2 train x.yaml

# A first rank that is late still reports an error in the command line: the others wait for it before they exit.
cat >"$tmp/empty/mpirun" <<'EOF'
#!/bin/sh
[ "$1" = --version ] && echo "mpirun (Open MPI) 4.1.4" && exit 0
until [ "${1##*/}" = cltrain ]; do shift; done
export OMPI_COMM_WORLD_SIZE=2
(sleep 1.5 && OMPI_COMM_WORLD_RANK=0 exec "$@") &
OMPI_COMM_WORLD_RANK=1 "$@"
code=$?
kill $! 2>/dev/null
exit $code
EOF
once "a wrong option, of which the first rank speaks late" 2 "^error: .*--frob" \
    env PATH="$tmp/empty:/bin:/usr/bin" "$cltrain" launch -n 2 train --frob

# A rank that exits and prints nothing: the launcher's code, unless it is a signal's number (MPICH).
cat >"$tmp/empty/mpirun" <<'EOF'
#!/bin/sh
true & wait $!
echo "$! $(uname -n)" >"$CLTRAIN_LAUNCH_DIR/1.pid"
sleep 0.3
exit "$MPIRUN_ENDS_WITH"
EOF
for codes in "75 75" "9 1" "137 137"; do
    set -- $codes
    MPIRUN_ENDS_WITH=$1 PATH="$tmp/empty:/bin:/usr/bin" "$cltrain" launch -n 2 train x.yaml >"$log" 2>&1
    code=$?
    [ $code = "$2" ] && [ "$(grep -c '^error: rank 1 (process [0-9]*) is gone.*rerun the same command' "$log")" = 1 ]
    report "a rank is gone, mpirun ends with $1" $? "exit $code"
done

finish
