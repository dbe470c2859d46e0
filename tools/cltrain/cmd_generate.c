/* cltrain generate: continues a text. */
#include "tools/cltrain/commands.h"
#include "runtime/base/clt_options.h"
#include "runtime/train/run/clt_generate.h"

enum { MAX_NEW = 1 << 28 };

/* The prompt comes first, with the first text: after a failed start nothing stands on stdout. */
static void print_text(void *ctx, const char *text, size_t bytes) {
    const char **prompt = ctx;
    if (*prompt) fputs(*prompt, stdout);
    *prompt = NULL;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

int cmd_generate(int argc, char **argv) {
    clt_generate_params p = clt_generate_params_default();
    const clt_option options[] = {
        {"prompt", 'p', CLT_OPT_STR, &p.prompt, "TEXT", "what to continue (default: a new document)"},
        {"max-new-tokens", 'n', CLT_OPT_INT, &p.max_new_tokens, "N", "how many tokens to add (default 128)"},
        {"temperature", 't', CLT_OPT_FLOAT, &p.temperature, "X",
         "0: the most likely token each time (default 0.8)"},
        {"top-k", 'k', CLT_OPT_INT, &p.top_k, "K", "draw among the K likeliest, 0: all (default 40)"},
        {"seed", 's', CLT_OPT_INT, &p.seed, "S", "the same seed gives the same text (default 17)"},
        {"stop-at-eos", 0, CLT_OPT_FLAG, &p.stop_at_eos, NULL, "end at the end of a document"},
        {"no-cache", 0, CLT_OPT_FLAG, &p.no_cache, NULL,
         "keep no keys and values: the same text, slower, with less memory"},
        {"device", 'd', CLT_OPT_STR, &p.device, "PATTERN", "part of a platform's or device's name, or P:D"},
    };
    const clt_command command = {
        .name = "cltrain generate",
        .usage = "SOURCE [--prompt TEXT]",
        .summary = "Continues a text with the model in SOURCE: a checkpoint, a folder of checkpoints (the "
                   "newest valid "
                   "one), or a Hugging Face folder.",
        .examples = "  cltrain generate runs/a --prompt \"The licence\"\n"
                    "  cltrain generate runs/a/ep0-ba100 -p \"Once\" -n 200 --temperature 0\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "one SOURCE is needed");
    if (code < 0 && (!(p.temperature >= 0) || p.max_new_tokens < 0 || p.top_k < 0))
        code = clt_options_fail(
            &command, "temperature, top-k and max-new-tokens must be numbers, and none of them negative");
    if (code < 0 && p.max_new_tokens > MAX_NEW) /* all of them are kept */
        code = clt_options_fail(&command, "--max-new-tokens must be at most %d", MAX_NEW);
    if (code < 0) {
        p.source = rest.v[0];
        const char *prompt = p.prompt;
        clt_status st = clt_generate(&p, print_text, &prompt);
        if (st == CLT_OK) print_text(&prompt, "", 0);
        if (st == CLT_OK) putchar('\n');
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
