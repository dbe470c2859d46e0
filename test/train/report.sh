#!/bin/bash
# cltrain report: marks of hops and checkpoints on every axis, values of the axes, long runs; and how the page
# looks in headless Chromium, light and dark, where it is installed.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
mkdir "$tmp/run" "$tmp/long" "$tmp/waits"
python3 - "$tmp" <<'PY'
import json, sys
def write(name, rows, lines, stall=lambda batch: 0):
    with open(sys.argv[1] + "/" + name + "/metrics.jsonl", "w") as f:
        for b in range(1, rows + 1):
            f.write(json.dumps(dict(batch=b, epoch=0, token=1000 * b, loss=5 / b + (b % 7) / 50, lr=1e-3, grad_norm=1 / b,
                step_seconds=30.0, tokens_per_sec=33.0, device_memory_bytes=1 << 20, data_stall_seconds=stall(b))) + "\n")
            for event, fields in lines.get(b, []):
                f.write(json.dumps(dict(event=event, batch=b, **fields)) + "\n")
lanes = dict(written_by=dict(ranks=1, device="x"), lanes=[4, 4], changed={"optimizer.lr": [0.1, "<i>"]}, seconds=0.25)
write("run", 100, {20: [("checkpoint", dict(name="a<b>&", seconds=1, stall_seconds=1))],
                   50: [("hop", dict(from_batch=0, leg=1)), ("start", dict(time=1, first=False))],
                   60: [("lanes", lanes)],
                   90: [("rollback", dict(to=80))]})
write("long", 30000, {})
write("waits", 100, {}, lambda b: 2.5 * (b > 20) if b < 60 else 1.5 * (b > 80))  # another process from 60 on
PY
"$cltrain" report "$tmp/run" >"$log" 2>&1 && "$cltrain" report "$tmp/long" >>"$log" 2>&1 &&
    "$cltrain" report "$tmp/waits" >>"$log" 2>&1 || report "reports" 1
python3 - "$tmp" >"$log" 2>&1 <<'PY'
import re, sys
page = open(sys.argv[1] + "/run/report.html").read()
parts = re.split("<div class='x x[012]'>", page)[1:]
assert len(parts) == 3
place = lambda part, cls: [float(x) for x in re.findall(r"<path class='%s' d='M([\d.]+) " % cls, part)]
at = lambda b: 70 + (b - 1) / 99 * (760 - 70 - 16)  # all three axes are linear in the batch here
for part in parts:
    assert part.count("<svg") == 5 and part.count("&quot;") == 0
    for cls, batch in (("c", 20), ("m", 50), ("m bad", 90)):
        found = place(part, cls)
        assert len(found) == 5 and all(abs(x - at(batch)) < 0.1 for x in found), (cls, found)
    assert ">hop</text>" in part and ">roll-back</text>" in part and "a&lt;b&gt;&amp;" in part
assert ">100000<" not in parts[1] and ">100.0 k<" in parts[1] and ">20m00s<" in parts[2], parts[2][-2000:]
events = page[page.index("<h2>Events"):page.index("<h2>Files")]
assert "<td>time 19" in events, events
assert ("<td>lanes</td><td>60</td><td>written_by (ranks 1, device x), lanes [4, 4], changed (optimizer.lr "
        "[0.1, &lt;i&gt;]), seconds 0.25</td>") in events, events
waits = open(sys.argv[1] + "/waits/report.html").read().split("class='h'>Seconds per step that training waited for data<")
assert len(waits) == 4 and "waited for data" not in page
curve = max(re.findall(r"<path[^>]* d='M([^']*)'", waits[1][:waits[1].index("</svg>")]), key=len)
heights = [float(p.split(" ")[1]) for p in curve.split("L")]
low, most = max(heights), max(heights) - min(heights)
assert sorted(round((low - y) / most, 2) for y in heights if y < low) == [0.6, 1.0], heights
assert not re.search(r"(src|href)=|https?://|<script", page), "the page is not self-contained"
assert len(open(sys.argv[1] + "/long/report.html").read()) < 1.5e6
PY
report "marks, axes and size" $?

chromium=$(command -v chromium || command -v chromium-browser) || {
    echo "skipped: Chromium is not installed, nobody looked at the page"
    finish
}
for mode in light:1 dark:0; do
    timeout 60 "$chromium" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$tmp/profile" \
        --blink-settings=preferredColorScheme="${mode#*:}" --window-size=860,1200 --screenshot="$tmp/${mode%:*}.png" \
        "file://$tmp/run/report.html" >>"$log" 2>&1
done
python3 - "$tmp" >"$log" 2>&1 <<'PY'
import struct, sys, zlib
for name, color in (("light", b"\xff\xff\xff"), ("dark", b"\x0f\x17\x2a")):
    data, at, pixels = open(sys.argv[1] + "/" + name + ".png", "rb").read(), 8, b""
    while at < len(data):
        n, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IDAT": pixels += data[at + 8:at + 8 + n]
        at += n + 12
    assert struct.unpack(">II", data[16:24]) == (860, 1200)
    assert zlib.decompress(pixels)[1:4] == color, name  # the first pixel, which no filter of PNG changes
    assert len(pixels) > 30000, (name, "a page without curves is smaller", len(pixels))
PY
report "the page in Chromium, light and dark" $?
finish
