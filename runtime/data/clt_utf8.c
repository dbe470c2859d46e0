#include "runtime/data/clt_utf8.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* What may follow a leading byte: table 3-7 of the Unicode standard. */
static bool lead(clt_utf8 *u, unsigned char c) {
    u->lo = 0x80;
    u->hi = 0xbf;
    if (c < 0x80) return true;
    if (c < 0xc2 || c > 0xf4) return false;
    u->left = c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (c == 0xe0) u->lo = 0xa0;
    if (c == 0xed) u->hi = 0x9f;
    if (c == 0xf0) u->lo = 0x90;
    if (c == 0xf4) u->hi = 0x8f;
    return true;
}

void clt_utf8_add(clt_utf8 *u, const char *s, size_t n) {
    for (size_t i = 0; i < n && !u->bad; i++) {
        unsigned char c = (unsigned char)s[i];
        if (u->left == 0) {
            u->bad = !lead(u, c);
        } else {
            u->bad = c < u->lo || c > u->hi;
            u->left--;
            u->lo = 0x80;
            u->hi = 0xbf;
        }
    }
}

bool clt_utf8_ok(const clt_utf8 *u) {
    return !u->bad && u->left == 0;
}

bool clt_utf8_valid(const char *s, size_t n) {
    clt_utf8 u = {0};
    clt_utf8_add(&u, s, n);
    return clt_utf8_ok(&u);
}

size_t clt_utf8_repair_part(const char *s, size_t n, clt_str *out) {
    size_t i = 0;
    while (i < n) {
        clt_utf8 u = {0};
        size_t k = 0;
        do clt_utf8_add(&u, s + i + k++, 1);
        while (!u.bad && u.left && i + k < n);
        if (!u.bad && u.left) break;
        if (u.bad && k > 1) k--; /* the byte that broke it may begin the next one */
        clt_str_addn(out, u.bad ? replacement : s + i, u.bad ? sizeof replacement - 1 : k);
        i += k;
    }
    return i;
}

void clt_utf8_repair(const char *s, size_t n, clt_str *out) {
    if (clt_utf8_repair_part(s, n, out) < n) clt_str_add(out, replacement);
}
