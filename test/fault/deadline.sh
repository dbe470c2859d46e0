#!/bin/bash
# A time limit: the run saves and exits with 75 before it. With the Slurm example of tools/examples and stand-ins for
# sbatch, srun and scontrol: its jobs are requeued and resume, each at another stage of sharding.
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-learned
# Large enough that both ranks own a part.
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null model.d_model=128 model.n_layers=4 scheduler.t_max=100000ba
    max_duration=100000ba save_interval=1000ba log_config=false console_log_interval=100000ba device_train_microbatch_size=2)

for bad in 1000000000 soon -3; do
    CLTRAIN_STOP_BEFORE=$bad "$cltrain" train "${settings[@]}" "save_folder=$tmp/no" >"$log" 2>&1
    code=$?
    [ $code = 78 ] && grep -q "^error: CLTRAIN_STOP_BEFORE" "$log"
    report "CLTRAIN_STOP_BEFORE=$bad is refused" $? "exit $code"
done

mpirun_by_hand

# The stand-ins: srun starts ranks, scontrol records its arguments.
mkdir "$tmp/bin"
cat >"$tmp/bin/srun" <<EOF
#!/bin/bash
n=\$2
shift 4 # -n N --kill-on-bad-exit=1 --cpu-bind=none
exec env -u SLURM_JOB_ID ${by_hand[*]} -np "\$n" "\$@"
EOF
cat >"$tmp/bin/scontrol" <<EOF
#!/bin/bash
echo "\$*" >>"$tmp/requeued"
EOF
ln -s "$cltrain" "$tmp/bin/cltrain"
chmod +x "$tmp/bin/srun" "$tmp/bin/scontrol"

# Starts the job in the background, as sbatch would: job, with `seconds` to go.
job() { # seconds, more arguments
    end=$(($(date +%s) + $1))
    in_background env PATH="$tmp/bin:$PATH" SLURM_JOB_ID=7 SLURM_NTASKS=2 SLURM_JOB_END_TIME=$end \
        bash tools/examples/slurm.sbatch "${settings[@]}" "save_folder=$tmp/run" "${@:2}"
    job=$started
}

# Kernels are compiled and checked before the clock starts.
"$cltrain" launch -n 2 train "${settings[@]}" "save_folder=$tmp/warm" max_duration=1ba >"$log" 2>&1

job 36000 cltrain.zero_stage=2
until_there "first step done"
kill -USR1 $job
wait $job
code=$?
at=$(sed -n 's/^stopped at batch \([0-9]*\) after a save;.*/\1/p' "$log")
[ $code = 75 ] && [ -n "$at" ] && [ "$(newest_batch "$tmp/run")" = "$at" ] && [ "$(cat "$tmp/requeued")" = "requeue 7" ]
report "a job that gets SIGUSR1 saves and is requeued" $? "exit $code, saved at batch ${at:-?}"

# Time for the same job's start, steps and a save, and two spare seconds, on this machine.
before=${at:-0} seconds=$((6 + slowest * 4 / 1000))
job $seconds cltrain.zero_stage=3
wait $job
code=$?
took=$(($(now) - (end - seconds) * 1000))
at=$(sed -n 's/^stopped at batch \([0-9]*\) after a save, .* before the end of the time (SLURM_JOB_END_TIME).*/\1/p' "$log")
[ $code = 75 ] && [ "${at:-0}" -gt "$before" ] && [ "$(newest_batch "$tmp/run")" = "$at" ] && [ $took -lt $((seconds * 1000 + slowest)) ] &&
    [ "$(wc -l <"$tmp/requeued")" = 2 ] && grep -q "^resumed from .*ba$before$" "$log" && "$cltrain" ckpt verify "$tmp/run" >/dev/null 2>&1
report "a job of $seconds s resumes there, stops by itself and is requeued" $? \
    "exit $code after $took ms, from batch $before to ${at:-?}"

job 36000 "max_duration=${at:-1}ba"
wait $job
code=$?
[ $code = 0 ] && [ "$(wc -l <"$tmp/requeued")" = 2 ]
report "a job that is done is not requeued" $? "exit $code"
finish
