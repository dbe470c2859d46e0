#!/bin/bash
# make check-amd EMULATOR=DIR: records launches with the kernels that an AMD GPU is given - of the operation tests at small
# shapes, and of whole training steps of tiny models - and runs them as machine code of AMD GPUs on the instruction-set
# emulator in DIR, a source tree of tinygrad. Every buffer must be the recorded one, word for word. The kernels for matrix
# units, which no other device can run, must stay within their bound (matrix.py). Two steps also run as a chain, where each launch
# starts from what the target's own launches left, and must end in the state whose hash the recorded run's checkpoint has (chain.py).
#
#   TARGETS="gfx90a gfx942 gfx1100 gfx1201"  which GPUs
#   MOST=0                           at most so many launches of each program of the whole steps (0: all)
#   ONLY=word                        only kernels whose "file name" holds the word
#
# Where something is missing it says what, and ends with success.
set -u
unset CC # make's, which may be two words; the emulator has a compiler of its own choice
cd "$(dirname "$0")/../.." || exit 2
BUILD=$(readlink -f "${BUILD:-build}")
WORK=$BUILD/amd
EMULATOR=${EMULATOR:-} TARGETS=${TARGETS:-gfx90a gfx942 gfx1100 gfx1201} MOST=${MOST:-0} ONLY=${ONLY:-}
leave() {
    echo "check-amd: left out: $*"
    exit 0
}
[ -n "$EMULATOR" ] || leave "no emulator: give EMULATOR=DIR, a source tree of github.com/tinygrad/tinygrad"
[ -f "$EMULATOR/test/mockgpu/amd/emu.py" ] || leave "$EMULATOR holds no test/mockgpu/amd/emu.py"
command -v python3 >/dev/null || leave "no python3"
missing=$(cd tools/amd && python3 -c 'import codeobject; print(codeobject.missing_tools())')
[ -z "$missing" ] || leave "not installed: $missing"
"$BUILD/cltrain" devices 2>/dev/null | grep -q '^Platform.*Portable' || leave "no PoCL, on which the launches are recorded"
export CLTRAIN_CACHE_DIR=${CLTRAIN_CACHE_DIR:-$BUILD/test-cache}

# The first row of each table that asks for nothing but sizes, which every AMD GPU has; $1: a row that a model cannot use.
rows() {
    local table
    for table in clkernels/*/*.vt; do
        awk -v op="$(basename "$table" .vt)" -v not="${1:-}" '
            /^#/ || NF < 5 || op "=" $1 == not { next }
            { n = split($4, word, ","); ok = 1
              for (i = 1; i <= n; i++) if (word[i] != "-" && word[i] !~ /^(work_group|local_mem)>=/) ok = 0
              if (ok) { printf "%s=%s,", op, $1; exit } }' "$table"
    done
}

rm -rf "$WORK/records"
mkdir -p "$WORK/records"
failed=0
for program in "$BUILD"/test/ops/test_*; do
    [ -x "$program" ] || continue
    name=$(basename "$program")
    CLTRAIN_DEVICE=pocl CLTRAIN_RECORD=$WORK/records/$name "$program" --tiny >"$WORK/$name.log" 2>&1 ||
        { echo "check-amd: $name failed while it was recorded: $WORK/$name.log"; failed=1; }
    [ -f "$WORK/records/$name/launches.jsonl" ] || rm -rf "$WORK/records/$name"
done
record_step() { # name, golden set, row that it cannot use, overrides
    local name=$1 set=$2 without=$3
    shift 3
    (cd "test/golden/$set" && CLTRAIN_VARIANT=$(cd ../../.. && rows "$without") "$BUILD/cltrain" train -q --device pocl train.yaml \
        save_folder="$WORK/run-$name" max_duration=1ba scheduler.t_max=9ba scheduler.t_warmup=0ba global_train_batch_size=2 \
        device_train_microbatch_size=1 --record "$WORK/records/$name" "$@") >"$WORK/$name.log" 2>&1 ||
        { echo "check-amd: the step $name failed while it was recorded: $WORK/$name.log"; failed=1; }
}
rm -rf "$WORK"/run-*
# Two steps, whose final state the chain must reach; and single steps with other kernels.
record_step chain-layernorm e2e "" load_path=hf load_weights_only=true max_duration=2ba --record-steps 1:2
record_step step-bf16 e2e "" precision=amp_bf16
record_step step-variants mpt-variants norm=wide model.emb_pdrop=0.1
record_step step-rope mpt-rope ""

compared=no
for target in $TARGETS; do
    run() { # most, records
        local most=$1
        shift
        python3 tools/amd/replay.py --emulator "$EMULATOR" --target "$target" --work "$WORK/code" --most "$most" \
            ${ONLY:+--only "$ONLY"} "$@" 2>"$WORK/$target.log"
        local code=$?
        [ $code = 3 ] && return # replay.py's NOTHING
        compared=yes
        [ $code -le 1 ] || { echo "check-amd: $target ended with $code; last: $(tail -n 1 "$WORK/$target.log")"; }
        [ $code = 0 ] || failed=1
    }
    echo "--- $target: operation tests"
    run 0 "$WORK"/records/test_*
    echo "--- $target: matrix units"
    python3 tools/amd/matrix.py --emulator "$EMULATOR" --target "$target" --work "$WORK/code" 2>>"$WORK/$target.log" || failed=1
    echo "--- $target: two steps, launch after launch"
    [ -n "$ONLY" ] || python3 tools/amd/chain.py --emulator "$EMULATOR" --target "$target" --work "$WORK/code" \
        --cltrain "$BUILD/cltrain" --checkpoint "$(echo "$WORK"/run-chain-layernorm/ep*)" "$WORK/records/chain-layernorm" \
        2>>"$WORK/$target.log" || failed=1
    echo "--- $target: single steps"
    run "$MOST" "$WORK"/records/step-*
done
[ $compared = yes ] || { echo "check-amd: nothing was compared: no recorded kernel's \"file name\" holds \"$ONLY\""; failed=1; }
[ $failed = 0 ] || echo "check-amd: failed; what did is above or at the end of $WORK/*.log"
[ $failed = 0 ] && echo "check-amd: every word of every buffer is right on $TARGETS, and the matrix units stay within their bounds"
exit $failed
