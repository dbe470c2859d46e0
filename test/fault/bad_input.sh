#!/bin/bash
# Bad input: every mistake gives one error that names fact and place, and the right exit code; nothing is lost.
#   test/fault/bad_input.sh [PATTERN ...]   only cases whose name contains one of the patterns
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
patterns=("$@")
work=$tmp/set
cp -r "$golden/mpt-learned" "$work"
chmod -R u+w "$work"
cases=0

wanted() {
    local p
    [ ${#patterns[@]} = 0 ] && return 0
    for p in "${patterns[@]}"; do [[ $1 == *$p* ]] && return 0; done
    return 1
}

# expect NAME CODE TEXT... -- COMMAND...: the exit code, and every TEXT (a fixed string) in what the command says. A crash,
# a sanitizer's report and a hint of one are failures whatever the texts are.
expect() {
    local name=$1 code=$2 got=0 texts=() t
    shift 2
    while [ "$1" != -- ]; do texts+=("$1"); shift; done
    shift
    wanted "$name" || return 0
    cases=$((cases + 1))
    local start=$SECONDS
    (cd "$work" && timeout 600 "$@") >"$tmp/said" 2>&1 || got=$?
    # The search for leaks can itself crash while a driver's threads end.
    if grep -q 'LeakSanitizer has encountered a fatal error' "$tmp/said"; then
        got=0
        (cd "$work" && timeout 600 "$@") >"$tmp/said" 2>&1 || got=$?
    fi
    [ $got = "$code" ] || { fail "$name: exit $got, not $code"; tail -n 8 "$tmp/said"; return 1; }
    for t in "${texts[@]}"; do
        grep -qF -- "$t" "$tmp/said" || { fail "$name: does not say '$t':"; grep -a error "$tmp/said" || tail -n 5 "$tmp/said"; return 1; }
    done
    # Leaks count where this program allocated; what MPI's plugins lose at the end has no names left to suppress.
    if grep -qE 'ERROR: AddressSanitizer|runtime error:|Segmentation|#1 0x[0-9a-f]* in clt_' "$tmp/said"; then
        fail "$name: a sanitizer's report"
        grep -aE -A12 'Sanitizer|runtime error:' "$tmp/said" | head -n 40
        return 1
    fi
    t=$(grep -acE '^(\[rank [0-9]+\] )?error' "$tmp/said")
    [ "$t" -le 5 ] || { fail "$name: $t lines of errors"; head -n 8 "$tmp/said"; return 1; }
    echo "ok: $name ($((SECONDS - start)) s): $(grep -aE '^(\[rank [0-9]+\] )?error' "$tmp/said" | head -n 1 | cut -c 1-150)"
}

train=("$cltrain" train -q train.yaml save_folder="$tmp/out")

# --- the configuration -------------------------------------------------------------------------------------------------

# yaml NAME LINE...: train.yaml with lines put in front, as $work/NAME.
yaml() {
    local to=$work/$1
    shift
    { printf '%s\n' "$@"; cat "$work/train.yaml"; } >"$to"
}

yaml mistyped.yaml "max_durations: 5ba"
expect "mistyped key" 78 "mistyped.yaml:1:1:" "max_durations" "max_duration" -- "$cltrain" train mistyped.yaml
sed 's/^  n_heads: 4/  n_head: 4/' "$work/train.yaml" >"$work/nested.yaml"
expect "mistyped nested key" 78 "nested.yaml:$(grep -n n_head: "$work/nested.yaml" | cut -d: -f1):3:" "model.n_head" "n_heads" \
    -- "$cltrain" train nested.yaml
expect "mistyped override" 78 "optimizer.lrr" "lr" -- "${train[@]}" optimizer.lrr=1
expect "wrong type: text for a number" 78 "global_train_batch_size" "many" -- "${train[@]}" global_train_batch_size=many
sed 's/^  lr: .*/  lr: [1, 2]/' "$work/train.yaml" >"$work/type.yaml"
expect "wrong type: a list for a number" 78 "type.yaml:$(grep -n ' lr: ' "$work/type.yaml" | cut -d: -f1):" "optimizer.lr" \
    -- "$cltrain" train type.yaml
printf 'a: [1\nb: {' >"$work/syntax.yaml"
expect "not YAML" 78 "syntax.yaml:2" -- "$cltrain" train syntax.yaml
expect "no such file" 78 "absent.yaml" -- "$cltrain" train absent.yaml
expect "microbatch 0" 78 "device_train_microbatch_size" "0" -- "${train[@]}" device_train_microbatch_size=0
expect "d_model not divisible by heads" 78 "d_model" "64" "n_heads" "5" -- "${train[@]}" model.n_heads=5
expect "sequence longer than the model's" 78 "max_seq_len" "128" "64" -- "${train[@]}" max_seq_len=128 \
    train_loader.dataset.max_seq_len=128
expect "batch not divisible by ranks" 78 "global_train_batch_size" "8" "3" \
    -- "$cltrain" launch -n 3 train -q train.yaml save_folder="$tmp/out" cltrain.numerics=fast
expect "more ranks than lanes" 78 "exact_lanes" "2" "3" \
    -- "$cltrain" launch -n 3 train -q train.yaml save_folder="$tmp/out" cltrain.exact_lanes=2
expect "unsupported precision" 78 "precision" "amp_bf16" -- "${train[@]}" precision=amp_int4

# --- data --------------------------------------------------------------------------------------------------------------

# data NAME: a copy of the data to damage; prints the split's folder.
data() {
    rm -rf "${work:?}/$1"
    cp -r "$work/mds" "$work/$1"
    echo "$work/$1/train"
}
flip() { # FILE OFFSET: one bit of one byte
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %o $((byte ^ 4)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
shard=$(basename "$work"/mds/train/shard.*0.mds)

expect "token outside the vocabulary" 65 "sample 0 of" "position 1" "vocabulary of 300" \
    -- "${train[@]}" model.vocab_size=300 load_path=
mkdir -p "$work/empty/train"
expect "empty data folder" 65 "empty/train" "index.json" -- "${train[@]}" train_loader.dataset.local=./empty
expect "no data folder" 65 "nowhere" -- "${train[@]}" train_loader.dataset.local=./nowhere
d=$(data short)
truncate -s -100 "$d/$shard"
expect "truncated shard" 65 "short/train/$shard" -- "${train[@]}" train_loader.dataset.local=./short
d=$(data gone)
rm "$d/$shard"
expect "index naming a missing file" 65 "gone/train" "$shard" -- "${train[@]}" train_loader.dataset.local=./gone
d=$(data escape)
sed -i "s/\"$shard\"/\"..\/..\/..\/etc\/passwd\"/" "$d/index.json"
expect "index naming a path outside" 65 "escape/train/index.json" "passwd" -- "${train[@]}" train_loader.dataset.local=./escape
cp -r "$golden/e2e/mds-zstd" "$work/hashed"
chmod -R u+w "$work/hashed"
zshard=$(basename "$work"/hashed/train/shard.00000.mds*)
flip "$work/hashed/train/$zshard" 5000
expect "flipped byte in a compressed shard" 65 "hashed/train" "shard.00000" \
    -- "${train[@]}" max_seq_len=128 model.max_seq_len=128 train_loader.dataset.max_seq_len=128 load_path= \
    train_loader.dataset.local=./hashed
expect "the same, seen by data verify" 65 "shard.00000" -- "$cltrain" data verify hashed/train
head -c 20000 "$golden/mpt-learned/train.json" >"$work/text.txt"
"$cltrain" data convert -q "$work/text.txt" --out "$work/plain" --concat-tokens 64 --hashes sha1,xxh64 \
    >"$tmp/said" 2>&1 || { fail "data convert"; cat "$tmp/said"; }
flip "$work/plain/train/$shard" 3000
expect "flipped byte in a plain shard with hashes" 65 "plain/train/$shard" "checksum" \
    -- "${train[@]}" train_loader.dataset.local=./plain
expect "the same, by the checksum that was chosen" 65 "plain/train/$shard" "sha1 checksum" \
    -- "${train[@]}" train_loader.dataset.local=./plain train_loader.dataset.validate_hash=sha1
expect "a checksum that the index does not have" 78 "validate_hash" "md5" \
    -- "${train[@]}" train_loader.dataset.local=./plain train_loader.dataset.validate_hash=md5
cp -r "$golden/e2e/mds-zstd" "$work/mismatch"
chmod -R u+w "$work/mismatch"
sed -i 's/\("sha1": "\)./\10/; s/\("xxh64": "\)./\1f/' "$work/mismatch/train/index.json"
expect "hash mismatch" 65 "mismatch/train" "shard.00000" -- "$cltrain" data verify mismatch/train

# --- checkpoints -------------------------------------------------------------------------------------------------------

"$cltrain" train -q "$work/train.yaml" load_path="$work/hf" train_loader.dataset.local="$work/mds" \
    save_folder="$tmp/good" max_duration=2ba >"$tmp/said" 2>&1 || { fail "a good run"; cat "$tmp/said"; }
good=$tmp/good/ep0-ba2
"$cltrain" train -q "$work/train.yaml" load_path="$work/hf" train_loader.dataset.local="$work/mds" \
    save_folder="$tmp/bare" max_duration=2ba save_weights_only=true >"$tmp/said" 2>&1 || { fail "a run that saves weights"; cat "$tmp/said"; }
expect "checkpoint of another model" 65 "transformer" -- "${train[@]}" load_path="$good" model.d_model=32
expect "weights of another model" 65 "transformer.wpe.weight" -- "${train[@]}" load_path="$golden/mpt-rope/hf"
cp -r "$good" "$tmp/damaged"
file=$(find "$tmp/damaged" -type f ! -name '*.json' -size +64k | sort | head -n 1)
flip "$file" 70000
expect "damaged checkpoint" 65 "$(basename "$file")" "transformer" "chunk" -- "${train[@]}" load_path="$tmp/damaged"
expect "damaged checkpoint, seen by ckpt verify" 65 "$(basename "$file")" "transformer" "chunk" -- "$cltrain" ckpt verify "$tmp/damaged"
cp -r "$good" "$tmp/cut"
truncate -s 1000 "$tmp/cut/$(basename "$file")"
expect "cut checkpoint" 65 "$(basename "$file")" -- "${train[@]}" load_path="$tmp/cut"
expect "checkpoint of another optimizer" 78 "decoupled_adamw" "decoupled_lionw" "load_weights_only" \
    -- "${train[@]}" load_path="$good" optimizer.name=decoupled_lionw
expect "weights without an optimizer's state" 65 "exp_avg" "load_weights_only" -- "${train[@]}" load_path="$tmp/bare/ep0-ba2"
expect "no checkpoint at load_path" 74 "$tmp/absent" -- "${train[@]}" load_path="$tmp/absent"

# --- the file system ---------------------------------------------------------------------------------------------------

: >"$tmp/file"
expect "unwritable folder: below a file" 74 "$tmp/file/run" -- "$cltrain" train -q train.yaml save_folder="$tmp/file/run"
expect "unwritable folder" 74 "/proc/run" -- "$cltrain" train -q train.yaml save_folder=/proc/run

# A disk that fills up at the second save: training continues to the end, exit 74, the first checkpoint is whole.
disk_full() {
    wanted "disk full" || return
    mkdir "$tmp/disk"
    mount -t tmpfs -o size=3300k none "$tmp/disk" 2>/dev/null || { echo "SKIP: disk full during a save: no mount here"; return; }
    expect "disk full during a save" 74 "No space left" "training continues" \
        -- "$cltrain" train -q train.yaml save_folder="$tmp/disk/run" max_duration=6ba save_interval=2ba
    [ "$(steps_of "$tmp/disk/run" | wc -l)" = 6 ] || fail "disk full: the run did not continue"
    "$cltrain" ckpt verify -q "$tmp/disk/run/ep0-ba2" >"$tmp/said" 2>&1 || { fail "disk full: the first checkpoint"; cat "$tmp/said"; }
    [ ! -e "$tmp/disk/run/ep0-ba6" ] || fail "disk full: a checkpoint that does not fit exists"
    umount "$tmp/disk"
}
disk_full

# The folder's lock is held while the run lives.
second_run() {
    wanted "second run" || return
    (cd "$work" && exec "$cltrain" train -q train.yaml save_folder="$tmp/one" max_duration=100000ba scheduler.t_max=100000ba) >"$tmp/one.log" 2>&1 &
    local pid=$!
    wait_for_steps "$tmp/one" 2
    # Programs that a driver starts, such as compilers, inherit none of the run's files.
    local f flags held=0
    for f in "/proc/$pid/fd"/*; do
        [[ $(readlink "$f") == "$tmp/one/"* ]] || continue
        held=$((held + 1))
        flags=$(sed -n 's/^flags:[[:space:]]*//p' "/proc/$pid/fdinfo/${f##*/}")
        ((8#$flags & 8#2000000)) || fail "$(readlink "$f") is not closed on exec"
    done
    [ $held -ge 3 ] || fail "a run has $held files of its folder open, not lock, log and metrics"
    expect "second run in one folder" 74 "another run" "$tmp/one" -- env CLTRAIN_LOCK_WAIT=1 "$cltrain" train -q train.yaml save_folder="$tmp/one"
    kill -TERM $pid
    wait $pid
    [ $? = 75 ] || { fail "SIGTERM: not 75"; tail -n 3 "$tmp/one.log"; }
}

# wait_for_steps FOLDER N: until N batches are in metrics.jsonl, at most ten minutes and as long as the run $pid lives.
wait_for_steps() {
    local since
    since=$(now)
    for _ in $(seq 6000); do
        [ "$(grep -c '"loss"' "$1/metrics.jsonl" 2>/dev/null)" -ge "$2" ] 2>/dev/null && { slow_start "$since"; return; }
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    fail "no steps in $1"
}
second_run

# A run that ended in the middle of a line of metrics.jsonl: the next run's lines are whole.
torn_metrics() {
    wanted "torn metrics" || return
    cp -r "$tmp/good" "$tmp/torn"
    printf '{"batch":3,"epoch":0,"los' >>"$tmp/torn/metrics.jsonl"
    (cd "$work" && "$cltrain" train -q train.yaml save_folder="$tmp/torn" max_duration=4ba) >"$tmp/said" 2>&1 || { fail "torn metrics"; cat "$tmp/said"; }
    [ "$(steps_of "$tmp/torn" | wc -l)" = 4 ] || { fail "torn metrics: batches are missing"; cat "$tmp/torn/metrics.jsonl"; }
    [ "$(grep -c '^{.*}$' "$tmp/torn/metrics.jsonl")" = $(($(wc -l <"$tmp/torn/metrics.jsonl") - 1)) ] || fail "torn metrics: more than one line is torn"
    echo "ok: torn metrics"
}
torn_metrics

# --- devices -----------------------------------------------------------------------------------------------------------

mkdir "$tmp/no-icd"
expect "no OpenCL platform" 69 "OpenCL" "$tmp/no-icd" -- env OCL_ICD_VENDORS="$tmp/no-icd" "${train[@]}"
library=$(ldconfig -p | sed -n 's/.*=> \(.*libpocl\.so.*\)/\1/p' | head -n 1)
if [ -n "$library" ]; then
    expect "driver that is not registered" 69 "libpocl" ".icd" -- env OCL_ICD_VENDORS="$tmp/no-icd" "${train[@]}"
else
    echo "SKIP: driver that is not registered: no libpocl in the linker's folders"
fi
expect "unknown device" 69 "nosuchdevice" -- "${train[@]}" --device nosuchdevice
big=(model.d_model=1024 model.n_heads=16 model.n_layers=64 load_path=)
expect "device out of memory" 1 "device memory" "would fit" -- env POCL_MEMORY_LIMIT=1 "${train[@]}" --device pocl "${big[@]}"
expect "kernel path without tables" 2 "CLTRAIN_KERNEL_PATH=$tmp/nowhere: " ".vt does not exist" \
    -- env CLTRAIN_KERNEL_PATH="$tmp/nowhere" "${train[@]}"
cp -r clkernels "$tmp/typo"
sed -i '/^portable /s/TYPES=/TYPS=/' "$tmp/typo/gemm/gemm.vt"
expect "misspelt param of a row" 1 "gemm.vt: the param TYPS of variant portable has no effect" \
    -- env CLTRAIN_KERNEL_PATH="$tmp/typo" "${train[@]}"
cp -r clkernels "$tmp/broken"
sed -i '1i #error this file is broken' "$tmp"/broken/optimizer/*.cl
# The second time the verdict on the kernel comes from the cache.
for time in first second; do
    expect "kernel that does not compile, $time time" 1 "optimizer/" "does not build" ".log" \
        -- env CLTRAIN_KERNEL_PATH="$tmp/broken" CLTRAIN_CACHE_DIR="$tmp/cache" "${train[@]}"
    log=$(sed -n 's/.*log and source: \([^ );]*\.log\).*/\1/p' "$tmp/said" | head -n 1)
    [ ! -e "$tmp/said" ] || ! wanted "kernel that" || grep -q 'this file is broken' "$log" || fail "no log of the build at '$log'"
done

# Kernels that compile and compute something else.
cp -r clkernels "$tmp/wrong"
sed -i 's/ROW \* ldx, cols, 1, lane/ROW * ldx, cols, 0, lane/' "$tmp/wrong/reduce/reduce.cl"
expect "wrong sum of squares" 1 "reduce" "row sum of squares" \
    -- env CLTRAIN_KERNEL_PATH="$tmp/wrong" CLTRAIN_CACHE_DIR="$tmp/cache" "${train[@]}"
cp clkernels/reduce/reduce.cl "$tmp/wrong/reduce/"
sed -i 's/y < -limit ?/y < limit ?/' "$tmp/wrong/activation/elementwise.cl"
expect "wrong limits" 1 "elementwise" "clip_forward" \
    -- env CLTRAIN_KERNEL_PATH="$tmp/wrong" CLTRAIN_CACHE_DIR="$tmp/cache" "${train[@]}" model.attn_config.clip_qkv=0.5
cp clkernels/activation/elementwise.cl "$tmp/wrong/activation/"
sed -i 's/d \* ACT_OF(g), dup/d * GRAD_OF(g), dup/' "$tmp/wrong/activation/activation.cl"
expect "wrong gated MLP" 1 "activation" "gated MLP backward, up" \
    -- env CLTRAIN_KERNEL_PATH="$tmp/wrong" CLTRAIN_CACHE_DIR="$tmp/cache" "${train[@]}" load_path= model.ffn_config.ffn_type=mptglu
cp clkernels/activation/activation.cl "$tmp/wrong/activation/"
sed -i 's/row_weight\[row_weight_off + row\]/2 * &/' "$tmp"/wrong/loss/*.cl
expect "wrong weights of rows" 1 "loss" "gradients" \
    -- env CLTRAIN_KERNEL_PATH="$tmp/wrong" CLTRAIN_CACHE_DIR="$tmp/cache" "${train[@]}"
cp clkernels/loss/*.cl "$tmp/wrong/loss/"
sed -i 's/finish(part + r \* pitch,/finish(part + r,/' "$tmp/wrong/norm/norm_wide.cl"
expect "wrong sums that end later" 1 "norm: the forced variant wide" "sums that end later" \
    -- env CLTRAIN_VARIANT=norm=wide CLTRAIN_KERNEL_PATH="$tmp/wrong" CLTRAIN_CACHE_DIR="$tmp/cache" "${train[@]}"

# --- numbers -----------------------------------------------------------------------------------------------------------

# The run stops before the update, replays the step and names the first operation.
cp -r "$work/hf" "$work/nan"
chmod -R u+w "$work/nan"
size=$(stat -c %s "$work/nan/model.safetensors")
printf '\000\000\300\177' | dd of="$work/nan/model.safetensors" bs=1 seek=$((size - 400)) conv=notrunc status=none
expect "NaN in a weight" 1 "batch 1" "not changed" "first" "weight transformer." -- "${train[@]}" load_path=nan
expect "loss that explodes" 1 "batch 2" "not changed" "first operation" "block 0" \
    -- env CLTRAIN_ASSERT_STEADY=1 "${train[@]}" optimizer.lr=1e30 scheduler.t_warmup=0ba algorithms.gradient_clipping.clipping_threshold=1e30

# --- signals -----------------------------------------------------------------------------------------------------------

# A run with steps of about a second, so that two signals fall into one.
long_run() {
    rm -rf "$tmp/sig"
    (cd "$work" && exec "$@" train -q train.yaml save_folder="$tmp/sig" global_train_batch_size=64 load_path= \
        model.n_layers=12 max_duration=100000ba scheduler.t_max=100000ba) >"$tmp/sig.log" 2>&1 &
    pid=$!
    wait_for_steps "$tmp/sig" 1
}

# once NAME COMMAND...: SIGINT once; a checkpoint of the last finished step is there and can be resumed.
once() {
    local name=$1 code saved last
    shift
    wanted "$name" || return 0
    long_run "$@"
    kill -INT $pid
    wait $pid
    code=$?
    [ $code = 75 ] || { fail "$name: exit $code, not 75"; tail -n 5 "$tmp/sig.log"; return; }
    last=$(steps_of "$tmp/sig" | tail -n 1 | cut -d' ' -f1)
    saved=$("$cltrain" ckpt verify "$tmp/sig" 2>&1) || { fail "$name: $saved"; return; }
    ls -d "$tmp"/sig/ep*-ba"$last" >/dev/null 2>&1 || fail "$name: no checkpoint of batch $last"
    echo "ok: $name"
}
once "SIGINT once" "$cltrain"
once "SIGINT once, two ranks" "$cltrain" launch -n 2

# A rank that is killed ends the job within seconds, with one line; the run resumes from its last checkpoint.
killed_rank() {
    wanted "killed rank, $1" || return
    local began took code
    rm -rf "$tmp/kill"
    (cd "$work" && CLTRAIN_TRANSPORT=$1 exec "$cltrain" launch -n 3 train -q train.yaml save_folder="$tmp/kill" \
        max_duration=100000ba scheduler.t_max=100000ba save_interval=2ba) >"$tmp/kill.log" 2>&1 &
    pid=$!
    wait_for_steps "$tmp/kill" 4
    while kill -0 $pid 2>/dev/null && ! compgen -G "$tmp/kill/ep*" >/dev/null; do sleep 0.05; done # saved beside training
    began=$(now)
    kill -KILL "$(pgrep -f "cltrain train.*save_folder=$tmp/kill" | tail -n 1)"
    wait $pid
    code=$?
    took=$(($(now) - began))
    [ $code = 1 ] || { fail "killed rank, $1: exit $code"; tail -n 5 "$tmp/kill.log"; return; }
    soon 15000 || fail "killed rank, $1: $took ms until the end"
    [ "$(grep -c 'error: rank . (host .*, process [0-9]*) is gone' "$tmp/kill.log")" = 1 ] || { fail "killed rank, $1"; cat "$tmp/kill.log"; }
    "$cltrain" ckpt verify -q "$tmp/kill" >"$tmp/said" 2>&1 || { fail "killed rank, $1: the checkpoint"; cat "$tmp/said"; }
    echo "ok: killed rank, $1 ($took ms)"
}
killed_rank shm
killed_rank mpi

twice() {
    wanted "SIGINT twice" || return
    long_run "$cltrain"
    # Until it has ended: two signals before it checks count as one.
    while kill -INT $pid 2>/dev/null; do sleep 0.02; done
    wait $pid
    local code=$?
    [ $code = 130 ] || { fail "SIGINT twice: exit $code, not 130"; tail -n 3 "$tmp/sig.log"; return; }
    echo "ok: SIGINT twice"
}
twice

expect "interrupted without a folder to save in" 130 "without a checkpoint" \
    -- bash -c "grep -v '^save_folder' train.yaml >nosave.yaml; $cltrain train -q nosave.yaml max_duration=100000ba scheduler.t_max=100000ba &
        while ! grep -qs loss runs/mpt-learned/metrics.jsonl; do sleep 0.1; done; kill -INT \$!; wait \$!"

[ $failed = 1 ] || echo "$cases cases"
finish
