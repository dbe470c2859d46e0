#!/bin/bash
# The other side of the speed tables where it is not there, or fails: one line, and an exit code.
cd "$(dirname "$0")/../.." && . test/lib.sh

# Without site-packages no Python has PyTorch. (python3 -S)
for program in tools/anchors/torch_*.py; do
    python3 -S "$program" >"$log" 2>&1
    [ $? = 1 ] || report "$program without PyTorch: exit code" 1
    [ "$(wc -l <"$log")" = 1 ] && grep -q "has no PyTorch (pip install torch)" "$log" || report "$program without PyTorch" 1
    python3 -S "$program" --help >"$log" 2>&1 || report "$program --help" 1
done

# A PyTorch that is there, and whose programs fail.
printf '#!/bin/sh\n[ "$1" = -c ]\n' >"$tmp/python" && chmod +x "$tmp/python"
for section in gemm fp32 memory eight vit; do
    SECTIONS=$section CLBENCH=true PYTHON=$tmp/python tools/bench_gpu.sh "$tmp/out" >"$log" 2>&1
    [ $? = 1 ] || report "bench_gpu.sh: the other side fails in section $section" 1
done
SECTIONS=gemm CLBENCH=true PYTHON=false tools/bench_gpu.sh "$tmp/out" >"$log" 2>&1 || report "bench_gpu.sh without PyTorch" 1
grep -q "^skipped      PyTorch" "$log" || report "bench_gpu.sh does not name what it leaves out" 1
SECTIONS="gemm steps" CLBENCH=true PYTHON=false tools/bench_gpu.sh "$tmp/out" >"$log" 2>&1
[ $? = 2 ] && grep -q "unknown section 'steps'" "$log" || report "bench_gpu.sh takes a section that there is not" 1

# Python programs are valid without PyTorch, too.
PYTHONPYCACHEPREFIX=$tmp/cache python3 -m py_compile tools/anchors/*.py >"$log" 2>&1 || report "syntax of tools/anchors" 1

# The tables of several devices, with tiny models.
table() { tools/throughput_table.sh --out "$tmp/table" "$@" >"$log" 2>&1; }
table --tiny --models 125m --ranks 1,2 --stages 0 --steps 20
report "throughput_table.sh" $?
awk -F '\t' '$3 == "cltrain" && $9 > 0 && $12 > 0 && $13 > 0 && $14 > $15 && $15 > 9 && $16 == "-" { n++ } END { exit n != 2 }' "$tmp/table/records.tsv" ||
    report "throughput_table.sh: two rows with speed, memory and a loss that falls" 1
[ "$(grep -c '^| 125m | cltrain | [12] | 0 | 2 x 4 ' "$tmp/table/table.md")" = 2 ] || report "throughput_table.sh: table" 1
table --models 70b --ranks 1 || report "throughput_table.sh: a model that does not fit fails the table" 1
grep -q '^| 70b .* the run needs .* GiB' "$tmp/table/table.md" || report "throughput_table.sh: no row for a model that does not fit" 1
table --models 2b
[ $? = 2 ] && grep -q "unknown model '2b'" "$log" || report "throughput_table.sh takes a model that does not exist" 1

# A cltrain that plans, but trains 150 tokens per second, or fails with $FAIL if that is set; all its hashes differ.
cat >"$tmp/cltrain" <<'EOT'
#!/bin/sh
case "$1 $2" in
launch*) [ -z "$FAIL" ] || { echo "error: $FAIL"; exit 66; } ;;
"ckpt hash") echo "weights $$" && exit ;;
*) exec "$REAL" "$@" ;;
esac
folder=${0%/*}
for word; do
    case $word in run_name=*) folder=runs/${word#*=} ;; esac
done
mkdir -p "$folder" && cd "$folder" || exit 1
for i in 1 2 3 4 5; do
    echo "{\"batch\":$i,\"loss\":$((10 - i)),\"step_seconds\":2,\"tokens_per_sec\":$((i > 3 ? 150 : 1)),\"device_memory_bytes\":$((i << 30))}"
done >metrics.jsonl
EOT
chmod +x "$tmp/cltrain"
export REAL=$cltrain FAIL='out of luck'
CLTRAIN=$tmp/cltrain table --tiny --models 125m --ranks 1
[ $? = 1 ] && grep -q '^| 125m .* exit code 66: out of luck |' "$tmp/table/table.md" || report "throughput_table.sh: a run that fails" 1

# The other side is a program that trains 100 tokens per second and has no memory for FSDP2 with microbatches of two.
cat >"$tmp/python" <<'EOT'
#!/bin/sh
[ "$1" != -c ] || { echo; exit 0; }
case "$*" in *"--mode fsdp2"*"--microbatch 2 "*) echo "torch.OutOfMemoryError: CUDA out of memory."; exit 1 ;; esac
while [ $# -gt 1 ]; do [ "$1" != --json ] || json=$2; shift; done
echo '{"flops_per_token": 13186944, "tokens_per_second": 100.0, "memory_bytes": 0, "loss_first": 10.5, "loss_last": 9.5}' >"$json"
EOT
multi() { OUT=$tmp/multi tools/bench_multi.sh --tiny "$@" >"$log" 2>&1; }
has() { grep -q -- "$1" "$log" || report "bench_multi.sh: no line '$1'" 1; }
FAIL='' CLTRAIN=$tmp/cltrain PYTHON=$tmp/python multi --parts step125m,step7b
report "bench_multi.sh: training" $?
has '^| 125m-16x4 | cltrain | 1 | 0 | 2 x 4 | none | 150 | .* | 5.00 | .* | 1.000 | 9.000 to 5.000 | - |$'
has '^| 125m-16x4 | cltrain | 2 | [01] | 2 x 4 | none | 150 | .* | 0.500 | 9.000 to 5.000 | - |$'
has '^| 125m-16x4 | PyTorch ddp | 2 | 0 | 2 x 4 | none | 100 | .* | 10.500 to 9.500 | - |$'
has '^| 7b | PyTorch fsdp2 | 2 | 3 | 2 x 1 | .*OutOfMemoryError'
has '^| 7b | PyTorch fsdp2 | 2 | 3 | 1 x 1 | none | 100 | '
has 'MPT-125M 16 x 4, 2 GPUs, against DDP | >= 1.100 | 1.500 | yes |'
has 'MPT-125M 16 x 4, 2 GPUs, scaling | >= 0.950 | 0.500 | no |'
has 'MPT-7B, 2 GPUs, against FSDP2 | >= 1.000 | 1.500 | yes |'
PYTHON=false multi --parts hashes
report "bench_multi.sh: hashes" $?
for precision in fp32 exact8; do
    grep -Eq "^\| $precision: hashes equal \| all \| ([2-9]) of \\1 \| yes \|" "$log" || report "bench_multi.sh: equal hashes of $precision" 1
done
has 'PyTorch was skipped: false cannot import torch'
has 'MPT-125M 16 x 4, 2 GPUs, against DDP | >= 1.100 | 1.500 | yes |'
FAIL='' CLTRAIN=$tmp/cltrain PYTHON=false multi --parts hashes
[ $? = 1 ] && grep -q '^| fp32: hashes equal .* no |' "$log" || report "bench_multi.sh: hashes that differ" 1
CLTRAIN=$tmp/cltrain PYTHON=false multi --parts step125m
[ $? = 1 ] || report "bench_multi.sh: exit code of runs that fail" 1
has '^| 125m-16x4 .* exit code 66: out of luck |$'
FAIL='' CLTRAIN=$tmp/cltrain PYTHON=$tmp/python multi --parts step125m --ranks 1,4 --sides pytorch
report "bench_multi.sh: four ranks of one side" $?
has '^| 125m-16x4 | PyTorch ddp | 4 | 0 | 2 x 4 | none | 100 | '
FAIL='' CLTRAIN=$tmp/cltrain PYTHON=$tmp/python multi --parts step125m --ranks 1,4
has 'MPT-125M 16 x 4, 4 GPUs, scaling | >= 0.950 | 0.250 | no |'
multi --ranks two
[ $? = 2 ] && grep -q "'two' is not a number of ranks" "$log" || report "bench_multi.sh takes words for numbers of ranks" 1
multi --parts steps
[ $? = 2 ] && grep -q "unknown part 'steps'" "$log" || report "bench_multi.sh takes a part that does not exist" 1

# Goals for known results.
record() { printf '%s\t' part "$@" >>"$tmp/records.tsv" && echo - >>"$tmp/records.tsv"; }
record 1b-8x4 cltrain 1 0 8 4 norms 100 - - 40 40 9 8
record 1b-8x4 cltrain 2 1 8 4 norms 180 - - 40 40 9 8
record 1b-8x4 cltrain 2 3 8 4 norms 190 - - 44 40 9 8
record 1b-8x4 'PyTorch ddp' 2 0 8 4 none 200 - - - - 9 8
printf 'default\tallreduce\t%s\t%s\t%s\t0\t50\t1\tGPU\t2\n' 8192 101 1 67108864 3000 29 1073741824 30000 28 >"$tmp/collectives.tsv"
printf '%s\t1\t0\t-\t%s\t-\tfp32\n' a 1 b 1 c 2 >"$tmp/hashes.tsv"
awk -F '\t' -v link=34 -f tools/bench/goals.awk "$tmp"/{records,collectives,hashes}.tsv >"$log"
while IFS= read -r line; do grep -qF -- "$line" "$log" || report "goals.awk: $line" 1; done <<'EOT'
MPT-1B 8 x 4, 2 GPUs, against DDP | >= 1.050 | 0.950 | no |
MPT-1B 8 x 4, 2 GPUs, scaling | >= 0.960 | 0.950 | no |
MPT-7B, 2 GPUs, against FSDP2 | >= 1.000 | not measured | - |
from 64 MiB on, GB/s, links 34 | >= 28.9 | 28.0 | no |
allreduce of 8 KiB on 2 GPUs, us | <= 100.0 | 101.0 | no |
memory of stage 3 against the plan, % | <= 5.0 | 10.0 | no |
fp32: hashes equal | all | 2 of 3 | no |
EOT

# Transfers to and from an object store, small.
if [ -x "$BUILD/object/bin/weed" ]; then
    OUT=$tmp/object tools/bench_object.sh --tiny --parts download,upload >"$log" 2>&1
    report "bench_object.sh" $?
    for part in download upload; do
        awk -F '\t' -v p=$part '$1 == p && $4 > 0 && $5 > 0 { side[$2] = 1 } END { exit !(side["cltrain"] && side["boto3"]) }' \
            "$tmp/object/results.tsv" || report "bench_object.sh: no speed of $part" 1
    done
    tools/bench_object.sh --parts sideways >"$log" 2>&1
    [ $? = 2 ] && grep -q "unknown part 'sideways'" "$log" || report "bench_object.sh takes a part that does not exist" 1
else
    echo "skip  bench_object.sh: SeaweedFS is not installed (tools/setup.sh --check)"
fi

# PyTorch itself, where it is installed: two CPU processes train a tiny model.
if python3 -c 'import torch' 2>/dev/null; then
    for mode in ddp fsdp2; do
        python3 tools/anchors/torch_multi.py --mode $mode --model tiny --seq 32 --microbatch 2 --accumulation 2 --steps 2 --eager >"$log" 2>&1
        report "torch_multi.py --mode $mode" $?
    done
    python3 tools/anchors/torch_collectives.py --sizes 8K --seconds 0.1 >"$log" 2>&1
    report "torch_collectives.py" $?
else
    echo "skip  torch_multi.py, torch_collectives.py: python3 has no PyTorch"
fi
finish
