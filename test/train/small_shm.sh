#!/bin/bash
# A /dev/shm of 1 MiB, as some containers have: the run works with smaller blocks, is bit-identical, and one line names
# /dev/shm and what its size costs. With enough room there is no such line.
# timeout: 300
cd "$(dirname "$0")/../.." || exit 1
if [ "${1:-}" != in-private ]; then
    unshare --mount bash -c 'mount -t tmpfs shm /dev/shm' 2>/dev/null ||
        { echo "skipped: no /dev/shm of its own here (it needs root and the right to mount)"; exit 0; }
    exec unshare --mount bash -c 'mount -t tmpfs -o size=64m shm /dev/shm && exec bash "$0" in-private' \
        "$PWD/test/train/small_shm.sh"
fi
. test/lib.sh || exit 1
needs_mpirun
mpirun_by_hand
set=$golden/mpt-learned
# A model whose gradients, 3.4 MB, do not fit at once.
settings=("$set/train.yaml" "train_loader.dataset.local=$set/mds" load_path=null max_duration=3ba scheduler.t_warmup=1ba
    log_config=false model.d_model=128 model.n_layers=4)
export CLTRAIN_COMM_TIMEOUT=60 CLTRAIN_TRANSPORT=shm

train() {
    rm -rf "$tmp/run"
    timeout -k 5 300 "${by_hand[@]}" -np "$1" "$cltrain" train "${settings[@]}" \
        "save_folder=$tmp/run" >"$log" 2>&1 && hash=$("$cltrain" ckpt hash "$tmp/run")
}
lines() { grep -c "/dev/shm" "$log"; }

"$cltrain" train "${settings[@]}" "save_folder=$tmp/one" >"$log" 2>&1
want=$("$cltrain" ckpt hash "$tmp/one")
train 2
[ "$?:$hash" = "0:$want" ] && [ "$(lines)" = 0 ]
report "2 ranks with 64 MiB of /dev/shm: no line about it" $? "$(lines) lines"

mount -o remount,size=1m /dev/shm
for ranks in 2 4; do
    train $ranks
    [ "$?:$hash" = "0:$want" ]
    report "$ranks ranks with 1 MiB: the weights of one rank" $?
    [ "$(lines)" = 1 ]
    report "$ranks ranks with 1 MiB: one line names /dev/shm" $? "$(grep "/dev/shm" "$log" || echo none)"
done
finish
