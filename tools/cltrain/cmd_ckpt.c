/* cltrain ckpt: lists, shows, verifies, compares, converts and prunes checkpoints and weight files. */
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "tools/cltrain/commands.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {"ls", "list the checkpoints of a folder, newest first", ckpt_ls},
    {"show", "print state and tensors of a checkpoint, of another program's folder or of a .safetensors file",
     ckpt_show},
    {"verify", "read everything, check every hash, and report what is damaged", ckpt_verify},
    {"hash", "print one hash of the weights and one of the optimizer state", ckpt_hash},
    {"diff", "compare two sets of weights, tensor by tensor", ckpt_diff},
    {"import", "convert a Hugging Face folder or a universal checkpoint of DeepSpeed to a checkpoint",
     ckpt_import},
    {"export", "convert a checkpoint to a Hugging Face folder or a universal checkpoint of DeepSpeed",
     ckpt_export},
    {"prune", "remove what killed saves left, and old checkpoints", ckpt_prune},
};

static void help(FILE *out) {
    fputs("Examples\n"
          "  cltrain ckpt ls runs/my-run\n"
          "  cltrain ckpt show runs/my-run/ep0-ba100\n"
          "  cltrain ckpt verify runs/my-run\n"
          "  cltrain ckpt diff runs/a/ep0-ba100 runs/b/ep0-ba100\n"
          "  cltrain ckpt import mpt-7b/ start/ep0-ba0\n"
          "  cltrain ckpt export runs/my-run universal/ --deepspeed-universal\n"
          "  cltrain ckpt prune s3://my-bucket/runs/a --keep 3\n"
          "\n"
          "Usage: cltrain ckpt COMMAND [arguments]\n"
          "Lists, shows, verifies, compares, converts and prunes checkpoints and weight files.\n"
          "\n"
          "Commands (details: cltrain ckpt COMMAND --help)\n",
          out);
    for (size_t i = 0; i < CLT_COUNT_OF(verbs); i++)
        fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fputs("\nExit codes: 0 success, 1 diff found differences, 65 damaged or unusable, 74 missing or not "
          "readable.\n",
          out);
}

int cmd_ckpt(int argc, char **argv) {
    const char *names[CLT_COUNT_OF(verbs)];
    if (argc >= 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
        help(stdout);
        return 0;
    }
    if (argc < 2) {
        help(stderr);
        return clt_status_exit_code(CLT_USAGE);
    }
    for (size_t i = 0; i < CLT_COUNT_OF(verbs); i++) {
        names[i] = verbs[i].name;
        if (!strcmp(argv[1], names[i])) return verbs[i].run(argc - 1, argv + 1);
    }
    const char *near = clt_nearest(argv[1], names, CLT_COUNT_OF(verbs));
    clt_error(CLT_USAGE, "cltrain ckpt: unknown command '%s'%s%s%s (see cltrain ckpt --help)", argv[1],
              near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    return clt_status_exit_code(CLT_USAGE);
}

int ckpt_parse(const clt_command *c, int argc, char **argv, int n, clt_strv *rest) {
    int code = clt_options_parse(c, argc, argv, rest);
    if (code < 0 && (n >= 0 ? rest->n != (size_t)n : rest->n < (size_t)-n))
        code = clt_options_fail(c, "expected %s", c->usage);
    if (code >= 0) clt_strv_free(rest);
    return code;
}

const char *ckpt_shape(const clt_ckpt_tensor *t, char *buf) {
    size_t at = (size_t)snprintf(buf, 96, "[");
    for (int d = 0; d < t->dims; d++)
        at += (size_t)snprintf(buf + at, 96 - at, "%s%lld", d ? ", " : "", (long long)t->shape[d]);
    snprintf(buf + at, 96 - at, "]");
    return buf;
}
