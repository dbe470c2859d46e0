#include "runtime/data/icl/clt_icl_text.h"

#include <string.h>
#include <utf8proc.h>

/* The character at s, of at most `left` bytes; *bytes receives its length. A byte that is not UTF-8 counts as
 * a character of its own, which has no properties. */
static int32_t next_char(const char *s, size_t left, size_t *bytes) {
    utf8proc_int32_t c;
    const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)left, &c);
    *bytes = n > 0 ? (size_t)n : 1;
    return n > 0 ? c : -1;
}

/* str.isspace(): the separators, and the controls with the bidirectional class B, S or WS. */
static bool is_space(int32_t c) {
    if (c < 128) return c == ' ' || (c >= 9 && c <= 13) || (c >= 28 && c <= 31);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* The end of s[0, bytes) without white space at the end. */
static size_t end_of_text(const char *s, size_t bytes) {
    size_t end = 0, n;
    for (size_t i = 0; i < bytes; i += n)
        if (!is_space(next_char(s + i, bytes - i, &n))) end = i + n;
    return end;
}

static size_t begin_of_text(const char *s, size_t bytes) {
    size_t i = 0, n;
    while (i < bytes && is_space(next_char(s + i, bytes - i, &n))) i += n;
    return i;
}

size_t clt_icl_rstrip(const char *s) {
    return end_of_text(s, strlen(s));
}

void clt_icl_strip(const char *s, const char **from, size_t *bytes) {
    const size_t end = end_of_text(s, strlen(s)), begin = begin_of_text(s, end);
    *from = s + begin;
    *bytes = end - begin;
}

static bool is_punctuation(int32_t c) {
    if (c > 0 && c < 128) return strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c) != NULL;
    return c == 0x2018 || c == 0x2019 || c == 0xb4;
}

/* \w of Python's regular expressions. */
static bool is_word(int32_t c) {
    if (c < 0) return false;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return false;
    }
}

static void add_char(clt_str *b, int32_t c, const char *raw, size_t bytes) {
    utf8proc_uint8_t u[4];
    if (c < 0)
        clt_str_addn(b, raw, bytes);
    else
        clt_str_addn(b, (const char *)u, (size_t)utf8proc_encode_char(c, u));
}

/* Lower case, with blanks for punctuation. */
static void simplify(const char *s, size_t bytes, clt_str *out) {
    size_t n;
    clt_str_add(out, "");
    for (size_t i = 0; i < bytes; i += n) {
        int32_t c = next_char(s + i, bytes - i, &n);
        if (c >= 0) c = is_punctuation(c) ? ' ' : utf8proc_tolower(c);
        add_char(out, c, s + i, n);
    }
}

static bool is_article(const char *s, size_t n) {
    return (n == 1 && *s == 'a') || (n == 2 && memcmp(s, "an", 2) == 0) ||
           (n == 3 && memcmp(s, "the", 3) == 0);
}

/* Length of the run of word characters (word) or of other characters without white space at s; 0: none. */
static size_t run_length(const char *s, size_t left, bool word) {
    size_t i = 0, n;
    for (; i < left; i += n) {
        const int32_t c = next_char(s + i, left - i, &n);
        if (is_word(c) != word || is_space(c)) break;
    }
    return i;
}

void clt_icl_normalize(const char *s, size_t bytes, clt_str *out) {
    clt_str t = {0};
    simplify(s, bytes, &t);
    const size_t first = out->len;
    bool blank = false; /* a blank is due before the next character */
    for (size_t i = 0, n; i < t.len; i += n) {
        const bool word = (n = run_length(t.s + i, t.len - i, true)) > 0;
        if (!word) n = run_length(t.s + i, t.len - i, false);
        if (n == 0 || (word && is_article(t.s + i, n))) {
            blank = true;
            if (n == 0) next_char(t.s + i, t.len - i, &n);
            continue;
        }
        if (blank && out->len > first) clt_str_add(out, " ");
        blank = false;
        clt_str_addn(out, t.s + i, n);
    }
    clt_str_add(out, "");
    clt_str_free(&t);
}

/* The first of the stop strings in `text`; its end if there is none. */
static size_t find_stop(const char *text, const char *const *stop, size_t n_stop) {
    size_t end = strlen(text);
    for (size_t i = 0; i < n_stop; i++) {
        const char *at = *stop[i] ? strstr(text, stop[i]) : NULL;
        if (at && (size_t)(at - text) < end) end = (size_t)(at - text);
    }
    return end;
}

void clt_icl_answer(const char *text, const char *const *stop, size_t n_stop, const char *delimiter,
                    bool normalize, clt_str *out) {
    char *part = clt_strndup(text, find_stop(text, stop, n_stop));
    const char *from = part;
    if (*delimiter)
        for (const char *at; (at = strstr(from, delimiter));) from = at + strlen(delimiter);
    size_t bytes;
    if (normalize) {
        clt_icl_normalize(from, strlen(from), out);
    } else {
        clt_icl_strip(from, &from, &bytes);
        clt_str_addn(out, from, bytes);
    }
    clt_free(part);
}
