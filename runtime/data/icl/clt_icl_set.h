/* clt_icl_set: the items of an evaluation task as rows of token ids, equal to those of LLM Foundry. A set is
 * one task with one number of examples (and one category): the unit that has metrics. The examples of all
 * items are drawn when the set is opened; texts and tokens are made item by item, so that a large task takes
 * no more memory than its file. */
#ifndef CLT_ICL_SET_H
#define CLT_ICL_SET_H

#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/icl/clt_icl_task.h"

/* One text that the model reads: context and continuation (generation: the context alone). */
typedef struct {
    int32_t *ids;
    size_t n;
    size_t first; /* of the continuation, which reaches to n */
} clt_icl_row;

typedef struct {
    char *prompt;     /* prompt string and examples */
    clt_strv context; /* of the item, before its end is stripped; schema: one per choice */
    clt_icl_row *row; /* one; multiple choice and schema: one per choice */
    size_t n_rows;
    int64_t gold;     /* multiple choice and schema: index of the right choice */
    clt_strv labels;  /* generation: the answer and its aliases, in byte order */
    int64_t pad_left; /* generation: padding before the row in Foundry's batch */
} clt_icl_item;
void clt_icl_item_free(clt_icl_item *item);

typedef struct clt_icl_file clt_icl_file; /* the lines of a JSONL file; sets of a task share them */

typedef struct {
    const clt_icl_task *task; /* borrowed, as the tokenizer is */
    const clt_tokenizer *tok;
    char *label;          /* "mc/2-shot", "mc/2-shot/even" */
    const char *category; /* NULL: the task has none; borrowed from the file */
    int64_t shots;        /* as configured */
    size_t n;             /* items */
    size_t *line;         /* [n] index of each item in the file */
    int64_t *fewshot;     /* [n][n_fewshot] examples of each item, by their index in the set */
    size_t n_fewshot;     /* shots, or n - 1 if that is less */
    size_t choices;       /* of the first item; 1 for tasks without choices */
    size_t batch_items;   /* items of a batch */
    int64_t width;        /* tokens of a row at most */
    int64_t longest;      /* generation: tokens of the longest answer */
    bool prefix_space;    /* the continuation gets a leading blank */
    bool has_cot;         /* items have a chain of thought */
    clt_icl_file *file;
} clt_icl_set;

typedef struct {
    clt_icl_set *set;
    size_t n;
} clt_icl_sets;

/* Adds the sets of a task to `out` (start from {0}), in the order of Foundry: numbers of examples, then
 * categories in byte order. CLT_BAD_DATA: the file is empty, or an item lacks a key (FILE:LINE in the
 * message); CLT_BAD_CONFIG: the longest answer leaves no room for the context; CLT_IO; CLT_NO_MEMORY. */
clt_status clt_icl_sets_add(clt_icl_sets *out, const clt_icl_task *task, const clt_tokenizer *tok);
void clt_icl_sets_free(clt_icl_sets *s);

/* Makes item i; the caller frees it with clt_icl_item_free, also after an error. CLT_BAD_DATA: the
 * continuation has no tokens or more than a row, or nothing stands before it; what the tokenizer returns. */
clt_status clt_icl_set_item(const clt_icl_set *s, size_t i, clt_icl_item *out);
/* The error "FILE:LINE: TEXT" of item i; returns CLT_BAD_DATA. */
clt_status clt_icl_set_fail(const clt_icl_set *s, size_t i, const char *text);
/* Tokens that are generated at most. */
int64_t clt_icl_set_max_new(const clt_icl_set *s);

#endif
