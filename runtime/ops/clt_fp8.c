/* The table of 8-bit formats, and delayed scaling. */
#include "runtime/ops/clt_fp8.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "runtime/base/clt_log.h"
#include "runtime/base/clt_memory.h"

#define ROW(id, name, ...) [CLT_FP8_##id] = {#name, __VA_ARGS__},
const clt_fp8_row clt_fp8_table[CLT_FP8_COUNT] = {CLT_FP8_FORMATS(ROW)};
#undef ROW

clt_status clt_fp8_scaling_create(clt_fp8_scaling *s, clt_fp8_recipe recipe, const clt_fp8 *formats,
                                  size_t tensors) {
    *s = (clt_fp8_scaling){0};
    if (recipe.history < 1 || recipe.margin < 0 || recipe.margin > 30)
        return clt_error(
            CLT_FAIL,
            "delayed scaling: history %d and margin %d are invalid; a history has at least 1 step, a "
            "margin is 0 to 30",
            recipe.history, recipe.margin);
    const size_t rows = (size_t)recipe.history + 2;
    if (tensors > SIZE_MAX / sizeof(float) / rows) return clt_no_memory("the scales of 8-bit tensors", 0);
    float *all = clt_try_calloc(tensors * rows, sizeof *all);
    if (!all) return clt_no_memory("the scales of 8-bit tensors", tensors * rows * sizeof *all);
    *s = (clt_fp8_scaling){recipe, tensors, all, all + 2 * tensors, all + tensors};
    for (size_t t = 0; t < tensors; t++) {
        s->scale[t] = 1.0f;
        s->largest[t] = clt_fp8_table[formats[t]].largest;
    }
    return CLT_OK;
}

void clt_fp8_scaling_destroy(clt_fp8_scaling *s) {
    clt_free(s->scale);
    *s = (clt_fp8_scaling){0};
}

/* The larger one, or the one that is NaN. */
static float larger(float a, float b) {
    return isnan(a) || a > b ? a : b;
}

void clt_fp8_scaling_record(clt_fp8_scaling *s, size_t tensor, float amax) {
    s->amax[tensor] = larger(s->amax[tensor], amax);
}

/* The amax that decides the scale of tensor t. The oldest row counts: it leaves the history only now. */
static float deciding_amax(const clt_fp8_scaling *s, size_t t) {
    float amax = s->amax[t];
    for (int i = 1; i < s->recipe.history && !s->recipe.most_recent; i++)
        amax = larger(amax, s->amax[(size_t)i * s->tensors + t]);
    return amax;
}

static void roll(clt_fp8_scaling *s, size_t t) {
    const size_t step = s->tensors, last = (size_t)(s->recipe.history - 1) * step;
    const float now = s->amax[t];
    if (now == 0.0f) return;
    for (size_t at = step; at < last; at += step) s->amax[at + t] = s->amax[at + step + t];
    s->amax[last + t] = now;
    s->amax[t] = 0.0f;
}

void clt_fp8_scaling_update(clt_fp8_scaling *s) {
    for (size_t t = 0; t < s->tensors; t++) {
        const float amax = deciding_amax(s, t);
        if (amax > 0.0f && isfinite(amax)) {
            const float scale = ldexpf(s->largest[t], -s->recipe.margin) / amax;
            s->scale[t] = isinf(scale) ? FLT_MAX : scale;
        }
        roll(s, t);
    }
}
