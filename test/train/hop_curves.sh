#!/bin/bash
# tools/hop_curves.sh from its data to its curves, with a tiny model on one device.
cd "$(dirname "$0")/../.." && . test/lib.sh
yes "so it goes, from one device to another, " | head -c 20000 >"$tmp/text.txt"
"$cltrain" -q data convert "$tmp/text.txt" --out "$tmp/data" --concat-tokens 64 --eos --val-fraction 0.1 >"$log" 2>&1 || report "data" 1
curves() { CLTRAIN=$cltrain DATA=$tmp/data HERE=pocl THERE=pocl BATCHES=4 LEGS="pocl*1:2ba,pocl*1:1ba" tools/hop_curves.sh "$tmp/out" "$@"; }
curves model.d_model=32 model.n_heads=2 model.n_layers=1 model.vocab_size=320 model.max_seq_len=64 >"$log" 2>&1
report "hop_curves.sh" $?
[ -s "$tmp/out/curves.svg" ] || report "no picture of the curves" 1
grep -q "exact mode: hopping gave the straight run's bits" "$log" || report "no word about the bits" 1
curves >"$log" 2>&1
[ $? = 2 ] && grep -q "has finished runs" "$log" || report "finished runs are not told of" 1
exit $failed
