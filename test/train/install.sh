#!/bin/bash
# The files of `make install` are complete: without the source tree the installed program makes a data set,
# and the examples of docs/examples, built only against the installed library, train on it.
# no sanitizer: a library with a sanitizer needs a program with one
# timeout: 600
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
root=$tmp/root
prefix=$root/opt/cltrain
if ! make -s install BUILD="$BUILD" PREFIX=/opt/cltrain DESTDIR="$root" >"$log" 2>&1; then
    fail "make install"
    tail "$log"
    exit 1
fi
cp docs/examples/train.c docs/examples/plot_loss.py tools/demo.yaml "$tmp"
for i in 1 2 3; do seq -f "line %g of some text that repeats itself" 400 >"$tmp/text$i.txt"; done
cd "$tmp" || exit 1
export PATH=$prefix/bin:$PATH LD_LIBRARY_PATH=$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
sed "s|@OUT@|$tmp|g" demo.yaml >run.yaml

mkdir text && mv text*.txt text
cltrain data train-tokenizer text --vocab-size 300 --out tokenizer >"$log" 2>&1 || fail "data train-tokenizer"
cltrain data convert text --out data --tokenizer tokenizer --split train --val-fraction 0.2 --concat-tokens 256 --eos >"$log" 2>&1 || fail "data convert"
report "the installed program makes a data set" $?

# shellcheck disable=SC2046
cc train.c $(pkg-config --cflags --libs cltrain) -o train >"$log" 2>&1 &&
    ./train run.yaml max_duration=12ba eval_interval=0 >"$log" 2>&1 &&
    grep -q '^{"batch":12,' "$log" && grep -q 'loss on unseen text: [0-9]' "$log"
report "train.c trains, evaluates and generates text" $?
[ "$(cltrain ckpt hash run | wc -l)" -ge 2 ]
report "the installed program reads its checkpoint" $?

if command -v python3 >/dev/null; then
    python3 plot_loss.py run.yaml loss.svg max_duration=6ba eval_interval=0 save_folder=null run_name=plot >"$log" 2>&1 &&
        grep -q '^6 steps, loss [0-9.]* to [0-9.]*: loss.svg' "$log" && grep -q '<polyline' loss.svg
    report "plot_loss.py trains and draws its loss" $?
else
    echo "skip: plot_loss.py: python3 is not installed"
fi

pkg-config --modversion cltrain | grep -qx "$(cltrain --version | sed 's/cltrain \([0-9.]*\).*/\1/')"
report "program, library and cltrain.pc have the same version" $?
exit $failed
