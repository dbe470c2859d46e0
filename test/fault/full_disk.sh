#!/bin/bash
# Training when the disk fails: a real full file system, and CLTRAIN_IO_FAULT for the other faults. The run continues, its
# old checkpoints stay whole, and it exits with 74 exactly if its last save failed. (A failed save at the last batch is
# repeated at the end as a new one.)
# timeout: 300
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
set=$golden/mpt-learned
settings=("train_loader.dataset.local=$set/mds" "load_path=$set/hf" device_train_microbatch_size=2 log_config=false
    scheduler.t_max=1000ba save_interval=2ba max_duration=8ba
    console_log_interval=1000ba "save_filename=ba{batch}")

# run CODE TEXT FOLDER [VARIABLE=VALUE]: one training; its exit code and a line of its output.
run() {
    env "${@:4}" "$cltrain" train "$set/train.yaml" "${settings[@]}" "save_folder=$3" >"$log" 2>&1
    local code=$?
    [ $code = "$1" ] && grep -q -- "$2" "$log"
}
whole() { "$cltrain" -q ckpt verify "$1" >"$tmp/verify.log" 2>&1; }
no_rest() { ! compgen -G "$1/*.tmp.*" >/dev/null; }
names() { (cd "$1" && printf "%s\n" ba* | tr '\n' ' '); }

run 0 "checkpoint saved" "$tmp/a" && [ "$(names "$tmp/a")" = "ba2 ba4 ba6 ba8 " ]
report "an undisturbed run" $?
calm=$("$cltrain" ckpt hash "$tmp/a/ba8")
[ -n "$calm" ] || report "a hash of the undisturbed run" 1

# FAULT, exit code, checkpoints at the end
while read -r fault code names; do
    rm -rf "$tmp/f"
    run "$code" "checkpoint" "$tmp/f" CLTRAIN_IO_FAULT="$fault" && [ "$(names "$tmp/f")" = "$names " ] && no_rest "$tmp/f" &&
        for c in $names; do whole "$tmp/f/$c" || break; done
    report "$fault: exit $code, $names" $?
done <<'EOF'
pwrite:data.*:5:ENOSPC 0 ba4 ba6 ba8
pwrite:data.*:5:short 0 ba2 ba4 ba6 ba8
pwrite:data.*:1-60:EINTR 0 ba2 ba4 ba6 ba8
datasync:*:2:EIO 0 ba2 ba6 ba8
sync:manifest.json:4:EIO 0 ba2 ba4 ba6 ba8
close:data.*:1:EIO 0 ba4 ba6 ba8
pread:data.*:1:EIO 0 ba4 ba6 ba8
rename:ba8:1-:EROFS 74 ba2 ba4 ba6
EOF

# Not writable from the start: no step is done.
run 74 "write-test" "$tmp/w" CLTRAIN_IO_FAULT="open:.write-test*:1:EACCES" && ! grep -q "batch=" "$log"
report "not writable at the start: exit 74 at once" $?

# Killed in the rename of the third save: rerunning the command resumes and gives the same weights.
run 137 "checkpoint saved" "$tmp/k" CLTRAIN_IO_FAULT="rename:ba6:1:kill" && run 0 "resumed from .*ba4" "$tmp/k" &&
    [ "$("$cltrain" ckpt hash "$tmp/k/ba8")" = "$calm" ]
report "killed at a rename, started again" $?

# A file system that is full after some saves. Training continues; with free space again, rerunning the command succeeds.
mkdir "$tmp/small"
one=$(du -sk "$tmp/a/ba2" | cut -f1)
if mount -t tmpfs -o "size=$((one * 5 / 2 + 64))k" none "$tmp/small" 2>/dev/null; then
    trap 'umount "$tmp/small"; rm -rf "$tmp"' EXIT
    run 74 "No space left" "$tmp/small/run" && no_rest "$tmp/small/run" &&
        [ "$(names "$tmp/small/run")" = "ba2 ba4 " ] && whole "$tmp/small/run/ba4"
    report "a full tmpfs: exit 74, ba2 and ba4 are whole" $?
    mount -o "remount,size=64m" "$tmp/small" && run 0 "resumed from .*ba4" "$tmp/small/run" &&
        [ "$("$cltrain" ckpt hash "$tmp/small/run/ba8")" = "$calm" ]
    report "with free space again a rerun gives the same weights" $?
else
    echo "skipped: no tmpfs can be mounted here (needs root)"
fi
finish
