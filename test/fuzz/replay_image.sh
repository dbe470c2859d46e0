#!/bin/bash
# The fuzz target of pictures over the golden files, good and bad, and mutations of each.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
mapfile -t files < <(find "$golden/vit/images" -type f -size +0 \( -name '*.jp*' -o -name '*.png' -o -name '*.JPG' \) | sort)
[ ${#files[@]} -gt 40 ] || fail "only ${#files[@]} files"
"$BUILD/test/fuzz/fuzz_image" -n "${MUTATIONS:-400}" "${files[@]}" >"$log" 2>&1
report "$(tail -n 1 "$log") of ${#files[@]} pictures and their mutations" $?
finish
