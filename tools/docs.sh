#!/bin/bash
# Writes docs/configuration.md from the program's own table of keys.
#   tools/docs.sh build/cltrain            writes the file
#   tools/docs.sh build/cltrain --check    exit 1 when the file is not what would be written
set -eu
cd "$(dirname "$0")/.."
program=$1
page=docs/configuration.md

write() {
    cat <<'TEXT'
# Configuration

A run is described by an LLM Foundry training YAML, and `key.sub=value` arguments change single values:

    cltrain train run.yaml max_duration=100ba optimizer.lr=1e-3

Later values win: file, then command line in order. `cltrain train run.yaml --print-config` prints every value with the place
it came from. The file `config.yaml` in a run's folder is the configuration after all of this.

## The file
- YAML without anchors, aliases, merge keys and tags; at most 1 MiB and 32 levels. A key given twice is an error.
- Plain values are read as in YAML 1.2: `yes`, `no`, `on`, `off` are text, `true` and `false` are truth values; `1e-3` is a number.
- `${a.b}` stands for another value of the same file, so `max_seq_len: ${variables.max_seq_len}`. A value that is one reference takes
  over type and content (maps too); inside a longer text the value's text is put in. Circles, unknown keys, `${.relative}` and
  resolvers such as `${oc.env:X}` are errors.
- In an override the value is YAML: `callbacks={}`, `optimizer.betas=[0.9, 0.99]`, `eval_loader.dataset.split=null`. A map given for a
  map is merged into it, anything else replaces. A number in the path picks a list element: `eval_loader.0.label=x`.
- Times are a number (`2e9` is one, too) and a unit: `ep` epochs, `ba` batches, `sp` samples, `tok` tokens, `dur` a fraction of
  `max_duration`; intervals also `sec`, seconds of training. A bare number means epochs; times of the scheduler need a unit,
  as in Composer.

## Keys
"honoured" keys do what the last column says. "no effect" keys are allowed; when one is set to something else than its default, one
line says that it has no effect here, and why. "refused" keys are errors with the reason. Every other key is an error that names file,
line, column and the nearest known key.

| key | type | default | status | what it does, or why not |
|---|---|---|---|---|
TEXT
    "$program" train --list-keys
    cat <<'TEXT'

## Rules between keys
- `precision` defaults to amp_bf16 as in Foundry. `cltrain.numerics` and `cltrain.recompute` get their defaults from it. A run may change its
  precision at a resume: checkpoints hold the fp32 weights and moments in any case.
- The learning rate of step s (from 1) is `lr * alpha` of the time after max(s - 2, 0) batches: Composer steps its schedulers before it counts the batch, so steps
  1 and 2 both use time 0. `t_max` must not end before `max_duration`; `t_warmup` and `t_max` must be in the same unit after `dur` and
  epochs were turned into batches, samples or tokens.
- `dataset.max_seq_len` of every loader is `max_seq_len`, and that may be at most `model.max_seq_len`.
- In `cltrain.numerics: exact` a batch is cut into `cltrain.exact_lanes` lanes and every rank owns whole lanes: there can be as many ranks
  as lanes, and the batch need not divide by the ranks. In `fast` it must.
- `param_groups` claim tensors in the listed order; what no group claims belongs to the default group. The expressions are POSIX
  extended regular expressions, searched anywhere in the name.
- In `save_filename`, `save_latest_filename` and `load_path`, `{rank}` becomes 0 and a trailing `.pt` is dropped: checkpoints belong to
  no rank.
- `autoresume` is on when there is a `save_folder`, unless `save_overwrite`, `save_weights_only` or `autoresume: false` is set. A checkpoint
  found there wins over `load_path`.
TEXT
}

if [ "${2:-}" = --check ]; then
    write | diff -u "$page" - || {
        echo "$page is not what the program says: run make docs" >&2
        exit 1
    }
else
    write >"$page.tmp" && mv "$page.tmp" "$page"
fi
