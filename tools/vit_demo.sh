#!/usr/bin/env bash
# Trains a Vision Transformer with 142,000 parameters on pictures and measures it on others, in about a minute on two
# cores. Prints the accuracy on the test pictures; exits with 1 if it is below 90 %. `make vit-demo` runs it.
#   tools/vit_demo.sh [--shapes] [FOLDER] [key.sub=value ...]
# The pictures are the 1,797 handwritten digits in the wheel of scikit-learn, which is downloaded into the build folder
# and not installed. --shapes, and where there is no network: generated shapes. FOLDER (default build/vit-demo) receives
# everything; an interrupted run resumes, a finished one starts again.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILD=${BUILD:-build}
CLTRAIN=${CLTRAIN:-$BUILD/cltrain}
DEVICE=${DEMO_DEVICE:-pocl}
wheel=scikit-learn==1.7.2
kind=digits classes=10
start=$SECONDS
say() { printf '\n%s\n' "$*"; }

if [ "${1:-}" = --shapes ]; then
    kind=shapes
    shift
fi
OUT=$BUILD/vit-demo
case ${1:-} in
'' | *=*) ;;
-*) sed -n '2,/^set/{/^#/p}' "$0" && exit 2 ;;
*) OUT=$1 && shift ;;
esac
command -v python3 >/dev/null || { echo "vit_demo.sh: python3 makes the pictures and is not installed: apt-get install python3" >&2 && exit 1; }

# The platform's name only selects one of the wheels, which all have the same digits.
fetch_wheel() {
    local venv=$BUILD/digits
    compgen -G "$venv/wheel/*.whl" >/dev/null && return 0
    mkdir -p "$venv"
    python3 -m venv "$venv" >"$venv/log" 2>&1 &&
        "$venv/bin/python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
            --python-version 3.11 --platform manylinux2014_x86_64 -d "$venv/wheel" "$wheel" >>"$venv/log" 2>&1
}

say "1. The pictures"
if [ $kind = digits ] && [ ! -d "$OUT/digits" ] && ! fetch_wheel; then
    echo "$wheel cannot be downloaded ($(tail -n 1 "$BUILD/digits/log")); shapes are generated" >&2
    kind=shapes
fi
[ $kind = digits ] || classes=6
if [ ! -d "$OUT/$kind" ]; then
    rm -rf "$OUT/$kind.new"
    python3 tools/vit_pictures.py "$OUT/$kind.new" "$kind" "$BUILD"/digits/wheel/*.whl
    mv "$OUT/$kind.new" "$OUT/$kind"
fi
echo "$kind: $(find "$OUT/$kind/train" -name '*.png' | wc -l) for training, $(find "$OUT/$kind/test" -name '*.png' | wc -l) for the test"

sed "s|@OUT@|$OUT|; s|@PICTURES@|$OUT/$kind|; s|@CLASSES@|$classes|" tools/vit_demo.yaml >"$OUT/run.yaml.new"
cmp -s "$OUT/run.yaml.new" "$OUT/run.yaml" && [ ! -e "$OUT/finished" ] || rm -rf "${OUT:?}"/{run,finished}
mv "$OUT/run.yaml.new" "$OUT/run.yaml"

say "2. cltrain train"
"$CLTRAIN" train "$OUT/run.yaml" log_config=false "cltrain.device=$DEVICE" "$@"

say "3. cltrain eval and report"
"$CLTRAIN" eval -q "$OUT/run.yaml" "load_path=$OUT/run" "cltrain.device=$DEVICE" "$@" >"$OUT/eval.json"
"$CLTRAIN" report "$OUT/run"
touch "$OUT/finished"
sed -n 's/.*"eval_accuracy":\([0-9.e-]*\).*/\1/p' "$OUT/eval.json" | awk -v seconds=$((SECONDS - start)) -v kind=$kind '
    { printf "\naccuracy %.2f %% on the test pictures (%s), %d s\n", 100 * $1, kind, seconds; right = $1 >= 0.9 }
    END {
        fflush()
        if (!right) print "vit_demo.sh: the accuracy is below 90 %" > "/dev/stderr"
        exit !right
    }'
