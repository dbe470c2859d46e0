#!/bin/bash
# The hop table: the hashes of one run of 20 batches on every device of this machine, on 1, 2, 3, 4 and 8
# ranks, with several microbatches, with stops and hops, and on two vendors' devices in one job. All hashes of
# weights and optimizer state must be equal. Rows that cannot run here print the reason. With EMULATOR=DIR
# (see tools/amd/check.sh) the table includes AMD machine code.
#   make hop-table     PRECISION=amp_bf16: 16-bit types (numerics exact) instead of fp32, PRECISION=exact8: 8-bit blocks
#                      MODEL=vit: a Vision Transformer on augmented pictures instead of an MPT
# timeout: 3600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
here=$PWD
precision=${PRECISION:-fp32} set=mpt-variants samples=24
[ "${MODEL:-mpt}" != vit ] || set=vit/images samples=8
want='' rows=0 equal=0 left=0 broken=0
cd "$golden/$set" || exit 1

# row TEXT RESULT: RESULT is the two hashes, or the reason why there are none
row() {
    local weights optimizer verdict
    read -r weights optimizer <<<"$2"
    if [[ ! $weights =~ ^[0-9a-f]{32}$ ]]; then
        printf '%-46s  not run: %s\n' "$1" "$2"
        left=$((left + 1))
        return
    fi
    rows=$((rows + 1))
    want=${want:-$weights $optimizer} # the reference is the first row
    if [ "$weights $optimizer" = "$want" ]; then
        equal=$((equal + 1)) verdict=same
    else
        verdict=OTHER failed=1
    fi
    printf '%-46s  %s  %s  %s\n' "$1" "$weights" "$optimizer" "$verdict"
}

# hashes FOLDER: prints "weights optimizer"
hashes() { "$cltrain" ckpt hash "$1" 2>&1 | awk '{ printf "%s ", $2 }'; }

# run TEXT LAUNCH-ARGUMENT ... -- key=value ...: trains to the end and prints a row
run() {
    local text=$1 launch=()
    shift
    while [ "$1" != -- ]; do launch+=("$1") && shift; done
    shift
    rm -rf "$tmp/run"
    if "$cltrain" launch "${launch[@]}" train -q train.yaml save_folder="$tmp/run" max_duration=20ba precision="$precision" \
        cltrain.numerics=exact global_train_batch_size=$samples "$@" >"$log" 2>&1; then
        row "$text" "$(hashes "$tmp/run")"
    else
        printf '%-46s  FAILED: %s\n' "$text" "$(grep -m 1 error: "$log" || echo "no error message")"
        show "$text"
        broken=$((broken + 1)) failed=1
    fi
}

# show TEXT: prints the end of a failed row's log and keeps the whole log
show() {
    local kept
    kept=$BUILD/test-logs/hop-$(tr -cs '[:alnum:]\n' - <<<"$1").log
    mkdir -p "$BUILD/test-logs" && cp "$log" "$kept"
    tail -n 15 "$log" | sed 's/^/      | /'
    echo "      whole log: $kept"
}

intel=$(has_platform intel && echo yes)
nvidia=$(has_platform nvidia && echo yes)
# needs PRESENT REASON TEXT ...: runs the row only if PRESENT is not empty
needs() {
    local there=$1 why=$2
    shift 2
    if [ -n "$there" ]; then run "$@"; else row "$1" "$why"; fi
}
no_intel="no Intel runtime for CPUs here (make check fetches it)"
no_nvidia="no NVIDIA device here"

echo "20 batches of $samples samples of test/golden/$set in $precision, numerics exact"
printf '%-46s  %-32s  %-32s\n' run weights optimizer
for n in 1 2 3 4 8; do run "PoCL, $n ranks" -n $n --device pocl --; done
POCL_MAX_PTHREAD_COUNT=1 run "PoCL on one thread" -n 1 --device pocl --
for n in 1 2 3 4 8; do needs "$intel" "$no_intel" "Intel's CPU runtime, $n ranks" -n $n --device intel --; done
for n in 1 2 3; do needs "$nvidia" "$no_nvidia" "NVIDIA, $n ranks" -n $n --device nvidia --; done
for n in 1 2 auto; do
    run "PoCL, microbatch $n" -n 1 --device pocl -- device_train_microbatch_size=$n
done
if [ "$precision" = fp32 ]; then
    run "PoCL, blocks recomputed" -n 1 --device pocl -- cltrain.recompute=blocks
else
    row "PoCL, blocks recomputed" "with 16-bit types the bits differ from recomputed norms (docs/numerics.md)"
fi
run "PoCL, 2 ranks with 7 and 1 lanes" -n 2 --device pocl -- "cltrain.lanes_per_rank=[7,1]"
needs "$intel" "$no_intel" "PoCL and Intel in one job, 2 ranks" -n 2 --device pocl,intel --
needs "$intel" "$no_intel" "PoCL and Intel in one job, 8 ranks" -n 8 --device pocl,intel --
needs "$nvidia" "$no_nvidia" "NVIDIA and PoCL in one job, 2 ranks" -n 2 --device nvidia,pocl --
for k in 1 7 13; do run "PoCL, stopped every $k batches, 1 and 3 ranks" --hop "pocl*1:${k}ba,pocl*3:${k}ba" --; done
needs "$intel" "$no_intel" "hop: PoCL x 2, Intel x 3, both x 4" --hop "pocl*2:3ba,intel*3:2ba,pocl+intel*4:2ba" --
needs "$nvidia" "$no_nvidia" "hop: NVIDIA, PoCL x 2" --hop "nvidia*1:4ba,pocl*2:1ba" --

# AMD machine code runs two steps of another model on an emulator; the reference of this row is PoCL's run of
# the same steps.
amd() {
    local target=gfx90a out
    local text="AMD MI250 ($target), machine code, emulated"
    [ -n "${EMULATOR:-}" ] || { row "$text" "no emulator: set EMULATOR=DIR (tools/amd/check.sh)"; return; }
    out=$(cd "$here" && TARGETS=$target tools/amd/check.sh 2>&1)
    found() { # PLACE: prints "weights optimizer" as check.sh printed them for PLACE
        local kind
        for kind in weights optimizer; do
            sed -n "s/^ *$kind *\([0-9a-f]\{32\}\) $1.*/\1/p" <<<"$out" | head -n 1 | tr '\n' ' '
        done
    }
    if [ -z "$(found "on $target")" ]; then
        row "$text" "$(grep -m 1 'check-amd' <<<"$out")"
        return
    fi
    want=''
    row "two steps of another model: PoCL" "$(found "cltrain ckpt hash")"
    row "$text" "$(found "on $target")"
}
amd
echo "$rows rows, $equal equal; $left not run, $broken failed"
[ "$rows" -gt 0 ] || fail "no row was run"
finish
