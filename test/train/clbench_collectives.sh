#!/bin/bash
# clbench allreduce, reduce-scatter and all-gather on PoCL, over both transports: the columns are those of nccl-tests and
# follow from each other, --json has the keys of tools/clbench/README.md, no element is wrong, and a flipped bit is.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
has_platform "Portable Computing Language" || { echo "skipped: PoCL is not installed"; exit 0; }
export CLTRAIN_DEVICE=pocl
clbench=$BUILD/clbench

# table NAME RANKS BENCHMARK OPTIONS...: a run whose rows are right, in $log, with NAME.json
table() {
    local name=$1 ranks=$2
    shift 2
    timeout -k 5 300 "$clbench" "$@" -n "$ranks" --seconds 0.01 --json "$tmp/$name.json" >"$log" 2>&1 &&
        python3 - "$log" "$tmp/$name.json" "$ranks" "$1" <<'PY'
import json, math, re, sys
log, file, ranks, op = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
lines = open(log).read().splitlines()
heads = [x[1:].split() for x in lines if x.startswith("#")]
side = ["time", "algbw", "busbw", "#wrong"]
assert heads[1] == ["size", "count", "type", "redop"] + side + side, heads[1]
assert heads[2] == ["(B)", "(elements)"] + ["(us)", "(GB/s)", "(GB/s)"] * 2, heads[2]
assert sum(x.startswith("device   rank ") for x in lines) == ranks, lines
table = [x.split() for x in lines if re.match(r" +\d", x)]
rows = json.load(open(file))
keys = open("tools/clbench/README.md").read().split("| key | of a row of `clbench allreduce`")[1].split("##")[0]
keys = {w for x in keys.splitlines() if x.startswith("|") for w in re.findall(r"`(\w+)`", x.split("|")[1])}
factor = {"allreduce": 2 * (ranks - 1) / ranks}.get(op, (ranks - 1) / ranks)
parts = 1 if op == "allreduce" else ranks
near = lambda a, b, digits: math.isclose(a, b, rel_tol=1e-4, abs_tol=0.6 * 10 ** -digits)
assert rows and len(rows) == len(table)
for row, words in zip(rows, table):
    assert row.keys() == keys, row.keys() ^ keys
    assert (row["op"], row["ranks"]) == (op, ranks), row
    width = {"fp32": 4, "bf16": 2}[row["dtype"]]
    assert row["size"] == row["count"] * parts * width and row["size"] % (4 * parts) == 0, row
    assert words[:4] == [str(row["size"]), str(row["count"]), {4: "float", 2: "bfloat16"}[width],
                         "none" if op == "all-gather" else "sum"], words
    for at, which in (4, ""), (8, "mpi_"):
        seconds, algbw, busbw, wrong = (row[which + k] for k in ("seconds", "algbw", "busbw", "wrong"))
        assert near(algbw, row["size"] / seconds * 1e-9, 9) and near(busbw, algbw * factor, 9), row
        assert wrong == 0 and words[at + 3] == "0", row
        assert all(near(float(w), x, 2) for w, x in zip(words[at:], (seconds * 1e6, algbw, busbw))), words
PY
    report "$name" $?
}

sizes() { python3 -c 'import json, sys; print(*(r["size"] for r in json.load(open(sys.argv[1]))))' "$tmp/$1.json"; }

for transport in shm mpi; do
    export CLTRAIN_TRANSPORT=$transport
    for op in allreduce reduce-scatter all-gather; do
        for type in fp32 bf16; do table "$op $type over $transport" 2 $op --min 8 --max 2M --factor 64 --type $type; done
    done
    grep -q "exchange $transport" "$log" || fail "the exchange is not named"
done
[ "$(sizes "all-gather fp32 over mpi")" = "8 512 32768 2097152" ] || fail "sizes: $(sizes "all-gather fp32 over mpi")"
unset CLTRAIN_TRANSPORT

# Sizes become equal parts of three ranks, which have four lanes; equal sizes are one row.
table "three ranks" 3 reduce-scatter --min 4 --max 1000 --factor 2 --type bf16
[ "$(sizes "three ranks")" = "12 24 60 120 252 504" ] || fail "sizes of three ranks: $(sizes "three ranks")"

# The same under a launcher of the user's.
mpirun_by_hand
timeout -k 5 300 "${by_hand[@]}" -np 2 "$clbench" allreduce --max 64 --factor 8 --seconds 0.01 >"$log" 2>&1
code=$?
[ $code = 0 ] && [ "$(grep -c "  float  *sum " "$log")" = 2 ] && [ "$(grep -c "^device   rank 0 on" "$log")" = 1 ]
report "under mpirun" $?

# A bit of one call's result on rank 1 is flipped: one element of one row, and exit code 1. Calls 0 to 31 and 64 to 95 are
# the first blocks of the slabs; those between are MPI's.
for type in fp32 bf16; do
    for op in allreduce all-gather; do
        CLTRAIN_INJECT=flip=1:70:14 timeout -k 5 300 "$clbench" $op -n 2 --type $type --min 512 --max 512 --seconds 0.01 \
            >"$log" 2>&1
        code=$?
        # A bit of the fraction: within the bound where gradients travel as bf16.
        want=1
        [ "$op $type" != "allreduce bf16" ] || want=0
        [ $code = $want ] && grep -q "^ *512 .* [0-9.]* [0-9.]* [0-9.]*  *$want  .* 0$" "$log"
        report "a flipped bit, $op $type: exit $code" $?
    done
done
CLTRAIN_INJECT=flip=1:70:22 timeout -k 5 300 "$clbench" allreduce -n 2 --type bf16 --min 512 --max 512 --seconds 0.01 >"$log" 2>&1
code=$?
[ $code = 1 ] && grep -q "error: clbench allreduce: 1 elements are wrong" "$log"
report "a flipped bit beyond the bound of bf16: exit $code" $?

# refused WORD OPTIONS...: exit code 2, and the word in what is printed once
refused() {
    "$clbench" allreduce "${@:2}" >"$log" 2>&1
    code=$?
    [ $code = 2 ] && [ "$(grep -cF -- "$1" "$log")" = 1 ]
    report "refused: ${*:2}: exit $code" $?
}
refused "it needs at least 2 ranks"
refused "it needs at least 2 ranks" -n 1
for bad in 0 3 5G 8X "" -1; do refused "must be sizes from 4 bytes to 4G" -n 2 --max="$bad"; done
refused "--max must be at least --min" -n 2 --min 1K --max 512
refused "--factor must be at least 2" -n 2 --factor 1
refused "--type must be fp32 or bf16, not 'fp16'" -n 2 --type fp16
refused "--seconds must be above 0" -n 2 --seconds 0
timeout -k 5 300 "$clbench" allreduce -n 2 --json "$tmp/none/rows.json" >"$log" 2>&1
code=$?
[ $code = 74 ] && [ "$(grep -c "error: --json .*none/rows.json cannot be written" "$log")" = 1 ]
report "a file of --json that cannot be written: exit $code" $?
"${by_hand[@]}" -np 2 "$clbench" allreduce -n 3 >"$log" 2>&1
code=$?
[ $code = 2 ] && [ "$(grep -c "error: .*-n is 3, but 2 ranks were started" "$log")" = 1 ]
report "-n of another number of ranks: exit $code" $?
finish
