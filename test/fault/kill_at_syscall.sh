#!/bin/bash
# Kills a save at every system call on files, and lets each of them fail with ENOSPC or EIO (strace -e inject). Each time
# the old checkpoint is whole, or the new one is. The save is `ckpt import --overwrite`: the
# same writer that training uses, with an exchange of names.
# timeout: 600
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
command -v strace >/dev/null || { echo "SKIP: strace is not there"; exit 0; }
strace -o /dev/null true 2>/dev/null || { echo "SKIP: strace may not trace here"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
old=test/golden/mpt-learned/hf
new=test/golden/mpt-rope/hf
"$BUILD/cltrain" -q ckpt import "$old" "$tmp/start/ba0" >/dev/null
old_hash=$("$BUILD/cltrain" ckpt hash "$tmp/start")
new_hash=$("$BUILD/cltrain" ckpt hash "$new")
hits=0 kept=0 replaced=0

# save INJECTION: one save under strace; returns its exit code.
save() {
    rm -rf "$tmp/run"
    cp -r "$tmp/start" "$tmp/run"
    strace -f -qq -o "$tmp/trace" -e trace="$1" -e inject="$1:$2:when=$3" \
        "$BUILD/cltrain" -q ckpt import --overwrite "$new" "$tmp/run/ba0" >"$tmp/log" 2>&1
}

# check WHAT CODE: what exists now
check() {
    local hash
    "$BUILD/cltrain" -q ckpt verify "$tmp/run/ba0" >"$tmp/verify" 2>&1 || { echo "FAIL: $1: damaged"; cat "$tmp/verify"; exit 1; }
    hash=$("$BUILD/cltrain" ckpt hash "$tmp/run/ba0")
    case $hash in
        "$old_hash") kept=$((kept + 1)); [ "$2" != 0 ] || { echo "FAIL: $1: the save said OK and is not there"; exit 1; } ;;
        "$new_hash") replaced=$((replaced + 1)) ;;
        *) echo "FAIL: $1: other weights"; exit 1 ;;
    esac
}

for call in openat pwrite64 fdatasync fsync close renameat2 rename unlink rmdir mkdir; do
    for how in signal=KILL error=ENOSPC error=EIO; do
        for k in $(seq 1 "${MAX_CALLS:-60}"); do
            code=0
            save "$call" "$how" "$k" 2>/dev/null || code=$?
            # Not reached: the process made fewer such calls.
            grep -qE 'INJECTED|killed by SIGKILL' "$tmp/trace" || break
            hits=$((hits + 1))
            [ -d "$tmp/run/ba0" ] || { echo "FAIL: $call $how $k: the checkpoint is gone"; exit 1; }
            check "$call $how $k" "$code"
            if [ "$how" != signal=KILL ] && [ "$code" = 74 ] && ls -d "$tmp"/run/*.tmp.* >/dev/null 2>&1; then
                case $call in unlink | rmdir | close) ;; *) echo "FAIL: $call $how $k: a temporary folder is left"; exit 1 ;; esac
            fi
        done
    done
done
echo "$hits interrupted saves: $kept kept the old checkpoint, $replaced have the new one"
[ $hits -gt 60 ]
