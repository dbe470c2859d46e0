#!/usr/bin/env bash
# Compares the speed on this machine's CPU with other systems, in one run: `make bench`.
#   - fp32 GEMM at the shapes of a d=768 MPT: against OpenBLAS, and as a fraction of the FMA peak
#   - training: against PyTorch (set PYTHON to a python3 that has torch) in fp32, bf16 and 8-bit blocks, also of a
#     Vision Transformer, and against llm.c (set LLMC to its train_gpt2 built for the CPU, in a folder with its starter
#     files)
#   - start of a run with cold and with warm caches
# Systems that are not installed are skipped with a line. Close other programs first: with one other busy
# process PyTorch loses most of its speed, and every figure changes. DEVICES: the OpenCL runtimes to measure
# (default: PoCL and Intel's, if present).
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}; case $BUILD in /*) ;; *) BUILD=$PWD/$BUILD ;; esac
CLTRAIN=${CLTRAIN:-$BUILD/cltrain} CLBENCH=${CLBENCH:-$BUILD/clbench} PYTHON=${PYTHON:-python3} LLMC=${LLMC:-}
THREADS=$(nproc)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export CLTRAIN_CACHE_DIR=$work/kernels # a fresh cache, so that peak rates are measured in this run
[ -n "${OCL_ICD_VENDORS:-}" ] || { [ ! -d build/intel/icd ] || export OCL_ICD_VENDORS=$PWD/build/intel/icd; }
names=$("$CLTRAIN" devices --json)
DEVICES=${DEVICES:-$(for d in portable intel; do grep -qi "\"platform\":\"[^\"]*$d" <<< "$names" && echo "$d"; done)}
torch=no; "$PYTHON" -c 'import torch' 2> /dev/null && torch=yes

busy=$(awk '{print $1}' /proc/loadavg)
echo "machine      $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $THREADS threads, load $busy, $(date +%F)"
[ "$torch" = yes ] || echo "skipped      PyTorch: $PYTHON cannot import torch"
[ -n "$LLMC" ] || echo "skipped      llm.c: LLMC is not set"

[ -n "${SKIP_GEMM:-}" ] || { echo; echo "== GEMM, fp32, exact"
for d in $DEVICES; do "$CLBENCH" gemm --suite mpt-125m --device "$d" --anchor openblas --check || true; done; }

# Training text: this project's own files as bytes.
find . -path ./build -prune -o -name '*.c' -print | sort | xargs cat > "$work/all.txt"
head -c 400000 "$work/all.txt" > "$work/text.txt"
median() { sort -g | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

# ours NAME DEVICE SEQ BATCH overrides...: sets speed (median tokens per second after the third step) and part
# (of the FMA peak)
ours() {
    local dev=$2 seq=$3 batch=$4; shift 4
    [ -d "$work/data$seq" ] || "$CLTRAIN" -q data convert "$work/text.txt" --out "$work/data$seq" --split train --concat-tokens "$seq" > /dev/null
    rm -rf "$work/runs"
    (cd "$work" && "$CLTRAIN" -q train "$OLDPWD/tools/bench/bench.yaml" --device "$dev" run_name=run \
        train_loader.dataset.local="$work/data$seq" max_seq_len="$seq" model.max_seq_len="$seq" \
        train_loader.dataset.max_seq_len="$seq" global_train_batch_size="$batch" "$@") > "$work/log" 2>&1 ||
        { cat "$work/log"; return 1; }
    local rows=$work/runs/run/metrics.jsonl
    speed=$(grep -o '"tokens_per_sec":[0-9.]*' "$rows" | cut -d: -f2 | tail -n +4 | median)
    part=$(grep -o '"mfu":[0-9.]*' "$rows" | cut -d: -f2 | tail -n +4 | median)
}
anchor() { # anchor ARGS... [PRECISION]: sets theirs, PyTorch's tokens per second, or empty
    local precision=fp32
    [[ ${*: -1} =~ ^[0-9]+$ ]] || { precision=${*: -1}; set -- "${@:1:$#-1}"; }
    theirs=; [ "$torch" = no ] || theirs=$("$PYTHON" tools/anchors/torch_train.py "$@" 12 "$THREADS" "$precision" | awk '{print $1}')
}
row() { # row SHAPE DEVICE
    local ratio=-
    [ -z "$theirs" ] || ratio=$(awk "BEGIN {printf \"%.2f\", $speed / $theirs}")
    printf '%-34s %-9s %10s tok/s  %6s of the FMA peak   PyTorch %10s   ratio %s\n' "$1" "$2" "$speed" "${part:--}" "${theirs:--}" "$ratio"
}
echo; echo "== training, fp32, AdamW included"
small=(model.d_model=256 model.n_layers=4 model.n_heads=4 model.vocab_size=4096)
large=(model.d_model=768 model.n_layers=12 model.n_heads=12 model.vocab_size=50368)
gpt2=(model.d_model=768 model.n_layers=12 model.n_heads=12 model.vocab_size=50304 model.no_bias=false
    model.attn_config.alibi=false 'model.ffn_config={ffn_type: mptmlp, ffn_act_fn: {name: gelu, approximate: tanh}}')
for d in $DEVICES; do
    anchor mpt 256 4 4 256 4096 4; ours small "$d" 256 4 "${small[@]}"; row "d256 L4 V4096 T256 batch 4" "$d"
    anchor mpt 768 12 12 256 50368 1; ours large "$d" 256 1 "${large[@]}"; row "MPT 124M T256 batch 1" "$d"
    anchor gpt2 768 12 12 64 50304 4; ours gpt2 "$d" 64 4 "${gpt2[@]}"; row "GPT-2 124M T64 batch 4" "$d"
    if [ -n "$LLMC" ]; then
        theirs=$(cd "$(dirname "$LLMC")" && OMP_NUM_THREADS=$THREADS "./$(basename "$LLMC")" |
            sed -n 's/^step [0-9]*: train loss .*(took \([0-9.]*\) ms.*/\1/p' | tail -n +3 | median | awk '{print 256000 / $1}')
        printf '%-34s %-9s %10s tok/s   llm.c %s   ratio %s\n' "the same, against llm.c" "$d" "$speed" "$theirs" \
            "$(awk "BEGIN {printf \"%.2f\", $speed / $theirs}")"
    fi
done

echo; echo "== training in bf16 and in 8-bit blocks: MPT 124M T256 batch 1, in turn, tokens/s"
for d in $DEVICES; do
    for _ in 1 2 3; do
        ours large "$d" 256 1 "${large[@]}" precision=exact8 && eight=$speed
        ours large "$d" 256 1 "${large[@]}" precision=amp_bf16 && half=$speed
        ours large "$d" 256 1 "${large[@]}"
        anchor mpt 768 12 12 256 50368 1; wide=$theirs
        anchor mpt 768 12 12 256 50368 1 bf16
        printf '%-9s exact8 %s  bf16 %s  fp32 %s  PyTorch fp32 %s  bf16 %s\n' "$d" "$eight" "$half" "$speed" "${wide:--}" "${theirs:--}"
    done
done

echo; echo "== training: ViT-Base/16, 4 images of 224 x 224, in turn; PyTorch by torch.compile"
for d in $DEVICES; do
    for _ in 1 2 3; do
        for precision in fp32 amp_bf16; do
            "$CLBENCH" step --suite vit-cpu --device "$d" --precision "$precision" --no-clip --json "$work/vit.json" | tail -n 1
            theirs=(tools/anchors/torch_vit.py --model vit-base-16 --batch 4 --no-clip --threads "$THREADS" --ours "$work/vit.json")
            [ $precision = amp_bf16 ] || theirs+=(--fp32)
            [ "$torch" = no ] || "$PYTHON" "${theirs[@]}" 2> /dev/null || true
        done
    done
done

echo; echo "== start of a run: seconds to the end of the first step"
for d in $DEVICES; do
    for state in cold warm; do
        [ "$state" = warm ] || { rm -rf "$work/cache"; mkdir -p "$work/cache"; }
        rm -rf "$work/runs"
        (cd "$work" && CLTRAIN_CACHE_DIR=$work/cache POCL_CACHE_DIR=$work/cache/pocl "$CLTRAIN" train "$OLDPWD/tools/bench/bench.yaml" --device "$d" \
            run_name=run train_loader.dataset.local="$work/data256" max_duration=1ba) 2>&1 |
            sed -n "s/^first step done \(.*\) after the start/$d $state: \1/p"
    done
done
