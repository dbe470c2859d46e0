#!/bin/bash
# Runs tools/hop_curves.sh from data to curves, with a tiny model on one device.
cd "$(dirname "$0")/../.." && . test/lib.sh
yes "so it goes, from one device to another, " | head -c 20000 >"$tmp/text.txt"
"$cltrain" -q data convert "$tmp/text.txt" --out "$tmp/data" --concat-tokens 64 --eos --val-fraction 0.1 >"$log" 2>&1 || report "data" 1
curves() { CLTRAIN=$cltrain DATA=$tmp/data HERE=pocl THERE=pocl BATCHES=4 LEGS="pocl*1:2ba,pocl*1:1ba" tools/hop_curves.sh "$tmp/out" "$@"; }
curves model.d_model=32 model.n_heads=2 model.n_layers=1 model.vocab_size=320 model.max_seq_len=64 >"$log" 2>&1
report "hop_curves.sh" $?
[ -s "$tmp/out/curves.svg" ] || report "curves.svg is written" 1
grep -q "with hops is bit-identical" "$log" || report "reports that the bits are equal" 1
curves >"$log" 2>&1
[ $? = 2 ] && grep -q "has finished runs" "$log" || report "refuses a folder with finished runs" 1
exit $failed
