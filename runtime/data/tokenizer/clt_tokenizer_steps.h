/* clt_tokenizer_steps: reads the parts of a tokenizer.json around its model. Internal to this folder. */
#ifndef CLT_TOKENIZER_STEPS_H
#define CLT_TOKENIZER_STEPS_H

#include "runtime/data/tokenizer/clt_tokenizer_json.h"

/* A boolean of an object, or `missing`. */
bool clt_tokenizer_flag(const json_t *o, const char *key, bool missing);

/* Normalizer and pre-tokenizer; sets bpe.byte_level. */
clt_status clt_tokenizer_read_steps(clt_json_tokenizer *t, json_t *root);
/* The template; the added tokens are known. */
clt_status clt_tokenizer_read_post_processor(clt_json_tokenizer *t, json_t *root);
/* The decoder, and with it the pieces of all tokens and whether texts can be cut; all else is known. */
clt_status clt_tokenizer_read_decoder(clt_json_tokenizer *t, json_t *root);

#endif
