/* clt_op_norm_internal: what clt_op_norm.c (norms) and clt_op_columns.c (sums down columns) share. Private to
 * these two files. In this header `v` is a row of norm.vt. */
#ifndef CLT_OP_NORM_INTERNAL_H
#define CLT_OP_NORM_INTERNAL_H

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_norm.h"

/* CLT_NORM_BLOCK: rows whose sum down a column is one block sum. CLT_NORM_OPTIONS: room for build options.
 * Kernels are specialised for the tensors that a call has; variants have a verdict for each specialisation.
 */
enum { CLT_NORM_BLOCK = 64, CLT_NORM_OPTIONS = 340 };

/* Whether v uses norm_rows.cl, for CPUs: one work-item per row or block. */
bool clt_norm_is_rows(const clt_variant *v);
/* Whether v uses norm_wide.cl, for rows of up to 8192 elements in multiples of 64 whose tensors are aligned
 * to 8 elements, or norm_ring.cl, for fewer shapes, whose column sums end with norm_wide.cl's kernels. */
bool clt_norm_is_wide(const clt_variant *v);
/* The work-group size of v, in work-items, for kernels whose work-group does not depend on the call. */
size_t clt_norm_group(const clt_variant *v);
/* For clt_variant_question.takes: which rows of norm.vt support a call. wide: wide rows do; ring: ring rows
 * do, too. Ring rows need both. NULL: all rows do. */
clt_variant_takes clt_norm_takes(bool wide, bool ring);
/* CLT_FAIL, with a message that begins with `op`, unless rows >= 0, cols and per_sample are at least 1 and
 * per_sample divides rows. */
clt_status clt_norm_check_samples(const char *op, int64_t rows, int64_t cols, int64_t per_sample);

/* Whether kernel `name` of `file` builds with these options; prints nothing. */
bool clt_norm_builds(clt_ops *ops, const char *file, const char *name, const char *options);
/* Sets the reason of a failed check ("does not build") and returns CLT_FAIL (clt_variant_fail). */
clt_status clt_norm_does_not_build(clt_ops *ops, const clt_variant *v);

/* Sums down columns in two steps: a kernel stores block sums, then another adds them up. The block sums of a
 * result are [samples * blocks, cols] in `part`, from element `at` on; out[cols] receives their sum. */
typedef struct {
    clt_buffer *part;
    int64_t samples, blocks, cols;
    bool accumulate, later; /* accumulate: out is added to; later: the second step may be postponed */
} clt_column_parts;
typedef struct {
    uint64_t at;
    clt_ref out;
} clt_column_result;

/* Whether clt_op_sums_later is on. Checks of variants must not ask: they never postpone. */
bool clt_columns_later(const clt_ops *ops);
/* Before the first step: allocates the block sums of the n results (at most 3) in scratch memory and sets
 * parts->part and each r[i].at. May queue a launch of sums that were postponed before. */
clt_status clt_columns_room(clt_ops *ops, const clt_variant *v, clt_column_parts *parts, clt_column_result *r,
                            int n);
/* The second step, after the first was queued: queues it or postpones it (clt_op_sums_later). The arguments
 * must be those of clt_columns_room. */
clt_status clt_columns_finish(clt_ops *ops, const clt_variant *v, const clt_column_parts *parts,
                              const clt_column_result *r, int n);
/* Whether the kernels of the second step build for v. */
bool clt_columns_build(clt_ops *ops, const clt_variant *v);
/* Checks the kernel of postponed sums, which wide rows need, against the oracle; as a clt_variant_check. */
clt_status clt_columns_check_later(clt_ops *ops);

#endif
