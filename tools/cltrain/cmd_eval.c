/* cltrain eval: load_path's weights on the eval loaders and in-context-learning tasks of a YAML, or the
 * logits of given token ids. */
#include "tools/cltrain/commands.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/run/clt_inference.h"
#include "runtime/ops/clt_variant.h"
#include "tools/cltrain/eval_models.h"

int cmd_eval(int argc, char **argv) {
    const char *logits = NULL;
    eval_models_options o = {0};
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &o.device, "PATTERN",
         "part of a platform's or device's name, P:D, or a list with one entry per rank"},
        CLT_DISABLE_ROW_OPTION,
        {"json", 0, CLT_OPT_FLAG, &o.json, NULL, "print a JSON document per evaluation instead of a table"},
        {"items", 0, CLT_OPT_FLAG, &o.items, NULL,
         "with --json: with tokens and log-probability of every item; one rank only"},
        {"logits", 0, CLT_OPT_STR, &logits, "IN OUT",
         "instead, write the logits (fp32) of the token ids `input_ids` [rows, length] of IN.safetensors to "
         "OUT.safetensors, for the model in SOURCE: a checkpoint or a Hugging Face folder"},
    };
    const clt_command command = {
        .name = "cltrain eval",
        .usage = "CONFIG.yaml [load_path=CHECKPOINT] [key.sub=value ...] | SOURCE --logits IN OUT",
        .summary = "Evaluates the weights in load_path (a checkpoint, a folder of checkpoints, or a Hugging "
                   "Face folder) on eval_loader and icl_tasks. CONFIG.yaml is a training configuration or "
                   "LLM Foundry's evaluation YAML with models. Prints one JSON line per loader and a table "
                   "of the tasks' accuracies to stdout.",
        .examples = "  cltrain eval run.yaml load_path=runs/a\n"
                    "  cltrain eval eval.yaml --json models.0.load_path=runs/a\n"
                    "  cltrain eval run.yaml load_path=runs/a/ep0-ba100 eval_subset_num_batches=10\n"
                    "  cltrain eval llama/ --logits ids.safetensors logits.safetensors\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0 && logits && rest.n != 2)
        code = clt_options_fail(&command, "expected SOURCE --logits IN OUT");
    if (code < 0 && logits) {
        code = clt_status_exit_code(clt_inference_logits(rest.v[0], o.device, logits, rest.v[1]));
    } else if (code < 0) {
        clt_status st = eval_models(rest.v[0], (const char *const *)rest.v + 1, rest.n - 1, &o);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
