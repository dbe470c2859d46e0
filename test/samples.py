"""What `cltrain train --log-samples DIR` wrote, put together: one line a batch, "batch epoch: samples in global order".

A batch that was trained more than once (after a kill or a fall-back) counts as the last process group trained it. Exits
with 1, and says why, if a batch is missing, its rows leave a hole, or an epoch that is over has a sample twice or not
at all.
    python3 test/samples.py DIR NUMBER_OF_SAMPLES
"""
import glob
import json
import sys

folder, number = sys.argv[1], int(sys.argv[2])
rows, last = {}, {}
for path in sorted(glob.glob(folder + "/rank*.jsonl")):
    for line in open(path):
        try:
            r = json.loads(line)
        except ValueError:
            continue  # cut off by a kill
        rows.setdefault((r["batch"], r["run"]), []).append(r)
        if path.endswith("/rank0.jsonl"):
            last[r["batch"]] = r["run"]

epochs, wrong = {}, []
for batch in range(1, max(last) + 1):
    if batch not in last:
        wrong.append(f"batch {batch} is missing")
        continue
    parts = sorted(rows[batch, last[batch]], key=lambda r: r["place"])
    seen = epochs.setdefault(parts[0]["epoch"], [])
    for r in parts:
        if r["place"] != len(seen):
            wrong.append(f"batch {batch}: place {r['place']} follows after {len(seen)} samples")
        seen += r["samples"]
    print(batch, str(parts[0]["epoch"]) + ":", *[s for r in parts for s in r["samples"]])
for epoch, seen in sorted(epochs.items()):
    if len(set(seen)) != len(seen):
        wrong.append(f"epoch {epoch} has samples twice")
    if epoch < max(epochs) and sorted(seen) != list(range(number)):
        wrong.append(f"epoch {epoch} has not every sample once")
for text in wrong:
    print(text, file=sys.stderr)
sys.exit(bool(wrong))
