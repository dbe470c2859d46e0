#!/bin/bash
# train --trace on two ranks: with queues for copies as on a GPU, and with one queue. Copies, additions and the
# exchange have rows; bytes are those of the plan's weights; operations follow each other within the traced steps.
# timeout: 120
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
set=$golden/mpt-variants
# Large enough that both ranks own a part.
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null model.d_model=128 model.n_layers=4
    max_duration=5ba scheduler.t_warmup=1ba log_config=false)
cat >"$tmp/check.py" <<'PY'
import json, sys
folder, stage, queues = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
weights = json.load(open(f"{folder}/plan.json"))["stages"][0]["weights"]
events = json.load(open(f"{folder}/trace.json"))["traceEvents"]
rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
CLOCKS = 200  # us by which those of host and device may differ

def of(rank, row):
    found = [e for e in events if e["ph"] == "X" and e["pid"] == rank and rows[rank, e["tid"]].startswith(row)]
    return sorted(found, key=lambda e: (e["tid"], e["ts"], -e["dur"]))

def end(e):
    return e["ts"] + e["dur"]

def within(e, outer, slack):
    return outer["ts"] - slack < e["ts"] and end(e) < end(outer) + slack

# Events of a row follow each other or lie in each other, in whole nanoseconds, as Perfetto reads them.
for place in rows:
    row = [(int(e["ts"] * 1000.0), int(e["dur"] * 1000.0), e) for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == place]
    open_until = []
    for ts, dur, e in sorted(row, key=lambda r: (r[0], -r[1])):
        while open_until and open_until[-1] <= ts:
            open_until.pop()
        assert not open_until or ts + dur <= open_until[-1], (rows[place], e)
        open_until.append(ts + dur)

steps, given, taken = 2, {}, {}
for rank in 0, 1:
    names = {name.split(".")[0] for (r, _), name in rows.items() if r == rank}
    copying = {"copies out", "copies in", "additions"} if queues == 3 else set()
    assert names == {"host", "device: compute", "exchange 1"} | copying, names
    phases = {e["name"]: e for e in of(rank, "host")}
    traced = {"ts": phases["queue step 3"]["ts"], "dur": end(phases["wait for step 4"]) - phases["queue step 3"]["ts"]}
    row = of(rank, "exchange")
    operations = [e for e in row if "args" in e]
    for o in operations:
        kind, a = o["name"].split(":")[0].rsplit(" ", 1)[0], o["args"]
        given[kind] = given.get(kind, 0) + a["bytes_out"]
        taken[kind] = taken.get(kind, 0) + a["bytes_in"]
        # The weights of the last step may come after the host has stopped waiting for it.
        assert within(o, traced, 1e6 if kind == "all-gather" else CLOCKS), (o, traced)
        # Its stations fill it, one behind the other.
        stations = [e for e in row if e["tid"] == o["tid"] and "args" not in e and within(e, o, 0.01)]
        assert abs(sum(e["dur"] for e in stations) - o["dur"]) < 0.1, (o, stations)
        # The device copies these bytes meanwhile; what a rank keeps for itself is "copy", not "send" or "fetch".
        for part, verb, bytes in ("copies out", "send", a["bytes_out"]), ("copies in", "fetch", a["bytes_in"]):
            copies = [c for c in of(rank, part) if c["name"].startswith(verb) and c["args"].get("operation") == a["operation"]]
            assert queues == 1 or sum(c["args"]["bytes"] for c in copies) == bytes, (o, copies)
            assert all(within(c, o, CLOCKS) for c in copies), (o, copies)
    for e in of(rank, "copies"):
        speed = e["args"]["bytes"] / e["dur"] / 1e3 if e["dur"] > 1 else None
        assert not speed or abs(e["args"]["GB/s"] / speed - 1) < 0.01, e
    # One kernel where the ranks' sums are all there is, one for each addition where earlier rounds have left some.
    names = {e["name"] for e in of(rank, "additions")}
    assert names <= {"sum_parts", "add"} and bool(names) == (queues == 3)
print(weights, given, taken)
# What one of two ranks hands out, the other one takes. In stage 1 each weight and its gradient travel once in a step.
assert given == taken and set(given) == {"reduce-scatter", "all-gather", "all-gather of numbers"}
once = {kind: steps * weights for kind in ("reduce-scatter", "all-gather")}
assert stage != 1 or once == {kind: given[kind] for kind in once}
PY

"$cltrain" plan "${settings[@]}" --ranks 2 --json >"$tmp/plan.json" 2>"$log"
report "a plan" $?
for case in "1 3 shm" "3 3 mpi" "1 1 shm"; do
    set -- $case
    CLTRAIN_QUEUES=$2 CLTRAIN_TRANSPORT=$3 "$cltrain" launch -n 2 train -q --device pocl "${settings[@]}" "cltrain.zero_stage=$1" \
        "save_folder=$tmp/run" save_overwrite=true --trace "$tmp/trace.json" --trace-steps 3:4 >"$log" 2>&1 &&
        python3 "$tmp/check.py" "$tmp" "$1" "$2" >>"$log" 2>&1
    report "stage $1, $2 queues, transport $3" $?
    rm -rf "$tmp/run" "$tmp/trace.json"
done
finish
