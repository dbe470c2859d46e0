#!/bin/bash
# tools/vit_demo.sh: the generated pictures, and that a model that has hardly been trained fails. test/long/vit_demo.sh
# trains it.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
CLTRAIN=$cltrain tools/vit_demo.sh --shapes "$tmp/demo" max_duration=4ba >"$log" 2>&1
[ $? = 1 ] && grep -q "^accuracy [0-9.]* % on the test pictures (shapes)" "$log" && grep -q "the accuracy is below 90 %" "$log"
code=$?
if [ $code != 0 ] && grep -q "IMAGES=0" "$log"; then
    echo "skipped: built without pictures (IMAGES=0)"
    exit 0
fi
report "four steps are not enough" $code
python3 - "$tmp/demo" >"$log" 2>&1 <<'PY'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
names = {"bars", "circle", "plus", "ring", "square", "triangle"}
files = {part: list((folder / "shapes" / part).glob("*/*.png")) for part in ("train", "test")}
assert [len(files[part]) for part in ("train", "test")] == [1440, 360], files
for part in files.values():
    count = {name: sum(f.parent.name == name for f in part) for name in names}
    assert set(f.parent.name for f in part) == names and len(set(count.values())) == 1, count
assert len({f.read_bytes() for part in files.values() for f in part}) == 1800
row = json.loads((folder / "eval.json").read_text())
assert row["samples"] == 360 and 0.1 < row["eval_accuracy"] < 0.9, row
PY
report "the pictures" $?
finish
