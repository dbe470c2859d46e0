/* clt_generate: continues a text with a trained model. Tokens are sampled on the host, in double, with random
 * numbers that are a pure function of seed and position. With exact numerics the same model, prompt and seed
 * give the same text on every device. */
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
    bool no_cache; /* recompute the whole text for every token: the same text, slower, with less memory */
} clt_generate_params;
clt_generate_params clt_generate_params_default(void); /* 128 tokens, temperature 0.8, top_k 40, seed 17 */

/* Receives each piece of text as soon as it is generated. */
typedef void (*clt_text_fn)(void *ctx, const char *text, size_t bytes);

typedef struct clt_generator clt_generator;
/* Loads the model of a checkpoint, a folder of checkpoints or a Hugging Face folder on a device that it opens
 * (pattern or NULL), in fp32 with exact numerics. cache: keep the keys and values of the text on the
 * device. */
clt_status clt_generator_open(const char *source, const char *device, bool cache, clt_generator **out);
/* Uses the current weights of an engine, which is borrowed. */
clt_status clt_generator_of_engine(clt_engine *e, const clt_config *cfg, clt_generator **out);
void clt_generator_close(clt_generator *g); /* NULL is allowed */
/* Continues p->prompt; the prompt is not part of the output. p->source, device and no_cache are ignored. Only
 * the last max_seq_len tokens are the context. Once the text is longer, every position moves with each token,
 * and the cached keys and values cannot be used. */
clt_status clt_generator_run(clt_generator *g, const clt_generate_params *p, clt_text_fn out, void *ctx);

/* Opens a generator, runs it once, closes it. */
clt_status clt_generate(const clt_generate_params *p, clt_text_fn out, void *ctx);

/* Samples one token from logits [vocab]: softmax with temperature over the top_k largest (ties: the lower
 * ids). A deterministic function of its arguments. Exported for tests. */
int32_t clt_sample_token(const float *logits, int64_t vocab, double temperature, int64_t top_k, uint64_t seed,
                         uint64_t position);

#endif
