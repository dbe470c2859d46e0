#!/bin/bash
# clbench schedule: rates from a file and from options, the keys of --json as tools/clbench/README.md lists them, the
# file of --trace, and options that make no sense. What it computes is checked by test_step_sim.
cd "$(dirname "$0")/../.." && . test/lib.sh
clbench=$BUILD/clbench preset=tools/presets/mpt-125m.yaml

# refused CODE WORD ARGUMENTS...: the exit code, and a word in what is printed.
refused() {
    local want=$1 word=$2 code
    shift 2
    "$clbench" "${command:-schedule}" "$@" >"$log" 2>&1
    code=$?
    [ $code = "$want" ] || fail "clbench $*: exit $code, not $want"
    grep -qF -- "$word" "$log" || fail "clbench schedule $*: no '$word' in: $(cat "$log")"
}

echo '{"tflops": 400, "update": 4000, "out": 1, "in": 43, "host": 170, "network": 25, "latency": 5}' >"$tmp/rates.json"
"$clbench" schedule $preset --rates "$tmp/rates.json" --out 34 --ranks 16 --hosts 2 --stage 3 --microbatches 2 \
    --microbatch 16 --json "$tmp/out.json" --trace "$tmp/trace.json" >"$log" 2>&1
report "a prediction with rates from a file" $?
"$clbench" schedule $preset --tflops 400 --update 4000 --ranks 4 --stage 1 --microbatch 16 --json "$tmp/free.json" >"$log" 2>&1
report "without an exchange" $?
"$clbench" schedule $preset --tokens-per-second 500000 --update 4000 --ranks 1 --microbatch 16 --json "$tmp/one.json" >"$log" 2>&1
report "one rank" $?

python3 - "$tmp" <<'PY' >"$log" 2>&1
import json, math, re, sys
text = open("tools/clbench/README.md").read().split("| key | of the single object of ")[1].split("\n\n")[0]
keys = {w for row in text.splitlines()[2:] for w in re.findall(r"`(\w+)`", row.split("|")[1])}
out, free, one = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("out", "free", "one"))
for row in out, free, one:
    assert row.keys() == keys, row.keys() ^ keys
    tokens = row["ranks"] * row["microbatches"] * row["microbatch"] * 2048
    assert math.isclose(row["tokens_per_second"], tokens / row["step_seconds"], rel_tol=1e-6), row
    assert math.isclose(row["scaling"], row["one_rank_seconds"] / row["step_seconds"], rel_tol=1e-5), row
    idle = sum(row[f"{q}_bubble_seconds"] for q in ("compute", "out", "in", "network"))
    assert math.isclose(row["compute_busy_seconds"] + idle, row["step_seconds"], rel_tol=1e-6), row
assert out["exposed_seconds"] > 0 and out["out_busy_seconds"] > 0 and out["network_busy_seconds"] > 0, out
assert abs(free["exposed_seconds"]) < 1e-9 and free["scaling"] > 1, free
assert math.isclose(one["tokens_per_second"], 500000, rel_tol=1e-6) and one["scaling"] == 1, one
events = json.load(open(f"{sys.argv[1]}/trace.json"))["traceEvents"]
rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert sorted(rows.values()) == ["compute", "in", "network", "out"], rows
assert {rows[e["tid"]] for e in events if e["ph"] == "X"} == set(rows.values())
PY
report "keys, rates and the trace" $?

# numa NODES LINK: tokens/s of one rank in all, and of one per node
numa() {
    "$clbench" numa $preset --cores 64 --nodes "$1" --core 70 --memory 150 --link "$2" --microbatch 4 --microbatches 4 precision=fp32 >"$log" 2>&1
    sed -n 's/^[0-9][0-9]* .* \([0-9]*\)$/\1/p' "$log" | paste -sd ' '
}
read -r slow each_slow <<<"$(numa 4 10)"
read -r fast each_fast <<<"$(numa 4 1000)"
[ "${slow:-0}" -gt 0 ] && [ "$slow" -lt "$fast" ] && [ "$slow" -lt "$each_slow" ] && [ "$each_slow" -le "$each_fast" ] && [ "$each_fast" -le "$fast" ]
report "ranks of NUMA nodes" $? "links of 10 GB/s: $slow and $each_slow tokens/s, of 1,000 GB/s: $fast and $each_fast"
[ "$(numa 1 10 | wc -w)" = 1 ] && grep -q "predicted, not measured" "$log"
report "one node has one line" $?

one=(--tflops 400 --microbatch 1)
refused 2 "a configuration is required" --tflops 400
refused 2 "give one of --pass-seconds, --tokens-per-second and --tflops" $preset
refused 2 "give one of --pass-seconds, --tokens-per-second and --tflops" $preset "${one[@]}" --tokens-per-second 5
refused 2 "--ranks must be a multiple of --hosts" $preset "${one[@]}" --ranks 3 --hosts 2
refused 2 "--stage must be 0 to 3" $preset "${one[@]}" --stage 4
refused 2 "--out must not be negative" $preset "${one[@]}" --out=-1
refused 78 "a step is shorter than its update" $preset --tokens-per-second 1e9 --update 1
refused 78 "give --microbatch" $preset --tflops 400 device_train_microbatch_size=auto
echo '{"otu": 3}' >"$tmp/wrong.json"
refused 65 "unknown rate 'otu'; did you mean out" $preset "${one[@]}" --rates "$tmp/wrong.json"
echo '{"out": "fast"}' >"$tmp/wrong.json"
refused 65 "'out' must be a number" $preset "${one[@]}" --rates "$tmp/wrong.json"

command=numa host=(--cores 64 --nodes 4 --core 70 --memory 150 --microbatch 1)
refused 2 "a configuration is required" "${host[@]}"
refused 2 "with several nodes, --link" $preset "${host[@]}"
refused 2 "--cores must be a multiple of --nodes" $preset "${host[@]}" --link 1 --nodes 3
refused 2 "--stage must be 0 to 3" $preset "${host[@]}" --link 1 --stage 4
refused 78 "give --microbatch" $preset "${host[@]}" --link 1 --microbatch 0 device_train_microbatch_size=auto
finish
