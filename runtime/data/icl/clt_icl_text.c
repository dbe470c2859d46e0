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

/* --- str.lower() --- */

/* The property Cased, but for some modifier letters and marks. */
static bool is_cased(int32_t c) {
    const int category = c < 0 ? 0 : utf8proc_category(c);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT || c == 0xaa || c == 0xba || (c >= 0x2160 && c <= 0x217f) ||
           (c >= 0x24b6 && c <= 0x24e9);
}

/* The property Case_Ignorable. */
static bool is_passed_over(int32_t c) {
    static const int32_t marks[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,  0x5f4,  0x2018, 0x2019,
                                    0x2024, 0x2027, 0xfe13, 0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
    for (size_t i = 0; i < CLT_COUNT_OF(marks); i++)
        if (marks[i] == c) return true;
    switch (c < 0 ? UTF8PROC_CATEGORY_CN : utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return false;
    }
}

/* The first character from s on that is not passed over has a case. */
static bool meets_cased(const char *s, size_t bytes) {
    for (size_t i = 0, n; i < bytes; i += n) {
        const int32_t c = next_char(s + i, bytes - i, &n);
        if (!is_passed_over(c)) return is_cased(c);
    }
    return false;
}

/* Lower case, with blanks for punctuation. A capital sigma behind a letter ends a word if none follows. */
static void simplify(const char *s, size_t bytes, clt_str *out) {
    bool in_word = false; /* the last character that is not passed over has a case */
    size_t n;
    clt_str_add(out, "");
    for (size_t i = 0; i < bytes; i += n) {
        const int32_t c = next_char(s + i, bytes - i, &n);
        if (c == 0x130)
            clt_str_add(out, "i\xcc\x87");
        else if (c == 0x3a3)
            clt_str_add(out, in_word && !meets_cased(s + i + n, bytes - i - n) ? "\xcf\x82" : "\xcf\x83");
        else
            add_char(out, c < 0 ? c : is_punctuation(c) ? ' ' : utf8proc_tolower(c), s + i, n);
        if (!is_passed_over(c)) in_word = is_cased(c);
    }
}

/* --- normalisation --- */

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

void clt_icl_answer(const char *text, size_t bytes, const char *delimiter, bool normalize, clt_str *out) {
    char *part = clt_strndup(text, bytes);
    const char *from = part;
    if (*delimiter)
        for (const char *at; (at = strstr(from, delimiter));) from = at + strlen(delimiter);
    if (normalize) {
        clt_icl_normalize(from, strlen(from), out);
    } else {
        clt_icl_strip(from, &from, &bytes);
        clt_str_addn(out, from, bytes);
    }
    clt_free(part);
}

static void replace_all(clt_str *text, const char *from, const char *to) {
    const size_t n = strlen(from), shorter = strlen(to);
    size_t end = 0;
    for (size_t i = 0; i < text->len;) {
        if (text->len - i >= n && memcmp(text->s + i, from, n) == 0) {
            memcpy(text->s + end, to, shorter);
            end += shorter;
            i += n;
        } else {
            text->s[end++] = text->s[i++];
        }
    }
    text->len = end;
    if (text->s) text->s[end] = 0;
}

void clt_icl_clean_up(clt_str *text) {
    static const char *const pairs[][2] = {{" .", "."},     {" ?", "?"},     {" !", "!"},   {" ,", ","},
                                           {" ' ", "'"},    {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < CLT_COUNT_OF(pairs); i++) replace_all(text, pairs[i][0], pairs[i][1]);
}
