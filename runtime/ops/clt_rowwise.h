/* clt_rowwise: launching elementwise kernels over rows x cols elements, whose work-items walk along rows
 * (clkernels/include/clt_lane.clh), and test data for their checks. Private to runtime/ops. */
#ifndef CLT_ROWWISE_H
#define CLT_ROWWISE_H

#include <string.h>

#include "runtime/ops/clt_check.h"

enum { CLT_ROWWISE_TENSORS = 5, CLT_ROWWISE_MORE = 3 };

/* A launch of such a kernel. Its arguments are: ulong cols; per tensor pointer, offset, ld; then `more`. */
typedef struct {
    const char *kernel;
    int64_t rows, cols;
    bool by_row; /* the kernel needs the row's number; else, if every ld is cols, all rows are one */
    int tensors, n_more;
    clt_tensor t[CLT_ROWWISE_TENSORS];
    clt_arg more[CLT_ROWWISE_MORE];
} clt_rowwise;
/* Runs r->kernel of v's file with v->options: ceil(cols / SEG) work-items per row, rounded up to WG (params
 * of the variant, 1 if absent). Without elements it does nothing. The limits of tensors and n_more are not
 * checked. */
clt_status clt_rowwise_launch(clt_ops *ops, const clt_variant *v, const clt_rowwise *r);

/* The same for vectors of `count` elements: arguments (ulong count, then args, at most 24). */
enum { CLT_VECTOR_ARGS = 24 };
clt_status clt_vector_launch(clt_ops *ops, const clt_variant *v, const char *kernel, uint64_t count,
                             const clt_arg *args, int n);

/* " -DTYPE=1": the build option of every kernel for tensors of one type. */
static inline const char *clt_type_option(clt_dtype type, char buf[16]) {
    snprintf(buf, 16, " -DTYPE=%d", (int)type);
    return buf;
}

/* Whether cols and the offset and row distance of every tensor are multiples of 8 elements, as variants with
 * body "wide" need. */
bool clt_rowwise_wide(const clt_rowwise *r);
static inline bool clt_variant_wide(const clt_variant *v) {
    return !strcmp(v->body, "wide");
}
/* What the check of a rowwise kernel and its clt_variant_takes need to know of the call. */
typedef struct {
    clt_dtype type;
    bool wide; /* clt_rowwise_wide */
} clt_rowwise_call;
/* For clt_variant_question: false only for a "wide" variant and a clt_rowwise_call that is not wide. */
bool clt_rowwise_takes(const clt_variant *v, const void *call);

/* For checks: a scratch buffer (slot 3) as equal parts of `count` floats, each starting 5 elements after a
 * multiple of 64, so that offsets are unaligned. */
enum { CLT_CHECK_PARTS = 6 };
clt_status clt_check_parts(clt_ops *ops, size_t count, clt_ref part[CLT_CHECK_PARTS]);
/* A part as a place of elements of `type`: unaligned too, but for wide rows a multiple of 8 elements. */
static inline clt_ref clt_check_place(const clt_variant *v, clt_dtype type, clt_ref part) {
    const uint64_t in_float = sizeof(float) / clt_dtype_bytes(type), odd = in_float > 1;
    if (clt_variant_wide(v)) return (clt_ref){part.buf, CLT_ROUND_UP(part.off, 8) * in_float};
    return (clt_ref){part.buf, part.off * in_float + odd};
}
/* Test data, the same for a seed: +-u * 2^-e with u uniform in [0, 64) and e uniform in 0 ... 20. */
void clt_check_fill(float *x, size_t n, uint32_t seed);

#endif
