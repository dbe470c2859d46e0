#!/bin/bash
# fsdp_config.mixed_precision: PURE with amp_bf16: two ranks exchange gradients in bf16, which changes bits but hardly the losses, and is
# the same in two runs; one rank, and numerics exact, round nothing.
# at leisure: it compares bits, and no clock
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
train=(train -q --device pocl train.yaml precision=amp_bf16 load_path=hf load_weights_only=true max_duration=6ba scheduler.t_max=6ba
    scheduler.t_warmup=0ba eval_interval=100ba)

# run FOLDER RANKS PURE|FULL [key=value ...]
run() {
    (cd "$golden/e2e" && on_ranks "$2" "${train[@]}" save_folder="$tmp/$1" fsdp_config.mixed_precision="$3" "${@:4}") \
        >"$tmp/$1.log" 2>&1 || { fail "$1"; tail -n 5 "$tmp/$1.log"; }
}
# alike A B yes|no: whether the runs have the same losses and weights
alike() {
    local same=no
    [ "$(steps_of "$tmp/$1")" = "$(steps_of "$tmp/$2")" ] && [ "$("$cltrain" ckpt hash "$tmp/$1")" = "$("$cltrain" ckpt hash "$tmp/$2")" ] && same=yes
    [ $same = "$3" ]
    report "$1 and $2: the same bits: $same" $?
}

run pure 2 PURE
run pure_again 2 PURE
run full 2 FULL
run map 2 "{reduce_dtype: bf16}"
run one_pure 1 PURE
run one_full 1 FULL
run exact_pure 2 PURE cltrain.numerics=exact
run exact_full 2 FULL cltrain.numerics=exact
alike pure pure_again yes
alike pure map yes
alike pure full no
alike one_pure one_full yes
alike exact_pure exact_full yes
# The first loss is from before any gradient; the others may drift by what rounding gradients to 8 bits does.
python3 - "$tmp/pure/metrics.jsonl" "$tmp/full/metrics.jsonl" <<'P'
import json, sys
pure, full = ([r["loss"] for r in map(json.loads, open(f)) if "loss" in r and "lr" in r] for f in sys.argv[1:])
worst = max(abs(a - b) for a, b in zip(pure, full))
print(f"losses {pure[0]:.4f} to {pure[-1]:.4f}; exchanged in bf16 at most {worst:.5f} off")
sys.exit(not (len(pure) == len(full) == 6 and pure[0] == full[0] and 0 < worst < 0.005))
P
report "losses stay close" $?
finish
