/* The simple API: train a run, or generate a text, in one call. */
#include "runtime/api/api.h"

cltrain_status cltrain_train(const char *config_path, const char *const *settings, size_t count) {
    cltrain_run *run;
    cltrain_status st = cltrain_run_create(&run);
    if (st != CLTRAIN_OK) return st;
    st = cltrain_run_config_file(run, config_path);
    for (size_t i = 0; i < count && st == CLTRAIN_OK; i++) st = cltrain_run_set(run, settings[i]);
    if (st == CLTRAIN_OK) st = cltrain_run_open(run);
    if (st == CLTRAIN_OK) st = cltrain_run_train(run, 0);
    cltrain_run_close(run);
    return st;
}

cltrain_generation cltrain_generation_default(void) {
    const clt_generate_params p = clt_generate_params_default();
    return (cltrain_generation){.max_new_tokens = p.max_new_tokens,
                                .temperature = p.sample.temperature,
                                .top_k = p.sample.top_k,
                                .seed = (int64_t)p.sample.seed,
                                .stop_at_end_of_text = 1};
}

clt_generate_params api_generate_params(const char *prompt, const cltrain_generation *options) {
    const cltrain_generation o = options ? *options : cltrain_generation_default();
    clt_generate_params p = clt_generate_params_default();
    p.prompt = prompt;
    p.max_new_tokens = CLT_MAX(o.max_new_tokens, 0);
    p.sample.temperature = o.temperature;
    p.sample.top_k = o.top_k;
    p.sample.seed = (uint64_t)o.seed;
    p.stop_at_eos = o.stop_at_end_of_text != 0;
    return p;
}

cltrain_status cltrain_generate(const char *source, const char *prompt, const cltrain_generation *options,
                                cltrain_text_fn text, void *context) {
    if (!source || !prompt || !text) return api_misuse("%s: an argument is NULL", __func__);
    clt_generate_params p = api_generate_params(prompt, options);
    const clt_context_params quiet = {.level = CLT_LOG_ERROR};
    clt_context *own = clt_context_create(&quiet), *before = clt_context_enter(own);
    clt_context_set_env(own, CLT_ENV_NO_CACHE, "1");
    p.source = source;
    clt_status st = clt_generate(&p, text, context);
    if (st == CLT_OK) st = clt_memory_check();
    clt_context_enter(before);
    clt_context_destroy(own);
    return api_status(st);
}
