/* clt_dropout: the constants of one dropout call, as every dropout kernel and the oracle use them. */
#ifndef CLT_DROPOUT_H
#define CLT_DROPOUT_H

#include "runtime/base/clt_philox.h"

typedef struct {
    uint32_t key[2];
    uint32_t threshold; /* an element is dropped when its word is below this: p * 2^32 rounded down */
    float scale;        /* 1 / (1 - p), rounded once */
} clt_dropout_constants;

/* The sites of a layer's dropout: the low three bits of the counter's third word. */
enum {
    CLT_SITE_ATTENTION = 0, /* attention probabilities */
    CLT_SITE_EMBEDDING = 1, /* the sum of the embeddings; layer 0 */
    CLT_SITE_ATTENTION_OUT = 2,
    CLT_SITE_FFN_OUT = 3
};

/* 0 <= p < 1. */
static inline clt_dropout_constants clt_dropout_constants_of(float p, uint64_t seed) {
    clt_dropout_constants c;
    clt_philox_key(seed, CLT_RNG_DROPOUT, c.key);
    c.threshold = (uint32_t)((double)p * 4294967296.0);
    c.scale = (float)(1.0 / (1.0 - (double)p));
    return c;
}

#endif
