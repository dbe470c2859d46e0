#include "runtime/base/clt_base.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

char *clt_vformat(const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    const int n = vsnprintf(NULL, 0, fmt, ap);
    const size_t bytes = n < 0 ? 1 : (size_t)n + 1; /* n < 0: not a text in this locale */
    char *s = clt_calloc(bytes, 1);
    if (n > 0) vsnprintf(s, bytes, fmt, again);
    va_end(again);
    return s;
}

char *clt_format(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *s = clt_vformat(fmt, ap);
    va_end(ap);
    return s;
}

bool clt_str_try_reserve(clt_str *b, size_t n) {
    if (n > SIZE_MAX - b->len - 1) return false;
    if (b->len + n + 1 <= b->cap) return true;
    size_t cap = CLT_MAX(b->len + n + 1, b->cap > SIZE_MAX / 2 ? SIZE_MAX : b->cap * 2);
    char *s = clt_try_realloc(b->s, cap);
    if (!s) return false;
    b->s = s;
    b->cap = cap;
    b->s[b->len] = 0;
    return true;
}

void clt_str_addn(clt_str *b, const char *text, size_t n) {
    if (b->len + n + 1 > b->cap) {
        b->cap = CLT_MAX(b->cap * 2, b->len + n + 64);
        b->s = clt_realloc(b->s, b->cap);
    }
    if (n) memcpy(b->s + b->len, text, n);
    b->len += n;
    b->s[b->len] = 0;
}

void clt_str_add(clt_str *b, const char *text) {
    clt_str_addn(b, text, strlen(text));
}

void clt_str_addf(clt_str *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *s = clt_vformat(fmt, ap);
    va_end(ap);
    clt_str_add(b, s);
    clt_free(s);
}

void clt_str_free(clt_str *b) {
    clt_free(b->s);
    *b = (clt_str){0};
}

void clt_strv_add_owned(clt_strv *l, char *s) {
    if (l->n == l->cap) {
        l->cap = CLT_MAX(l->cap * 2, (size_t)8);
        l->v = clt_realloc(l->v, l->cap * sizeof *l->v);
    }
    l->v[l->n++] = s;
}

void clt_strv_add(clt_strv *l, const char *s) {
    clt_strv_add_owned(l, clt_strdup(s));
}

void clt_strv_free(clt_strv *l) {
    for (size_t i = 0; i < l->n; i++) clt_free(l->v[i]);
    clt_free(l->v);
    *l = (clt_strv){0};
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void clt_strv_sort(clt_strv *l) {
    if (l->n > 1) qsort(l->v, l->n, sizeof *l->v, by_text);
}

/* Edit distance with adjacent transpositions (optimal string alignment), case-insensitive. */
static int edit_distance(const char *a, const char *b) {
    enum { LIMIT = 64 };
    int n = (int)strnlen(a, LIMIT), m = (int)strnlen(b, LIMIT), d[LIMIT + 1][LIMIT + 1];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            d[i][j] = CLT_MIN(CLT_MIN(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (x != y));
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                d[i][j] = CLT_MIN(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[n][m];
}

const char *clt_nearest(const char *word, const char *const *known, size_t n) {
    const char *best = NULL;
    int best_d = (int)strlen(word) / 3 + 2;
    for (size_t i = 0; i < n; i++) {
        int d = edit_distance(word, known[i]);
        if (d < best_d) {
            best_d = d;
            best = known[i];
        }
    }
    return best;
}

bool clt_parse_i64(const char *s, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno || isspace((unsigned char)*s)) return false;
    *out = v;
    return true;
}

bool clt_parse_f64(const char *s, double *out) {
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (end == s || *end || isspace((unsigned char)*s) || (errno == ERANGE && isinf(v))) return false;
    *out = v;
    return true;
}

const char *clt_human_bytes(double bytes, char *buf) {
    static const char *unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    for (; bytes >= 1024 && u < 5; u++) bytes /= 1024;
    snprintf(buf, 32, u == 0 ? "%.0f %s" : bytes < 10 ? "%.2f %s" : "%.1f %s", bytes, unit[u]);
    return buf;
}

const char *clt_human_seconds(double s, char *buf) {
    if (s < 1e-3)
        snprintf(buf, 32, "%.1f us", s * 1e6);
    else if (s < 1)
        snprintf(buf, 32, "%.1f ms", s * 1e3);
    else if (s < 100)
        snprintf(buf, 32, "%.1f s", s);
    else if (s < 3600)
        snprintf(buf, 32, "%dm%02ds", (int)s / 60, (int)s % 60);
    else
        snprintf(buf, 32, "%dh%02dm", (int)(s / 3600), (int)(s / 60) % 60);
    return buf;
}

const char *clt_human_count(double n, char *buf) {
    static const char *unit[] = {"", " k", " M", " B", " T"};
    int u = 0;
    for (; n >= 1000 && u < 4; u++) n /= 1000;
    snprintf(buf, 32, u == 0 ? "%.0f%s" : "%.1f%s", n, unit[u]);
    return buf;
}

static double clock_seconds(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double clt_now(void) {
    return clock_seconds(CLOCK_MONOTONIC);
}
double clt_wall(void) {
    return clock_seconds(CLOCK_REALTIME);
}

void clt_sleep(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}
