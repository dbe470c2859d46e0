/* clt_bpe_train: learns the merges of byte-pair encoding from counted words (Sennrich et al.,
 * arXiv:1508.07909): the most frequent pair of neighbours becomes a token, and so on. Of equally frequent
 * pairs the one with the smaller ids comes first. The result is that of BpeTrainer of the package
 * `tokenizers`, pair by pair, and depends on the counts alone. Internal to this folder. */
#ifndef CLT_BPE_TRAIN_H
#define CLT_BPE_TRAIN_H

#include "runtime/data/tokenizer/clt_word_count.h"

typedef struct {
    int64_t vocab_size;    /* of the result, with what `tokens` had; reached unless pairs run out */
    int64_t min_frequency; /* pairs that are less frequent are not merged */
    int32_t byte_id[256];  /* the tokens of the bytes */
} clt_bpe_train_params;

/* The tokens as byte strings, and the merges in order. Before: the tokens that the ids of `byte_id` and other
 * tokens have; training appends. Start from {0}. */
typedef struct {
    clt_word_count tokens; /* the words are the tokens, their order the ids; counts have no meaning */
    struct {
        int32_t left, right;
    } * merges;
    size_t n, cap;
} clt_bpe_trained;

/* Room for one more merge, or CLT_NO_MEMORY. `words` is only read. CLT_STOPPED after a request to stop. */
clt_status clt_bpe_train(const clt_word_count *words, const clt_bpe_train_params *p, clt_bpe_trained *out);
void clt_bpe_trained_free(clt_bpe_trained *t);

#endif
