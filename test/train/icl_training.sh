#!/bin/bash
# icl_tasks and eval_gauntlet in training runs: evaluated at eval_interval beside the eval loader, with the same
# results on one rank, on two with sharded weights, and from `cltrain eval` on the saved checkpoint.
# timeout: 120
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
needs_mpirun
cat >"$tmp/tasks.yaml" <<END
icl_tasks:
- {label: mc, dataset_uri: $golden/icl/data/mc.jsonl, icl_task_type: multiple_choice, num_fewshot: [0, 1]}
- {label: lm, dataset_uri: $golden/icl/data/lm.jsonl, icl_task_type: language_modeling, num_fewshot: [1],
   metric_names: [InContextLearningLMAccuracy, InContextLearningLMExpectedCalibrationError]}
- {label: schema, dataset_uri: $golden/icl/data/schema.jsonl, icl_task_type: schema, num_fewshot: [1]}
END
cat >"$tmp/text.yaml" <<END
icl_tasks:
- {label: gen, dataset_uri: $golden/icl/data/gen.jsonl, icl_task_type: generation_task_with_answers,
   num_fewshot: [1], early_stopping_criteria: ["\n"]}
END
settings=("$golden/e2e/train.yaml" "train_loader.dataset.local=$golden/e2e/mds" "eval_loader.dataset.local=$golden/e2e/mds"
    "tokenizer.name=$golden/icl/tokenizer" max_duration=4ba scheduler.t_max=4ba eval_interval=2ba save_interval=2ba
    eval_subset_num_batches=1 log_config=false log_to_console=false "icl_tasks=$tmp/tasks.yaml"
    "eval_gauntlet={categories: [{name: all, benchmarks: [{name: mc, num_fewshot: 0, random_baseline: 0.25}]}]}")

# run FOLDER RANKS [override ...]
run() {
    local folder=$1 ranks=$2
    shift 2
    local command=(train "${settings[@]}" "save_folder=$tmp/$folder" "$@")
    if [ "$ranks" = 1 ]; then "$cltrain" "${command[@]}"; else on_ranks "$ranks" "${command[@]}"; fi >"$log" 2>&1
    report "$folder runs" $?
}
# rows FOLDER: labels and metrics of the tasks, without times
rows() { grep -o '"batch":[0-9]*,"label":"[^"]*","metrics":{[^}]*}' "$tmp/$1/metrics.jsonl"; }
same() { [ -n "$(rows "$1")" ] && [ "$(rows "$1")" = "$(rows "$2")" ]; report "$1 and $2 have the same metrics" $?; }

run one 1
[ "$(rows one | wc -l)" = 10 ] && [ "$(grep -c '"eval_loss"' "$tmp/one/metrics.jsonl")" = 2 ]
report "two evaluations of four sets, an average and a loader" $?
grep -q 'Eval metrics/mc/0-shot/InContextLearningMultipleChoiceAccuracy: ' "$log"
report "the console has Composer's names" $?
run sharded 2 cltrain.zero_stage=3
same one sharded

# Evaluated again from the checkpoint: the same values, written with more digits.
"$cltrain" eval -q "${settings[@]}" "load_path=$tmp/one/ep0-ba4" --json >"$tmp/eval.json" 2>"$log"
report "eval runs" $?
for label in mc/0-shot mc/1-shot schema/1-shot; do
    trained=$(rows one | grep "\"batch\":4,\"label\":\"$label\"" | grep -o 'Accuracy":[0-9.]*' | cut -d: -f2)
    again=$(grep "\"label\":\"$label\",\"batch\":4" "$tmp/eval.json" | grep -o 'Accuracy":[0-9.]*' | cut -d: -f2)
    awk -v a="$trained" -v b="$again" 'BEGIN { exit !(a != "" && b != "" && (a - b) ^ 2 < 1e-12) }'
    report "$label: eval and training agree" $? "$trained and $again"
done

run text 1 "icl_tasks=$tmp/text.yaml" eval_gauntlet=null
rows text | grep -q '"label":"gen/1-shot","metrics":{"InContextLearningGenerationExactMatchAccuracy":'
report "generation in training" $?
"$cltrain" train "${settings[@]}" max_duration=2ba "icl_tasks=$tmp/none.yaml" >"$log" 2>&1
[ $? = 78 ] && grep -q 'none.yaml: no such file' "$log"
report "a missing task file is an error at the start" $?

# Models of an evaluation YAML without weights: found before the first model is evaluated.
cat >"$tmp/models.yaml" <<END
max_seq_len: 96
device_eval_batch_size: 5
models:
- {model_name: a, model: {name: hf_causal_lm, pretrained_model_name_or_path: $golden/icl/hf}, tokenizer: {name: $golden/icl/tokenizer}}
- model_name: b
  model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 1, max_seq_len: 96, vocab_size: 420}
  tokenizer: {name: $golden/icl/tokenizer}
icl_tasks:
- {label: lm, dataset_uri: $golden/icl/data/lm.jsonl, icl_task_type: language_modeling, num_fewshot: [0]}
END
"$cltrain" eval --json "$tmp/models.yaml" >"$tmp/eval.json" 2>"$log"
[ $? = 78 ] && grep -q "models.yaml:6:3: no weights to evaluate: set 'models.1.load_path'" "$log" && [ ! -s "$tmp/eval.json" ]
report "a model without weights names its load_path" $?
"$cltrain" eval --json "$tmp/models.yaml" models.1.load_path="$golden/nowhere" >/dev/null 2>"$log"
[ $? != 0 ] && ! grep -q "no weights to evaluate" "$log"
report "a load_path is looked for" $?
exit $failed
