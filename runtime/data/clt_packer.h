/* clt_packer: cuts the tokens of documents into samples of one length, as LLM Foundry's ConcatTokensDataset
 * does: the tokens of all documents are joined and cut every `length` tokens; the rest is carried over to the
 * next document. With no_wrap a document never continues in a second sample: when a sample is full, the rest
 * of the document that filled it is dropped. (A document that ends before the sample is full is still
 * followed by the next one.) */
#ifndef CLT_PACKER_H
#define CLT_PACKER_H

#include "runtime/base/clt_base.h"

/* Receives a full sample. */
typedef clt_status (*clt_sample_fn)(void *ctx, const int32_t *tokens, size_t n);

typedef struct {
    int32_t *sample; /* the sample that is being filled */
    size_t length, have;
    bool no_wrap, full; /* full: the document filled a sample, and no_wrap is set */
    int64_t dropped;    /* tokens that no_wrap left out */
    clt_sample_fn emit;
    void *ctx;
} clt_packer;

/* length >= 1. CLT_NO_MEMORY. */
clt_status clt_packer_init(clt_packer *p, size_t length, bool no_wrap, clt_sample_fn emit, void *ctx);
void clt_packer_free(clt_packer *p); /* {0} is allowed */

/* The next tokens of the document. Fails with what `emit` returns. */
clt_status clt_packer_add(clt_packer *p, const int32_t *ids, size_t n);
/* The document is complete, with the tokens that separate it from the next one. */
void clt_packer_end_document(clt_packer *p);

#endif
