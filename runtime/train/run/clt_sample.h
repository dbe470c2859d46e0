/* clt_sample: chooses the next token of a text from a model's logits, on the host, in double, with random
 * numbers that are a pure function of seed and position. The same logits and parameters give the same token
 * on every machine. The steps and their order are those of Hugging Face's generate: penalty for repetition,
 * temperature, top_k, top_p. */
#ifndef CLT_SAMPLE_H
#define CLT_SAMPLE_H

#include "runtime/base/clt_base.h"

typedef struct {
    double
        temperature; /* 0: always the most likely token; the other options but the penalty have no effect */
    int64_t top_k;   /* only so many of the most likely tokens; 0: all */
    double top_p;    /* of these only the most likely ones that together reach this probability, at least one;
                        1: all */
    double repetition_penalty; /* 1: none; above 0 (clt_sample_penalize) */
    uint64_t seed;
} clt_sample_params;

/* Makes every token of ids[0, n) less likely (penalty > 1) or more (< 1), once: a positive logit is divided
 * by the penalty, a negative one multiplied. Ids must be below the size of logits. `seen` [vocab] is all
 * false before and after. (CTRL, arXiv:1909.05858, section 4.1, with the sign handled as in transformers) */
void clt_sample_penalize(float *logits, const int32_t *ids, size_t n, double penalty, bool *seen);

/* The token for position `position` of the text, from logits [vocab]. Of equal logits the lower ids come
 * first. repetition_penalty is not applied here. */
int32_t clt_sample_token(const float *logits, int64_t vocab, const clt_sample_params *p, uint64_t position);

#endif
