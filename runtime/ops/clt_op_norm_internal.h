/* clt_op_norm_internal: what clt_op_norm*.c (rows) and clt_op_columns.c (sums down columns) share. */
#ifndef CLT_OP_NORM_INTERNAL_H
#define CLT_OP_NORM_INTERNAL_H

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_norm.h"

/* The rows of a block. Kernels are specialised for the tensors that a call has; variants are checked, and
 * have a verdict, for each specialisation. */
enum { CLT_NORM_BLOCK = 64, CLT_NORM_OPTIONS = 340 };

bool clt_norm_is_rows(const clt_variant *v);
/* norm_wide.cl: for rows of up to 8192 elements in multiples of 64, everything aligned to 8 elements; and
 * norm_ring.cl, for fewer shapes, whose column sums end with norm_wide.cl's kernels. */
bool clt_norm_is_wide(const clt_variant *v);
/* The work-group size of a row whose size does not depend on the call. */
size_t clt_norm_group(const clt_variant *v);
/* Which rows support a call, for clt_variant_pick_for. */
clt_variant_takes clt_norm_takes(bool wide, bool ring);
clt_status clt_norm_check_samples(const char *op, int64_t rows, int64_t cols, int64_t per_sample);

bool clt_norm_builds(clt_ops *ops, const char *file, const char *name, const char *options);
clt_status clt_norm_does_not_build(clt_ops *ops, const clt_variant *v);

/* Block sums: for each result [samples * blocks, cols] at an element of `part`; out[cols] (+)= their sum. */
typedef struct {
    clt_buffer *part;
    int64_t samples, blocks, cols;
    bool accumulate, later; /* later: the sums may end in a launch with others (clt_op_sums_later) */
} clt_column_parts;
typedef struct {
    uint64_t at;
    clt_ref out;
} clt_column_result;

/* Whether sums may end later now. Not for checks of variants. */
bool clt_columns_later(const clt_ops *ops);
/* Allocates the block sums of these results (n <= 3) and sets their places, before they are computed; and
 * ends the sums, now or later, once they are. */
clt_status clt_columns_room(clt_ops *ops, const clt_variant *v, clt_column_parts *parts, clt_column_result *r,
                            int n);
clt_status clt_columns_finish(clt_ops *ops, const clt_variant *v, const clt_column_parts *parts,
                              const clt_column_result *r, int n);
/* Whether the kernels that end the sums build and, for wide rows, whether sums that end later are right. */
bool clt_columns_build(clt_ops *ops, const clt_variant *v);
clt_status clt_columns_check_later(clt_ops *ops);

#endif
