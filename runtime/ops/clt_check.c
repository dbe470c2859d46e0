#include "runtime/ops/clt_check.h"

#include <math.h>

#include "runtime/base/clt_philox.h"
#include "runtime/ops/ref/clt_ref.h"

enum { OFFSET = 5, ALIGNED = 8 };

static void *keep_host(clt_check *c, void *p) {
    if (c->hosts == CLT_CHECK_MAX) {
        c->st = clt_variant_fail(c->ops, "the check uses too many arrays");
        c->hosts--;
        clt_free(c->host[c->hosts]);
    }
    return c->host[c->hosts++] = p;
}

float *clt_check_zeros(clt_check *c, size_t n) {
    return keep_host(c, clt_calloc(CLT_MAX(n, 1), sizeof(float)));
}

float *clt_check_random(clt_check *c, size_t n, uint64_t seed) {
    float *x = clt_check_zeros(c, n);
    const uint32_t key[2] = {(uint32_t)seed, 0xc4ec4u};
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), 0, 0, 0};
        uint32_t word[4];
        clt_philox4x32(counter, key, word);
        for (size_t j = 0; j < 4 && i + j < n; j++)
            x[i + j] = (float)(word[j] >> 8) * (1.0f / 8388608.0f) - 1.0f;
    }
    return x;
}

clt_ref clt_check_upload(clt_check *c, const void *data, size_t n) {
    clt_buffer *b = NULL;
    if (c->st == CLT_OK && c->bufs == CLT_CHECK_MAX)
        c->st = clt_variant_fail(c->ops, "the check uses too many buffers");
    if (c->st != CLT_OK) return clt_ref_none();
    const size_t offset = c->aligned ? ALIGNED : OFFSET, words = CLT_MAX(n, 1) + 2 * ALIGNED;
    c->st = clt_buffer_create(clt_ops_device(c->ops), words * 4, "variant check", &b);
    if (c->st != CLT_OK) return clt_ref_none();
    c->buf[c->bufs++] = b;
    c->st = clt_buffer_fill32(b, 0, 0x7fc0dead, words * 4);
    if (c->st == CLT_OK && data && n) c->st = clt_buffer_write(b, offset * 4, data, n * 4);
    return (clt_ref){b, offset};
}

clt_ref clt_check_upload_as(clt_check *c, clt_dtype type, float *data, size_t n) {
    clt_ref r = clt_check_upload(c, NULL, n);
    if (c->st == CLT_OK) c->st = clt_check_write(type, r, data, n);
    return r;
}

clt_ref clt_check_blank(clt_check *c, size_t n) {
    return clt_check_upload(c, NULL, n);
}

void clt_check_compare(clt_check *c, const char *what, clt_ref got, const float *want, size_t n) {
    if (c->st == CLT_OK) c->st = clt_variant_compare(c->ops, what, got, want, n);
}

void clt_check_compare_as(clt_check *c, clt_dtype type, const char *what, clt_ref got, const float *want,
                          size_t n) {
    if (c->st == CLT_OK) c->st = clt_variant_compare_as(c->ops, type, what, got, want, n);
}

clt_status clt_check_write(clt_dtype type, clt_ref to, float *x, size_t n) {
    void *stored = clt_try_malloc(n * sizeof *x);
    if (!stored) return clt_no_memory("checking a kernel variant", n * sizeof *x);
    clt_ref_round(type, x, n);
    clt_ref_narrow(type, x, n, stored);
    clt_status st =
        clt_buffer_write(to.buf, to.off * clt_dtype_bytes(type), stored, n * clt_dtype_bytes(type));
    clt_free(stored);
    return st;
}

clt_status clt_check_near(clt_ops *ops, clt_dtype type, const char *what, clt_ref got, const float *want,
                          size_t n, clt_check_bound b) {
    if (clt_variant_is_rehearsed(ops)) return CLT_OK;
    const clt_dtype_row *t = &clt_dtype_table[type];
    const double least = b.absolute + fmax(2 * t->least, 0x1p-126);
    float *x = clt_try_malloc(n * sizeof *x);
    clt_status st =
        x ? clt_ref_read_as(got, type, x, n) : clt_no_memory("checking a kernel variant", n * sizeof *x);
    for (size_t i = 0; i < n && st == CLT_OK; i++) {
        const double w = (double)want[i], bound = fabs(w) * (b.relative + t->unit) * 1.01 + least;
        if (!(fabs((double)x[i] - w) <= bound) && x[i] != want[i] && !(isnan(x[i]) && isnan(want[i])))
            st = clt_variant_fail(ops,
                                  "%s: element %zu of %zu is %.9g, the oracle has %.9g, the bound is %.3g",
                                  what, i, n, (double)x[i], w, bound);
    }
    clt_free(x);
    return st;
}

clt_status clt_check_end(clt_check *c) {
    while (c->bufs > 0) clt_buffer_destroy(c->buf[--c->bufs]);
    while (c->hosts > 0) clt_free(c->host[--c->hosts]);
    return c->st;
}
