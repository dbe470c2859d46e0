#!/bin/bash
# clbench at small shapes: every row is checked, --only leaves rows out in every benchmark, a file of --json has the keys
# that tools/clbench/README.md lists, rates and parts follow from each other, and options that make no sense are refused.
cd "$(dirname "$0")/../.." && . test/lib.sh
clbench=$BUILD/clbench

# refused WORD ARGUMENTS...: exit code 2, and a word in what is printed.
refused() {
    local word=$1 code
    shift
    "$clbench" "$@" >"$log" 2>&1
    code=$?
    [ $code = 2 ] || fail "clbench $*: exit $code, not 2"
    grep -qF -- "$word" "$log" || fail "clbench $*: no '$word' in: $(cat "$log")"
}

# rows NAME N WHAT...: N rows, all checked, of a benchmark; NAME.json has them.
rows() {
    local name=$1 n=$2
    shift 2
    "$clbench" "$@" --seconds 0.01 --check --json "$tmp/$name.json" >"$log" 2>&1 || report "clbench $*" 1
    [ "$(grep -c "  ok (max error" "$log")" = "$n" ] || report "clbench $*: not $n rows that are checked" 1
}

rows gemm 5 gemm --suite mpt-small --only "TN +c" --nominal 2
[ "$(sed -n 's/.*"shape": "\([a-z]*\) .*/\1/p' "$tmp/gemm.json" | tr '\n' ' ')" = "qkv out up down head " ] || fail "other rows than TN +c"
rows attention 1 attention --suite mpt-small --only bwd
rows unmasked 2 attention --suite mpt-small --mask none
rows norm 2 norm --suite mpt-small --only sum --nominal-bandwidth 50
rows loss 1 loss --suite mpt-small --type bf16
rows activation 1 activation --suite mpt-small --only forward
rows optimizer 4 optimizer --suite mpt-small --type bf16
rows copy 2 copy --suite small
rows cast 1 copy --suite small --type bf16 --only cast
folder=$(mktemp -d /var/tmp/clbench.XXXXXX)
"$clbench" file "$folder" --mib 32 --rounds 3 >"$log" 2>&1 && [ "$(grep -cE "^(plain )?(reads|writes|both)" "$log")" = 5 ] &&
    rmdir "$folder" || report "clbench file" 1
refused FOLDER file
refused "multiple of 16" file "$tmp" --mib 17
"$clbench" step --suite cpu --model small --seconds 0.01 --recompute blocks --peak 1 --json "$tmp/step.json" >"$log" 2>&1 || report "clbench step" 1
bf16=(step --suite cpu --model small --precision amp_bf16 --microbatch 1 --accumulate 3 --steps 1)
"$clbench" "${bf16[@]}" --json "$tmp/on.json" >"$log" 2>&1 || report "clbench step --steps" 1
"$clbench" "${bf16[@]}" --offload host --offload-ratio 0.5 --json "$tmp/off.json" >"$log" 2>&1 && grep -q "^  bound by" "$log" ||
    report "clbench step --offload" 1
"$clbench" "${bf16[@]}" --offload host --offload-parameters --offload-gradients --json "$tmp/all.json" >"$log" 2>&1 &&
    grep -q "^  a step       moves .* of which its update" "$log" || report "clbench step with everything in host memory" 1
"$clbench" link --mib 8 >"$log" 2>&1 && [ "$(grep -cE "^ +[18] MiB" "$log")" = 3 ] || report "clbench link" 1
refused "--offload must be host or file" step --offload disk
refused "belong together" step --offload file
refused "needs --offload" step --offload-ratio 0.5

python3 - "$tmp" <<'PY' || fail "rows of --json"
import json, math, re, sys
text = open("tools/clbench/README.md").read().split("| key | of a ")
kernel, step, _ = ({w for row in part.splitlines() for w in re.findall(r"`(\w+)`", row.split("|")[1] if row.startswith("|") else "")}
                for part in text[1:])
near = lambda a, b: math.isclose(a, b, rel_tol=2e-3, abs_tol=1e-4)
for name in "gemm attention unmasked norm loss activation optimizer copy cast".split():
    for row in json.load(open(f"{sys.argv[1]}/{name}.json")):
        assert row.keys() == kernel - {"NAME_seconds"}, (name, row.keys() ^ kernel)
        assert row["ok"] is True and (row["tflops"] is None) != (row["gbps"] is None) or name == "gemm", row
        if name == "gemm":
            m, n, k = map(int, row["shape"].split()[1].split("x"))
            assert near(row["tflops"], 2e-12 * m * n * k / row["seconds"]), row
            assert near(row["gbps"], 4e-9 * (k * (m + n) + 2 * m * n) / row["seconds"]), row
        want = {"gemm": row["tflops"] and row["tflops"] / 2, "norm": row["gbps"] and row["gbps"] / 50}.get(name)
        have = row["nominal_fraction"]
        assert have is None if want is None else near(have, want), row
(row,) = json.load(open(f"{sys.argv[1]}/step.json"))
assert row.keys() == step, row.keys() ^ step
tokens = row["seq"] * row["microbatch"] * row["accumulation"] / row["step_seconds"]
assert near(tokens, row["tokens_per_second"]) and row["recompute"] == "blocks", row
(on,), (off,) = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in ("on", "off"))
assert on.keys() == off.keys() == step and on["loss"] == off["loss"] and on["steps"] == off["steps"] == 1, (on, off)
assert on["offload"] == "none" and on["host_bytes"] == 0, on
assert off["step_read_bytes"] == off["step_written_bytes"] == off["host_bytes"], off
(all,) = json.load(open(f"{sys.argv[1]}/all.json"))
assert all.keys() == step and math.isclose(all["loss"], on["loss"], rel_tol=1e-3), (all, on)
n = all["host_bytes"] / 18 # elements: 12 bytes of state, 2 of a weight, 4 of a sum
# Three microbatches hand on their sums, two take the one before; each reads the weights twice, but not
# what is there.
assert all["moved_out_bytes"] == (3 * 4 + 12 + 2) * n and all["step_written_bytes"] == (12 + 2) * n, all
assert (12 + 2 + 4) * n <= all["step_read_bytes"] < 18.2 * n, all
assert 2 * 4 * n + 2 * n <= all["moved_in_bytes"] - all["step_read_bytes"] <= 2 * 4 * n + 3 * 2 * 2 * n, all
chunk, all = 3 * 4 * 65536, off["host_bytes"] + off["resident_bytes"]
assert 12 * off["parameters"] <= all and off["resident_bytes"] <= off["host_bytes"] <= off["resident_bytes"] + chunk, off
# 4 layers of width 256, 256 tokens
assert near(row["tflops"], tokens * (6 * row["parameters"] + 12 * 4 * 256 * 256) * 1e-12) and near(row["mfu_nominal"], row["tflops"]), row
PY

for bench in attention norm; do
    refused "no row of suite 'mpt-small' has 'nothing'" $bench --suite mpt-small --only nothing
done
refused "no row of suite 'small' has 'nothing'" copy --suite small --only nothing
refused "--nominal and --nominal-bandwidth must be above 0" norm --suite mpt-small --nominal -1
refused "--mask must be causal or none, not 'all'" attention --mask all
refused "--type must be one of fp32, bf16, fp16, not 'int3'" norm --type int3
refused "--threads must be above 0" norm --suite mpt-small --threads -1
refused "--no-bias is for MPT" step --suite vit-cpu --no-bias --device pocl
exit $failed
