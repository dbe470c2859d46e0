#!/usr/bin/env bash
# Compares the speed on a GPU with PyTorch (cuBLAS, cuDNN, torch.compile) on the same card, in one run: the
# tables of docs/performance.md. `make bench-gpu`, or tools/bench_gpu.sh [OUT_FOLDER]; OUT_FOLDER keeps the
# JSON files.
#   DEVICE     device pattern as for --device (default: nvidia)
#   PYTHON     a python3 with PyTorch for that card; without one PyTorch is skipped with a line
#   CLBENCH    the program (default build/clbench); may be several words
#   SECTIONS   which of: gemm attention memory fp32 step eight mma vit offload (default: all but the last four)
#   FOLDER     of the section offload: its files go there (default: the output folder's disk)
# No other program should use the card. Takes about ten minutes on an H200.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
read -r -a bench <<< "${CLBENCH:-${BUILD:-build}/clbench}"
DEVICE=${DEVICE:-nvidia} PYTHON=${PYTHON:-python3} SECTIONS=${SECTIONS:-gemm attention memory fp32 step}
out=${1:-$(mktemp -d)}
mkdir -p "$out" || exit 1
[ $# -gt 0 ] || trap 'rm -rf "$out"' EXIT
for word in $SECTIONS; do
    case $word in
    gemm | attention | memory | fp32 | step | eight | mma | vit | offload) ;;
    *) echo "unknown section '$word' (gemm attention memory fp32 step eight mma vit offload)" >&2; exit 2 ;;
    esac
done
torch=yes
"$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2> /dev/null || torch=no
[ $torch = yes ] || echo "skipped      PyTorch: $PYTHON cannot import torch with a GPU"
failed=0

section() { [[ " $SECTIONS " == *" $1 "* ]] && printf '\n== %s (%s)\n' "$2" "$(date +%FT%T)"; }
ours() { "${bench[@]}" "$@" --device "$DEVICE" || failed=1; }
theirs() { [ $torch = no ] || "$PYTHON" "tools/anchors/$1" "${@:2}"; }

# summary: geometric mean and minimum of the lines of torch_gemm.py, which end in "ratio R".
summary() {
    awk '/ratio/ {n++; s += log($NF); if (n == 1 || $NF < least) least = $NF}
         END {if (n) printf "geometric mean of %d ratios %.3f, least %.3f\n", n, exp(s / n), least}'
}

if section gemm "GEMM bf16, three forms, against cuBLAS"; then
    for suite in mpt-1b mpt-125m; do
        ours gemm --suite $suite --type bf16 --numerics fast --check --seconds 0.3 --json "$out/gemm-$suite.json"
    done
    theirs torch_gemm.py "$out"/gemm-mpt-{1b,125m}.json --seconds 0.3 --json "$out/gemm-torch.json" | tee "$out/gemm.txt" || failed=1
    grep -v "[+]" "$out/gemm.txt" | summary
fi
if section attention "attention bf16, causal, against cuDNN and flash"; then
    ours attention --suite large --type bf16 --numerics fast --check --json "$out/attention.json"
    theirs torch_attention.py --json "$out/attention-torch.json" || failed=1
fi
if section memory "norms, activations, loss, optimizers"; then
    for suite in mpt-125m mpt-1b; do
        ours copy --suite $suite --seconds 0.3
        ours norm --suite $suite --type bf16 --check --seconds 0.3
        ours activation --suite $suite --type bf16 --numerics fast --check --seconds 0.3
        ours loss --suite $suite --type bf16 --numerics fast --check --seconds 0.3
        ours optimizer --suite $suite --type bf16 --check --seconds 0.3
    done
    theirs torch_memory.py mpt-125m mpt-1b || failed=1
fi
if section fp32 "GEMM fp32, exact, against cuBLAS without tf32"; then
    ours gemm --suite mpt-1b --type fp32 --check --seconds 0.3 --json "$out/fp32.json"
    theirs torch_gemm.py "$out/fp32.json" --seconds 0.3 | tee "$out/fp32.txt" || failed=1
    grep -v "[+]" "$out/fp32.txt" | summary
fi
if section step "training steps bf16, against torch.compile"; then
    # "start" excludes random weights. The first call measures a cold start (empty caches, also the driver's),
    # the second a warm one. LLM Foundry's models have biases and its files clip gradients; a step without
    # both does the least work. PyTorch runs each of these forms, and also with biases and without clipping.
    with=() without=()
    for model in mpt-125m mpt-1b; do
        step=(step --suite mpt --model "$model" --precision amp_bf16)
        export CLTRAIN_CACHE_DIR=$out/kernels-$model CUDA_CACHE_PATH=$out/driver-$model
        ours "${step[@]}" --seconds 0.5
        ours "${step[@]}" --json "$out/step-$model.json"
        ours "${step[@]}" --no-bias --json "$out/step-$model-no-bias.json"
        ours "${step[@]}" --no-bias --no-clip --json "$out/step-$model-no-clip.json"
        unset CLTRAIN_CACHE_DIR CUDA_CACHE_PATH
        with+=(--ours "$out/step-$model.json")
        without+=(--ours "$out/step-$model-no-bias.json" --ours "$out/step-$model-no-clip.json")
    done
    theirs torch_step.py --clip "${without[@]}" || failed=1
    theirs torch_step.py --clip --bias "${with[@]}" || failed=1
fi
if section eight "8-bit products and steps, against cuBLAS, our bf16 and torch.compile"; then
    # The same bf16 model is the baseline of every step. Batches are eight microbatches: exact numerics sum at
    # most one lane of a batch, an eighth, at a time.
    common=(--suite mpt-1b --type bf16 --check --seconds 0.3)
    ours gemm8 "${common[@]}" --json "$out/gemm8.json"
    ours fp8 "${common[@]}" --numerics fast --json "$out/fp8.json"
    theirs torch_gemm.py "$out"/{gemm8,fp8}.json --seconds 0.3 || failed=1
    ours attention --suite large --type bf16 --bits 8 --check --seconds 0.3
    steps=()
    for model in mpt-125m mpt-1b; do
        for precision in amp_bf16 amp_fp8 exact8; do
            step=(step --suite mpt --model "$model" --precision "$precision" --accumulate 8)
            ours "${step[@]}" --json "$out/eight-$model-$precision.json"
        done
        steps+=(--ours "$out/eight-$model-amp_bf16.json")
    done
    theirs torch_step.py --clip --bias --model mpt-125m,mpt-1b "${steps[@]}" || failed=1
fi
if section mma "kernels for GPUs before Hopper, against Triton with mma.sync, FlashAttention-2 and torch.compile"; then
    # The assembler gives these GPUs 48 KiB for a kernel's arrays; on a newer one the driver's 1 KiB counts, too.
    export CLTRAIN_DISABLE_ROW=wgmma CLTRAIN_LOCAL_MEM=50176
    ours gemm --suite mpt-1b --type bf16 --numerics fast --check --seconds 0.3 --json "$out/mma-gemm.json"
    theirs triton_gemm.py "$out/mma-gemm.json" --seconds 0.3 | tee "$out/mma-gemm.txt" || failed=1
    grep -vE "[+](gelu|dgelu|add|sums)" "$out/mma-gemm.txt" | summary
    ours attention --suite large --type bf16 --numerics fast --check
    theirs torch_attention.py --backend flash || failed=1
    ours step --suite mpt --model mpt-1b --precision amp_bf16 --json "$out/mma-step.json"
    theirs torch_step.py --clip --bias --model mpt-1b --ours "$out/mma-step.json" || failed=1
    unset CLTRAIN_DISABLE_ROW CLTRAIN_LOCAL_MEM
fi
if section vit "Vision Transformers, against torch.compile, and attention without a mask at head size 80"; then
    rows=()
    for model in vit-huge-16 vit-huge-14; do
        step=(step --suite vit --model "$model" --microbatch 128 --no-clip)
        for precision in amp_bf16 amp_fp8; do
            ours "${step[@]}" --precision "$precision" --json "$out/$model-$precision.json"
        done
        rows+=(--ours "$out/$model-amp_bf16.json")
    done
    theirs torch_vit.py --no-clip --model vit-huge-16,vit-huge-14 --batch 128 "${rows[@]}" || failed=1
    ours attention --suite vit-huge --mask none --type bf16 --numerics fast --check
    theirs torch_attention.py --mask none || failed=1
fi
if section offload "optimizer state in host memory and in files, against the same without"; then
    # Needs 128 GiB of host memory and 20 GB on a disk; about five minutes. Each part has its own limit, and the
    # kernels of a model are built once. MPT-7B's steps have the same batch with offload and without: the losses
    # must be equal. MPT-13B has 144 GiB of state, so a part stays on the device; the plan would choose about the
    # same ratio, if the limit of the container is where programs can read it. Its products are the bound of its step.
    export CLTRAIN_CACHE_DIR=$out/kernels-offload CUDA_CACHE_PATH=$out/driver-offload
    folder=${FOLDER:-$out}
    bf16=(step --precision amp_bf16 --device "$DEVICE")
    watched() { # SECONDS ARGUMENTS...: with the memory that the card has in use at most
        local start=$SECONDS most watch code
        echo "-- ${*:2}"
        (while sleep 1; do nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; done) \
            > "$out/used" 2> /dev/null &
        watch=$!
        timeout -k 10 "$1" "${bench[@]}" "${@:2}"
        code=$?
        kill $watch
        most=$(sort -n "$out/used" | tail -n 1)
        [ $code != 124 ] || echo "given up after $1 s"
        [ $code = 0 ] || failed=1
        echo "-- exit $code, $((SECONDS - start)) s, ${most:-?} MiB of the card in use at most"
    }
    watched 40 link --device "$DEVICE"
    watched 80 "${bf16[@]}" --model mpt-7b --microbatch 2 --accumulate 64 --steps 1 --json "$out/offload-7b-none.json"
    watched 130 "${bf16[@]}" --model mpt-7b --microbatch 2 --accumulate 64 --steps 1 --offload host \
        --offload-ratio 1 --json "$out/offload-7b-host.json"
    watched 140 "${bf16[@]}" --model mpt-13b --microbatch 2 --accumulate 64 --steps 1 --offload host \
        --offload-ratio 0.78 --json "$out/offload-13b-host.json"
    watched 60 gemm --suite mpt-13b --type bf16 --numerics fast --seconds 0.3 --device "$DEVICE"
    for where in none host file; do
        with=()
        [ $where = none ] || with=(--offload "$where")
        [ $where != file ] || with+=(--offload-folder "$folder/state")
        watched 110 "${bf16[@]}" --model mpt-1b --microbatch 8 --accumulate 2 --steps 1 "${with[@]}" \
            --json "$out/offload-1b-$where.json"
    done
    unset CLTRAIN_CACHE_DIR CUDA_CACHE_PATH
fi
exit $failed
