#!/usr/bin/env bash
# Collects about 1 MB of text from this machine: licence texts, package documentation and manual pages; the project's own
# texts where a slim image has none. Prints how much there is.
#   tools/collect_text.sh FOLDER   made as a whole; left as it is if it is there
set -euo pipefail
[ $# = 1 ] || { sed -n '2,/^set/{/^#/p}' "$0"; exit 2; }
folder=$(readlink -m "$1") want=1000000 have=0 n=0
cd "$(dirname "$0")/.."
[ ! -d "$folder" ] || { echo "it is there"; exit 0; }
rm -rf "$folder.new"
mkdir -p "$folder.new"
while IFS= read -r f; do
    [ "$have" -lt "$want" ] || break
    n=$((n + 1))
    case $f in
        *.gz) gzip -dc -- "$f" 2>/dev/null | sed 's/\\f[BIRP]//g; s/^\.[A-Za-z]* *//' > "$folder.new/$n.txt" || true ;;
        *) cat -- "$f" > "$folder.new/$n.txt" 2>/dev/null || true ;;
    esac
    size=$(wc -c < "$folder.new/$n.txt")
    have=$((have + size))
done < <(
    find /usr/share/common-licenses -type f -size +2k 2>/dev/null | sort
    find /usr/share/doc -type f \( -name 'copyright' -o -name 'README*' -o -name 'NEWS*' \) -size +4k -size -200k 2>/dev/null | sort
    find /usr/share/man/man1 /usr/share/man/man7 -type f -name '*.gz' -size +2k 2>/dev/null | sort
    find . -path ./build -prune -o -type f \( -name '*.md' -o -name '*.h' -o -name '*.c' -o -name '*.cl' \) -print | sort
)
mv "$folder.new" "$folder"
echo "$n files, $have bytes"
