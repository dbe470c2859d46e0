/* clt_rowwise: launching of elementwise kernels over rows x cols elements, whose work-items walk along rows
 * (clkernels/include/clt_lane.clh), and the small checks of their variants. For the files of runtime/ops
 * only. */
#ifndef CLT_ROWWISE_H
#define CLT_ROWWISE_H

#include <string.h>

#include "runtime/ops/clt_check.h"

/* A matrix argument of a kernel: pointer, offset, and the distance between rows. */
typedef struct {
    clt_ref ref;
    int64_t ld;
} clt_rows;

enum { CLT_ROWWISE_MAX = 8 };

/* Launches kernel `name` of v's file, built with v's options and `options` ("" or " -DX=1"), with the
 * arguments (ulong cols, then for each matrix: pointer, offset, ld; then `more`). Matrices that are all
 * contiguous, with no need of the row number (`flat`), are taken as one long row. No elements: nothing is
 * done. */
clt_status clt_rowwise_launch(clt_ops *ops, const clt_variant *v, const char *name, const char *options,
                              bool flat, int64_t rows, int64_t cols, const clt_rows *matrix, int matrices,
                              const clt_arg *more, int n_more);

/* The same for vectors of `count` elements without row distances: arguments (ulong count, then args). SEG and
 * WG of the variant decide the number of work-items. */
clt_status clt_vector_launch(clt_ops *ops, const clt_variant *v, const char *name, const char *options,
                             uint64_t count, const clt_arg *args, int n);

/* " -DTYPE=1": the option that every kernel for tensors of one type is built with. */
static inline const char *clt_type_option(clt_dtype type, char buf[16]) {
    snprintf(buf, 16, " -DTYPE=%d", (int)type);
    return buf;
}

/* Rows with body "wide" want offsets, row distances and `cols` that are multiples of 8 elements. */
bool clt_rowwise_wide(int64_t cols, const clt_rows *matrix, int matrices);
static inline bool clt_variant_wide(const clt_variant *v) {
    return !strcmp(v->body, "wide");
}
/* What a check of rowwise kernels has to know of the call, and which rows can do it (clt_variant_takes). */
typedef struct {
    clt_dtype type;
    bool wide; /* of clt_rowwise_wide */
} clt_rowwise_call;
bool clt_rowwise_takes(const clt_variant *v, const void *call);

/* For checks: a scratch buffer (slot 3) as `n` equal parts of `count` floats, each starting 5 elements after
 * a multiple of 64, so that offsets are not aligned. */
enum { CLT_CHECK_PARTS = 6 };
clt_status clt_check_parts(clt_ops *ops, size_t count, clt_ref part[CLT_CHECK_PARTS]);
/* A part as a place of elements of `type`: not aligned either, but a multiple of 8 elements for wide rows. */
static inline clt_ref clt_check_place(const clt_variant *v, clt_dtype type, clt_ref part) {
    const uint64_t odd = clt_variant_wide(v) ? 0 : 1,
                   off = clt_variant_wide(v) ? CLT_ROUND_UP(part.off, 8) : part.off;
    return (clt_ref){part.buf, type == CLT_F32 ? off : off * 2 + odd};
}
/* Test data: values of both signs from 2^-20 to 2^6, the same for the same seed. */
void clt_check_fill(float *x, size_t n, uint32_t seed);

#endif
