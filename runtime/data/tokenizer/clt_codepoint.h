/* clt_codepoint: characters of valid UTF-8. Internal to this folder. */
#ifndef CLT_CODEPOINT_H
#define CLT_CODEPOINT_H

#include "runtime/base/clt_base.h"

/* The code point at s, which begins a character of valid UTF-8, and its bytes. */
static inline uint32_t clt_codepoint_at(const char *text, size_t *bytes) {
    const unsigned char *s = (const unsigned char *)text;
    *bytes = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    switch (*bytes) {
    case 1:
        return s[0];
    case 2:
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    case 3:
        return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    default:
        return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    }
}

/* The first byte of the character that ends before `at`; at > 0. */
static inline size_t clt_codepoint_before(const char *text, size_t at) {
    do at--;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

/* Property White_Space of Unicode. */
bool clt_codepoint_is_space(uint32_t c);
/* A character of words: \w of Unicode's regular expressions (UTS 18, annex C). */
bool clt_codepoint_is_word(uint32_t c);

#endif
