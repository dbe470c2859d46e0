/* family_util: the checkpoints of test/golden/families, whose blocks LLM Foundry's MPT lacks: GPT-NeoX
 * (parallel residual, partial rotary positions) and Gemma 2 (scaled embedding, norms with 1 + weight, norms
 * after branches, softcaps, windows in every other layer). Their tensors under the decoder's names, and their
 * configurations with the decoder's keys. What is wrong ends the test with a message. */
#ifndef CLT_TEST_FAMILY_UTIL_H
#define CLT_TEST_FAMILY_UTIL_H

#include <jansson.h>

#include "runtime/checkpoint/clt_safetensors.h"
#include "runtime/model/clt_model.h"

enum { FU_FAMILIES = 2 };

typedef struct {
    const char *ours, *theirs;
} fu_names;

typedef struct {
    const char *folder;            /* below test/golden/families */
    const char *config;            /* the model section, JSON */
    const char *block;             /* what the names of a block's tensors begin with in the package */
    const fu_names *outer, *inner; /* whole names; beginnings of names inside a block. Both end with NULL */
    bool per_head;                 /* q, k and v of Wqkv lie head by head */
} fu_family;

extern const fu_family fu_families[FU_FAMILIES];

/* The path of a file of the family's set; the caller frees it. */
char *fu_path(const fu_family *f, const char *file);
clt_safetensors *fu_open(const fu_family *f, const char *file);
clt_model_config *fu_config(const fu_family *f);

/* The package's name of one of our tensors; the caller frees it. */
char *fu_their_name(const fu_family *f, const char *ours);
/* Where element i of one of our tensors, of `count` elements, lies in the package's. */
size_t fu_their_place(const fu_family *f, const char *ours, size_t count, size_t i);
/* A tensor under the package's name; NULL: the file does not have it. The caller frees it. */
float *fu_their_tensor(clt_safetensors *s, const char *name, size_t *count);
/* The package's weight of one of our tensors, in our order, of `want` elements; the caller frees it. */
float *fu_weight(const fu_family *f, clt_safetensors *s, const char *ours, size_t want);

double fu_largest(const float *x, size_t n); /* magnitude */
double fu_l2(const float *x, size_t n);
double fu_number(json_t *row, const char *key);

#endif
