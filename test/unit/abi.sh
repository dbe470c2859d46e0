#!/bin/bash
# The shared library keeps what older programs rely on: exported symbols, layouts, values; it exports nothing else, and its
# header compiles alone, as C99, C11 and C++.
# no sanitizer: the library is not built with one
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
lib=$BUILD/libcltrain.so.0
header=runtime/include/cltrain/cltrain.h

nm -D --defined-only --with-symbol-versions "$lib" 2>/dev/null | awk '$2 == "T" {print $3}' | sort >"$tmp/symbols"
[ -s "$tmp/symbols" ] || nm -D --defined-only "$lib" | awk '$2 == "T" {print $3}' | sort >"$tmp/symbols"
if ! gone=$(comm -13 "$tmp/symbols" "$golden/abi/libcltrain.so.0.txt") || [ -n "$gone" ]; then
    fail "symbols that older programs use are not exported any more: $gone"
fi
if ! new=$(comm -23 "$tmp/symbols" "$golden/abi/libcltrain.so.0.txt") || [ -n "$new" ]; then
    fail "symbols that test/golden/abi does not list: add them there, and to a new version in runtime/api/cltrain.map: $new"
fi
nm -D --defined-only "$lib" | awk '$2 ~ /[BDGRTV]/ {print $3}' | grep -v '^cltrain_' >"$tmp/others"
[ -s "$tmp/others" ] && fail "exported, but not public: $(head -n 5 "$tmp/others" | tr '\n' ' ')"
[ "$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" = libcltrain.so.0 ] || fail "the SONAME changed"

# Every function of the header is in the library.
for f in $(sed -n 's/^CLTRAIN_API .*[ *]\(cltrain_[a-z_]*\)(.*/\1/p' $header); do
    grep -q "^$f@" "$tmp/symbols" || fail "$f is declared and not exported"
done

cat >"$tmp/layout.c" <<'C'
#define CLTRAIN_EXPERIMENTAL
#include "cltrain.h"
#include <stdio.h>
#define AT(type, member) (int)offsetof(type, member)
int main(void)
{
    printf("cltrain_generation %d %d %d %d %d %d\n", (int)sizeof(cltrain_generation), AT(cltrain_generation, max_new_tokens),
           AT(cltrain_generation, temperature), AT(cltrain_generation, top_k), AT(cltrain_generation, seed),
           AT(cltrain_generation, stop_at_end_of_text));
    printf("cltrain_position %d %d %d %d %d %d %d %d %d\n", (int)sizeof(cltrain_position), AT(cltrain_position, epoch),
           AT(cltrain_position, batch), AT(cltrain_position, sample), AT(cltrain_position, token), AT(cltrain_position, loss),
           AT(cltrain_position, train_seconds), AT(cltrain_position, finished), AT(cltrain_position, resumed));
    printf("cltrain_evaluation %d %d %d %d %d\n", (int)sizeof(cltrain_evaluation), AT(cltrain_evaluation, loss),
           AT(cltrain_evaluation, perplexity), AT(cltrain_evaluation, accuracy), AT(cltrain_evaluation, samples));
    printf("cltrain_hash %d %d %d\n", (int)sizeof(cltrain_hash), AT(cltrain_hash, weights), AT(cltrain_hash, optimizer));
    printf("status %d %d %d %d %d %d %d %d %d\n", CLTRAIN_OK, CLTRAIN_FAILED, CLTRAIN_BAD_ARGUMENT, CLTRAIN_BAD_DATA,
           CLTRAIN_NO_DEVICE, CLTRAIN_NO_MEMORY, CLTRAIN_IO, CLTRAIN_STOPPED, CLTRAIN_BAD_CONFIG);
    printf("log %d %d %d %d\n", CLTRAIN_LOG_ERROR, CLTRAIN_LOG_WARNING, CLTRAIN_LOG_INFO, CLTRAIN_LOG_DEBUG);
    return 0;
}
C
cp "$tmp/layout.c" "$tmp/layout.cpp"
# as LANGUAGE STANDARD FILE: the header compiles, and the layout is the one that is listed.
as() {
    if ! "$@" -Wall -Wextra -Werror -pedantic -I"$(dirname $header)" -o "$tmp/layout" 2>"$log"; then
        fail "$1 $2 does not compile the header"
        cat "$log"
    elif ! "$tmp/layout" | diff - "$golden/abi/layout.txt"; then
        fail "$1 $2: structs or values of the public header changed"
    fi
}
as gcc -std=c99 "$tmp/layout.c"
as gcc -std=c11 "$tmp/layout.c"
if command -v g++ >/dev/null; then as g++ -std=c++11 "$tmp/layout.cpp"; else echo "skip: no C++ compiler"; fi
[ $failed = 0 ] && echo "all as expected"
exit $failed
