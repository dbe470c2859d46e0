/* clt_icl_text: the string functions of Python on which prompts and answers of evaluation tasks depend: what
 * counts as white space, strip, and the normalisation of answers before they are compared. Texts are UTF-8.
 */
#ifndef CLT_ICL_TEXT_H
#define CLT_ICL_TEXT_H

#include "runtime/base/clt_base.h"

/* str.strip(): writes the part of s without white space at both ends to *from and *bytes. */
void clt_icl_strip(const char *s, const char **from, size_t *bytes);
/* Length in bytes of s.rstrip(). */
size_t clt_icl_rstrip(const char *s);

/* The normalisation of TriviaQA's evaluation script: lower case (str.lower()); underscores, ASCII punctuation
 * and the quotes U+2018, U+2019, U+00B4 become blanks; the words a, an and the are removed; white space is
 * merged to single blanks and removed at both ends. Appends to *out. */
void clt_icl_normalize(const char *s, size_t bytes, clt_str *out);

/* The clean_up_tokenization of transformers, in place: blanks before . ? ! , and English suffixes go away. */
void clt_icl_clean_up(clt_str *text);

/* What is compared of the first `bytes` of a generated text: the part after the last `delimiter` ("" for
 * none), normalised, or stripped alone without `normalize`. Appends to *out. */
void clt_icl_answer(const char *text, size_t bytes, const char *delimiter, bool normalize, clt_str *out);

#endif
