#!/bin/bash
# Checks the rules that a program can check: make lint. Prints one line per offence; exits with 1 if there is any.
#   tools/lint.sh            all checks
#   tools/lint.sh --rules    without clang-format and shellcheck, whose results depend on their version
set -u
cd "$(dirname "$0")/.." || exit 1
offences=0
complain() {
    echo "lint: $*" >&2
    offences=$((offences + 1))
}

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    mapfile -t files < <(git ls-files --cached --others --exclude-standard | sort -u)
else
    mapfile -t files < <(find . -type f -not -path './build*' -not -path './.git/*' | sed 's|^\./||' | sort)
fi
sources=()
scripts=()
kernels=()
pages=()
for f in "${files[@]}"; do
    [ -f "$f" ] || continue
    case $f in
    *.md) pages+=("$f") ;;
    test/golden/*) ;;
    *.c | *.h) sources+=("$f") ;;
    *.sh) scripts+=("$f") ;;
    *.cl | *.clh) kernels+=("$f") ;;
    esac
done

below_train="runtime/base runtime/object runtime/device runtime/ops collectives runtime/model runtime/data runtime/checkpoint"
train="runtime/train/config runtime/train/engine runtime/train/sink runtime/train/run"
# Folders are layers: the folders whose headers each one may include (docs/architecture.md).
may_include() {
    case $1 in
    runtime/base) echo "runtime/base" ;;
    runtime/object) echo "runtime/base runtime/object" ;;
    runtime/device) echo "runtime/base runtime/device" ;;
    # The oracle includes functions that it shares with the kernels.
    runtime/ops) echo "runtime/base runtime/device runtime/ops clkernels" ;;
    collectives) echo "runtime/base runtime/device collectives" ;;
    runtime/model) echo "runtime/base runtime/device runtime/ops runtime/model" ;;
    runtime/data) echo "runtime/base runtime/data" ;;
    runtime/checkpoint) echo "runtime/base runtime/device collectives runtime/checkpoint" ;;
    runtime/train/config) echo "$below_train runtime/train/config" ;;
    runtime/train/engine) echo "$below_train runtime/train/config runtime/train/engine" ;;
    runtime/train/sink) echo "$below_train runtime/train/config runtime/train/sink" ;;
    runtime/train/run) echo "$below_train $train" ;;
    runtime/api) echo "$below_train $train runtime/include runtime/api" ;;
    *) echo "$below_train $train $1" ;;
    esac
}
layer_of() {
    case $1 in
    runtime/train/*/*) echo "$1" | cut -d/ -f1-3 ;;
    runtime/*/*) echo "$1" | cut -d/ -f1-2 ;;
    tools/*/*) echo "$1" | cut -d/ -f1-2 ;;
    *) echo "$1" | cut -d/ -f1 ;;
    esac
}
declare -A layer_cache
check_layers() {
    local f line layer dir target allowed
    for f in "${sources[@]}"; do
        case $f in test/*) continue ;; esac
        layer=$(layer_of "$f")
        dir=${f%/*}
        allowed=" $(may_include "$layer") "
        while IFS= read -r line; do
            case $line in
            ../* | */*) ;;
            *) continue ;; # in the same folder
            esac
            target=${layer_cache[$dir:$line]:-}
            if [ -z "$target" ]; then
                target=$(realpath -m --relative-to=. "$dir/$line")
                [ -f "$target" ] || target=$line # named from the root
                target=$(layer_of "$target")
                layer_cache[$dir:$line]=$target
            fi
            [[ $allowed == *" $target "* ]] || complain "$f: $layer may not include $line ($target)"
        done < <(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$f")
    done
}

# only_in PATTERN MESSAGE ALLOWED-PATH-PREFIX ...
only_in() {
    local pattern=$1 message=$2 f prefix ok
    shift 2
    while IFS= read -r f; do
        ok=0
        for prefix in "$@"; do [[ $f == "$prefix"* ]] && ok=1; done
        [ $ok = 1 ] || complain "$f: $message"
    done < <(grep -lE "$pattern" "${sources[@]}")
}

check_words() {
    local f
    while IFS= read -r f; do
        complain "$f"
    done < <(grep -nE '\b(TODO|FIXME|XXX)\b' "${sources[@]}" "${scripts[@]}" | grep -v '^tools/lint.sh:' | grep -v 'XXXXXX')
}

# Every variable that --help-env lists is used.
check_environment() {
    local id
    while IFS= read -r id; do
        grep -qw "CLT_ENV_$id" "${sources[@]}" || complain "runtime/base/clt_env.def: nothing reads $id"
    done < <(sed -n 's/^CLT_ENV(\([A-Z0-9_]*\),.*/\1/p' runtime/base/clt_env.def)
}

check_readmes() {
    local d
    for d in clkernels collectives docs runtime runtime/* runtime/model/* runtime/train/* tools tools/build tools/cl* tools/presets test; do
        [ -d "$d" ] && [ "$d" != runtime/include ] || continue
        [ -f "$d/README.md" ] || complain "$d: no README.md"
    done
}

# The anchors of the headings in a .md file, one a line.
anchors() { sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9_ -]//g; s/ /-/g'; }

# Links in .md files to files of the project, and to headings in them.
check_links() {
    local f target page
    for f in "${pages[@]}"; do
        while IFS= read -r target; do
            case $target in '' | http*) continue ;; esac
            page=$(dirname "$f")/${target%%#*}
            [ -n "${target%%#*}" ] || page=$f
            [ -e "$page" ] || complain "$f: links to $target, which does not exist"
            case $target in
            *.md\#* | \#*) anchors "$page" | grep -qxF -- "${target#*#}" || complain "$f: links to $target, which has no such heading" ;;
            esac
        done < <(grep -o '](\([^)]*\))' "$f" | sed 's/^](//; s/)$//')
    done
}

check_kernels() {
    local f
    while IFS= read -r f; do
        grep -q 'FP_CONTRACT OFF' "$f" || grep -q 'include' "$f" || complain "$f: no '#pragma OPENCL FP_CONTRACT OFF'"
    done < <(printf '%s\n' "${files[@]}" | grep '^clkernels/.*\.cl$')
}

# A row's param that the host reads, and that no table sets any more, silently has its default.
check_params() {
    local param
    while IFS= read -r param; do
        grep -qE "(^|[ ,])$param=" clkernels/*/*.vt || complain "clt_variant_param reads $param, which no table of clkernels sets"
    done < <(grep -rhoE 'clt_variant_param\([^,]*, "[A-Z0-9_]+"' runtime test/ops | sed 's/.*"\(.*\)"/\1/' | sort -u)
}

check_format() {
    command -v clang-format >/dev/null || {
        echo "lint: clang-format is not installed, the formatting was not checked"
        return
    }
    local major f
    major=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
    if [ "$major" != 14 ]; then
        echo "lint: clang-format $major formats some lines differently from 14, the formatting was not checked"
        return
    fi
    while IFS= read -r f; do complain "$f"; done < <(clang-format --dry-run "${sources[@]}" 2>&1 |
        sed -n 's/^\([^ :]*\):\([0-9]*\):.*warning: code should be clang-formatted.*/\1:\2: not formatted (clang-format -i)/p' |
        awk -F: '!seen[$1]++')
}

check_scripts() {
    command -v shellcheck >/dev/null || {
        echo "lint: shellcheck is not installed, the scripts were not checked"
        return
    }
    shellcheck -S warning "${scripts[@]}" .ci/run || offences=$((offences + 1))
}

# Lines of prose in .md files, which are not tables, headings, images, or code (fenced or indented), have at most 100 columns.
check_prose() {
    local f n
    for f in "${pages[@]}"; do
        n=$(awk '/^```/ { fence = !fence; next }
                 fence { next }
                 /^( *\||#|!\[)/ { indented = 0; blank = 1; next }
                 /^[ \t]*$/ { blank = 1; next }
                 /^    / && (blank || indented) && !item { indented = 1; blank = 0; next }
                 { indented = 0; blank = 0 }
                 /^ *([-*]|[0-9]+\.) / { item = 1 }
                 /^[^ ]/ && !/^([-*]|[0-9]+\.) / { item = 0 }
                 { text = $0; gsub(/[\200-\277]/, "", text) } # count characters, not bytes
                 length(text) > 100 { n++ }
                 END { print n + 0 }' "$f")
        [ "$n" = 0 ] || complain "$f: $n lines of prose have more than 100 columns"
    done
}

# A function starts with a line that begins at column 0 and has a "(", and its body with a line that ends in ") {", or with
# "{" at column 0; it ends with "}" at column 0. Prints FILE:LINE: NAME has N lines.
long_functions() {
    awk -v most="$1" '
        FNR == 1 { body = start = 0 }
        /^#/ { next }
        body { if (/^}/) { if (FNR - start + 1 > most) printf "%s:%d: %s has %d lines\n", FILENAME, start, name, FNR - start + 1
                           body = start = 0 }
               next }
        /^[A-Za-z_][^;=]*\(/ { if (!start) start = FNR
                               name = $0; gsub(/__attribute__ *\(\([^()]*(\([^()]*\))?[^()]*\)\)/, "", name)
                               if (name ~ /[A-Za-z_]/) { sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) } }
        start && (/\) *\{ *(\/[*\/].*)?$/ || /^\{/) { body = 1; next }
        /;[ \t]*$/ || /^}/ || /^$/ { start = 0 }' "${@:2}"
}

check_size() {
    local f n line
    for f in "${sources[@]}" "${kernels[@]}" "${scripts[@]}"; do
        n=$(wc -l <"$f")
        [ "$n" -le 600 ] || complain "$f: $n lines; files have at most 600"
    done
    while IFS= read -r line; do complain "$line; functions have at most 60"; done < <(long_functions 60 "${sources[@]}" "${kernels[@]}")
}

check_layers
only_in '# *include *<CL/' "CL/cl.h is included in runtime/device only" runtime/device/
only_in '# *include *<(curl/|expat)' "libcurl and expat are used in runtime/object only" runtime/object/
only_in '# *include *<mpi\.h>' "mpi.h is included in clt_mpi.c and clt_mpi_anchor.c of collectives only" collectives/clt_mpi.c collectives/clt_mpi_anchor.c
only_in '\bgetenv *\(' "getenv is called through clt_env only" runtime/base/clt_env test/
families=$(sed -n 's/^const clt_model_family clt_\(.*\)_family = {$/\1/p' runtime/model/*/*.c | paste -sd '|')
only_in "\"runtime/model/[^/\"]*/|\bclt_(${families:?})_" "what a family is stays in runtime/model; use clt_model.h" runtime/model/ test/model/
only_in '(^|[^_a-zA-Z>.])(malloc|calloc|realloc|free|v?asprintf|strdup|strndup)\(' "memory is allocated through clt_memory.h" runtime/base/clt_memory.c test/ docs/ tools/anchors/
check_words
check_environment
check_readmes
check_links
check_kernels
check_params
check_prose
check_size
if [ "${1:-}" != --rules ]; then
    check_format
    check_scripts
fi
[ $offences = 0 ] && echo "lint: ${#sources[@]} C files and ${#scripts[@]} scripts follow the rules"
[ $offences = 0 ]
