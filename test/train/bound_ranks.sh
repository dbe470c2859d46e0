#!/bin/bash
# Ranks that cltrain launch binds: each may run on its own CPUs only, its device has as many threads, and the result is
# that of ranks that are not bound.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
unset POCL_AFFINITY POCL_MAX_PTHREAD_COUNT POCL_CPU_MAX_CU_COUNT CLTRAIN_BIND SLURM_JOB_ID
[ "$(nproc)" -ge 2 ] || { echo "skipped: two ranks are bound where they have two CPUs or more"; exit 0; }
"$cltrain" launch --bind numa -n 2 --dry-run clbench allreduce >"$log" 2>&1
if grep -q "make HWLOC=1" "$log"; then
    echo "skipped: this build has no hwloc"
    exit 0
fi
set=$golden/mpt-learned
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" log_config=false)

# run FOLDER DEVICE OPTION ...: four batches on two ranks
run() {
    "$cltrain" launch -n 2 --device "$2" "${@:3}" train "${settings[@]}" max_duration=4ba "save_folder=$tmp/$1" >"$log" 2>&1
}

allowed() { sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$1/status"; }

# Every thread of a rank counts, those of the driver, too.
cpus_of() { for t in /proc/"$1"/task/*; do sed -n 's/^Cpus_allowed_list:\t//p' "$t/status" 2>/dev/null; done | sort -u | paste -sd ' '; }

plan=$("$cltrain" launch -n 2 --device pocl --dry-run train "${settings[@]}" 2>&1 | sed -n 's/^rank [01]: .*CPUs \(.*\), threads.*/\1/p' | paste -sd ' ')
in_background "$cltrain" launch -n 2 --device pocl train "${settings[@]}" max_duration=100000ba scheduler.t_max=100000ba \
    save_interval=100000ba "save_folder=$tmp/long"
until_there '"batch":2,' "$tmp/long/metrics.jsonl" || fail "no batch was trained"
zero=$(cpus_of "$(rank_pid 0)") one=$(cpus_of "$(rank_pid 1)")
kill -INT "$started"
wait "$started"
[ -n "$zero" ] && [ "$zero" != "$one" ] && [ "$zero $one" = "$plan" ]
report "each rank runs on its own CPUs" $? "$zero and $one; planned $plan"
line="2 ranks.*: CPUs $(tr ' ' ';' <<<"$plan" | sed 's/;/; /')$"
[ "$(grep -c "$line" "$log")" = 1 ]
report "the start says so, once" $?

run unbound pocl --bind none
report "two ranks that are not bound" $?
want=$("$cltrain" ckpt hash "$tmp/unbound")
grep -q "CPUs" "$log"
[ $? = 1 ]
report "the start of these says nothing" $?
run pocl pocl
same_hash "bound, PoCL" pocl
if has_platform intel; then
    run intel intel
    same_hash "bound, Intel's runtime" intel
    run mixed pocl,intel
    same_hash "bound, both" mixed
else
    echo "SKIP: no Intel runtime for CPUs here (make check fetches it): only PoCL is compared"
fi

# A launch that may use one CPU divides nothing.
one=$(allowed $$ | sed 's/[-,].*//')
taskset -c "$one" "$cltrain" launch -n 2 --device pocl --dry-run train "${settings[@]}" >"$log" 2>&1
grep -q '^ranks: 2$' "$log" && ! grep -q '^rank ' "$log"
report "one CPU is not divided" $?

# Threads of the device: without a limit PoCL has one for each CPU of the host in each rank.
units() { "$cltrain" launch -n 2 --device "$1" clbench allreduce --min 4K --max 4K --seconds 0.01 2>&1 | sed -n 's/^device .*, \([0-9]*\) units.*/\1/p' | sort -u | paste -sd ' '; }
threads=$("$cltrain" launch -n 2 --device pocl --dry-run clbench allreduce 2>/dev/null | sed -n 's/^rank .*threads //p' | sort -u | paste -sd ' ')
[ -n "$threads" ] && [ "$(units pocl)" = "$threads" ]
report "units of PoCL" $? "$threads"
finish
