/* precision amp_fp8: delayed scaling of the model's 8-bit tensors. The device records the largest magnitudes
 * of a step; once its results are known they are reduced over the ranks, enter the histories, and the next
 * step's scales go to the device. */
#include <string.h>

#include "runtime/train/engine/clt_engine_internal.h"

/* Composer's recipe. */
static const clt_fp8_recipe recipe = {.history = 16, .margin = 0};

clt_status clt_engine_fp8_create(clt_engine *e) {
    const clt_fp8 *formats;
    const size_t n = clt_model_fp8_formats(e->model, &formats);
    return n ? clt_fp8_scaling_create(&e->fp8, recipe, formats, n) : CLT_OK;
}

clt_fp8_scaling *clt_engine_fp8(clt_engine *e) {
    return &e->fp8;
}

clt_status clt_engine_fp8_changed(clt_engine *e) {
    return e->fp8.tensors ? clt_model_fp8_set_scales(e->model, e->fp8.scale) : CLT_OK;
}

/* Magnitudes and NaN of one sign compare like their bits. */
static clt_status reduce(clt_engine *e, float *amax) {
    const size_t n = e->fp8.tensors;
    int64_t *all = clt_calloc(n, sizeof *all);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &amax[i], sizeof bits);
        all[i] = bits;
    }
    const clt_status st = clt_group_max_i64(e->group, all, (int)n);
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)all[i];
        memcpy(&amax[i], &bits, sizeof bits);
    }
    clt_free(all);
    return st;
}

clt_status clt_engine_fp8_follow(clt_engine *e) {
    const size_t n = e->fp8.tensors;
    if (!n) return CLT_OK;
    float *amax = clt_calloc(n, sizeof *amax);
    clt_status st = clt_model_fp8_amax(e->model, amax);
    if (st == CLT_OK) st = reduce(e, amax);
    for (size_t i = 0; st == CLT_OK && i < n; i++) clt_fp8_scaling_record(&e->fp8, i, amax[i]);
    clt_free(amax);
    CLT_TRY(st);
    clt_fp8_scaling_update(&e->fp8);
    return clt_engine_fp8_changed(e);
}
