/* clt_completion: OpenAI's text completions (POST /v1/completions) without the transport: requests as JSON
 * text in, responses as JSON text out. Prompts are texts or token ids, one or several; the log-probabilities
 * of a prompt's own tokens are given with `echo`, which is how evaluation programs score texts. */
#ifndef CLT_COMPLETION_H
#define CLT_COMPLETION_H

#include <jansson.h>

#include "runtime/train/run/clt_generate.h"

enum {
    CLT_COMPLETION_PROMPTS = 256,    /* most prompts of a request */
    CLT_COMPLETION_LOGPROBS = 20,    /* most alternatives per token */
    CLT_COMPLETION_STOPS = 16,       /* most stop texts */
    CLT_COMPLETION_TOKENS = 1 << 20, /* most tokens of a prompt, and largest max_tokens */
    /* Default limit of the tokens of a response, each counted with its alternatives: about 250 MiB. */
    CLT_COMPLETION_ENTRIES = 1 << 20,
};

typedef struct {
    json_t *prompt; /* owned: a list of texts, or of lists of token ids */
    int64_t max_tokens;
    int64_t logprobs; /* alternatives per token; -1: no log-probabilities */
    bool echo, seeded;
    clt_sample_params sample;
    clt_strv stop;
} clt_completion_request;

/* Reads and checks a request. CLT_BAD_DATA: it is not valid; the reason is in clt_last_error. The caller
 * frees *out with clt_completion_free, also after an error. */
clt_status clt_completion_parse(const char *text, size_t bytes, clt_completion_request *out);
void clt_completion_free(clt_completion_request *r);

/* Where a request is answered. */
typedef struct {
    clt_generator *g;
    const char *name;        /* of the model in responses */
    int64_t number;          /* of the response: its id, and the seed of a request without one */
    int64_t max_entries;     /* tokens of a response, each counted with its alternatives */
    bool (*stop)(void *ctx); /* whether to give up now; NULL: never */
    void *ctx;
} clt_completion_server;

/* Answers a request; *out is JSON text to be freed with clt_free. CLT_BAD_DATA: a prompt does not fit the
 * model, or the response exceeds max_entries (clt_last_error); nothing was computed. CLT_STOPPED: given up.
 */
clt_status clt_completion_answer(const clt_completion_server *s, const clt_completion_request *r, char **out);

/* The answer of GET /v1/models, and that of an error; to be freed with clt_free. */
char *clt_completion_models(const char *name);
char *clt_completion_error(const char *message, const char *type);

#endif
