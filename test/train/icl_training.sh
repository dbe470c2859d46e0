#!/bin/bash
# icl_tasks and eval_gauntlet in a training run: evaluated at eval_interval with the same results on one and on
# several ranks, and with the results of `cltrain eval` on the saved checkpoint.
. test/lib.sh
tasks="{label: mc, dataset_uri: test/golden/icl/data/mc.jsonl, icl_task_type: multiple_choice, num_fewshot: [0, 1]}"
