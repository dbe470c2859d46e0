#!/bin/bash
# Builds with a sanitizer and runs the tests under it: `make asan`, `make ubsan`.
#   test/sanitize.sh address|undefined [PATTERN ...]   only tests whose name contains one of the patterns; builds only
#                                                      their programs, and those that scripts start
# Sanitizers check host code, so tests use small shapes (TEST_TINY=1) and one driver: PoCL, unless
# OCL_ICD_VENDORS is set (Intel's GPU runtime loads a library in a way that AddressSanitizer refuses). Every
# report ends the program, and the test fails. test/lsan.supp lists leaks of other libraries.
#   BUILD=dir   build folder (default build-asan or build-ubsan)
#   JOBS=n      number of parallel compilers
set -u
cd "$(dirname "$0")/.." || exit 1
sanitizer=${1:-}
case $sanitizer in
address) BUILD=${BUILD:-build-asan} ;;
undefined) BUILD=${BUILD:-build-ubsan} ;;
*) echo "usage: $0 address|undefined [PATTERN ...]" >&2; exit 2 ;;
esac
shift
export BUILD TEST_TINY=1 TEST_SANITIZER=$sanitizer
export LSAN_OPTIONS=suppressions=$PWD/test/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
targets=(all)
if [ $# -gt 0 ]; then
    targets=("$BUILD/cltrain" "$BUILD/clbench" "$BUILD/libcltrain.so.0" fuzz)
    for source in test/{unit,ops,model,train,fault,object}/test_*.c; do
        for pattern; do [[ ${source%.c} != *"$pattern"* ]] || targets+=("$BUILD/${source%.c}"); done
    done
fi
make --no-print-directory -s -j"${JOBS:-$(nproc)}" "${targets[@]}" BUILD="$BUILD" SANITIZE="$sanitizer" || exit 1
if [ -z "${OCL_ICD_VENDORS:-}" ]; then
    only=$PWD/$BUILD/icd
    rm -rf "$only"
    mkdir -p "$only"
    grep -l pocl /etc/OpenCL/vendors/*.icd 2>/dev/null | xargs -r cp -t "$only"
    if [ -n "$(ls "$only")" ]; then export OCL_ICD_VENDORS=$only; else echo "PoCL is not registered in /etc/OpenCL/vendors: the tests use all drivers"; fi
fi
exec test/run.sh "$@"
