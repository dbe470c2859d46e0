/* cltrain eval: loss and perplexity of load_path's weights on the configuration's eval loaders, or the logits
 * of given token ids. */
#include "collectives/clt_group.h"
#include "tools/cltrain/commands.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/run/clt_inference.h"
#include "runtime/train/run/clt_trainer.h"

int cmd_eval(int argc, char **argv) {
    const char *device = NULL, *logits = NULL;
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &device, "PATTERN",
         "part of a platform's or device's name, P:D, or a list with one entry per rank"},
        {"logits", 0, CLT_OPT_STR, &logits, "IN OUT",
         "instead, write the logits (fp32) of the token ids `input_ids` [rows, length] of IN.safetensors to "
         "OUT.safetensors, for the model in SOURCE: a checkpoint or a Hugging Face folder"},
    };
    const clt_command command = {
        .name = "cltrain eval",
        .usage = "CONFIG.yaml [load_path=CHECKPOINT] [key.sub=value ...] | SOURCE --logits IN OUT",
        .summary = "Evaluates the weights in load_path (a checkpoint, a folder of checkpoints, or a Hugging "
                   "Face folder) on eval_loader. Prints one JSON line per loader to stdout.",
        .examples = "  cltrain eval run.yaml load_path=runs/a\n"
                    "  cltrain eval run.yaml load_path=runs/a/ep0-ba100 eval_subset_num_batches=10\n"
                    "  cltrain eval llama/ --logits ids.safetensors logits.safetensors\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    clt_config *cfg = NULL;
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0 && logits && rest.n != 2)
        code = clt_options_fail(&command, "expected SOURCE --logits IN OUT");
    if (code < 0 && logits) {
        code = clt_status_exit_code(clt_inference_logits(rest.v[0], device, logits, rest.v[1]));
    } else if (code < 0) {
        clt_status st = clt_config_load(rest.v[0], (const char *const *)rest.v + 1, rest.n - 1, &cfg);
        clt_run_options opt = {.device = device, .started = clt_now()};
        st = st == CLT_OK ? clt_evaluate(cfg, &opt) : clt_group_refuse(st);
        code = clt_status_exit_code(st);
    }
    clt_config_free(cfg);
    clt_strv_free(&rest);
    return code;
}
