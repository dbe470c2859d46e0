#!/bin/bash
# Writes docs/configuration.md: the table of keys comes from the program, that of LLM Foundry's files from the
# facts that test_config_foundry checks. Also writes the table of keys at the end of docs/deepspeed.md.
#   tools/docs.sh build/cltrain            writes the files
#   tools/docs.sh build/cltrain --check    exit 1 when a file is not what would be written
set -eu
cd "$(dirname "$0")/.."
program=$1

# One row for each of LLM Foundry's files: verdict, what replaces names on a hub, what is missing, refused or wrong in it.
foundry_rows() {
    awk '
    function add(list, what) { return list (list == "" ? "" : ", ") what }
    $1 == "thing" {
        split($0, part, / \| /)
        class[$2] = part[2]
        text[$2] = part[3]
        error[$2] = part[4] ~ /^error/
    }
    $1 == "file" { name = $2 }
    $1 == "needs" {
        verdict = "runs"
        here = never = ""
        for (i = 2; i <= NF; i++) {
            if (class[$i] == "local") here = add(here, text[$i])
            if (class[$i] == "not yet" && error[$i] && verdict == "runs") verdict = "not yet"
            if (class[$i] == "refused") verdict = "refused"
            if (class[$i] == "faulty" && verdict == "runs") verdict = "faulty"
            if (class[$i] != "local" && class[$i] != "accepted") never = add(never, text[$i])
        }
        printf "| `%s` | %s | %s | %s |\n", name, verdict, here, never
    }' test/golden/foundry-yaml/facts.txt
}

introduction() {
    cat <<'TEXT'
# Configuration

After this page you can write a training configuration, change values from the command line, and
tell which keys of an LLM Foundry YAML take effect.

A run is described by an LLM Foundry training YAML. Arguments of the form `key.sub=value` change
single values:

    cltrain train run.yaml max_duration=100ba optimizer.lr=1e-3

Later values win: the file, then the command line in order. `cltrain train run.yaml --print-config`
prints every value and where it came from. `cltrain train run.yaml --dry-run` checks the
configuration and names what has no effect; it does not look at devices, memory, data, schedule or
checkpoints. The file `config.yaml` in a run's folder is the configuration after all of this.

## The file
- A YAML document of at most 1 MiB and 32 levels. Tags, several documents and a key given twice are
  errors.
- Anchors (`&x`), aliases (`*x`) and merge keys (`<<: *x`, `<<: [*x, *y]`) work as in YAML 1.1: a
  map's own keys win, then earlier maps of the list. With aliases and references written out a
  document has at most 65,536 values and 4 MiB of text, or `cltrain` exits with 65. Messages about a
  value that comes from an alias name the line where it was written.
- Plain values are read as in YAML 1.2: `yes`, `no`, `on` and `off` are text, `true` and `false` are
  truth values. `1e-3` is a number.
- `${a.b}` stands for another value of the same file, as in `seed: ${variables.seed}`. A value that
  is one reference takes over type and content, also of maps. Inside a longer text the value's text
  is inserted. Circles, unknown keys, `${.relative}` and resolvers such as `${oc.env:X}` are errors.
- In an override the value is YAML: `callbacks={}`, `optimizer.betas=[0.9, 0.99]`,
  `eval_loader.dataset.split=null`. A map given for a map is merged into it, anything else replaces.
  A number in the path selects a list element: `eval_loader.0.label=x`.
- A time is a number (`2e9` works, too) and a unit: `ep` epochs, `ba` batches, `sp` samples, `tok`
  tokens, `dur` a fraction of `max_duration`. Intervals can also be in `sec`, seconds of training. A
  bare number means epochs; times of the scheduler need a unit, as in Composer.

## Keys
| status | meaning |
|---|---|
| honoured | the key does what the last column says |
| no effect | the key is accepted, and one line says that it has no effect and why, unless its value asks for what is done anyway |
| refused | an error with the reason, unless the value is the default |

A key that is in no table is an error that names file, line, column and the nearest known key. The
one exception: a top-level key that aliases or references refer to is accepted with one line.

| key | type | default | status | what it does, or why not |
|---|---|---|---|---|
TEXT
}

rules() {
    cat <<'TEXT'

## Rules between keys
- `cltrain.numerics` and `cltrain.recompute` get their defaults from `precision`. A run may change
  its precision at a resume, since checkpoints always hold the fp32 weights and moments.
- The learning rate of step s (from 1) is `lr * alpha` at the time after max(s - 2, 0) batches:
  Composer steps its schedulers before it counts the batch, so steps 1 and 2 both use time 0.
  `timm_cosine` is at the time after s - 1 batches, as in timm; DeepSpeed's schedules count the
  steps that were not skipped ([deepspeed.md](deepspeed.md)).
  `t_max` must not end before `max_duration`. `t_warmup` and `t_max` must have the same unit after
  `dur` and epochs have been converted to batches, samples or tokens.
- `dataset.max_seq_len` of every loader is `max_seq_len`, which is at most `model.max_seq_len`.
- With `cltrain.numerics: exact` a batch is cut into `cltrain.exact_lanes` lanes and every rank owns
  whole lanes: there are at most as many ranks as lanes, and the batch need not be a multiple of the
  ranks. With `fast` it must be.
- `cltrain.zero_stage: auto` takes the stage of `fsdp_config`: FULL_SHARD 3, SHARD_GRAD_OP 2,
  NO_SHARD 0, HYBRID_SHARD 3, _HYBRID_SHARD_ZERO2 2. As in Composer, `fsdp_config` without
  `sharding_strategy` is FULL_SHARD. A number and a strategy of another stage are an error.
- `data_parallel_shard_degree` times `data_parallel_replicate_degree` is the number of ranks; one of
  them may be -1, the rest. On one rank neither counts. FULL_SHARD and SHARD_GRAD_OP have no
  replicas. The HYBRID strategies need one of the two sizes; without a strategy the sizes alone make
  the groups. Consecutive ranks are a group. Groups shard weights only; gradients and optimizer
  state are sharded over all ranks ([launching.md](launching.md)).
- `param_groups` claim tensors in the listed order; what no group claims belongs to the default
  group. The expressions are POSIX extended regular expressions, searched anywhere in the name.
- In `save_filename`, `save_latest_filename` and `load_path`, `{rank}` and `{local_rank}` become 0
  and a trailing `.pt` is dropped: checkpoints belong to no rank.
- `autoresume` is on when there is a `save_folder`, unless `save_overwrite`, `save_weights_only` or
  `autoresume: false` is set. A checkpoint found there wins over `load_path`.
- `callbacks.kill_loss_spike` sets `cltrain.guards.loss_spike`: `log_only: true` is `warn`,
  `log_only: false` is `stop`. Its `window_size`, unless 100, becomes `spike_window`, within the
  limits of that key. LLM Foundry ends a run after `patience` losses above `outlier_multiplier`
  times their mean; here one loss or gradient norm `spike_threshold` standard deviations above the
  mean is enough.
- `callbacks.early_stopper` follows Composer's rule: the run ends at an evaluation more than
  `patience` after the best one; with a patience in batches also between evaluations. A smaller
  `LanguageCrossEntropy` is better; Composer takes a larger one for better, unless `comp` is given.
- `callbacks.layer_freezing`, `load_checkpoint` and `global_lr_scaling` set
  `optimizer.disable_grad`, `load_path`, and the learning rates and weight decays of all groups.
- Metrics have Composer's names in TensorBoard, MLflow and the file of `file_logger`; the step of a
  row is the number of finished batches, as in metrics.jsonl. Which names there are follows the
  callbacks. Each start of a run adds an event file, and TensorBoard joins them; a resumed run
  continues its MLflow run. Only rank 0 writes. A file that cannot be written costs one warning.
  `cltrain.csv` and `cltrain.prometheus` name a CSV file and a file for Prometheus. To read the
  folder of `loggers.mlflow`, newer versions of MLflow need `MLFLOW_ALLOW_FILE_STORE=true` in the
  environment, or `mlflow migrate-filestore`.
- Keys that contradict each other are an error that names both places: `callbacks.kill_loss_spike`
  and `cltrain.guards`, `fsdp_config.activation_checkpointing: true` and another `cltrain.recompute`
  than `blocks`, `fsdp_config.cpu_offload: true` and `cltrain.offload: none`, `eval_loader` and
  `eval_loaders`.

## LLM Foundry's own files
The training files of LLM Foundry, in `scripts/train/yamls` and `scripts/train`. Most of them name a
tokenizer and a model on the Hugging Face hub, which cltrain does not download: a file that runs
does so with the folders of the third column in their place. A file that loads a remote checkpoint
runs with a local one (`load_path=FOLDER`). A faulty file is an error in LLM Foundry, too; the last
column says what to change.

| file | verdict | in place of names on a hub | refused, or wrong in the file |
|---|---|---|---|
TEXT
}

write_configuration() {
    introduction
    "$program" train --list-keys
    rules
    foundry_rows
}

# The page up to the head of its last table, and that table.
write_deepspeed() {
    sed '/^| key | type |/q' docs/deepspeed.md
    echo "|---|---|---|---|---|"
    "$program" train --list-deepspeed-keys
}

for name in configuration deepspeed; do
    page=docs/$name.md
    if [ "${2:-}" = --check ]; then
        write_$name | diff -u "$page" - || {
            echo "$page is not what the program says: run make docs" >&2
            exit 1
        }
    else
        write_$name >"$page.tmp" && mv "$page.tmp" "$page"
    fi
done
