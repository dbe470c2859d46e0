#!/bin/bash
# A model that is larger than one rank's device: with 1 GiB one rank is refused, and four ranks with 3/4 GiB each train
# with sharded weights, to the bits of one rank whose device is large enough, and so does one rank that keeps state,
# weights and gradients in the host's memory. `cltrain plan` says so before.
# timeout: 600
# at leisure: three runs of 98 million parameters, with checkpoints of 1.2 GB
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-variants
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null model.d_model=512 model.n_layers=31
    model.attn_config.kv_n_heads=4 model.expansion_ratio=4 max_seq_len=16 model.max_seq_len=16
    train_loader.dataset.max_seq_len=16 tokenizer.kwargs.model_max_length=16 max_duration=2ba scheduler.t_warmup=1ba
    cltrain.zero_stage=auto log_config=false)
# GiB of a device. Ranks on one device share it evenly.
small=1 shared=3

# plan GIB RANKS [option ...]
plan() { POCL_MEMORY_LIMIT=$1 "$cltrain" plan "${settings[@]}" --device pocl --ranks "$2" "${@:3}" >"$log" 2>&1; }
# says WHAT PATTERN
says() { grep -q -- "$2" "$log"; report "$1" $?; }

POCL_MEMORY_LIMIT=$small "$cltrain" devices >"$log" 2>&1
if ! grep -q "memory *1\.00 GiB" "$log"; then
    echo "skipped: POCL_MEMORY_LIMIT does not limit this PoCL"
    exit 0
fi

# --- the plan ---

plan $small 1
says "the plan refuses one rank on 1 GiB" "^error: the run needs [0-9.]* GiB of device memory with microbatch 1, .* are available; what would fit: "
plan $shared 4
report "the plan allows four ranks" $?
for stage in 0 1 2; do says "stage $stage is too big" "^  ${stage}[* ] .* too big\$"; done
says "stage 3 fits" "^  3[* ] .* fits$"
says "auto takes stage 3" "zero_stage: auto takes stage 3"

# --- the runs ---

POCL_MEMORY_LIMIT=$small "$cltrain" train "${settings[@]}" --device pocl "save_folder=$tmp/refused" >"$log" 2>&1
code=$?
[ $code = 1 ] && grep -q "^error: the run needs .* are available; what would fit: " "$log"
report "one rank on 1 GiB does not start" $? "exit $code"

POCL_MEMORY_LIMIT=$shared on_ranks 4 train "${settings[@]}" --device pocl "save_folder=$tmp/four" >"$log" 2>&1
report "four ranks train" $?
says "auto takes stage 3" "zero_stage: auto takes stage 3"
have=$("$cltrain" ckpt hash "$tmp/four")
used=$(sed -n 's/.*"device_memory_bytes":\([0-9]*\).*/\1/p' "$tmp/four/metrics.jsonl" | sort -n | tail -n 1)
[ "${used:-0}" -gt 0 ] && [ "$used" -le $(((shared << 30) / 4)) ]
report "the memory of a rank" $? "$used bytes"
rm -rf "$tmp/four"

host=(cltrain.offload=host cltrain.offload_parameters=host cltrain.offload_gradients=host cltrain.zero_stage=3)
POCL_MEMORY_LIMIT=$small "$cltrain" train "${settings[@]}" "${host[@]}" --device pocl "save_folder=$tmp/host" >"$log" 2>&1
report "one rank on 1 GiB trains with everything in the host's memory" $?
from_host=$("$cltrain" ckpt hash "$tmp/host")
rm -rf "$tmp/host"

"$cltrain" train "${settings[@]}" --device pocl "save_folder=$tmp/one" >"$log" 2>&1
report "one rank on a device without limit trains" $?
want=$("$cltrain" ckpt hash "$tmp/one")
[ -n "$want" ] && [ "$have" = "$want" ]
report "weights and moments are those of one rank" $? "$(echo "$have" | tr '\n' ' ')"
[ -n "$want" ] && [ "$from_host" = "$want" ]
report "so are those from the host's memory" $? "$(echo "$from_host" | tr '\n' ' ')"
finish
