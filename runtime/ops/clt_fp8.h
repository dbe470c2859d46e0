/* clt_fp8: 8-bit floating point. The table of its formats, and delayed scaling: a tensor is cast with a scale
 * that comes from the largest magnitudes ("amax") of earlier steps, so that it is read once.
 *
 * Delayed scaling is Transformer Engine's recipe (DelayedScaling; Micikevicius et al., "FP8 Formats for Deep
 * Learning", 2022): x8 = cast(x * scale), and after a step scale = largest * 2^-margin / amax, where amax is
 * that of the history. docs/numerics.md, "8-bit floating point", has the formulas. All values are fp32.
 *
 * A clt_fp8_scaling is host memory without locks: one thread at a time. */
#ifndef CLT_FP8_H
#define CLT_FP8_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/clt_status.h"

/* A row per format:
 *   id        the enumerator CLT_FP8_<id>
 *   name      in messages and of the functions of clkernels/include/clt_fp8.clh
 *   mantissa  bits after the point
 *   bias      of the exponent
 *   largest   the largest value
 *   fnuz      one zero, one NaN (code 0x80), no infinity: AMD's gfx942. The others are OCP's: NVIDIA, newer
 * AMD */
#define CLT_FP8_FORMATS(ROW)                                                                                 \
    ROW(E4M3, e4m3, 3, 7, 448.0f, false)                                                                     \
    ROW(E5M2, e5m2, 2, 15, 57344.0f, false)                                                                  \
    ROW(E4M3FNUZ, e4m3fnuz, 3, 8, 240.0f, true)                                                              \
    ROW(E5M2FNUZ, e5m2fnuz, 2, 16, 57344.0f, true)

#define CLT_FP8_ID(id, ...) CLT_FP8_##id,
typedef enum { CLT_FP8_FORMATS(CLT_FP8_ID) CLT_FP8_COUNT } clt_fp8;
#undef CLT_FP8_ID

typedef struct {
    const char *name;
    int mantissa, bias;
    float largest;
    bool fnuz;
} clt_fp8_row;
extern const clt_fp8_row clt_fp8_table[CLT_FP8_COUNT];

typedef struct {
    int history;      /* steps that are remembered, at least 1, with the running one */
    int margin;       /* powers of two that stay free below the largest value, 0 to 30 */
    bool most_recent; /* amax is that of the last step alone, not the largest of the history */
} clt_fp8_recipe;

/* The scales of `tensors` tensors. Members are for reading, and for checkpoints to save and restore. */
typedef struct {
    clt_fp8_recipe recipe;
    size_t tensors;
    float *scale; /* [tensors], 1 at first */
    float
        *amax; /* [history][tensors], 0 at first. Row 0 is the running step, the last row the newest ended */
    float *largest; /* [tensors], the largest value of the tensor's format */
} clt_fp8_scaling;

/* Makes the scales of tensors cast to formats[0..tensors-1]. CLT_FAIL with a message if the recipe is invalid
 * or memory is missing; then *s is empty. */
clt_status clt_fp8_scaling_create(clt_fp8_scaling *s, clt_fp8_recipe recipe, const clt_fp8 *formats,
                                  size_t tensors);
void clt_fp8_scaling_destroy(clt_fp8_scaling *s); /* an empty one too */

/* Records the amax of one tensor, before scaling, in the running step; the larger one stays. Inf and NaN stay
 * too. */
void clt_fp8_scaling_record(clt_fp8_scaling *s, size_t tensor, float amax);

/* Ends a step: row 0 enters the histories and the scales follow. With several ranks, reduce row 0 of amax to
 * its maximum before. A tensor whose row 0 is 0 keeps its history. A scale stays as it is while the amax it
 * comes from is 0, infinite or NaN. */
void clt_fp8_scaling_update(clt_fp8_scaling *s);

#endif
