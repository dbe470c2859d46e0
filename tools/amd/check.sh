#!/bin/bash
# make check-amd EMULATOR=DIR: runs the project's kernels as machine code of AMD GPUs on the instruction-set
# emulator in DIR, a source tree of tinygrad. Records the launches of the operation tests at small shapes and
# of training steps of tiny models on a CPU device, with the kernels that an AMD GPU would use, and replays
# them; every buffer must equal the recorded one. Kernels for matrix units, which the CPU cannot run, must
# stay within their error bound (matrix.py), and those of 8-bit blocks give the exact words
# (matrix8.py). Two steps also run as a chain, in which each launch starts from the buffers that the target's own
# launches left; the final state must have the hash of the recorded run's checkpoint (chain.py).
#   TARGETS="gfx90a gfx942 gfx1100 gfx1201"  the GPUs to emulate
#   MOST=N                           at most N launches of each program of the training steps (default 0: all)
#   ONLY=word                        only kernels whose "file name" contains the word
# If a tool is missing, prints its name and exits with code 0.
set -u
unset CC # make's CC may be several words; the emulator chooses its own compiler
cd "$(dirname "$0")/../.." || exit 2
BUILD=$(readlink -f "${BUILD:-build}")
WORK=$BUILD/amd
EMULATOR=${EMULATOR:-} TARGETS=${TARGETS:-gfx90a gfx942 gfx1100 gfx1201} MOST=${MOST:-0} ONLY=${ONLY:-}
leave() {
    echo "check-amd: skipped: $*"
    exit 0
}
[ -n "$EMULATOR" ] || leave "no emulator: set EMULATOR=DIR, a source tree of github.com/tinygrad/tinygrad"
[ -f "$EMULATOR/test/mockgpu/amd/emu.py" ] || leave "$EMULATOR has no test/mockgpu/amd/emu.py"
command -v python3 >/dev/null || leave "python3 is not installed"
missing=$(cd tools/amd && python3 -c 'import codeobject; print(codeobject.missing_tools())')
[ -z "$missing" ] || leave "not installed: $missing"
"$BUILD/cltrain" devices 2>/dev/null | grep -q '^Platform.*Portable' || leave "PoCL, which records the launches, is not installed"
export CLTRAIN_CACHE_DIR=${CLTRAIN_CACHE_DIR:-$BUILD/test-cache}

# Prints the first row of each variant table that requires only sizes, which every AMD GPU has, except the rows in $1,
# a comma list, which the model cannot use.
rows() {
    local table
    for table in clkernels/*/*.vt; do
        awk -v op="$(basename "$table" .vt)" -v not="${1:-}" '
            /^#/ || NF < 5 || index("," not ",", "," op "=" $1 ",") { next }
            { n = split($4, word, ","); ok = 1
              for (i = 1; i <= n; i++) if (word[i] != "-" && word[i] !~ /^(work_group|local_mem)>=|^uses=/) ok = 0
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
        { echo "check-amd: recording $name failed: $WORK/$name.log"; failed=1; }
    [ -f "$WORK/records/$name/launches.jsonl" ] || rm -rf "$WORK/records/$name"
done
record_step() { # name, golden set, rows that the model cannot use, overrides
    local name=$1 set=$2 without=$3
    shift 3
    (cd "test/golden/$set" && CLTRAIN_VARIANT=$(cd ../../.. && rows "$without") "$BUILD/cltrain" train -q --device pocl train.yaml \
        save_folder="$WORK/run-$name" max_duration=1ba scheduler.t_max=9ba scheduler.t_warmup=0ba global_train_batch_size=2 \
        device_train_microbatch_size=1 --record "$WORK/records/$name" "$@") >"$WORK/$name.log" 2>&1 ||
        { echo "check-amd: recording the step $name failed: $WORK/$name.log"; failed=1; }
}
rm -rf "$WORK"/run-*
# Two steps for the chain; single steps with other kernels.
logits16=loss=wide256 # for 16-bit logits only
for precision in fp32 exact8; do
    record_step chain-$precision e2e "$([ $precision != fp32 ] || echo $logits16)" load_path=hf load_weights_only=true max_duration=2ba precision=$precision --record-steps 1:2
done
record_step step-bf16 e2e "" precision=amp_bf16
record_step step-variants mpt-variants norm=wide,$logits16 model.emb_pdrop=0.1
record_step step-rope mpt-rope $logits16

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
        [ $code -le 1 ] || { echo "check-amd: replay.py exited with code $code on $target; last line: $(tail -n 1 "$WORK/$target.log")"; }
        [ $code = 0 ] || failed=1
    }
    echo "--- $target: operation tests"
    run 0 "$WORK"/records/test_*
    echo "--- $target: matrix units"
    for program in matrix matrix8; do
        python3 tools/amd/$program.py --emulator "$EMULATOR" --target "$target" --work "$WORK/code" 2>>"$WORK/$target.log" || failed=1
    done
    for precision in $([ -n "$ONLY" ] || echo fp32 exact8); do
        echo "--- $target: chain of two steps in $precision"
        python3 tools/amd/chain.py --emulator "$EMULATOR" --target "$target" --work "$WORK/code" --cltrain "$BUILD/cltrain" \
            --checkpoint "$(echo "$WORK/run-chain-$precision"/ep*)" "$WORK/records/chain-$precision" 2>>"$WORK/$target.log" || failed=1
    done
    echo "--- $target: single steps"
    run "$MOST" "$WORK"/records/step-*
done
[ $compared = yes ] || { echo "check-amd: nothing was compared: no recorded kernel's \"file name\" contains \"$ONLY\""; failed=1; }
[ $failed = 0 ] || echo "check-amd: failed; see the lines above and the end of $WORK/*.log"
[ $failed = 0 ] && echo "check-amd: all buffers are equal on $TARGETS, and matrix units stay within their bounds"
exit $failed
