#!/bin/bash
# Writes cltrain.1 and clbench.1 from the programs' --help, so that pages and programs agree.
#   tools/man/make.sh BUILD_FOLDER OUT_FOLDER
set -eu
build=$1
out=$2
mkdir -p "$out"
version=$("$build/cltrain" --version | cut -d' ' -f2)
dash='s/\\/\\e/g; s/-/\\-/g; s/^\./\\\&./; s/^'"'"'/\\\&'"'"'/'

# Formats stdin as a block without line filling.
verbatim() {
    printf '.PP\n.nf\n'
    sed "$dash"
    printf '.fi\n'
}
section() { printf '.SH %s\n' "$1"; }

cltrain_page() {
    printf '.TH CLTRAIN 1 "" "cltrain %s" "User Commands"\n' "$version"
    section NAME
    printf 'cltrain \\- train MPT language models on any OpenCL device\n'
    section SYNOPSIS
    printf '.B cltrain\n.I COMMAND\n[arguments]\n'
    section DESCRIPTION
    sed "$dash" <<'TEXT'
cltrain trains MPT language models described by LLM Foundry YAML files on any device with an OpenCL driver. With exact numerics
(the default in fp32) runs are bit-identical on every device, for every number of ranks and every microbatch size, and after
every resume.
TEXT
    "$build/cltrain" --help | verbatim
    local c s actions
    for c in $("$build/cltrain" --help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
        "$build/cltrain" "$c" --help >"$out/help" 2>/dev/null || continue
        section "$(echo "cltrain $c" | tr "[:lower:]" "[:upper:]")"
        verbatim <"$out/help"
        actions=$(sed -n '/^\(Actions\|Commands\)/,/^$/s/^  \([a-z]*\)  .*/\1/p' "$out/help")
        for s in $actions; do
            "$build/cltrain" "$c" "$s" --help >"$out/help" 2>/dev/null || continue
            printf '.SS cltrain %s %s\n' "$c" "$s"
            verbatim <"$out/help"
        done
    done
    section ENVIRONMENT
    "$build/cltrain" --help-env | verbatim
    section FILES
    sed "$dash" <<'TEXT'
The folder of a run (save_folder, or runs/{run_name}) contains metrics.jsonl, config.yaml, log.txt and the checkpoints. Compiled
kernels and measurements are cached in $XDG_CACHE_HOME/cltrain and can be removed at any time.
TEXT
    section "EXIT STATUS"
    while IFS='|' read -r code text; do printf '.TP\n.B %s\n%s\n' "$code" "$text"; done <<'TEXT'
0|done
1|a failure that no other code describes
2|invalid command line
65|damaged or unusable data, shard or checkpoint
69|no suitable device
74|a file operation failed
75|rerun the same command to resume: stopped after a save, or ended because of a hang
78|the configuration is invalid or unsupported
130, 143|stopped by SIGINT or SIGTERM without a save
TEXT
    section "SEE ALSO"
    printf '.BR clbench (1)\n'
}

clbench_page() {
    printf '.TH CLBENCH 1 "" "cltrain %s" "User Commands"\n' "$version"
    section NAME
    printf 'clbench \\- measure and check the kernels of cltrain\n'
    section SYNOPSIS
    printf '.B clbench\n.I BENCHMARK\n[options]\n'
    section DESCRIPTION
    "$build/clbench" --help | verbatim
    section "SEE ALSO"
    printf '.BR cltrain (1)\n'
}

cltrain_page >"$out/cltrain.1"
clbench_page >"$out/clbench.1"
rm -f "$out/help"
