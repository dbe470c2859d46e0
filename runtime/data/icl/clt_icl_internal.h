/* What the files of runtime/data/icl share. Not for other folders. */
#ifndef CLT_ICL_INTERNAL_H
#define CLT_ICL_INTERNAL_H

#include "runtime/data/icl/clt_icl_set.h"

struct clt_icl_file {
    char *path;
    json_t **object; /* [n] */
    int64_t *number; /* [n] of the line in the file, from 1 */
    size_t n, cap;
    int users; /* sets that hold it */
};

/* Reads the file of a task and checks the keys of every item. */
clt_status clt_icl_file_open(const clt_icl_task *t, clt_icl_file **out);
/* Takes one user away; the last one frees it. NULL is allowed. */
void clt_icl_file_release(clt_icl_file *f);

/* Keys of the items of a task. */
const char *clt_icl_context_key(const clt_icl_task *t);
const char *clt_icl_answer_key(const clt_icl_task *t);
const char *clt_icl_choices_key(const clt_icl_task *t);

/* The answer of an item as it stands in examples, and in its own row. */
char *clt_icl_answer_text(const clt_icl_set *s, json_t *o);
/* The ids of a text, to be freed with clt_free; flags as clt_tokenizer_encode. */
clt_status clt_icl_encode(const clt_tokenizer *tok, const char *text, unsigned flags, int32_t **ids,
                          size_t *n);

#endif
