#include "runtime/data/image/clt_image_resize.h"

#include <math.h>
#include <string.h>

/* The loops over a row are compiled a second time for processors with AVX2; whole numbers have the same bits
 * in any order. clang and the sanitizers get one version, as with CLT_WITH_FMA. */
#if defined(__x86_64__) && defined(__has_attribute) && !defined(__clang__) &&                                \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __has_attribute(target_clones)
#define WIDE __attribute__((target_clones("avx2", "default"), optimize("O3")))
#endif
#endif
#ifndef WIDE
#define WIDE
#endif

enum { BITS = 22 }; /* of fraction of a weight */

void clt_image_scratch_free(clt_image_scratch *s) {
    for (size_t i = 0; i < CLT_COUNT_OF(s->block); i++) clt_free(s->block[i]);
    *s = (clt_image_scratch){0};
}

/* Block i with at least `bytes` bytes, undefined; NULL: not enough memory. */
static void *reserve(clt_image_scratch *s, int i, size_t bytes) {
    if (bytes > s->bytes[i]) {
        clt_free(s->block[i]);
        s->bytes[i] = 0;
        s->block[i] = clt_try_malloc(bytes);
        if (s->block[i]) s->bytes[i] = bytes;
    }
    return s->block[i];
}

/* --- weights --- */

/* Those of consecutive results along one axis; all of them in one block. */
typedef struct {
    int64_t n, most; /* results; weights of one at most */
    int64_t *first;  /* [n] the first value that result i reads */
    int32_t *count;  /* [n] */
    int32_t *weight; /* [n, most] */
} axis;

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static int32_t fixed(double w) {
    const double v = w * (1 << BITS);
    return (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
}

/* The weights of result i of `to`, from `from` values. `w` has room for them as doubles. */
static void weigh(axis *x, int64_t i, double centre, double filter, int64_t from, double *w) {
    const double support = 2 * filter, inverse = 1 / filter;
    int64_t first = (int64_t)(centre - support + 0.5), end = (int64_t)(centre + support + 0.5);
    double sum = 0;
    if (first < 0) first = 0;
    if (end > from) end = from;
    for (int64_t k = 0; k < end - first; k++) {
        w[k] = bicubic(((double)(k + first) - centre + 0.5) * inverse);
        sum += w[k];
    }
    for (int64_t k = 0; k < end - first; k++)
        x->weight[i * x->most + k] = fixed(sum != 0 ? w[k] / sum : w[k]);
    x->first[i] = first;
    x->count[i] = (int32_t)(end - first);
}

/* Results [at, at + n) of `to` from `from` values, in block `b` of the scratch. */
static clt_status make_axis(clt_image_scratch *s, int b, int64_t from, int64_t to, int64_t at, int64_t n,
                            axis *x) {
    const double scale = (double)from / (double)to, filter = CLT_MAX(scale, 1.0);
    x->n = n;
    x->most = (int64_t)ceil(2 * filter) * 2 + 1;
    const size_t bytes = (size_t)x->most * sizeof(double) + (size_t)n * (sizeof *x->first + sizeof *x->count +
                                                                         (size_t)x->most * sizeof(int32_t));
    double *w = reserve(s, b, bytes);
    if (!w) return clt_no_memory("the weights of a resize", bytes);
    x->first = (int64_t *)(void *)(w + x->most);
    x->count = (int32_t *)(void *)(x->first + n);
    x->weight = x->count + n;
    for (int64_t i = 0; i < n; i++) weigh(x, i, ((double)(at + i) + 0.5) * scale, filter, from, w);
    return CLT_OK;
}

/* --- passes --- */

static inline uint8_t clip(int32_t v) {
    v >>= BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* One row along x. */
static void along_x(const axis *x, const uint8_t *row, uint8_t *out) {
    for (int64_t i = 0; i < x->n; i++) {
        const uint8_t *p = row + 3 * x->first[i];
        const int32_t *w = x->weight + i * x->most;
        int32_t r = 1 << (BITS - 1), g = r, b = r;
        for (int32_t k = 0; k < x->count[i]; k++, p += 3) {
            r += p[0] * w[k];
            g += p[1] * w[k];
            b += p[2] * w[k];
        }
        out[3 * i] = clip(r);
        out[3 * i + 1] = clip(g);
        out[3 * i + 2] = clip(b);
    }
}

/* Row i of the result from rows of n bytes each. */
enum { PIECE = 256 };
WIDE static void along_y(const axis *y, int64_t i, const uint8_t *rows, int64_t n, uint8_t *out) {
    const int32_t *w = y->weight + i * y->most, count = y->count[i];
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t m = CLT_MIN(n - at, PIECE);
        int32_t sum[PIECE];
        for (int64_t c = 0; c < m; c++) sum[c] = 1 << (BITS - 1);
        for (int32_t k = 0; k < count; k++) {
            const uint8_t *row = rows + k * n + at;
            for (int64_t c = 0; c < m; c++) sum[c] += row[c] * w[k];
        }
        for (int64_t c = 0; c < m; c++) out[at + c] = clip(sum[c]);
    }
}

clt_status clt_image_resize(const clt_image_view *in, int64_t width, int64_t height, clt_image_window w,
                            clt_image_scratch *s, uint8_t *out) {
    axis x, y;
    CLT_TRY(make_axis(s, 0, in->width, width, w.x, w.width, &x));
    CLT_TRY(make_axis(s, 1, in->height, height, w.y, w.height, &y));
    const int64_t first = y.first[0], end = y.first[y.n - 1] + y.count[y.n - 1], n = 3 * w.width;
    uint8_t *rows = reserve(s, 2, (size_t)((end - first) * n));
    if (!rows) return clt_no_memory("the rows of a resize", (size_t)((end - first) * n));
    for (int64_t k = first; k < end; k++)
        along_x(&x, in->rgb + (size_t)k * in->stride, rows + (k - first) * n);
    for (int64_t i = 0; i < w.height; i++) along_y(&y, i, rows + (y.first[i] - first) * n, n, out + i * n);
    return CLT_OK;
}
