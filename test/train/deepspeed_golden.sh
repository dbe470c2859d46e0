#!/bin/bash
# Every configuration of test/golden/deepspeed through the command line: equal values, refusals and warnings, as DeepSpeed
# itself read it. cltrain plan prints the same values.
# at leisure: it compares values and messages, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
mkdir "$tmp/golden"
python3 test/train/deepspeed_golden.py "$cltrain" "$tmp/golden" >"$log" 2>&1
report "train --dry-run --json" $? "$(tail -n 1 "$log")"

ds=$golden/deepspeed/configs/bf16-zero2-offload.json
words=("$tmp/golden/base.yaml" --json --deepspeed "$ds" global_train_batch_size=4)
"$cltrain" train -n "${words[@]}" >"$tmp/train" 2>"$log" && "$cltrain" plan "${words[@]}" --device 24gb >"$tmp/plan" 2>>"$log" &&
    python3 -c 'import json, sys
train, plan = (json.load(open(name)) for name in sys.argv[1:])
assert plan["configuration"] == train, (plan, train)' "$tmp/train" "$tmp/plan" >>"$log" 2>&1
report "plan --json has the same values" $?
"$cltrain" plan "$tmp/golden/base.yaml" --json --deepspeed "$golden/deepspeed/configs/zero1-adamw-warmup.json" --ranks 2 \
    --device 24gb 2>"$log" | grep -q '"gradient_accumulation_steps": *4,"ranks": *2'
report "plan --ranks decides the batch" $?
finish
