/* clt_utf8: checks and repairs UTF-8 (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF). Works on
 * pieces, so that a long text need not be in memory at once. */
#ifndef CLT_UTF8_H
#define CLT_UTF8_H

#include "runtime/base/clt_base.h"

/* Start from {0}. */
typedef struct {
    unsigned char left;   /* continuation bytes that are missing */
    unsigned char lo, hi; /* range of the next one */
    bool bad;
} clt_utf8;

void clt_utf8_add(clt_utf8 *u, const char *s, size_t n);
/* Whether all bytes so far are whole characters. */
bool clt_utf8_ok(const clt_utf8 *u);
bool clt_utf8_valid(const char *s, size_t n);
/* Appends the text to *out with U+FFFD for what is not UTF-8, one for each part of a character. */
void clt_utf8_repair(const char *s, size_t n, clt_str *out);
/* The same without an unfinished character at the end, which more bytes may complete. Returns how many bytes
 * were used: all but at most 3. */
size_t clt_utf8_repair_part(const char *s, size_t n, clt_str *out);

#endif
