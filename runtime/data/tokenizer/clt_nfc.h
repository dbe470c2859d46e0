/* clt_nfc: Unicode's normalization form C, as the normalizer NFC of the package `tokenizers` computes it.
 * utf8proc has the tables of Unicode 14; the package's are older and do not reorder or compose some newer
 * characters. Models were trained with the package, so its result is what counts. Internal to this folder. */
#ifndef CLT_NFC_H
#define CLT_NFC_H

#include "runtime/base/clt_base.h"

/* Whether the text, valid UTF-8, is already in the form (true), or has to be looked at closely (false). */
bool clt_nfc_quick_check(const char *text, size_t bytes);
/* Appends the text in the form; at most three times as long. CLT_NO_MEMORY. */
clt_status clt_nfc_normalize(const char *text, size_t bytes, clt_str *out);

#endif
