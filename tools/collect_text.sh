#!/usr/bin/env bash
# Collects about 1 MB of text from this machine: licences, package documentation and manual pages, or the
# project's own files if the system has none. Prints the number of files and bytes.
#   tools/collect_text.sh FOLDER   created when complete; an existing folder is kept
set -euo pipefail
[ $# = 1 ] || { sed -n '2,/^set/{/^#/p}' "$0"; exit 2; }
folder=$(readlink -m "$1") want=1000000 have=0 n=0
cd "$(dirname "$0")/.."
[ ! -d "$folder" ] || { echo "$folder exists"; exit 0; }
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
