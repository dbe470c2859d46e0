/* The state of delayed scaling (precision amp_fp8) as named numbers of a checkpoint: fp8_scale.TENSOR and
 * fp8_amax.TENSOR.PLACE, of tensors that have a history. Values are those of numbers before scaling and
 * scales of OCP's formats, so a checkpoint does not depend on a device's 8-bit codes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/run/clt_run.h"

#define SCALE "fp8_scale."
#define AMAX "fp8_amax."

static bool has_history(const clt_fp8_scaling *s, size_t tensor) {
    for (int i = 0; i < s->recipe.history; i++)
        if (s->amax[(size_t)i * s->tensors + tensor] != 0.0f) return true;
    return false;
}

int clt_run_fp8_most(clt_run *r) {
    const clt_fp8_scaling *s = clt_engine_fp8(r->engine);
    int n = 0;
    for (size_t t = 0; t < s->tensors; t++) n += has_history(s, t) ? 1 + s->recipe.history : 0;
    return n;
}

/* A file has no infinities; those and NaN keep a scale as it is while they are remembered: -1. */
int clt_run_fp8_numbers(clt_run *r, clt_ckpt_number *v, clt_strv *names) {
    const clt_fp8_scaling *s = clt_engine_fp8(r->engine);
    int n = 0;
    for (size_t t = 0; t < s->tensors; t++) {
        if (!has_history(s, t)) continue;
        char *name = clt_format(SCALE "%zu", t);
        clt_strv_add_owned(names, name);
        v[n++] = (clt_ckpt_number){name, (double)s->scale[t]};
        for (int i = 0; i < s->recipe.history; i++) {
            const float amax = s->amax[(size_t)i * s->tensors + t];
            if (amax == 0.0f) continue;
            name = clt_format(AMAX "%zu.%d", t, i);
            clt_strv_add_owned(names, name);
            v[n++] = (clt_ckpt_number){name, isfinite(amax) ? (double)amax : -1.0};
        }
    }
    return n;
}

static void take(clt_fp8_scaling *s, const clt_ckpt_number *number) {
    size_t t;
    int i;
    char end;
    const float value = (float)number->value;
    if (sscanf(number->name, SCALE "%zu%c", &t, &end) == 1 && t < s->tensors && value > 0 && isfinite(value))
        s->scale[t] = value;
    if (sscanf(number->name, AMAX "%zu.%d%c", &t, &i, &end) == 2 && t < s->tensors && i >= 0 &&
        i < s->recipe.history && !isnan(value))
        s->amax[(size_t)i * s->tensors + t] = value < 0 ? INFINITY : value;
}

clt_status clt_run_fp8_take(clt_run *r, const clt_ckpt_number *numbers, int n) {
    clt_fp8_scaling *s = clt_engine_fp8(r->engine);
    for (size_t t = 0; t < s->tensors; t++) s->scale[t] = 1.0f;
    if (s->tensors) memset(s->amax, 0, (size_t)s->recipe.history * s->tensors * sizeof *s->amax);
    for (int i = 0; i < n; i++) take(s, &numbers[i]);
    return clt_engine_fp8_changed(r->engine);
}

/* Kept until the engine exists. */
void clt_run_fp8_keep(clt_run *r, const clt_checkpoint_state *s) {
    clt_run_fp8_forget(r);
    r->origin.fp8 = clt_calloc((size_t)CLT_MAX(s->number_count, 1), sizeof *r->origin.fp8);
    for (int i = 0; i < s->number_count; i++)
        if (!strncmp(s->numbers[i].name, "fp8_", 4))
            r->origin.fp8[r->origin.n_fp8++] =
                (clt_ckpt_number){clt_strdup(s->numbers[i].name), s->numbers[i].value};
}

void clt_run_fp8_forget(clt_run *r) {
    for (int i = 0; i < r->origin.n_fp8; i++) clt_free((char *)(uintptr_t)r->origin.fp8[i].name);
    clt_free(r->origin.fp8);
    r->origin.fp8 = NULL;
    r->origin.n_fp8 = 0;
}
