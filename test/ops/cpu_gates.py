"""Compiles the CPU rows of gemm.vt and gemm8.vt for processors that are not here and looks at their inner loops.

    cpu_gates.py FOLDER [--verbose] [--tables FOLDER] [WORD...]

FOLDER is for the compiler's files; WORD: only rows whose table/id has it; --tables: where other tables lie.
A loop without a loop inside that multiplies and adds at least eight times holds the tile of a product. Fails if one of
them touches the stack (the tile does not fit the registers), if a kernel file has none, or if a function is undefined.
Rows for the matrix unit (cpu=amx...) keep no tile in vector registers: their text only has to be assembled.
"""
import argparse
import os
import re
import subprocess
import sys

# name: compiler's options, llc's options, multiply-adds, accesses of the stack, branches
ARM = (r"\s(fmla|mla|smlal2?|sdot|\.inst)\s", r"\[(sp|x29)[\],]", r"\s(b\.?\w*|cbn?z|tbn?z)\s")
X86 = (r"\s(vfmadd\w+|vpdpbusd|vdpbf16ps|vpmaddwd|vpmulld)\s", r"\(%r[sb]p[),]", r"\sj\w+\s")
TARGETS = {
    "neon": (["-target", "aarch64-linux-gnu", "-mcpu=neoverse-n1"], ["-mcpu=neoverse-n1"], *ARM),
    "avx2": (["-target", "x86_64-linux-gnu", "-march=haswell"], ["-mcpu=haswell"], *X86),
    "avx512": (["-target", "x86_64-linux-gnu", "-march=sapphirerapids"], ["-mcpu=sapphirerapids"], *X86),
}
# Rows that a target has registers and instructions for.
ADMITS = {
    "neon": lambda words: cpu_of(words) in ("", "dotprod") and "vector_bits>=512" not in words,
    "avx2": lambda words: cpu_of(words) in ("", "avx2", "avxvnni") and "vector_bits>=512" not in words,
    "avx512": lambda words: "vector_bits>=512" in words or cpu_of(words).startswith(("avx512", "amx")),
}
COMMON = ["clang-19", "-x", "cl", "-cl-std=CL1.2", "-O3", "-Wno-unused", "-include", "test/ops/cpu_gates.clh"]
LEAST = 8  # multiply-adds of a tile's loop


def cpu_of(words):
    return next((w[4:] for w in words if w.startswith("cpu=")), "")


def loops(text, branch):
    """(function, lines) of each loop without a branch inside, from the assembler's text."""
    lines, place, function = text.splitlines(), {}, ""
    for i, line in enumerate(lines):
        label = re.match(r"([.\w$]+):", line)
        if label:
            place[label[1]] = i
            function = function if label[1].startswith(".") else label[1]
        to = re.search(r"(\.L\w+)\s*$", line)
        if not (to and re.search(branch, line) and to[1] in place):
            continue
        body = lines[place[to[1]] : i]
        if not any(re.search(branch, inner) for inner in body):
            yield function, body


def compile_row(folder, target, file, options):
    """The assembler's text, or None and the reason."""
    clang, llc, *_ = TARGETS[target]
    ir, code = f"{folder}/k.ll", f"{folder}/k.s"
    done = subprocess.run([*COMMON, *clang, *options, "-emit-llvm", "-S", file, "-o", ir], capture_output=True, text=True)
    if done.returncode:
        return None, next((x for x in done.stderr.splitlines() if "error" in x), done.stderr[:200])
    with open(ir) as f:
        text = re.sub(r"\bspir_(kernel|func) ", "", f.read())  # not every code generator has these conventions
    undefined = set(re.findall(r"^declare [^@]*@(\w+)\(", text, re.M)) - {"memcpy", "memset", "memmove"}
    undefined = {x for x in undefined if "get_global_" not in x}
    if undefined:
        return None, "undefined: " + " ".join(sorted(undefined))
    with open(ir, "w") as f:
        f.write(text)
    done = subprocess.run(["llc-19", "-O3", *llc, ir, "-o", code], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr[:200]
    with open(code) as f:
        return f.read(), ""


def check(folder, target, file, options, unit):
    """(passed, what was found); unit: the row is for the matrix unit"""
    text, why = compile_row(folder, target, file, options)
    if text is None:
        return False, why
    if unit:
        done = subprocess.run(["clang-19", "-target", "x86_64-linux-gnu", "-c", f"{folder}/k.s", "-o", f"{folder}/k.o"], capture_output=True, text=True)
        count = len(re.findall(r"\stdp\w+\s", text))
        return done.returncode == 0 and count >= 4, done.stderr[:200] or f"{count} products of tiles"
    _, _, multiply, stack, branch = TARGETS[target]
    found, bad = [], []
    for function, body in loops(text, branch):
        count = sum(bool(re.search(multiply, x)) for x in body)
        if count < LEAST:
            continue
        touched = sum(bool(re.search(stack, x)) for x in body)
        found.append(f"{function}: {count} multiply-adds")
        if touched:
            bad.append(f"{function}: {touched} accesses of the stack beside {count} multiply-adds")
    if not found:
        return False, f"no loop with {LEAST} multiply-adds"
    return not bad, "; ".join(bad or found)


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("folder")
    args.add_argument("word", nargs="*")
    args.add_argument("--verbose", action="store_true")
    args.add_argument("--tables")
    args = args.parse_intermixed_args()
    folder, words, passed, failed = args.folder, args.word, 0, 0
    for table in ("gemm", "gemm8"):
        path = f"{args.tables}/{table}.vt" if args.tables else f"clkernels/{table}/{table}.vt"
        if args.tables and not os.path.exists(path):
            continue
        with open(path) as f:
            rows = [line.split() for line in f if line.strip() and not line.startswith("#")]
        for name, file, body, requires, params in rows:
            requires = requires.split(",")
            wanted = not words or any(w in f"{table}/{name}" for w in words)
            if body != "cpu" or "type=cpu" not in requires or not wanted:
                continue
            options = [] if params == "-" else [f"-D{p}" for p in params.split(",")]
            types = ["-DIN_TYPE=1"] if "PAIRS=1" in params else []
            for target, admits in ADMITS.items():
                if not admits(requires):
                    continue
                unit = cpu_of(requires).startswith("amx")
                ok, what = check(folder, target, f"clkernels/{file}", options + types, unit)
                passed, failed = passed + ok, failed + (not ok)
                if args.verbose or not ok:
                    print(f"{'ok  ' if ok else 'FAIL'} {target} {table}/{name}: {what}")
    print(f"CPU gates: {passed + failed} compilations for {', '.join(TARGETS)}, {failed} failed")
    return failed > 0 or passed == 0


sys.exit(main())
