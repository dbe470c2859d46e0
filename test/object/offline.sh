#!/bin/bash
# Commands that only read a configuration ask nothing of a store, although everything in it is there.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
[ -x "$BUILD/test/object/test_s3" ] || { echo "skip: built without object stores (CURL=0)"; exit 0; }
set=$golden/mpt-learned
cat >"$tmp/listen.py" <<'PY'
import socket, sys
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    s.listen()
    print(s.getsockname()[1], flush=True)
    while True:
        s.accept()[0].close()
        print("connection", flush=True)
PY
python3 "$tmp/listen.py" >"$tmp/listened" &
listener=$!
trap '[ $BASHPID != $$ ] || { kill $listener; rm -rf "$tmp"; }' EXIT
for _ in $(seq 100); do
    [ ! -s "$tmp/listened" ] || break
    sleep 0.1
done
AWS_ENDPOINT_URL=http://127.0.0.1:$(head -n 1 "$tmp/listened")
export AWS_ENDPOINT_URL CLTRAIN_S3_TIMEOUT=1 no_proxy=127.0.0.1
export AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b HOME=$tmp
unset AWS_PROFILE AWS_ENDPOINT_URL_S3
settings=("train_loader.dataset={remote: s3://b/data, local: $tmp/cache}" load_path=s3://b/other/ep0-ba1
    save_folder=s3://b/run tokenizer.name=s3://b/tokenizer run_name=offline)
mirrored=("${settings[@]}" "save_folder=$tmp/run" cltrain.mirror=s3://b/mirror)
cd "$tmp" || exit 1
# quiet NAME COMMAND...: it succeeds, and nobody connects
quiet() {
    timeout 60 "$cltrain" "${@:2}" >"$log" 2>&1
    report "$1" $?
    ! grep -q connection "$tmp/listened"
    report "$1 asks nothing of the store" $?
}
quiet plan plan "$set/train.yaml" --device h100 "${settings[@]}"
quiet "plan with a mirror" plan "$set/train.yaml" --device h100 "${mirrored[@]}"
quiet --dry-run train "$set/train.yaml" --dry-run "${settings[@]}"
quiet --print-config train "$set/train.yaml" --print-config "${mirrored[@]}"
"$cltrain" ckpt ls s3://b/run >"$log" 2>&1
grep -q connection "$tmp/listened"
report "ckpt ls does" $?
finish
