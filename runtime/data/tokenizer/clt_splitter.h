/* clt_splitter: divides a text into pieces by a regular expression or a fixed text, as the pre-tokenizer
 * Split of the package `tokenizers`. A splitter is read by any number of threads; each brings a
 * clt_split_work. Internal to this folder. */
#ifndef CLT_SPLITTER_H
#define CLT_SPLITTER_H

#include "runtime/base/clt_base.h"

/* What happens to the separators, which are what the pattern matches. */
typedef enum {
    CLT_SPLIT_ISOLATED, /* pieces of their own */
    CLT_SPLIT_REMOVED,
    CLT_SPLIT_MERGED_WITH_PREVIOUS,
    CLT_SPLIT_MERGED_WITH_NEXT,
    CLT_SPLIT_CONTIGUOUS, /* consecutive ones are one piece */
} clt_split_behavior;

/* Patterns whose pieces never join an ASCII letter or digit to a space after it. */
extern const char clt_pattern_gpt2[], clt_pattern_llama3[], clt_pattern_qwen2[], clt_pattern_o200k[];
bool clt_pattern_known(const char *pattern);

typedef struct clt_splitter clt_splitter;
/* `what` names the file in messages. CLT_BAD_DATA: the pattern is no regular expression; CLT_BAD_CONFIG: it
 * uses what is not supported; CLT_NO_MEMORY. */
clt_status clt_splitter_create(const char *pattern, clt_split_behavior behavior, const char *what,
                               clt_splitter **out);
/* The pattern stands for itself; it is not empty. */
clt_status clt_splitter_create_text(const char *pattern, clt_split_behavior behavior, clt_splitter **out);
void clt_splitter_destroy(clt_splitter *s); /* NULL is allowed */

typedef struct clt_split_work clt_split_work;
clt_split_work *clt_split_work_create(void);
void clt_split_work_destroy(clt_split_work *w); /* NULL is allowed */

/* A stretch of the text: a separator, or what is between two. */
typedef struct {
    size_t start, end;
    bool separator;
} clt_stretch;

/* Goes over the pieces of a text. */
typedef struct {
    const clt_splitter *splitter;
    clt_split_work *work;
    const char *text;
    size_t bytes, at, search; /* stretches are known up to `at`; the next match is not before `search` */
    clt_stretch found, next;  /* a match behind a gap; the stretch that comes next */
    bool has_found, has_next;
} clt_split;

clt_split clt_split_begin(const clt_splitter *s, clt_split_work *w, const char *text, size_t bytes);
/* The next piece, which is not empty: text[*start] to text[*end - 1]; *start is *end if there is none.
 * CLT_BAD_DATA: the regular expression exceeds its limit of steps on this text. */
clt_status clt_split_next(clt_split *s, size_t *start, size_t *end);

#endif
