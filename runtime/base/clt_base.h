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

/* Macros evaluate their arguments more than once. CLT_CEIL_DIV and CLT_ROUND_UP are for integers a >= 0 and
 * b > 0 for which a + b - 1 does not overflow. */
#define CLT_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define CLT_MIN(a, b) ((a) < (b) ? (a) : (b))
#define CLT_MAX(a, b) ((a) > (b) ? (a) : (b))
#define CLT_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define CLT_ROUND_UP(a, b) (CLT_CEIL_DIV(a, b) * (b))

/* The formatted text in new memory, to be freed with clt_free; never NULL. Text that the locale cannot
 * convert gives "". */
char *clt_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *clt_vformat(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));

/* A growing string. Start from {0}; free with clt_str_free, after which it is {0} again. `s` is owned by the
 * string, moves when it grows, and is NULL until the first clt_str_add* or clt_str_try_reserve. After that it
 * ends with a 0 that `len` does not count. */
typedef struct {
    char *s;
    size_t len, cap;
} clt_str;
/* Reserves room so that clt_str_add and clt_str_addn allocate nothing for the next n bytes. false: not enough
 * memory, b is unchanged. */
bool clt_str_try_reserve(clt_str *b, size_t n);
void clt_str_add(clt_str *b, const char *text);
void clt_str_addn(clt_str *b, const char *text, size_t n); /* text may contain NUL bytes */
void clt_str_addf(clt_str *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void clt_str_free(clt_str *b);

/* A growing list of strings that it owns. Start from {0}; clt_strv_free frees the list and its strings. */
typedef struct {
    char **v;
    size_t n, cap;
} clt_strv;
void clt_strv_add(clt_strv *l, const char *s); /* copies s */
void clt_strv_add_owned(clt_strv *l, char *s); /* takes ownership of s, which clt_free must be able to free */
void clt_strv_free(clt_strv *l);
void clt_strv_sort(clt_strv *l); /* in byte order (strcmp) */

/* The one of the `n` strings in `known` with the smallest edit distance to `word`, ignoring case; NULL if
 * every distance is above 1 + strlen(word) / 3. For suggestions in messages. Returns a member of `known`. */
const char *clt_nearest(const char *word, const char *const *known, size_t n);

/* Parse the whole string: a decimal integer (strtoll), or a floating-point number in any form of strtod,
 * which includes hexadecimal numbers, "inf" and "nan". false, and *out is unchanged: the string is empty,
 * begins with white space, has other characters, or its value is out of range. */
bool clt_parse_i64(const char *s, int64_t *out);
bool clt_parse_f64(const char *s, double *out);

/* A quantity >= 0 as text in buf (at least 32 bytes); returns buf. Bytes: "512 B", "1.50 GiB" (powers of
 * 1024). Seconds: "12.3 s", "3m05s", "2h10m". Count: "999", "1.2 k", "125.3 M", "6.7 B" (powers of 1000). */
const char *clt_human_bytes(double bytes, char *buf);
const char *clt_human_seconds(double s, char *buf);
const char *clt_human_count(double n, char *buf);

/* Times are in seconds. */
double clt_now(void);           /* the monotonic clock; only differences have a meaning */
double clt_wall(void);          /* the time of day, since 1970 */
void clt_sleep(double seconds); /* signals do not shorten it; a negative time returns at once */

/* "0.1.0"; and the short git hash of the source, "unknown" if it was built outside a checkout. Constants. */
const char *clt_version(void);
const char *clt_version_git(void);

#endif
