/* cltrain generate: continues a text with a trained model. */
#include "tools/cltrain/commands.h"
#include "tools/cltrain/generate_batch.h"
#include "tools/cltrain/generate_chat.h"
#include "runtime/base/clt_options.h"
#include "runtime/ops/clt_variant.h"

enum { MAX_NEW = 1 << 28, TOGETHER = 8, MOST_TOGETHER = 1024 };

/* The prompt is printed together with the first text, so that a failed start prints nothing to stdout. */
static void print_text(void *ctx, const char *text, size_t bytes) {
    const char **prompt = ctx;
    if (*prompt) fputs(*prompt, stdout);
    *prompt = NULL;
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static clt_status continue_text(const clt_generate_params *p) {
    const char *prompt = p->prompt;
    CLT_TRY(clt_generate(p, print_text, &prompt));
    print_text(&prompt, "", 0);
    putchar('\n');
    return CLT_OK;
}

/* -1, or the exit code for a value that is out of range. */
static int check(const clt_command *command, const clt_generate_params *p) {
    const clt_sample_params *s = &p->sample;
    if (!(s->temperature >= 0) || p->max_new_tokens < 0 || s->top_k < 0)
        return clt_options_fail(command, "--temperature, --top-k and --max-new-tokens must not be negative");
    if (p->max_new_tokens > MAX_NEW) /* all of them stay in memory */
        return clt_options_fail(command, "--max-new-tokens must be at most %d", MAX_NEW);
    if (p->texts < 1 || p->texts > MOST_TOGETHER)
        return clt_options_fail(command, "--batch must be from 1 to %d", MOST_TOGETHER);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return clt_options_fail(command, "--top-p must be above 0 and at most 1");
    if (!(s->repetition_penalty > 0))
        return clt_options_fail(command, "--repetition-penalty must be above 0");
    for (size_t i = 0; i < p->stop.n; i++)
        if (!*p->stop.v[i]) return clt_options_fail(command, "--stop needs a text");
    return -1;
}

/* What the options choose among. */
typedef struct {
    const char *chat_template, *system, *prompts, *precision;
    bool chat;
    int64_t seed;
} choices;

/* As check, for options that exclude each other. */
static int choose(const clt_command *command, const choices *c, clt_generate_params *p) {
    if (!clt_dtype_find(c->precision, &p->type))
        return clt_options_fail(command, "--precision must be fp32, bf16 or fp16");
    if ((c->chat_template || c->system) && !c->chat)
        return clt_options_fail(command, "--chat-template and --system need --chat");
    if (c->prompts && (c->chat || *p->prompt))
        return clt_options_fail(command, "--prompts excludes --prompt and --chat");
    p->sample.seed = (uint64_t)c->seed;
    if (!c->prompts) p->texts = 1;
    return -1;
}

static clt_status run(clt_generate_params *p, const choices *c, const char *source) {
    p->source = source;
    if (c->prompts) return generate_batch(p, c->prompts);
    return c->chat ? generate_chat(p, c->chat_template, c->system) : continue_text(p);
}

static clt_generate_params defaults(void) {
    clt_generate_params p = clt_generate_params_default();
    p.texts = TOGETHER;
    return p;
}

int cmd_generate(int argc, char **argv) {
    clt_generate_params p = defaults();
    choices c = {.precision = "fp32", .seed = (int64_t)p.sample.seed};
    const clt_option options[] = {
        {"prompt", 'p', CLT_OPT_STR, &p.prompt, "TEXT", "text to continue (default: start a new document)"},
        {"prompts", 0, CLT_OPT_STR, &c.prompts, "FILE",
         "continue `prompt` of every line of a JSONL file; prints a JSON object per line"},
        {"batch", 0, CLT_OPT_INT, &p.texts, "N",
         "prompts of --prompts that are continued together (default 8)"},
        {"precision", 0, CLT_OPT_STR, &c.precision, "TYPE",
         "fp32: the same text on every device; bf16, fp16: faster, with half the memory (default fp32)"},
        {"max-new-tokens", 'n', CLT_OPT_INT, &p.max_new_tokens, "N",
         "number of tokens to generate (default 128)"},
        {"temperature", 't', CLT_OPT_FLOAT, &p.sample.temperature, "X",
         "sampling temperature; 0: always the most likely token (default 0.8)"},
        {"top-k", 'k', CLT_OPT_INT, &p.sample.top_k, "K",
         "sample from the K most likely tokens; 0: all (default 40)"},
        {"top-p", 0, CLT_OPT_FLOAT, &p.sample.top_p, "P",
         "of these sample only from the most likely ones that together have probability P (default 1)"},
        {"repetition-penalty", 0, CLT_OPT_FLOAT, &p.sample.repetition_penalty, "X",
         "above 1: make tokens of the text so far less likely (default 1)"},
        {"seed", 's', CLT_OPT_INT, &c.seed, "S",
         "seed of the random numbers; the same seed gives the same text (default 17)"},
        {"stop", 0, CLT_OPT_LIST, &p.stop, "TEXT", "end before this text; may be repeated"},
        {"tokenizer", 0, CLT_OPT_STR, &p.tokenizer, "SOURCE",
         "a tokenizer.json, its folder, or bytes (default: the model's own)"},
        {"chat", 0, CLT_OPT_FLAG, &c.chat, NULL,
         "answer the prompt, or, without one, every line of stdin, with a chat model"},
        {"chat-template", 0, CLT_OPT_STR, &c.chat_template, "NAME",
         "chatml, llama3, ... (default: the tokenizer's, else chatml)"},
        {"system", 0, CLT_OPT_STR, &c.system, "TEXT", "system message of --chat"},
        {"stop-at-eos", 0, CLT_OPT_FLAG, &p.stop_at_eos, NULL, "stop at the end of a document"},
        {"no-cache", 0, CLT_OPT_FLAG, &p.no_cache, NULL,
         "do not cache keys and values: the same text, slower, with less memory"},
        {"device", 'd', CLT_OPT_STR, &p.device, "PATTERN", "part of a platform's or device's name, or P:D"},
        CLT_DISABLE_ROW_OPTION,
    };
    const clt_command command = {
        .name = "cltrain generate",
        .usage = "SOURCE [--prompt TEXT]",
        .summary = "Continues a text with the model in SOURCE: a checkpoint, a folder of checkpoints (the "
                   "newest valid one), or a Hugging Face folder.",
        .examples = "  cltrain generate runs/a --prompt \"The licence\"\n"
                    "  cltrain generate runs/a/ep0-ba100 -p \"Once\" -n 200 --temperature 0\n"
                    "  cltrain generate runs/a -p \"Once\" --top-k 0 --top-p 0.9 --stop \"The end\"\n"
                    "  cltrain generate runs/sft --chat\n"
                    "  cltrain generate llama --prompts questions.jsonl --precision bf16 > answers.jsonl\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "exactly one SOURCE is required");
    if (code < 0) code = check(&command, &p);
    if (code < 0) code = choose(&command, &c, &p);
    if (code < 0) code = clt_status_exit_code(run(&p, &c, rest.v[0]));
    clt_strv_free(&rest);
    clt_strv_free(&p.stop);
    return code;
}
