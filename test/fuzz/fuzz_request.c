/* Hostile requests for completions: any bytes as the body. What is accepted is within its limits, and the
 * text of every error fits a response.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_request.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_request FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>

#include "runtime/train/run/clt_completion.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    clt_error_quiet(true);
    return 0;
}

static void must(bool holds) {
    if (!holds) abort();
}

static void check_prompts(const clt_completion_request *r) {
    const size_t n = json_array_size(r->prompt);
    must(n > 0 && n <= CLT_COMPLETION_PROMPTS);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(r->prompt, i);
        must(json_is_string(v) || json_is_array(v));
        must(json_array_size(v) <= CLT_COMPLETION_TOKENS);
        for (size_t k = 0; k < json_array_size(v); k++)
            must(json_integer_value(json_array_get(v, k)) >= 0 &&
                 json_integer_value(json_array_get(v, k)) <= INT32_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_completion_request r;
    if (clt_completion_parse((const char *)data, size, &r) == CLT_OK) {
        check_prompts(&r);
        must(r.max_tokens >= 0 && r.max_tokens <= CLT_COMPLETION_TOKENS);
        must(r.logprobs >= -1 && r.logprobs <= CLT_COMPLETION_LOGPROBS);
        must(r.stop.n <= CLT_COMPLETION_STOPS);
        must(r.sample.temperature >= 0 && r.sample.top_p > 0 && r.sample.top_p <= 1);
    } else {
        char *text = clt_completion_error(clt_last_error(), "invalid_request_error");
        must(strlen(text) > 2);
        clt_free(text);
    }
    clt_completion_free(&r);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]:,\"\\.0e9-n \nprompt"
#include "test/fuzz/replay.h"
#endif
