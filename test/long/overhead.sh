#!/bin/bash
# The overhead of checkpoints and guards in a small run (d 256, 4 layers, PoCL): how long training waits for a
# checkpoint, how much longer steps take while it is written, and the time for comparing replicas and checking
# steps. Needs an idle machine. Bounds: waiting 3.5 % of 50 steps, guards 1 % of the steps.
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
log=$tmp/log
find runtime clkernels collectives tools -name '*.[ch]' -print0 | sort -z | xargs -0 cat >"$tmp/all.txt"
head -c 1500000 "$tmp/all.txt" >"$tmp/text.txt"
"$cltrain" -q data convert "$tmp/text.txt" --out "$tmp/data" --split train --concat-tokens 256 >/dev/null || fail "no data"
# run NAME RANKS override...
run() {
    local name=$1 ranks=$2
    shift 2
    on_ranks "$ranks" train -q tools/bench/bench.yaml --device portable "train_loader.dataset.local=$tmp/data" "save_folder=$tmp/$name" \
        max_duration=160ba "$@" >"$log" 2>&1 || fail "$name"
}
run saves 1 save_interval=30ba
# Per save: the stall, and how much longer the 18 steps after it took than the median of the 12 steps before
# the next save.
tr -d '{}"' <"$tmp/saves/metrics.jsonl" | awk -F, '
    { delete f; for (i = 1; i <= NF; i++) { split($i, kv, ":"); f[kv[1]] = kv[2] } }
    "loss" in f { step[f["batch"] + 0] = f["step_seconds"] }
    f["event"] == "checkpoint" { at[++n] = f["batch"]; stall[n] = f["stall_seconds"]; took[n] = f["seconds"] }
    function median(v, k,   i, j, t) { for (i = 2; i <= k; i++) for (j = i; j > 1 && v[j] < v[j - 1]; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }; return v[int((k + 1) / 2)] }
    END {
        for (b in step) if (b > 18 && (b - 1) % 30 >= 18) quiet[++q] = step[b]
        base = median(quiet, q)
        for (i = 1; i < n; i++) { e = 0; for (b = at[i] + 1; b <= at[i] + 18; b++) e += step[b] - base; excess[i] = e; s[i] = stall[i]; t[i] = took[i] }
        printf "%d checkpoints, step %.1f ms: written in %.0f ms, training waits %.1f ms, steps take %.0f ms longer during the write (medians)\n", n - 1, base * 1e3, median(t, n - 1) * 1e3, median(s, n - 1) * 1e3, median(excess, n - 1) * 1e3
        printf "waiting: %.2f %% of 50 steps; including slower steps %.2f %%\n", 100 * median(s, n - 1) / base / 50, 100 * (median(s, n - 1) + median(excess, n - 1)) / base / 50
        exit !(median(s, n - 1) <= 0.035 * 50 * base)
    }'
report "waiting for a checkpoint" $?
# guards NAME RANKS: the time of the guards as a fraction of the useful steps
guards() {
    run "$1" "$2" save_interval=50ba
    sed -n 's/.*"event":"end".*"useful_seconds":\([0-9.]*\).*"guard_seconds":\([0-9.]*\).*/\1 \2/p' "$tmp/$1/metrics.jsonl" |
        awk -v ranks="$2" '{ printf "%d ranks, hash every 100 batches and before every checkpoint (50 batches): guards %.4f s of %.1f s, %.3f %%\n", ranks, $2, $1, 100 * $2 / $1; exit !($2 <= 0.01 * $1) }'
    report "guards on $2 ranks" $?
}
guards one 1
guards two 2
finish
