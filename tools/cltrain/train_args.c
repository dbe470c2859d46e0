#include "tools/cltrain/train_args.h"

#include <string.h>

#include "collectives/clt_group.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/config/clt_deepspeed.h"
#include "runtime/ops/clt_variant.h"

/* Parses "3" or "3:5". */
static bool parse_steps(const char *text, int64_t *first, int64_t *last) {
    const char *colon = strchr(text, ':');
    char *head = clt_strndup(text, colon ? (size_t)(colon - text) : strlen(text));
    bool ok = clt_parse_i64(head, first) && clt_parse_i64(colon ? colon + 1 : head, last);
    clt_free(head);
    return ok && *first >= 1 && *last >= *first;
}

/* Options with a syntax of their own. */
typedef struct {
    const char *record_steps, *trace_steps, *stop_after, *deepspeed;
} forms;

static int parse_forms(const clt_command *command, const forms *f, clt_run_options *o) {
    if (f->record_steps && (!o->record || !parse_steps(f->record_steps, &o->record_first, &o->record_last)))
        return clt_options_fail(command,
                                o->record ? "--record-steps must be N or N:LAST, not '%s'"
                                          : "--record-steps %s needs --record DIR",
                                f->record_steps);
    if (f->trace_steps && (!o->trace || !parse_steps(f->trace_steps, &o->trace_first, &o->trace_last)))
        return clt_options_fail(command,
                                o->trace ? "--trace-steps must be N or N:LAST, not '%s'"
                                         : "--trace-steps %s needs --trace FILE",
                                f->trace_steps);
    if (f->stop_after && !clt_time_parse_length(f->stop_after, &o->stop_after))
        return clt_options_fail(
            command,
            "--stop-after must be a time such as 200ba, 1ep, 5000sp, 2000000tok, 0.1dur or 3600sec, not '%s'",
            f->stop_after);
    return -1;
}

/* The file's name is text whatever it looks like. */
char *clt_train_deepspeed_override(const char *path) {
    clt_str text = {0};
    clt_str_add(&text, "deepspeed=");
    clt_json_escape(&text, path);
    return text.s;
}

/* What is done instead of a run. */
typedef struct {
    bool print, list, list_deepspeed, check, json;
} asked;

static void print_summary(const clt_config *c) {
    json_t *summary = clt_config_summary(c, clt_launch_detect().size);
    char *text = json_dumps(summary, 0);
    puts(text);
    clt_free(text);
    json_decref(summary);
}

/* Reads the configuration. Returns -1 to start the run, or an exit code after --print-config and
 * --dry-run. */
static int load(clt_strv *rest, const char *deepspeed, const asked *a, clt_train_args *out) {
    clt_str text = {0};
    if (deepspeed) clt_strv_add_owned(rest, clt_train_deepspeed_override(deepspeed));
    clt_status st = clt_config_load(rest->v[0], (const char *const *)rest->v + 1, rest->n - 1, &out->cfg);
    if (st != CLT_OK) return clt_status_exit_code(clt_group_refuse(st));
    if (!a->print && !a->check) return -1;
    clt_config_print(out->cfg, true, &text);
    if (a->print) fputs(text.s, stdout);
    clt_str_free(&text);
    if (a->json) print_summary(out->cfg);
    if (a->check) {
        clt_config_notices(out->cfg);
        clt_info(
            "%s: configuration is valid; devices, memory, data, schedule and checkpoints were not checked",
            rest->v[0]);
    }
    return 0;
}

static int list_keys(const asked *a) {
    void (*list)(clt_str * out) = a->list ? clt_config_list_keys : clt_deepspeed_list_keys;
    clt_str text = {0};
    list(&text);
    fputs(text.s, stdout);
    clt_str_free(&text);
    return 0;
}

int clt_train_args_read(int argc, char **argv, clt_train_args *out) {
    *out = (clt_train_args){.opt = {.started = clt_now()}};
    clt_run_options *o = &out->opt;
    forms f = {0};
    asked a = {0};
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &o->device, "PATTERN",
         "part of a platform's or device's name, P:D, or a list with one entry per rank"},
        CLT_DISABLE_ROW_OPTION,
        {"deepspeed", 0, CLT_OPT_STR, &f.deepspeed, "FILE",
         "merge a DeepSpeed configuration (ds_config.json) into CONFIG.yaml (docs/deepspeed.md)"},
        {"print-config", 0, CLT_OPT_FLAG, &a.print, NULL,
         "print the merged configuration and the source of each value"},
        {"list-keys", 0, CLT_OPT_FLAG, &a.list, NULL,
         "print every key of the configuration, its status and its meaning"},
        {"list-deepspeed-keys", 0, CLT_OPT_FLAG, &a.list_deepspeed, NULL,
         "print every key of a DeepSpeed configuration, its status and its meaning"},
        {"dry-run", 'n', CLT_OPT_FLAG, &a.check, NULL,
         "check the configuration, name what has no effect, then exit; devices and data are not checked"},
        {"json", 0, CLT_OPT_FLAG, &a.json, NULL,
         "with --dry-run: print what the run trains with as one JSON object"},
        {"stop-after", 0, CLT_OPT_STR, &f.stop_after, "TIME",
         "train this long (200ba, 1ep, 3600sec ...), then save and exit with code 75; max_duration and "
         "schedule stay unchanged"},
        {"log-samples", 0, CLT_OPT_STR, &o->log_samples, "DIR",
         "append the samples of each batch to DIR/rankN.jsonl"},
        {"profile", 0, CLT_OPT_FLAG, &o->profile, NULL,
         "measure the time of every kernel and print a table at the end"},
        {"trace", 0, CLT_OPT_STR, &o->trace, "FILE",
         "write a timeline of all ranks (host, kernels) to FILE, for chrome://tracing and Perfetto"},
        {"trace-steps", 0, CLT_OPT_STR, &f.trace_steps, "N[:LAST]",
         "optimizer steps to trace, counted from 1 (default: the third to the fifth of this process)"},
        {"record", 0, CLT_OPT_STR, &o->record, "DIR",
         "write every kernel launch of a step with its buffers to DIR (for tiny models)"},
        {"record-steps", 0, CLT_OPT_STR, &f.record_steps, "N[:LAST]",
         "optimizer steps to record, counted from 1 (default: the first of this process)"},
    };
    const clt_command command = {
        .name = "cltrain train",
        .usage = "CONFIG.yaml [key.sub=value ...]",
        .summary = "Trains a model described by an LLM Foundry YAML. Values given as arguments override it.",
        .examples = "  cltrain train run.yaml\n"
                    "  cltrain train run.yaml max_duration=100ba optimizer.lr=1e-3 save_folder=runs/a\n"
                    "  cltrain train run.yaml --device pocl --print-config\n"
                    "  cltrain train run.yaml --deepspeed ds_config.json\n"
                    "  mpirun --bind-to none -np 2 cltrain train run.yaml\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && (a.list || a.list_deepspeed)) code = list_keys(&a);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "a configuration is required: CONFIG.yaml");
    if (code < 0 && a.json && (!a.check || a.print))
        code = clt_options_fail(&command, "--json needs --dry-run, without --print-config");
    if (code < 0) code = parse_forms(&command, &f, o);
    if (code < 0) code = load(&rest, f.deepspeed, &a, out);
    clt_strv_free(&rest);
    return code;
}

void clt_train_args_free(clt_train_args *a) {
    clt_config_free(a->cfg);
}
