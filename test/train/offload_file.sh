#!/bin/bash
# cltrain.offload: file on real runs, alone and with weights, sums of gradients and inputs of blocks in files. Hashes of
# weights and optimizer state are those of a run without offload, on one rank and on several, in fp32 and with 16-bit
# weights, with AdamW and Lion, through io_uring and threads, and when a run changes between files and the device at a
# stop. Nothing is left in the folder. Then what goes wrong: a bit that flips
# in the file, a file that is made shorter, a kill, a second run in the folder, a full disk. After each of them the same
# command resumes from the checkpoint, to the same hash. A slow disk delays a run, which says so, and changes nothing.
# timeout: 1800
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
export CLTRAIN_ASSERT_STEADY=1
folder=$(mktemp -d /var/tmp/cltrain-offload.XXXXXX) # on a disk
trap '[ $BASHPID != $$ ] || rm -rf "$tmp" "$folder"' EXIT
cd "$golden/mpt-variants" || exit 1
# 12 stretches of state on one rank with 16-bit weights; few tokens.
settings=(train.yaml load_path=null model.d_model=512 model.n_layers=2 model.attn_config.kv_n_heads=4
    model.expansion_ratio=4 model.vocab_size=6000 max_seq_len=16 model.max_seq_len=16 train_loader.dataset.max_seq_len=16
    tokenizer.kwargs.model_max_length=16 global_train_batch_size=8 cltrain.numerics=exact scheduler.t_warmup=1ba
    scheduler.t_max=5ba log_config=false log_to_console=false)
files=(cltrain.offload=file "cltrain.offload_folder=$folder")
weights=(cltrain.zero_stage=3 cltrain.offload_parameters=file cltrain.offload_gradients=file
    "cltrain.offload_folder=$folder")
rest=("${weights[@]}" cltrain.offload_activations=file)

# train FOLDER RANKS [key=value ...]: three steps; the output is in $log
train() {
    on_ranks "$2" train --device pocl "${settings[@]}" max_duration=3ba "save_folder=$tmp/$1" "${@:3}" >"$log" 2>&1
}

nothing_left() {
    [ -z "$(ls -A "$folder")" ]
    report "$1: nothing is left in the folder" $? "$(ls -A "$folder" | tr '\n' ' ')"
}

# --- the same bits ---
# test_engine has the other combinations
for run in "fp32 decoupled_adamw" "amp_bf16 decoupled_lionw"; do
    keys=("precision=${run% *}" "optimizer.name=${run#* }")
    train straight 1 "${keys[@]}"
    report "$run: a run without offload" $?
    want=$("$cltrain" ckpt hash "$tmp/straight")
    train x 1 "${keys[@]}" "${files[@]}"
    grep -q "^in files in $folder: optimizer state; .*, past the page cache" "$log" &&
        grep -q "of host memory, .* in files" "$log" && grep -q "^offload: rank 0 read .* and wrote .* GB/s" "$log"
    report "$run: the run says where its state is and how fast it was" $?
    same_hash "$run: one rank" x
    CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 CLTRAIN_URING=0 train x 2 "${keys[@]}" "${files[@]}" cltrain.zero_stage=2
    grep -q "^in files in $folder: optimizer state; 4 threads (no io_uring: by CLTRAIN_URING=0)" "$log"
    report "$run: threads instead of io_uring" $?
    same_hash "$run: two ranks, stage 2, threads, queues of their own" x
    CLTRAIN_QUEUES=3 train x 2 "${keys[@]}" "${files[@]}" cltrain.zero_stage=3 cltrain.offload_parameters=host
    same_hash "$run: two ranks, the weights that the model reads in host memory" x
    # More blocks than places on the device, so that inputs leave.
    keys+=(model.n_layers=7 cltrain.recompute=blocks)
    rm -rf "$tmp/straight"
    train straight 1 "${keys[@]}"
    want=$("$cltrain" ckpt hash "$tmp/straight")
    CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 CLTRAIN_BUILD_HELPERS=1 train x 1 "${keys[@]}" "${files[@]}" "${rest[@]}"
    grep -q "^in files in $folder: optimizer state, weights, sums of gradients, inputs of blocks; " "$log" &&
        grep -q "recomputed from inputs in a file" "$log" && grep -q "^offload: .* for the files, passes waited " "$log"
    report "$run: the run says what is in files" $?
    same_hash "$run: one rank, everything in files, steps queued ahead, a rehearsal" x
    train x 1 "${keys[@]}" "${rest[@]}" cltrain.offload=host
    same_hash "$run: one rank, one queue, the state in host memory and the rest in files" x
    for ranks in 2 3; do
        CLTRAIN_QUEUES=3 train x $ranks "${keys[@]}" "${files[@]}" "${rest[@]}"
        same_hash "$run: $ranks ranks, everything in files" x
    done
    train legs 2 "${keys[@]}" "${files[@]}" "${rest[@]}" max_duration=1ba && train legs 1 "${keys[@]}" max_duration=2ba &&
        CLTRAIN_URING=0 train legs 1 "${keys[@]}" "${rest[@]}"
    report "$run: everything in files, nothing, all but the state" $?
    same_hash "$run: everything in files, nothing, all but the state: the hashes" legs
    rm -rf "$tmp/straight"
done
nothing_left "these runs"
keys=(precision=amp_bf16)
train straight 1 "${keys[@]}"
want=$("$cltrain" ckpt hash "$tmp/straight")
train legs 2 "${keys[@]}" "${files[@]}" cltrain.zero_stage=1 max_duration=1ba && train legs 1 "${keys[@]}" max_duration=2ba &&
    train legs 1 "${keys[@]}" "${files[@]}" cltrain.offload_ratio=0.5
report "with files, without and with a part in files" $?
same_hash "with files, without and with a part in files, the hashes" legs

# A slow disk: every read begins 100 ms late. Two of the three updates read 12 stretches of two states, in four threads.
slow=(strace -f -qq -o /dev/null -e trace=pread64 -e inject=pread64:delay_enter=100000)
if ! command -v strace >/dev/null || ! "${slow[@]}" true 2>/dev/null; then
    echo "skipped: a slow disk: strace is missing, or may not trace here"
else
    # LeakSanitizer does not work under strace.
    ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 \
        CLTRAIN_URING=0 "${slow[@]}" "$cltrain" train --device pocl "${settings[@]}" max_duration=3ba "save_folder=$tmp/slow" \
        "${keys[@]}" "${files[@]}" >"$log" 2>&1
    report "a slow disk: the run ends well" $?
    same_hash "a slow disk" slow
    waited=$(sed -n 's/^offload: .* it waited \([0-9.]*\) s for the files$/\1/p' "$log")
    awk -v s="$waited" 'BEGIN { exit !(s >= 2 * 12 * 2 / 4 * 0.1) }'
    report "a slow disk: the run says that it waited" $? "$waited s"
fi

# --- what goes wrong: every leg of this run saves after two steps ---
long=("${keys[@]}" "${files[@]}" save_interval=2ba scheduler.t_max=4000ba)
rm -rf "${tmp:?}/straight"
train straight 1 "${keys[@]}" scheduler.t_max=4000ba max_duration=2ba
want=$("$cltrain" ckpt hash "$tmp/straight")

# broken COMMAND...: starts the run, does the command with the path of the open file once the run has a checkpoint, and
# waits for the end; $code is its exit code
broken() {
    local fd=
    rm -rf "$tmp/b"
    in_background "$cltrain" train --device pocl "${settings[@]}" "${long[@]}" max_duration=4000ba \
        save_interval=2ba "save_folder=$tmp/b" save_num_checkpoints_to_keep=-1
    until_there "checkpoint saved: .*ep0-ba2"
    for f in "/proc/$started/fd/"*; do
        [[ $(readlink "$f") == "$folder"/*.data* ]] && fd=$f
    done
    [ -n "$fd" ] || fail "the run has no open file in $folder"
    kill -STOP "$started"
    "$@" "$fd"
    kill -CONT "$started" 2>/dev/null
    wait "$started" 2>/dev/null
    code=$?
}

# resumes NAME: the checkpoint after two steps is what a straight run has, and the same command goes on from the newest
resumes() {
    have=$("$cltrain" ckpt hash "$tmp/b/ep0-ba2" 2>&1)
    [ -n "$want" ] && [ "$have" = "$want" ]
    report "$1: the checkpoint is good" $? "$(echo "$have" | tr -s ' \n' ' ')"
    local last
    last=$(sed -n 's/^checkpoint saved: .*ep0-ba\([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    "$cltrain" train --device pocl "${settings[@]}" "${long[@]}" max_duration=$((last + 2))ba "save_folder=$tmp/b" \
        save_num_checkpoints_to_keep=-1 >"$log" 2>&1 && grep -q "^resumed from .*ep0-ba$last" "$log"
    report "$1: the same command resumes" $?
    nothing_left "$1"
}

# Stretches in memory are written again: three places lie further apart than those.
flip() { for at in 10 75 140; do dd if=/dev/zero of="$1" bs=1M seek=$at count=1 conv=notrunc,fsync status=none; done; }
broken flip
[ $code = 74 ] && grep -q "^error: $folder/cltrain-offload-0.data: the 131072 bytes at offset [0-9]* are not those" "$log"
report "damaged blocks are found" $? "exit $code"
resumes "damaged blocks"

# The state is on the device: what is damaged are weights and sums of gradients.
state=("${files[@]}") && long=("${keys[@]}" "${weights[@]}" save_interval=2ba scheduler.t_max=4000ba)
flip_all() { dd if=/dev/zero of="$1" bs=1M count=200 conv=notrunc,fsync status=none; }
broken flip_all
[ $code = 74 ] && grep -q "^error: $folder/cltrain-offload-0.data: the 131072 bytes at offset [0-9]* are not those" "$log"
report "damaged weights and gradients are found" $? "exit $code"
resumes "damaged weights and gradients"
long=("${keys[@]}" "${state[@]}" save_interval=2ba scheduler.t_max=4000ba)

cut_short() { truncate -s 1000000 "$1"; }
broken cut_short
[ $code = 74 ] && grep -qE "^error: $folder/cltrain-offload-0.data(: the 131072 bytes at|.* ends before offset)" "$log"
report "a file that is made shorter is found" $? "exit $code"
resumes "a file that is made shorter"

second_run() {
    CLTRAIN_LOCK_WAIT=0 "$cltrain" train --device pocl "${settings[@]}" "${long[@]}" max_duration=3ba \
        "save_folder=$tmp/second" >"$tmp/second.log" 2>&1
    second=$?
    kill -KILL "$started"
}
broken second_run
[ $second = 74 ] && grep -q "^error: another run keeps its files in $folder (.*: host .*, process $started, since" "$tmp/second.log"
report "a second run in the folder is refused" $? "exit $second, $(grep -h '^error' "$tmp/second.log")"
[ $code = 137 ] && [ "$(ls -A "$folder")" = cltrain-offload-0.lock ]
report "a killed run leaves a lock file at most" $? "$(ls -A "$folder")"
resumes "a killed run"

# One of two ranks finds damage: both end.
rm -rf "$tmp/b"
in_background "$cltrain" launch -n 2 train --device pocl "${settings[@]}" "${long[@]}" max_duration=4000ba "save_folder=$tmp/b"
until_there "checkpoint saved: .*ep0-ba2"
for f in $(pgrep -f "save_folder=$tmp/b" | sed 's|.*|/proc/&/fd/*|'); do
    [[ $(readlink "$f") == */cltrain-offload-1.data* ]] && flip "$f"
done
wait "$started"
code=$?
[ $code = 74 ] && grep -q "^\[rank 1\] error: $folder/cltrain-offload-1.data: the 131072 bytes at" "$log"
report "damage on one of two ranks ends both" $? "exit $code"
rm -f "$folder"/*.lock

# A full disk: a file system of 20 MiB.
full='mount -t tmpfs -o size=20m none "$1" && shift && exec "$@"'
if unshare -Urm true 2>/dev/null; then
    unshare -Urm bash -c "$full" - "$folder" "$cltrain" train --device pocl "${settings[@]}" "${long[@]}" \
        max_duration=2ba "save_folder=$tmp/full" >"$log" 2>&1
    code=$?
    [ $code = 74 ] && grep -q "^error: $folder/cltrain-offload-0.data needs .* more, .* are free there (No space left" "$log"
    report "a full disk is found at the start" $? "exit $code"
else
    echo "skipped: no user namespaces, so no full disk (test_scratch has one)"
fi

# --- keys ---
"$cltrain" train --dry-run "${settings[@]}" cltrain.offload=file >"$log" 2>&1
code=$?
[ $code = 78 ] && grep -q "set cltrain.offload_folder" "$log"
report "files need a folder" $? "exit $code"
"$cltrain" plan --device pocl "${settings[@]}" "${keys[@]}" "${files[@]}" >"$log" 2>&1
grep -q "files .* moments, fp32 weights .*(cltrain.offload: file)" "$log" &&
    grep -qE "^disk +a step of 8 microbatches reads .* and writes .* per rank: at least .* reads at .* GB/s, writes at .* GB/s" "$log"
report "the plan has the disk's speed" $? "$(grep ^disk "$log")"
nothing_left "plan"
finish
