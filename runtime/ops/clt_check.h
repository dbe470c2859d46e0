/* clt_check: helpers for the checks of kernel variants: device tensors for one check, with one status for all
 * of them.
 *
 *     clt_check c = {.ops = ops};
 *     float *x = clt_check_random(&c, n, seed);
 *     clt_ref dx = clt_check_upload(&c, x, n), dy = clt_check_blank(&c, n);
 *     if (c.st == CLT_OK) c.st = run_variant(ops, v, dx, dy);
 *     if (c.st == CLT_OK) c.st = clt_variant_compare(ops, "y", dy, want, n);
 *     return clt_check_end(&c);
 *
 * Data starts at an odd offset in its buffer unless `aligned` is set. After a failure the functions only
 * return empty places, and host memory, which is always valid. */
#ifndef CLT_CHECK_H
#define CLT_CHECK_H

#include "runtime/ops/clt_variant.h"

enum { CLT_CHECK_MAX = 32 };

typedef struct {
    clt_ops *ops;
    clt_status st;
    bool aligned; /* data starts at a multiple of 8 elements, else at an odd one */
    clt_buffer *buf[CLT_CHECK_MAX];
    void *host[CLT_CHECK_MAX];
    int bufs, hosts;
} clt_check;

/* n floats: uniform in [-1, 1), or 0; freed by clt_check_end. */
float *clt_check_random(clt_check *c, size_t n, uint64_t seed);
float *clt_check_zeros(clt_check *c, size_t n);
/* n 4-byte elements on the device: a copy of `data`, or a pattern of NaNs. */
clt_ref clt_check_upload(clt_check *c, const void *data, size_t n);
clt_ref clt_check_blank(clt_check *c, size_t n);
/* n elements of `type`: a copy of `data`, which is rounded to the type first, so that the oracle reads the
 * same values as the device. */
clt_ref clt_check_upload_as(clt_check *c, clt_dtype type, float *data, size_t n);
/* Compares unless the check failed before; `want` are the oracle's fp32 values, rounded to the type here. */
void clt_check_compare(clt_check *c, const char *what, clt_ref got, const float *want, size_t n);
void clt_check_compare_as(clt_check *c, clt_dtype type, const char *what, clt_ref got, const float *want,
                          size_t n);
/* Writes x to `to`, a place counted in elements of `type`, and rounds x itself to the type. */
clt_status clt_check_write(clt_dtype type, clt_ref to, float *x, size_t n);
/* For rows of `numerics: fast`: |got - want| <= relative |want| + absolute + what rounding to the type may do
 * (half a unit of the result; fp16: of its smallest number). NaN only where the oracle has one. */
typedef struct {
    double relative, absolute;
} clt_check_bound;
clt_status clt_check_near(clt_ops *ops, clt_dtype type, const char *what, clt_ref got, const float *want,
                          size_t n, clt_check_bound bound);
/* Frees everything; returns c->st. */
clt_status clt_check_end(clt_check *c);

#endif
