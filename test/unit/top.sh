#!/bin/bash
# cltrain top: the plain view of a metrics.jsonl, and the live one on a pseudo-terminal: it fits 80x24, redraws
# when the file grows, and gives the terminal back after q and after signals.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
mkdir "$tmp/run"
python3 - "$tmp/run/metrics.jsonl" <<'PY'
import json, sys
with open(sys.argv[1], "w") as f:
    put = lambda **o: f.write(json.dumps(o) + "\n")
    put(event="start", batch=0, time=1.0, first=True)
    put(event="lanes", batch=0, lanes=[4, 4])
    for b in range(1, 301):
        put(batch=b, epoch=0, sample=8 * b, token=512 * b, loss=5 - b / 100, lr=1e-3, grad_norm=None, step_seconds=0.5,
            tokens_per_sec=1024.0, flops_per_sec=1e9, device_memory_bytes=1 << 30)
    for b in range(20): put(event="mark", batch=b, number=b)
    put(batch=300, eval_loss=2.25, eval_perplexity=9.4, eval_accuracy=0.5, eval_seconds=1)
    for n in "second", "third", "fourth":
        put(batch=300, label=n, eval_loss=3.25, eval_perplexity=9.4, eval_accuracy=0.5, eval_seconds=1)
    put(event="checkpoint", batch=300, name="\x1b[2Jép" + "x" * 200, seconds=1.5, stall_seconds=0.1)
    f.write('{"batch":301,"lo')
PY
printf 'max_duration: 600ba\n' | cat test/golden/mpt-learned/train.yaml - | sed '/^max_duration: 30ba/d' >"$tmp/run/config.yaml"

for target in "$tmp/run" "$tmp/run/metrics.jsonl"; do
    LC_ALL=C "$cltrain" top "$target" >"$log" 2>&1 || report "plain view" 1
    for words in 'batch 300 of 600ba (50.0 %)' '153.6 k tokens' '2m30s left' 'loss 2.0000 ' 'eval 2.2500 (batch 300)' \
        '2 ranks' 'step 500.0 ms' 'memory 1.00 GiB' '4.9[0-9]* #' 'checkpoint  *?\[2J'; do
        grep -q -- "$words" "$log" || fail "'$words' is not in the plain view of $target"
    done
    grep -q 'gradient norm' "$log" && fail "a number that is null is shown"
    grep -q 'second 3.2500 (batch 300)$' "$log" || fail "a fact is cut, or one that fits is missing"
    grep -Eq '^ +14  mark' "$log" && fail "more than 6 events"
    grep -Eq '^ +16  mark +number 16' "$log" || fail "fewer than 6 events"
    [ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' "$log")" -le 80 ] || fail "a line has more than 80 columns"
    LC_ALL=C grep -q '[^ -~]' "$log" && fail "a byte that is no printable ASCII"
done
report "the plain view has the numbers of the file" $failed
hostile="$tmp/run"$'\e[2J\u009b\nx'
mkdir "$hostile" && { echo '{"batch":1,"label":"\u001b]0;x\u0007\u009b","eval_loss":2.5}'; cat "$tmp/run/metrics.jsonl"; } >"$hostile/metrics.jsonl"
LC_ALL=C.UTF-8 "$cltrain" top "$hostile" >"$log" 2>&1 && grep -q 'run?\[2J??*x' "$log" && grep -q '?\]0;x?' "$log" &&
    ! LC_ALL=C grep -q "[$(printf '\001-\011\013-\037')]" "$log" && ! grep -q $'\u009b' "$log"
report "control characters in the names of a run and of a loader" $?
"$cltrain" top "$tmp" >"$log" 2>&1
code=$?
[ $code = 74 ] && grep -q "metrics.jsonl does not exist" "$log"
report "no run: exit $code" $?

cat >"$tmp/live.py" <<'PY'
import fcntl, os, pty, re, select, signal, struct, sys, termios, time
def session(run, act, want, rows=24):
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["LC_ALL"] = "C.UTF-8"
        os.execv(sys.argv[1], [sys.argv[1], "top", "-i", "0.1", run])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    before, seen, done, end = termios.tcgetattr(fd)[3], b"", False, time.time() + 20
    while time.time() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try: data = os.read(fd, 65536)
            except OSError: break
            if not data: break
            seen += data
        if not done and b"q: quit" in seen: done = act(pid, fd, seen)
    after = termios.tcgetattr(fd)[3]
    status = os.waitpid(pid, 0)[1]
    assert want(status), status
    assert after == before and after & termios.ICANON and after & termios.ECHO
    assert seen.index(b"\033[?1049h") < seen.rindex(b"\033[?25h\033[?1049l"), seen[-80:]
    for picture in seen.split(b"\033[H")[1:]:
        lines = re.sub(rb"\033\[[?0-9]*[a-zA-Z]", b"", picture).split(b"\r\n")
        assert len(lines) <= rows and all(len(l.decode()) <= 80 for l in lines), lines
    return seen
run, grown = sys.argv[2], []
def grow(pid, fd, seen):
    if not grown:
        grown.append(1)
        open(run + "/metrics.jsonl", "a").write('\n{"batch":450,"epoch":0,"token":1,"loss":1.5,"step_seconds":0.5}\n')
    if b"batch 450 of 600ba (75.0 %)" not in seen: return False
    os.write(fd, b"q")
    return True
seen = session(run, grow, lambda s: s == 0)
assert "█" in seen.decode()
assert b" 16  mark" in seen and b" 14  mark" not in seen
def leave(pid, fd, seen):
    if b" 10  mark" not in seen: return False
    os.write(fd, b"q")
    return True
seen = session(run, leave, lambda s: s == 0, 40)
assert b" 6  mark" not in seen
def kill(number):
    def act(pid, fd, seen):
        os.kill(pid, number)
        return True
    return act
session(run, kill(signal.SIGTERM), lambda s: os.WIFSIGNALED(s) and os.WTERMSIG(s) == signal.SIGTERM)
session(run, kill(signal.SIGINT), lambda s: s == 0)
PY
python3 "$tmp/live.py" "$cltrain" "$tmp/run" >"$log" 2>&1
report "the live view redraws and gives the terminal back" $?
finish
