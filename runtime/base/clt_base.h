/* clt_base: the small services that every layer uses: growing strings and lists, number parsing,
 * human-readable quantities, clocks. Includes clt_env.h, clt_log.h, clt_memory.h and clt_status.h. */
#ifndef CLT_BASE_H
#define CLT_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/base/clt_env.h"
#include "runtime/base/clt_log.h"
#include "runtime/base/clt_memory.h"
#include "runtime/base/clt_status.h"

#define CLT_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define CLT_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CLT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define CLT_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define CLT_ROUND_UP(a, b) (CLT_CEIL_DIV(a, b) * (b))

/* printf into new memory. */
char *clt_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *clt_vformat(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

/* A growing string. Start from {0}. `s` is NULL until something is added, then always 0-terminated. */
typedef struct {
    char *s;
    size_t len, cap;
} clt_str;
/* Room for n more bytes, so that adding them allocates nothing. false: not enough memory, b is unchanged. */
bool clt_str_try_reserve(clt_str *b, size_t n);
void clt_str_add(clt_str *b, const char *text);
void clt_str_addn(clt_str *b, const char *text, size_t n);
void clt_str_addf(clt_str *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void clt_str_free(clt_str *b);

/* A growing list of owned strings. Start from {0}. */
typedef struct {
    char **v;
    size_t n, cap;
} clt_strv;
void clt_strv_add(clt_strv *l, const char *s); /* copies s */
void clt_strv_add_owned(clt_strv *l, char *s); /* takes ownership of s */
void clt_strv_free(clt_strv *l);
void clt_strv_sort(clt_strv *l);

/* The nearest of `n` known words by edit distance, or NULL if none is close enough to suggest. */
const char *clt_nearest(const char *word, const char *const *known, size_t n);

/* Parses the whole string as a decimal number; false, and *out unchanged, if it is not one or does not
 * fit. */
bool clt_parse_i64(const char *s, int64_t *out);
bool clt_parse_f64(const char *s, double *out);

/* "1.50 GiB", "12.3 s". Written into buf (at least 32 bytes); returns buf. */
const char *clt_human_bytes(double bytes, char *buf);
const char *clt_human_seconds(double s, char *buf);
const char *clt_human_count(double n, char *buf); /* 1.2 k, 125.3 M, 6.7 B */

/* Seconds: on the monotonic clock; since 1970. */
double clt_now(void);
double clt_wall(void);
void clt_sleep(double seconds);

/* "0.1.0"; the short git hash of the source ("unknown" outside a checkout). */
const char *clt_version(void);
const char *clt_version_git(void);

#endif
