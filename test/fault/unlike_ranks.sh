#!/bin/bash
# Ranks of different versions, configurations, settings or commands are refused with 78 before they exchange anything
# else: one line names the rank and the first difference.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
mpirun_by_hand
set=$golden/mpt-learned
settings=("train_loader.dataset.local=$set/mds" "load_path=$set/hf" max_duration=2ba scheduler.t_warmup=1ba
    log_config=false "save_folder=$tmp/run")
train=("$cltrain" train "$set/train.yaml" "${settings[@]}")
host=$(hostname)
export CLTRAIN_COMM_TIMEOUT=60

# refused NAME, "WHAT: KEY is X, not Y" of the message about rank 2 of 3, then the command of that rank
refused() {
    local code began
    rm -rf "$tmp/run"
    began=$(now)
    timeout -k 5 300 "${by_hand[@]}" -np 2 "${train[@]}" : -np 1 "${@:3}" >"$log" 2>&1
    code=$?
    [ $code = 78 ] && [ "$(grep -c "^error: " "$log")" = 1 ] && [ "$(grep -ci "error" "$log")" = 1 ] && [ ! -e "$tmp/run" ] &&
        grep -qF "rank 2's ${2%%: *} (host $host) differs from rank 0's (host $host): ${2#*: }; " "$log"
    report "$1" $? "exit $code after $(($(now) - began)) ms"
}

refused "another value" "configuration: optimizer.lr is 0.005, not 0.004" "${train[@]}" optimizer.lr=0.005
sed 's/^seed: 17/seed: 18/' "$set/train.yaml" >"$tmp/other.yaml"
refused "another file" "configuration: seed is 18, not 17" "$cltrain" train "$tmp/other.yaml" "${settings[@]}"
refused "a key that rank 0 does not have" "configuration: eval_interval is \"7ba\", not 1" "${train[@]}" eval_interval=7ba
refused "a key that only rank 0 has" "configuration: load_path is not set, not \"$set/hf\"" "${train[@]}" load_path=null
refused "another transport" "configuration: CLTRAIN_TRANSPORT is mpi, there it is not set" \
    env CLTRAIN_TRANSPORT=mpi "${train[@]}"
refused "another length" "configuration: --stop-after is 1ba, there it is not set" "${train[@]}" --stop-after 1ba
refused "another command" "configuration: command is eval, not train" \
    "$cltrain" "eval" "$set/train.yaml" "${settings[@]}"

# A program of the next version: the same file with another number in it.
version=$("$cltrain" --version | sed -n 's/^cltrain \([0-9.]*\).*/\1/p')
git=$("$cltrain" --version | sed -n 's/.*(\(.*\)).*/\1/p')
next=${version%?}$(((${version: -1} + 1) % 10))
sed "s/${version//./\\.}/$next/g" "$cltrain" >"$tmp/cltrain"
chmod +x "$tmp/cltrain"
refused "another version" "program: cltrain is $next ($git), not $version ($git)" "$tmp/cltrain" "${train[@]:1}"

# Defaults, the order of keys, how a number is written, and each rank's device are no differences.
{
    sed '/^max_seq_len/d; /^seed/d' "$set/train.yaml"
    printf 'seed: 17\nmax_seq_len: 64\ncltrain:\n  device: "0:0"\ndist_timeout: 600\n'
} >"$tmp/same.yaml"
timeout -k 5 300 "${by_hand[@]}" -np 1 "${train[@]}" : -np 1 env CLTRAIN_AHEAD=1 "$cltrain" train "$tmp/same.yaml" \
    "${settings[@]}" optimizer.eps=0.00000001 >"$log" 2>&1
code=$?
[ $code = 0 ] && grep -q "^done: 2 batches" "$log"
report "the same configuration in other words" $? "exit $code"
finish
