#include "runtime/data/tokenizer/clt_nfc.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

#include "runtime/data/tokenizer/clt_codepoint.h"

/* Marks of Unicode 10 to 14 that the package does not reorder, and U+11930, which it does not compose with
 * U+11935: it takes them for ordinary characters. Found by comparing its result with that of Unicode 14's
 * tables on every character. */
static const struct {
    uint32_t first, last;
} ordinary[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},
    {0xa82c, 0xa82c},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930},
    {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47},
    {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
};

enum { CODEPOINTS = 0x110000 };

/* A bit for each code point that may change by normalization, or change with what is before it. All others
 * begin a part of the text that is normalized on its own. */
static uint64_t joins[CODEPOINTS / 64];
static pthread_once_t joins_made = PTHREAD_ONCE_INIT;

static bool changes_alone(utf8proc_int32_t c) {
    utf8proc_int32_t form[8] = {c};
    utf8proc_ssize_t n = utf8proc_decompose_char(c, form, 8, UTF8PROC_STABLE | UTF8PROC_COMPOSE, NULL);
    n = utf8proc_normalize_utf32(form, n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return n != 1 || form[0] != c;
}

static bool is_jamo_tail(uint32_t c) {
    return (c >= 0x1161 && c <= 0x1175) || (c >= 0x11a8 && c <= 0x11c2);
}

/* Whether the character is the second of a composed pair. */
static bool composes_back(const utf8proc_property_t *p) {
    return p->comb_index != UINT16_MAX && p->comb_index >= 0x8000;
}

static void make_joins(void) {
    for (uint32_t c = 0x80; c < CODEPOINTS; c++) {
        const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
        const bool surrogate = c >= 0xd800 && c <= 0xdfff;
        if (!surrogate && (p->combining_class || composes_back(p) || is_jamo_tail(c) ||
                           (p->decomp_seqindex != UINT16_MAX && changes_alone((utf8proc_int32_t)c))))
            joins[c / 64] |= (uint64_t)1 << c % 64;
    }
    for (size_t i = 0; i < CLT_COUNT_OF(ordinary); i++)
        for (uint32_t c = ordinary[i].first; c <= ordinary[i].last; c++)
            joins[c / 64] &= ~((uint64_t)1 << c % 64);
}

static bool joins_back(uint32_t c) {
    return joins[c / 64] >> c % 64 & 1;
}

/* The bytes of the text up to the first that is not ASCII. */
static size_t ascii_part(const char *text, size_t bytes) {
    size_t i = 0;
    for (uint64_t eight; i + 8 <= bytes; i += 8) {
        memcpy(&eight, text + i, 8);
        if (eight & 0x8080808080808080u) break;
    }
    while (i < bytes && (signed char)text[i] >= 0) i++;
    return i;
}

static bool is_mark(const char *s) {
    size_t length;
    return utf8proc_get_property((utf8proc_int32_t)clt_codepoint_at(s, &length))->combining_class != 0;
}

/* Where the next part to normalize begins: a character and one that joins it, or one at `from` that changes;
 * *end is behind it. A mark that counts as ordinary joins nothing. `bytes` if there is none. */
static size_t next_part(const char *text, size_t bytes, size_t from, size_t *end) {
    size_t before = from, length;
    for (size_t at = from; at < bytes; at += length) {
        const size_t ascii = ascii_part(text + at, bytes - at);
        if (ascii > 0) {
            before = at + ascii - 1;
            length = ascii;
            continue;
        }
        if (!joins_back(clt_codepoint_at(text + at, &length))) {
            before = at;
            continue;
        }
        for (*end = at; *end < bytes && joins_back(clt_codepoint_at(text + *end, &length));) *end += length;
        return is_mark(text + before) && !joins_back(clt_codepoint_at(text + before, &length)) ? at : before;
    }
    return bytes;
}

bool clt_nfc_quick_check(const char *text, size_t bytes) {
    size_t end;
    pthread_once(&joins_made, make_joins);
    return next_part(text, bytes, 0, &end) == bytes;
}

/* Appends a part in the form. */
static clt_status compose(const char *part, size_t bytes, clt_str *out) {
    const utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    /* A character decomposes into at most four. */
    const size_t room = 4 * bytes + 4;
    utf8proc_int32_t few[256], *form = room <= CLT_COUNT_OF(few) ? few : clt_try_malloc(room * sizeof *form);
    if (!form) return clt_no_memory("a text in normalization form C", room * sizeof *form);
    const utf8proc_uint8_t *s = (const utf8proc_uint8_t *)part;
    utf8proc_ssize_t n =
        utf8proc_decompose(s, (utf8proc_ssize_t)bytes, form, (utf8proc_ssize_t)room, options);
    clt_status st =
        n < 0 ? clt_error(CLT_BAD_DATA, "a text cannot be normalized: %s", utf8proc_errmsg(n)) : CLT_OK;
    if (st == CLT_OK) n = utf8proc_normalize_utf32(form, n, options);
    for (utf8proc_ssize_t i = 0; st == CLT_OK && i < n; i++) {
        utf8proc_uint8_t c[4];
        clt_str_addn(out, (const char *)c, (size_t)utf8proc_encode_char(form[i], c));
    }
    if (form != few) clt_free(form);
    return st;
}

clt_status clt_nfc_normalize(const char *text, size_t bytes, clt_str *out) {
    pthread_once(&joins_made, make_joins);
    if (!clt_str_try_reserve(out, 3 * bytes))
        return clt_no_memory("a text in normalization form C", 3 * bytes);
    for (size_t at = 0, end = bytes; at < bytes; at = end) {
        const size_t part = next_part(text, bytes, at, &end);
        clt_str_addn(out, text + at, part - at);
        if (part == bytes) break;
        CLT_TRY(compose(text + part, end - part, out));
    }
    return CLT_OK;
}
