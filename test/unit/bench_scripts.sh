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
for section in gemm fp32 memory; do
    SECTIONS=$section CLBENCH=true PYTHON=$tmp/python tools/bench_gpu.sh "$tmp/out" >"$log" 2>&1
    [ $? = 1 ] || report "bench_gpu.sh: the other side fails in section $section" 1
done
SECTIONS=gemm CLBENCH=true PYTHON=false tools/bench_gpu.sh "$tmp/out" >"$log" 2>&1 || report "bench_gpu.sh without PyTorch" 1
grep -q "^skipped      PyTorch" "$log" || report "bench_gpu.sh does not name what it leaves out" 1
SECTIONS="gemm steps" CLBENCH=true PYTHON=false tools/bench_gpu.sh "$tmp/out" >"$log" 2>&1
[ $? = 2 ] && grep -q "unknown section 'steps'" "$log" || report "bench_gpu.sh takes a section that there is not" 1
exit $failed
