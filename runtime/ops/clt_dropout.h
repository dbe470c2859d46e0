/* clt_dropout: the constants of one dropout call, as every dropout kernel and the oracle use them. Each
 * element has a random 32-bit word, from Philox with this key and a counter (docs/numerics.md). */
#ifndef CLT_DROPOUT_H
#define CLT_DROPOUT_H

#include "runtime/base/clt_philox.h"

typedef struct {
    uint32_t key[2];
    uint32_t threshold; /* p * 2^32 rounded down; an element is dropped if its word is below this */
    float scale;        /* factor of kept elements: 1 / (1 - p), computed in double, then rounded to fp32 */
} clt_dropout_constants;

/* The places in a model layer where dropout is applied: the low three bits of the counter's third word. */
enum {
    CLT_SITE_ATTENTION = 0,      /* attention probabilities */
    CLT_SITE_EMBEDDING = 1,      /* the sum of the embeddings; always with layer 0 */
    CLT_SITE_ATTENTION_OUT = 2,  /* output of the attention block, before the residual is added */
    CLT_SITE_FFN_OUT = 3,        /* output of the feed-forward block, before the residual is added */
    CLT_SITE_ATTENTION_PATH = 4, /* a whole branch of a sample (drop path) */
    CLT_SITE_FFN_PATH = 5
};

/* p must be in [0, 1); nothing is checked. */
static inline clt_dropout_constants clt_dropout_constants_of(float p, uint64_t seed) {
    clt_dropout_constants c;
    clt_philox_key(seed, CLT_RNG_DROPOUT, c.key);
    c.threshold = (uint32_t)((double)p * 4294967296.0);
    c.scale = (float)(1.0 / (1.0 - (double)p));
    return c;
}

#endif
