/* clt_generate: continues a text with a trained model. Tokens are chosen by clt_sample. With exact numerics
 * the same model, prompt and parameters give the same text on every device. */
#ifndef CLT_GENERATE_H
#define CLT_GENERATE_H

#include "runtime/data/clt_tokenizer.h"
#include "runtime/train/engine/clt_engine.h"
#include "runtime/train/run/clt_sample.h"

typedef struct {
    const char *source; /* checkpoint, folder of checkpoints, or Hugging Face folder */
    const char *device; /* pattern or NULL */
    const char
        *tokenizer; /* as clt_tokenizer_open takes it; NULL: the one of the source (clt_generator_open) */
    const char *prompt;
    bool prompt_is_chat; /* it has special tokens already: those in its text count, and none are added */
    int64_t max_new_tokens;
    clt_sample_params sample;
    clt_strv stop; /* texts that end the output and are not part of it */
    bool stop_at_eos;
    bool no_cache;  /* recompute the whole text for every token: the same text, slower, with less memory */
    clt_dtype type; /* CLT_F32: exact numerics; a 16-bit type: numerics fast */
    int64_t texts;  /* prompts that clt_generator_run_all continues together, at least 1 */
} clt_generate_params;
/* 128 tokens, temperature 0.8, top_k 40, top_p 1, no penalty, seed 17, fp32, one text */
clt_generate_params clt_generate_params_default(void);

/* Receives each piece of text as soon as it is generated. */
typedef void (*clt_text_fn)(void *ctx, const char *text, size_t bytes);

typedef struct clt_generator clt_generator;
/* Loads the model of p->source on a device that it opens, in p->type. Unless p->no_cache, keys and values of
 * p->texts texts stay on the device. The tokenizer is p->tokenizer; else that of the Hugging
 * Face folder; else the one in the folder `tokenizer` of the checkpoint or of its run; else tokenizer.name of
 * the checkpoint's configuration. CLT_BAD_CONFIG: none of them can be opened. */
clt_status clt_generator_open(const clt_generate_params *p, clt_generator **out);
/* Uses the current weights of an engine, which is borrowed. */
clt_status clt_generator_of_engine(clt_engine *e, const clt_config *cfg, clt_generator **out);
void clt_generator_close(clt_generator *g); /* NULL is allowed */
/* What clt_tokenizer_open got. Borrowed. */
const char *clt_generator_tokenizer_source(const clt_generator *g);
/* What it was made of, borrowed; the model has the shape.texts of clt_generator_open. */
clt_model *clt_generator_model(const clt_generator *g);
const clt_tokenizer *clt_generator_tokenizer(const clt_generator *g);
clt_model_facts clt_generator_facts(const clt_generator *g);
/* Continues p->prompt; the prompt is not part of the output. What the tokenizer's template puts before a text
 * is added to the prompt. p->source, device, tokenizer and no_cache are ignored. Only the last max_seq_len
 * tokens are the context. Once the text is longer, every position moves with each token, and the cached keys
 * and values cannot be used. */
clt_status clt_generator_run(clt_generator *g, const clt_generate_params *p, clt_text_fn out, void *ctx);

/* Receives each piece of the text behind prompt i. */
typedef void (*clt_texts_fn)(void *ctx, size_t i, const char *text, size_t bytes);
/* Called when the text behind prompt i is complete. */
typedef void (*clt_text_end_fn)(void *ctx, size_t i);
/* The same for n prompts instead of p->prompt; up to p->texts of clt_generator_open are continued together,
 * and one that ends makes room for the next. Each gets the text that clt_generator_run gives for it (in exact
 * numerics bit by bit). end may be NULL. */
clt_status clt_generator_run_all(clt_generator *g, const clt_generate_params *p, const char *const *prompt,
                                 size_t n, clt_texts_fn out, clt_text_end_fn end, void *ctx);

/* Opens a generator, runs it once, closes it. */
clt_status clt_generate(const clt_generate_params *p, clt_text_fn out, void *ctx);

#endif
