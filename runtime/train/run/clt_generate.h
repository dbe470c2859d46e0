/* clt_generate: continues a text with a trained model. Sampling is a pure function of the seed and the
 * position (counter-based random numbers), in double on the host, so the same model, prompt and seed give the
 * same text on every device in `numerics: exact`. */
#ifndef CLT_GENERATE_H
#define CLT_GENERATE_H

#include "runtime/train/engine/clt_engine.h"

typedef struct {
    const char *source; /* checkpoint, folder of checkpoints, or Hugging Face folder */
    const char *device; /* pattern or NULL */
    const char *prompt;
    int64_t max_new_tokens;
    double temperature; /* 0: always the most likely token */
    int64_t top_k;      /* 0: all */
    int64_t seed;
    bool stop_at_eos;
    bool no_cache; /* every token by a pass over the whole text: the same text, with less memory */
} clt_generate_params;
clt_generate_params clt_generate_params_default(void); /* 128 tokens, temperature 0.8, top_k 40, seed 17 */

/* Called with each piece of text as it comes. */
typedef void (*clt_text_fn)(void *ctx, const char *text, size_t bytes);

typedef struct clt_generator clt_generator;
/* The model of a checkpoint, a folder of checkpoints or a Hugging Face folder, on a device of its own
 * (pattern or NULL), in fp32 and exact numerics. With `cache` keys and values of the text are kept on the
 * device. */
clt_status clt_generator_open(const char *source, const char *device, bool cache, clt_generator **out);
/* With the weights of an engine, which it borrows, as they are at each call. */
clt_status clt_generator_of_engine(clt_engine *e, const clt_config *cfg, clt_generator **out);
void clt_generator_close(clt_generator *g); /* NULL is allowed */
/* Continues p->prompt, which is not repeated; p->source, device and no_cache are not looked at. A context
 * longer than the model's max_seq_len loses its beginning; then kept keys and values serve no longer, since
 * every position has moved. */
clt_status clt_generator_run(clt_generator *g, const clt_generate_params *p, clt_text_fn out, void *ctx);

/* Opens, runs once, closes. */
clt_status clt_generate(const clt_generate_params *p, clt_text_fn out, void *ctx);

/* One draw from logits [vocab]: softmax with temperature over the top_k largest (ties: the lower ids),
 * position is the counter. Deterministic; exported for tests. */
int32_t clt_sample_token(const float *logits, int64_t vocab, double temperature, int64_t top_k, uint64_t seed,
                         uint64_t position);

#endif
