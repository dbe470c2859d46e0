#!/bin/bash
# tools/vit_demo.sh reaches its accuracy on handwritten digits and on generated shapes.
# timeout: 900
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
for kind in digits shapes; do
    option=()
    [ $kind = digits ] || option=(--shapes)
    CLTRAIN=$cltrain tools/vit_demo.sh "${option[@]}" "$tmp/$kind" >"$log" 2>&1
    code=$?
    line=$(grep "^accuracy" "$log")
    report "$kind" $code "$line"
    [[ $line = *"($kind)"* ]] || echo "skipped: the digits are not available; shapes took their place"
done
finish
