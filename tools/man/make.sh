#!/bin/bash
# Writes cltrain.1 and clbench.1 from the programs' own --help, so that the pages cannot differ from the programs.
#   tools/man/make.sh BUILD_FOLDER OUT_FOLDER
set -eu
build=$1
out=$2
mkdir -p "$out"
version=$("$build/cltrain" --version | cut -d' ' -f2)
dash='s/\\/\\e/g; s/-/\\-/g; s/^\./\\\&./; s/^'"'"'/\\\&'"'"'/'

# A block of text exactly as it was printed.
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
cltrain trains transformer models from LLM Foundry YAML files on every device that has an OpenCL driver. With exact numerics (the
default in fp32) a run gives the same bits on every device, for every number of ranks and every microbatch size, and across stops.
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
A run's folder (save_folder, or runs/{run_name}) holds metrics.jsonl, config.yaml, log.txt and the checkpoints. Compiled kernels and
measurements are kept in $XDG_CACHE_HOME/cltrain; they can be removed at any time.
TEXT
    section "EXIT STATUS"
    while IFS='|' read -r code text; do printf '.TP\n.B %s\n%s\n' "$code" "$text"; done <<'TEXT'
0|done
1|something failed that no other code names
2|wrong command line
65|damaged or unusable data, shard or checkpoint
69|no device that can do this
74|the file system refused
75|run the same command again: stopped after a good save, or a hang was ended
78|the configuration is wrong or asks for what cannot be done
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
