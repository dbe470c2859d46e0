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
 * After a failure the functions do nothing on the device and return empty places (buf NULL). Host arrays are
 * valid until clt_check_end as long as a check uses at most CLT_CHECK_MAX of them; one more makes the check
 * fail and frees the latest. At most CLT_CHECK_MAX device arrays are possible too. */
#ifndef CLT_CHECK_H
#define CLT_CHECK_H

#include "runtime/ops/clt_variant.h"

enum { CLT_CHECK_MAX = 32 };

typedef struct {
    clt_ops *ops;
    clt_status st; /* of the first failure */
    bool aligned;  /* data starts 8 elements into its buffer; false: 5, so that kernels must handle any offset
                    */
    clt_buffer *buf[CLT_CHECK_MAX];
    void *host[CLT_CHECK_MAX];
    int bufs, hosts;
} clt_check;

/* n host floats, freed by clt_check_end: uniform in [-1, 1), the same for a seed (its low 32 bits). */
float *clt_check_random(clt_check *c, size_t n, uint64_t seed);
/* n host floats of +0, freed by clt_check_end. */
float *clt_check_zeros(clt_check *c, size_t n);
/* n elements of 4 bytes on the device, freed by clt_check_end: a copy of `data`; as blank if data is NULL. */
clt_ref clt_check_upload(clt_check *c, const void *data, size_t n);
/* n elements of 4 bytes on the device, each 0x7fc0dead, which is a NaN as fp32. */
clt_ref clt_check_blank(clt_check *c, size_t n);
/* n elements of `type` on the device, with the values of `data`. `data` itself is rounded to the type in
 * place, so that the oracle reads the same values as the device. */
clt_ref clt_check_upload_as(clt_check *c, clt_dtype type, float *data, size_t n);
/* Compare n elements at `got` with `want` bit by bit (clt_variant_compare), unless the check failed before; a
 * difference makes it fail. `what` names the result. as: `want` holds the oracle's fp32 values before
 * rounding to the type. */
void clt_check_compare(clt_check *c, const char *what, clt_ref got, const float *want, size_t n);
void clt_check_compare_as(clt_check *c, clt_dtype type, const char *what, clt_ref got, const float *want,
                          size_t n);
/* Rounds the n elements of x to `type` in place and writes them to `to`, whose off counts elements of `type`.
 */
clt_status clt_check_write(clt_dtype type, clt_ref to, float *x, size_t n);
/* For rows that require numerics=fast. Passes where got equals want, where both are NaN, and where
 *     |got - want| <= 1.01 * (relative + unit) * |want| + absolute + max(2 * least, 2^-126)
 * with unit and least of the type (CLT_DTYPES). Otherwise CLT_FAIL with a reason (clt_variant_fail). In a
 * rehearsal nothing is compared. */
typedef struct {
    double relative, absolute;
} clt_check_bound;
clt_status clt_check_near(clt_ops *ops, clt_dtype type, const char *what, clt_ref got, const float *want,
                          size_t n, clt_check_bound bound);
/* Frees all host and device arrays of the check; returns c->st. */
clt_status clt_check_end(clt_check *c);

#endif
