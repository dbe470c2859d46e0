#!/bin/bash
# No output of the program, no file that it writes and no command line of the ranks holds a key, a token or a signature.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
[ -x "$BUILD/test/object/test_s3" ] || { echo "skip: built without object stores (CURL=0)"; exit 0; }
set=$golden/mpt-learned
out=$tmp/out
mkdir -p "$out" "$tmp/bin" "$tmp/home/.aws"
secret=wJalrSECRETofTheTest0123456789abcdefghij
token=TOKENofTheTest0123456789abcdefghij
container=CONTAINERofTheTest0123456789
access=AKIAofTheTest0123456
export HOME=$tmp/home AWS_ACCESS_KEY_ID=$access AWS_SECRET_ACCESS_KEY=$secret AWS_SESSION_TOKEN=$token
export AWS_CONTAINER_AUTHORIZATION_TOKEN=$container AWS_REGION=eu-west-1 S3_ENDPOINT_URL=http://127.0.0.1:9
export CLTRAIN_S3_TIMEOUT=1 CLTRAIN_LOG=debug no_proxy=127.0.0.1
unset AWS_PROFILE AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3

# hidden NAME FOLDER...: no file in them holds a secret
hidden() {
    grep -rlaE "$secret|$token|$container|$access|Signature=|Credential=" "${@:2}" >"$log" 2>&1
    report "$1: no secret" $((!$?))
}

"$cltrain" --help-env >"$out/help-env" 2>&1
grep -q '^AWS_SECRET_ACCESS_KEY ' "$out/help-env"
report "--help-env names the variables" $?
"$cltrain" train "$set/train.yaml" "save_folder=s3://bucket/run" --print-config >"$out/print-config" 2>&1
"$cltrain" train "$set/train.yaml" "save_folder=s3://bucket/run" --dry-run >"$out/dry-run" 2>&1
"$cltrain" ckpt ls s3://bucket/run >"$out/ckpt" 2>&1
grep -q 's3://bucket' "$out/ckpt"
report "a store that is not there is an error that names the path" $?
AWS_PROFILE=absent "$cltrain" ckpt ls s3://bucket/run >"$out/profile" 2>&1
AWS_SECRET_ACCESS_KEY='' "$cltrain" ckpt ls s3://bucket/run >"$out/half" 2>&1
AWS_SESSION_TOKEN=$token$'\r' "$cltrain" ckpt ls s3://bucket/run >"$out/token" 2>&1
AWS_ENDPOINT_URL=https://$access:$secret@host "$cltrain" ckpt ls s3://bucket/run >"$out/endpoint" 2>&1
printf '[default]\naws_access_key_id = %s\n%s\n' $access $secret >"$tmp/home/.aws/credentials"
"$cltrain" ckpt ls s3://bucket/run >"$out/file" 2>&1
grep -q 'credentials:3: ' "$out/file"
report "a malformed file is an error that names the line" $?
rm "$tmp/home/.aws/credentials"
hidden "messages" "$out"

# A short run: everything that it writes, checkpoints included.
"$cltrain" train "$set/train.yaml" "train_loader.dataset.local=$set/mds" "load_path=$set/hf" max_duration=2ba \
    save_interval=1ba "save_folder=$tmp/run" >"$out/train" 2>&1
report "a run" $? "$(tail -n 1 "$out/train")"
"$cltrain" report "$tmp/run" >"$out/report" 2>&1
report "its report" $? "$(tail -n 1 "$out/report")"
hidden "the files of a run" "$tmp/run" "$out"

# mpirun passes these variables to other hosts by name.
cat >"$tmp/bin/mpirun" <<'EOF'
#!/bin/bash
[ "$1" != --version ] || { echo "mpirun (Open MPI) 4.1.4"; exit 0; }
printf '%s\n' "$@" >"$ARGUMENTS"
EOF
chmod +x "$tmp/bin/mpirun"
echo "127.0.0.1 slots=2" >"$tmp/hosts"
ARGUMENTS=$out/mpirun PATH=$tmp/bin:$PATH "$cltrain" launch -n 2 --launcher mpirun --hosts "$tmp/hosts" \
    train "$set/train.yaml" >"$out/launch" 2>&1
for name in AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AWS_REGION S3_ENDPOINT_URL CLTRAIN_S3_TIMEOUT; do
    grep -A 1 -xe -x "$out/mpirun" | grep -qx $name
    report "mpirun passes $name" $?
done
hidden "the command line of the ranks" "$out"
finish
