/* cltrain serve: answers OpenAI-style requests for completions over HTTP. */
#include "runtime/base/clt_options.h"
#include "runtime/base/clt_signal.h"
#include "runtime/train/run/clt_completion.h"
#include "runtime/ops/clt_variant.h"
#include "tools/cltrain/commands.h"
#include "tools/cltrain/serve_http.h"

static bool is_over(void *job) {
    return serve_job_is_over(job);
}

/* serve_answer_fn */
static clt_status answer(void *ctx, serve_job *job, const char *body, size_t bytes, char **out) {
    clt_completion_server *s = ctx;
    clt_completion_request r;
    s->number++;
    s->ctx = job;
    clt_status st = clt_completion_parse(body, bytes, &r);
    if (st == CLT_OK) st = clt_completion_answer(s, &r, out);
    clt_completion_free(&r);
    return st;
}

static bool is_interrupted(void *unused) {
    (void)unused;
    return clt_signal_received();
}

/* Answers a long and a short prompt with all that a request can ask for, so that the kernels are compiled
 * before the first client waits: on some drivers that takes longer than a request may. */
static clt_status warm_up(clt_completion_server s) {
    enum { LONG = 100, NEW = 2 };
    const int64_t n = CLT_MIN(clt_generator_facts(s.g).max_seq_len - NEW, LONG);
    if (n < 1) return CLT_OK; /* no request of this kind fits the model */
    clt_str text = {0};
    clt_completion_request r;
    char *out = NULL;
    clt_str_add(&text, "{\"prompt\": [[0");
    for (int64_t i = 1; i < n; i++) clt_str_add(&text, ",0");
    clt_str_addf(&text, "], [0]], \"max_tokens\": %d, \"logprobs\": 1, \"echo\": true}", NEW);
    s.max_entries = CLT_COMPLETION_ENTRIES;
    s.stop = is_interrupted;
    clt_info("answering a request of its own, so that kernels are compiled before the first client's");
    clt_status st = clt_completion_parse(text.s, text.len, &r);
    if (st == CLT_OK) st = clt_completion_answer(&s, &r, &out);
    clt_completion_free(&r);
    clt_str_free(&text);
    clt_free(out);
    return st;
}

static clt_status serve(const clt_generate_params *p, const serve_http_options *o, int64_t max_entries) {
    clt_completion_server s = {.name = o->name, .max_entries = max_entries, .stop = is_over};
    CLT_TRY(clt_generator_open(p, &s.g));
    clt_status st = warm_up(s);
    if (st == CLT_OK) st = serve_http_run(o, answer, &s);
    clt_generator_close(s.g);
    return st;
}

static int check(const clt_command *command, const serve_http_options *o, int64_t max_entries) {
    enum { MOST_PORT = 65535, MOST_CONNECTIONS = 1024 };
    if (o->port < 0 || o->port > MOST_PORT)
        return clt_options_fail(command, "--port must be from 0 to %d", MOST_PORT);
    if (o->connections < 1 || o->connections > MOST_CONNECTIONS)
        return clt_options_fail(command, "--connections must be from 1 to %d", MOST_CONNECTIONS);
    if (o->max_bytes < 1 || max_entries < 1 || !(o->seconds > 0))
        return clt_options_fail(command, "--max-bytes, --max-entries and --timeout must be above 0");
    return -1;
}

int cmd_serve(int argc, char **argv) {
    clt_generate_params p = clt_generate_params_default();
    serve_http_options o = {
        .host = "127.0.0.1", .port = 8000, .max_bytes = 4 << 20, .connections = 64, .seconds = 300};
    int64_t max_entries = CLT_COMPLETION_ENTRIES;
    const clt_option options[] = {
        {"port", 'p', CLT_OPT_INT, &o.port, "N", "port to listen on; 0: any free one (default 8000)"},
        {"host", 0, CLT_OPT_STR, &o.host, "ADDRESS",
         "address to listen on (default 127.0.0.1: only this computer; 0.0.0.0: every network)"},
        {"name", 0, CLT_OPT_STR, &o.name, "NAME", "the model's name in responses (default: SOURCE)"},
        {"tokenizer", 0, CLT_OPT_STR, &p.tokenizer, "PATH",
         "tokenizer.json, its folder, or bytes (default: the model's)"},
        {"timeout", 0, CLT_OPT_FLOAT, &o.seconds, "S",
         "seconds to read a request, again to answer it, and again to send the answer (default 300)"},
        {"max-bytes", 0, CLT_OPT_INT, &o.max_bytes, "N", "bytes of a request at most (default 4 MiB)"},
        {"max-entries", 0, CLT_OPT_INT, &max_entries, "N",
         "tokens of a response at most, each counted with its alternatives (default 1 Mi)"},
        {"connections", 0, CLT_OPT_INT, &o.connections, "N", "open connections at most (default 64)"},
        {"device", 'd', CLT_OPT_STR, &p.device, "PATTERN", "part of a platform's or device's name, or P:D"},
        CLT_DISABLE_ROW_OPTION,
    };
    const clt_command command = {
        .name = "cltrain serve",
        .usage = "SOURCE [--port N]",
        .summary =
            "Answers POST /v1/completions (OpenAI's format, with logprobs and echo), GET /v1/models and "
            "GET /health with the model in SOURCE: a checkpoint, a folder of checkpoints, or a Hugging "
            "Face folder. There is no encryption and no password.",
        .examples =
            "  cltrain serve runs/a\n"
            "  cltrain serve model --port 8080\n"
            "  curl -s localhost:8000/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": 20}'\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n != 1) code = clt_options_fail(&command, "exactly one SOURCE is required");
    if (code < 0) code = check(&command, &o, max_entries);
    if (code < 0) {
        clt_signal_install("\nstopping: the request in progress is ended\n");
        p.source = rest.v[0];
        if (!o.name) o.name = p.source;
        code = clt_status_exit_code(serve(&p, &o, max_entries));
    }
    clt_strv_free(&rest);
    return code;
}
