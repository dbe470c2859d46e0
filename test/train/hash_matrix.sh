#!/bin/bash
# Bit-identity of exact numerics: losses, gradient norms and hashes of weights and optimizer state after 12 steps (8 of a
# larger model, 20 in 8-bit floating point) do not depend on ranks, devices, drivers, threads, transport, microbatch,
# recomputation, or on being stopped and resumed.
#   test/train/hash_matrix.sh [PART ...]   only these parts: ranks mixed microbatch drivers least transport recompute resume
#                                          evaluation plain stages eight fp8 vit store oclgrind; under a sanitizer only a few
#                                          of them
#   TEST_COMPLETE=1   all pairs of settings, 20 steps, 12 of the larger model (test/long/hash_matrix.sh); otherwise each
#                     setting in few of them, several in one run; the last line has the number of runs left out
# timeout: 3600
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
pocl=pocl
parts="ranks mixed microbatch drivers least transport recompute resume evaluation plain stages eight fp8 vit store"
if [ -n "${TEST_COMPLETE:-}" ]; then parts="$parts oclgrind"; else echo "skipped: oclgrind, half a minute (make check-long has it)"; fi
[ -z "${TEST_SANITIZER:-}" ] || parts="microbatch transport recompute evaluation"
parts=" ${*:-$parts} "
intel=$(has_platform intel && echo yes)
[ -n "$intel" ] || echo "SKIP: no Intel runtime for CPUs here (make check fetches it): only PoCL is compared"

# Grouped queries, qk norm, clipping, rmsnorm, three kinds of dropout, shuffled data, three samples per lane,
# two batches per epoch.
small_steps=12 large_steps=8
[ -z "${TEST_COMPLETE:-}" ] || small_steps=20 large_steps=12
options=(train.yaml global_train_batch_size=24 "max_duration=${small_steps}ba" train_loader.dataset.shuffle=true
    model.emb_pdrop=0.1 model.resid_pdrop=0.1 model.attn_config.attn_pdrop=0.1)
# The same with tensors that are large enough to be divided among ranks.
large=("${options[@]}" "max_duration=${large_steps}ba" global_train_batch_size=16 load_path= model.d_model=256
    model.n_layers=5 model.vocab_size=5000)
# Which ranks own what does not depend on the length of samples; most of a step's time does.
short=(max_seq_len=16 model.max_seq_len=16 train_loader.dataset.max_seq_len=16 tokenizer.kwargs.model_max_length=16)
[ -z "${TEST_COMPLETE:-}" ] || short=()
# Multi-head attention, layernorm with bias, tied weights, learned positions; one sample per lane.
plain=(train.yaml "max_duration=${small_steps}ba")
set=mpt-variants steps=$small_steps
conf=("${options[@]}")

# run FOLDER DEVICE RANKS [key=value ...]
run() {
    local folder=$tmp/$1 device=$2 ranks=$3
    shift 3
    (cd "$golden/$set" && on_ranks "$ranks" train -q --device "$device" "${conf[@]}" \
        save_folder="$folder" "$@") >"$folder.log" 2>&1
}

# same NAME FOLDER [URL]: compares a run with the reference. URL: where its checkpoints are, otherwise in FOLDER.
same() {
    local hash steps
    hash=$("$cltrain" ckpt hash "${3:-$tmp/$2}" 2>&1)
    if ! steps=$(diff <(steps_of "$tmp/$reference") <(steps_of "$tmp/$2") 2>&1); then
        fail "$1: losses or gradient norms differ:"
        head -n 6 <<<"$steps"
        tail -n 5 "$tmp/$2.log"
    elif [ "$hash" != "$want" ]; then
        fail "$1: hashes differ: $hash"
    else
        echo "same: $1"
    fi
    rm -rf "${tmp:?}/$2"
}

# Checks that the comparison can fail: another seed must give another run.
sensitive() {
    run other $pocl 1 seed=18 max_duration=2ba
    if diff -q <(steps_of "$tmp/$reference" | head -n 2) <(steps_of "$tmp/other") >/dev/null; then fail "another seed gives the same losses"; fi
    [ "$("$cltrain" ckpt hash "$tmp/other")" != "$want" ] || fail "other weights have the same hash"
}

# make_reference FOLDER: the reference run, on PoCL with one rank
make_reference() {
    reference=$1
    run "$1" $pocl 1 || { cat "$tmp/$1.log"; fail "the reference run"; finish; }
    want=$("$cltrain" ckpt hash "$tmp/$1")
    [ "$(steps_of "$tmp/$1" | wc -l)" = $steps ] || { fail "the reference does not have $steps steps"; finish; }
    echo "reference ($set): $(echo $want)"
}

# compare NAME DEVICE RANKS [key=value ...]
compare() {
    local name=$1
    shift
    run x "$@" || true
    same "$name" x
}

# complete: whether this is the complete matrix. in_complete COMMAND...: runs it only there, and counts it in $left
# otherwise.
left=0
complete() { [ -n "${TEST_COMPLETE:-}" ]; }
in_complete() { if complete; then "$@"; else left=$((left + 1)); fi; }

# Two ranks are in recompute, three and four in transport.
ranks() {
    local n
    for n in 2 3 4; do in_complete compare "$n ranks" $pocl $n; done
    compare "8 ranks" $pocl 8
}

mixed() {
    in_complete compare "2 ranks, lanes 7 and 1" $pocl 2 cltrain.lanes_per_rank="[7,1]"
    compare "3 ranks, lanes 3, 1 and 4" $pocl 3 cltrain.lanes_per_rank="[3,1,4]"
    [ -n "$intel" ] || return
    compare "2 ranks: PoCL, Intel" pocl,intel 2
    in_complete compare "4 ranks: Intel, PoCL, PoCL, Intel" intel,pocl,pocl,intel 4
}

# The runs of resume have 1, 3 and auto, too.
microbatch() {
    local n
    compare "microbatch 2" $pocl 1 device_train_microbatch_size=2
    for n in 1 3 8 auto; do in_complete compare "microbatch $n" $pocl 1 device_train_microbatch_size=$n; done
}

drivers() {
    POCL_MAX_PTHREAD_COUNT=1 compare "PoCL on one thread" $pocl 1
    POCL_DEVICES=basic in_complete compare "PoCL's basic driver" $pocl 1
    POCL_KERNELLIB_NAME=avx2 compare "PoCL for AVX2" $pocl 1
    [ -n "$intel" ] && compare "Intel's runtime" intel 1
}

# The least that OpenCL allows: the rows for GPUs that require nothing.
least() {
    CLTRAIN_DEVICE_TYPE=gpu CLTRAIN_LOCAL_MEM=16384 POCL_MAX_WORK_GROUP_SIZE=64 \
        compare "16 KiB of local memory, work-groups of 64" $pocl 1
}

transport() {
    CLTRAIN_TRANSPORT=shm in_complete compare "shared memory, 3 ranks" $pocl 3
    CLTRAIN_TRANSPORT=mpi compare "MPI, 3 ranks" $pocl 3
    CLTRAIN_HOSTS=2 compare "sums inside 2 hosts first, 4 ranks" $pocl 4
}

recompute() {
    in_complete compare "recomputation" $pocl 1 cltrain.recompute=true
    in_complete compare "recomputation of norms" $pocl 1 cltrain.recompute=norms
    CLTRAIN_BUILD_HELPERS=1 CLTRAIN_AHEAD=1 compare "a rehearsal, steps queued ahead, checkpoints written meanwhile" $pocl 2 save_interval=3ba
    compare "recomputation, 2 ranks, microbatch 1" $pocl 2 cltrain.recompute=true device_train_microbatch_size=1
}

# Each run with another number of ranks and another microbatch. The complete matrix has twenty runs of one step each; else
# the first four steps are runs of their own.
resume() {
    local n=(1 2 4 3 1 8 1 2 5 1 3 7 2 1 6 4 1 2 1 3) m=(auto 1 2 3) ends=(1 2 3 4 8 12) i=0 end device
    ! complete || mapfile -t ends < <(seq 20)
    for end in "${ends[@]}"; do
        i=$((i + 1))
        device=$pocl
        [ -n "$intel" ] && [ $((i % 5)) = 0 ] && device=intel
        run resumed $device "${n[i - 1]}" max_duration="${end}ba" device_train_microbatch_size="${m[i % 4]}" \
            save_num_checkpoints_to_keep=2 || { tail -n 5 "$tmp/resumed.log"; fail "leg $i"; return; }
    done
    [ "$(grep -c '"event":"resume"' "$tmp/resumed/metrics.jsonl")" = $((i - 1)) ] || fail "expected $((i - 1)) resumed starts"
    same "stopped and resumed $((i - 1)) times, each time with another number of ranks" resumed
}

# An evaluation gives the same result for any number of ranks, although batches and their division differ.
evaluation() {
    local n out first=
    for n in 1 $(complete && echo 2 3) 8; do
        out=$(cd "$golden/e2e" && on_ranks "$n" eval -q --device $pocl train.yaml load_path=hf 2>"$tmp/eval.log" | grep '"eval_loss"')
        first=${first:-$out}
        if [ -z "$out" ] || [ "$out" != "$first" ]; then
            fail "evaluation on $n ranks: '$out', not '$first'"
            tail -n 3 "$tmp/eval.log"
        else
            echo "same: evaluation on $n ranks"
        fi
    done
}

plain() {
    set=mpt-learned steps=$small_steps
    conf=("${plain[@]}")
    make_reference plain
    CLTRAIN_BUILD_HELPERS=2 compare "plain: 3 ranks, with a rehearsal" $pocl 3
    compare "plain: microbatch auto, recomputation" $pocl 1 device_train_microbatch_size=auto cltrain.recompute=true
    [ -z "$intel" ] || in_complete compare "plain: 2 ranks: Intel, PoCL" intel,pocl 2
}

# stage RANKS STAGE NAME [key=value ...]
stage() { compare "stage $2, $1 ranks$3" $pocl "$1" cltrain.zero_stage="$2" "${@:4}"; }

# hybrid RANKS SIZE NAME [key=value ...]: weights are sharded inside groups of SIZE ranks
groups_of() { echo "fsdp_config={sharding_strategy: HYBRID_SHARD, data_parallel_shard_degree: $1}"; }
hybrid() { compare "groups of $2 of $1 ranks$3" $pocl "$1" "$(groups_of "$2")" "${@:4}"; }

# Sharded moments, gradients and weights; a run that changes its stage at every stop.
stages() {
    local i n=(3 2 4 1 4 2) at=(2 3 "$(groups_of 2)" 0 1 3) end=(1 2 4 5 7 8)
    ! complete || end=(2 4 6 8 10 12)
    set=mpt-variants steps=$large_steps
    conf=("${large[@]}" "${short[@]}")
    make_reference large
    CLTRAIN_BUFFER_MIB=1 stage 2 1 ", slabs of several buffers"
    in_complete stage 3 2 "" # the runs of the changing stage start with it
    [ -z "$intel" ] || in_complete compare "stage 3, 3 ranks: Intel, PoCL, Intel" intel,pocl,intel 3 cltrain.zero_stage=3
    CLTRAIN_TRANSPORT=mpi in_complete stage 4 3 " over MPI"
    CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 stage 2 3 ", queues of their own, steps queued ahead, inputs of blocks in host memory" \
        cltrain.offload_activations=host
    CLTRAIN_QUEUES=3 in_complete stage 8 2 ", queues of their own"
    in_complete stage 2 3 ", whole gradients" device_train_microbatch_size=1
    CLTRAIN_HOSTS=2 in_complete stage 4 1 " on 2 hosts"
    CLTRAIN_HOSTS=2 in_complete stage 4 3 " on 2 hosts"
    CLTRAIN_HOSTS=2 CLTRAIN_QUEUES=3 stage 4 3 " on 2 hosts, queues of their own"
    CLTRAIN_HOSTS=2 in_complete hybrid 4 2 " on 2 hosts"
    CLTRAIN_HOSTS=2 CLTRAIN_QUEUES=3 in_complete hybrid 8 2 " on 2 hosts, queues of their own, weights in host memory" \
        cltrain.offload_parameters=host
    CLTRAIN_TRANSPORT=mpi stage 3 3 " over MPI, lanes and parts 3, 1 and 4" cltrain.lanes_per_rank="[3,1,4]"
    in_complete hybrid 4 2 ""
    CLTRAIN_TRANSPORT=mpi CLTRAIN_QUEUES=3 CLTRAIN_AHEAD=1 hybrid 4 2 \
        ", whole gradients, over MPI, queues of their own, steps queued ahead" device_train_microbatch_size=1
    in_complete hybrid 6 3 ", whole gradients" device_train_microbatch_size=1
    CLTRAIN_HOSTS=2 compare "_HYBRID_SHARD_ZERO2, 4 ranks on 2 hosts" $pocl 4 \
        "fsdp_config={sharding_strategy: _HYBRID_SHARD_ZERO2, data_parallel_replicate_degree: 2}"
    for i in 0 1 2 3 4 5; do
        [[ ${at[i]} = *=* ]] || at[i]=cltrain.zero_stage=${at[i]}
        run resumed $pocl "${n[i]}" "${at[i]}" max_duration="${end[i]}ba" ||
            { tail -n 5 "$tmp/resumed.log"; fail "${at[i]}"; return; }
    done
    same "another stage and another number of ranks after every few steps" resumed
    # Fewer samples than lanes, and ranks without a lane in the last round.
    conf+=(global_train_batch_size=5)
    make_reference few
    in_complete stage 3 2 ", 5 samples"
    in_complete stage 3 3 ", 5 samples"
    CLTRAIN_QUEUES=3 hybrid 4 2 ", 5 samples, weights in host memory" cltrain.offload_parameters=host
    # With 16-bit weights and fast numerics the number of ranks changes bits, groups do not.
    complete || { left=$((left + 2)); return; }
    conf+=(global_train_batch_size=16 precision=amp_bf16)
    run full $pocl 4 cltrain.zero_stage=3 || { tail -n 5 "$tmp/full.log"; fail "stage 3, amp_bf16"; return; }
    reference=full
    want=$("$cltrain" ckpt hash "$tmp/full")
    CLTRAIN_BUFFER_MIB=1 hybrid 4 2 ", amp_bf16, slabs of several buffers"
    # The chain of numerics fast.
    conf=("${large[@]}" "${short[@]}" cltrain.numerics=fast device_train_microbatch_size=1)
    reference=chain
    run chain $pocl 4 cltrain.zero_stage=3 || fail "the reference with numerics fast: $(tail -n 3 "$tmp/chain.log")"
    want=$("$cltrain" ckpt hash "$tmp/chain")
    CLTRAIN_HOSTS=2 stage 4 3 ", numerics fast, on 2 hosts"
}

# Products of 8-bit blocks.
eight() {
    local i n=(2 1 4) end=(2 5 8)
    ! complete || end=(3 7 12)
    set=mpt-variants steps=$large_steps
    conf=("${large[@]}" precision=exact8)
    make_reference eight
    in_complete compare "8 bits: 3 ranks, microbatch 1" $pocl 3 device_train_microbatch_size=1
    in_complete compare "8 bits: blocks of one sample" $pocl 1 device_train_microbatch_size=auto
    CLTRAIN_VARIANT=gemm8=portable,quantize=portable in_complete compare "8 bits: portable kernels" $pocl 1 # test_gemm8
    CLTRAIN_QUEUES=3 stage 2 3 ", 8 bits, inputs of blocks and weights in host memory" cltrain.offload_activations=host \
        cltrain.offload_parameters=host
    CLTRAIN_QUEUES=3 stage 1 3 ", 8 bits, everything in host memory, steps of the host" cltrain.offload_parameters=host \
        cltrain.offload_gradients=host cltrain.offload=host cltrain.offload_update=host
    for i in 0 1 2; do
        run resumed $pocl "${n[i]}" max_duration="${end[i]}ba" || { tail -n 5 "$tmp/resumed.log"; fail "8 bits"; return; }
    done
    same "8 bits: resumed on other numbers of ranks" resumed
    if [ -n "$intel" ]; then
        in_complete compare "8 bits: Intel's runtime" intel 1
        compare "8 bits: 2 ranks: Intel, PoCL" intel,pocl 2
    fi
    # The head's matrix takes gradients from products, targets and lookups.
    conf+=(model.tie_word_embeddings=true)
    make_reference tied
    compare "8 bits, tied: 3 ranks, microbatch 1" $pocl 3 device_train_microbatch_size=1
    in_complete stage 2 3 ", 8 bits, tied"
}

# 8-bit floating point, whose scales come from the largest magnitudes of all ranks.
fp8() {
    local i n=(2 1 4) end=(5 11 20)
    set=mpt-variants steps=20
    # More steps than the scales' history of 16.
    conf=("${options[@]}" max_duration=20ba precision=amp_fp8 cltrain.numerics=exact cltrain.recompute=none)
    make_reference fp8
    in_complete compare "8-bit floating point: 3 ranks, microbatch 1" $pocl 3 device_train_microbatch_size=1
    in_complete compare "8-bit floating point: blocks recomputed" $pocl 1 cltrain.recompute=blocks
    compare "8-bit floating point: norms recomputed" $pocl 1 cltrain.recompute=norms
    compare "8-bit floating point: stage 3, 2 ranks" $pocl 2 cltrain.zero_stage=3
    for i in 0 1 2; do
        run resumed $pocl "${n[i]}" max_duration="${end[i]}ba" || { tail -n 5 "$tmp/resumed.log"; fail "8-bit floating point"; return; }
    done
    same "8-bit floating point: resumed on other numbers of ranks" resumed
    [ -n "$intel" ] || return
    in_complete compare "8-bit floating point: Intel's runtime" intel 1
}

# vit_legs PRECISION: the reference stopped three times, each part on other devices (in fp32 only in the complete matrix)
# and ranks
vit_legs() {
    local i n=(2 3 2 1) end=(2 4 7 8) places=("$pocl" "$pocl" "$pocl" "$pocl")
    [ -z "$intel" ] || { [ "$1" = fp32 ] && ! complete; } || places=("$pocl" intel "pocl,intel" intel)
    for i in 0 1 2 3; do
        run resumed "${places[i]}" "${n[i]}" max_duration="${end[i]}ba" || { tail -n 5 "$tmp/resumed.log"; fail "ViT, $1"; return; }
    done
    same "ViT, $1: resumed on other devices and numbers of ranks" resumed
}

# A Vision Transformer on augmented and mixed pictures, with learning rates by layer.
vit() {
    local precision
    set=vit/images steps=8
    conf=(train.yaml max_duration=8ba)
    if ! run x $pocl 1 max_duration=1ba && grep -q "IMAGES=0" "$tmp/x.log"; then
        echo "SKIP: built without pictures (IMAGES=0): no Vision Transformer"
        return
    fi
    rm -r "$tmp/x"
    for precision in fp32 exact8; do
        conf=(train.yaml max_duration=8ba "precision=$precision")
        make_reference "vit-$precision"
        compare "ViT, $precision: 3 ranks, microbatch 1" $pocl 3 device_train_microbatch_size=1
        stage 2 3 ", ViT, $precision"
        in_complete stage 3 1 ", ViT, $precision"
        if [ -n "$intel" ]; then # vit_legs have both drivers, too
            in_complete compare "ViT, $precision: Intel's runtime" intel 1
            in_complete compare "ViT, $precision: 3 ranks: Intel, PoCL, Intel" intel,pocl,intel 3
        fi
        vit_legs "$precision"
    done
    # State that passes through the device in several stretches, which cut tensors.
    conf=(train.yaml max_duration=2ba optimizer.name=lamb model.width=512 model.depth=4 model.heads=4 model.mlp_ratio=4
        precision=fp32)
    steps=2
    make_reference vit-lamb
    CLTRAIN_QUEUES=3 compare "ViT, LAMB: state and gradients in host memory" $pocl 1 cltrain.offload=host \
        cltrain.zero_stage=2 cltrain.offload_gradients=host
    CLTRAIN_QUEUES=3 stage 2 3 ", ViT, LAMB, state and weights in host memory" cltrain.offload=host \
        cltrain.offload_parameters=host
    CLTRAIN_QUEUES=3 stage 3 1 ", ViT, LAMB, inputs of blocks in host memory" cltrain.offload_activations=host
}

# stored FOLDER DEVICE RANKS [key=value ...]: data from a bucket into a cold cache, checkpoints into the bucket; each start
# has an empty working folder, as on another host.
stored() {
    local folder=$tmp/$1 device=$2 ranks=$3
    rm -rf "$folder"
    mkdir "$folder"
    cp "$golden/$set/train.yaml" "$folder/"
    (cd "$folder" && on_ranks "$ranks" train -q --device "$device" "${conf[@]}" run_name=it load_path="$golden/$set/hf" \
        train_loader.dataset.remote="s3://$TEST_BUCKET/mds" train_loader.dataset.local=cache \
        save_folder="s3://$TEST_BUCKET/runs/$1" "${@:4}") >"$folder.log" 2>&1
}

# same_stored NAME FOLDER
same_stored() {
    mv "$tmp/$2" "$tmp/$2.host"
    mv "$tmp/$2.host/runs/it" "$tmp/$2"
    rm -r "$tmp/$2.host"
    same "$1" "$2" "s3://$TEST_BUCKET/runs/$2"
}

# compare_stored NAME FOLDER DEVICE RANKS [key=value ...]
compare_stored() {
    stored "${@:2}" || { tail -n 5 "$tmp/$2.log"; fail "$1"; return; }
    same_stored "$1" "$2"
}

# Data and checkpoints in an object store.
store() {
    local i n=(2 1 4 1) end=(2 5 9 12) device
    ! complete || end=(4 9 15 20)
    . test/store.sh
    [ -x "$BUILD/object/bin/weed" ] || { echo "SKIP: SeaweedFS is not installed (tools/setup.sh --check): no object store"; return; }
    store_start
    set=mpt-variants steps=$small_steps reference=options
    conf=("${options[@]}")
    want=$("$cltrain" ckpt hash "$tmp/options")
    "$store_python" -c 'import boto3, os, pathlib, sys
for f in pathlib.Path(sys.argv[1]).rglob("*"):
    if f.is_file(): boto3.client("s3").upload_file(f, os.environ["TEST_BUCKET"], "mds/%s" % f.relative_to(sys.argv[1]))' \
        "$golden/$set/mds" || { fail "the upload"; return; }
    compare_stored "object store: 1 rank" one $pocl 1 train_loader.dataset.cache_limit=200kb
    compare_stored "object store: 3 ranks, stage 2" three $pocl 3 cltrain.zero_stage=2
    [ -z "$intel" ] || in_complete compare_stored "object store: 2 ranks: Intel, PoCL" two intel,pocl 2
    for i in 0 1 2 3; do
        device=$pocl
        [ -z "$intel" ] || [ $i != 1 ] || device=intel
        stored legs "$device" "${n[i]}" max_duration="${end[i]}ba" || { tail -n 5 "$tmp/legs.log"; fail "leg $i"; return; }
    done
    same_stored "object store: resumed $i times from an empty folder, with other numbers of ranks" legs
}

# Two steps of a tiny model under Oclgrind, which runs every work-item on its own interpreter; test/ops/oclgrind.sh checks
# the kernels always.
under_oclgrind() {
    command -v oclgrind >/dev/null || { echo "SKIP: oclgrind is not installed"; return; }
    set=mpt-variants
    conf=(train.yaml max_duration=2ba load_path= model.d_model=16 model.n_heads=2 model.attn_config.kv_n_heads=1
        model.n_layers=1 model.max_seq_len=8 max_seq_len=8 train_loader.dataset.max_seq_len=8 model.emb_pdrop=0.1
        global_train_batch_size=2)
    run tiny $pocl 1 || fail "the tiny run on PoCL: $(tail -n 3 "$tmp/tiny.log")"
    (cd "$golden/$set" && oclgrind "$cltrain" train -q --device oclgrind "${conf[@]}" save_folder="$tmp/grind") \
        >"$tmp/grind.log" 2>&1 || fail "under Oclgrind: $(tail -n 5 "$tmp/grind.log")"
    reference=tiny
    want=$("$cltrain" ckpt hash "$tmp/tiny")
    same "two steps under Oclgrind" grind
}

wants() { [[ $parts == *" $1 "* ]]; }
# Takes half a minute on one core, so it runs in parallel with the rest.
(wants oclgrind && under_oclgrind; exit $failed) >"$tmp/oclgrind.said" 2>&1 &
oclgrind=$!
make_reference options
sensitive
for part in ranks mixed microbatch drivers least transport recompute resume evaluation plain stages eight fp8 vit store; do
    wants $part && $part
done
wait $oclgrind || failed=1
cat "$tmp/oclgrind.said"
[ $left = 0 ] || echo "skipped: $left runs whose settings other runs have (make check-long: all)"
finish
