/* cltrain train: trains a model from a configuration. Under a launcher every rank runs this. */
#include <string.h>

#include "collectives/clt_group.h"
#include "commands.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/clt_trainer.h"

/* "3" or "3:5". */
static bool parse_steps(const char *text, int64_t *first, int64_t *last) {
    const char *colon = strchr(text, ':');
    char *head = clt_strndup(text, colon ? (size_t)(colon - text) : strlen(text));
    bool ok = clt_parse_i64(head, first) && clt_parse_i64(colon ? colon + 1 : head, last);
    clt_free(head);
    return ok && *first >= 1 && *last >= *first;
}

static int finish(clt_status st) {
    return clt_status_exit_code(st);
}

int cmd_train(int argc, char **argv) {
    const char *device = NULL, *record = NULL, *record_steps = NULL, *trace = NULL, *trace_steps = NULL;
    bool print = false, list = false, profile = false, check = false;
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &device, "PATTERN",
         "part of a platform's or device's name, P:D, or a list by rank"},
        {"print-config", 0, CLT_OPT_FLAG, &print, NULL,
         "print the merged configuration and where each value came from"},
        {"list-keys", 0, CLT_OPT_FLAG, &list, NULL,
         "print every key of the configuration and what happens to it"},
        {"dry-run", 'n', CLT_OPT_FLAG, &check, NULL, "check the configuration, then end"},
        {"profile", 0, CLT_OPT_FLAG, &profile, NULL, "time every kernel and print a table at the end"},
        {"trace", 0, CLT_OPT_STR, &trace, "FILE",
         "write when the host and each kernel worked, for chrome://tracing and Perfetto"},
        {"trace-steps", 0, CLT_OPT_STR, &trace_steps, "N[:LAST]",
         "optimizer steps to trace, from 1 (default: the third to the fifth of this run)"},
        {"record", 0, CLT_OPT_STR, &record, "DIR",
         "write every launch of a step with its buffers to DIR (tiny models)"},
        {"record-steps", 0, CLT_OPT_STR, &record_steps, "N[:LAST]",
         "optimizer steps to record, from 1 (default: the first of this run)"},
    };
    const clt_command command = {
        .name = "cltrain train",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary =
            "Trains a model as an LLM Foundry YAML says. Values on the command line win over the file.",
        .examples = "  cltrain train run.yaml\n"
                    "  cltrain train run.yaml max_duration=100ba optimizer.lr=1e-3 save_folder=runs/a\n"
                    "  cltrain train run.yaml --device pocl --print-config\n"
                    "  mpirun --bind-to none -np 2 cltrain train run.yaml\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_run_options opt = {.started = clt_now()};
    clt_strv rest = {0};
    clt_config *cfg = NULL;
    clt_str text = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && list) {
        clt_config_list_keys(&text);
        fputs(text.s, stdout);
        code = 0;
    }
    if (code < 0 && rest.n == 0) code = clt_options_fail(&command, "which configuration?");
    if (code < 0 && record_steps &&
        (!record || !parse_steps(record_steps, &opt.record_first, &opt.record_last)))
        code = clt_options_fail(&command,
                                record ? "--record-steps wants N or N:LAST, not '%s'"
                                       : "--record-steps %s needs --record DIR",
                                record_steps);
    if (code < 0 && trace_steps && (!trace || !parse_steps(trace_steps, &opt.trace_first, &opt.trace_last)))
        code = clt_options_fail(&command,
                                trace ? "--trace-steps wants N or N:LAST, not '%s'"
                                      : "--trace-steps %s needs --trace FILE",
                                trace_steps);
    if (code < 0) {
        clt_status st = clt_config_load(rest.v[0], (const char *const *)rest.v + 1, rest.n - 1, &cfg);
        if (st != CLT_OK) code = finish(clt_group_refuse(st));
    }
    if (code < 0 && (print || check)) {
        clt_config_print(cfg, true, &text);
        if (print) fputs(text.s, stdout);
        code = 0;
    }
    opt.device = device;
    opt.profile = profile;
    opt.record = record;
    opt.trace = trace;
    if (code < 0) code = finish(clt_train(cfg, &opt));
    clt_str_free(&text);
    clt_config_free(cfg);
    clt_strv_free(&rest);
    return code;
}
