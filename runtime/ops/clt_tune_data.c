/* What the kinds share. Tensors for timing: a repeating block of random numbers, so that outputs can be
 * compared with the oracle without a copy of whole tensors on the host. */
#include <string.h>

#include "runtime/base/clt_philox.h"
#include "runtime/ops/clt_tune.h"
#include "runtime/ops/ref/clt_ref.h"

clt_status clt_tune_pattern(clt_dtype type, float **out) {
    const uint32_t key[2] = {1, 0x74756e65};
    float *x = *out = clt_try_malloc(CLT_TUNE_PERIOD * sizeof *x);
    if (!x) return clt_no_memory("tuning", CLT_TUNE_PERIOD * sizeof *x);
    for (size_t i = 0; i < CLT_TUNE_PERIOD; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t word[4];
        clt_philox4x32(counter, key, word);
        for (size_t j = 0; j < 4 && i + j < CLT_TUNE_PERIOD; j++)
            x[i + j] = clt_ref_rounded(type, (float)(int32_t)word[j] * 0x1p-31f);
    }
    return CLT_OK;
}

clt_status clt_tune_tensor(clt_ops *ops, const float *pattern, clt_dtype type, uint64_t n, clt_ref *out) {
    const uint64_t size = clt_dtype_bytes(type), first = CLT_MIN(n, (uint64_t)CLT_TUNE_PERIOD) * size;
    void *stored = clt_try_malloc(CLT_TUNE_PERIOD * sizeof(float));
    *out = clt_ref_none();
    if (!stored) return clt_no_memory("tuning", CLT_TUNE_PERIOD * sizeof(float));
    clt_ref_narrow(type, pattern, CLT_TUNE_PERIOD, stored);
    clt_status st = clt_buffer_create(clt_ops_device(ops), CLT_ROUND_UP(n * size, 4), "tuning", &out->buf);
    if (st == CLT_OK) st = clt_buffer_write(out->buf, 0, stored, first);
    for (uint64_t at = first; st == CLT_OK && at < n * size; at += first)
        st = clt_buffer_copy(out->buf, at, out->buf, 0, CLT_MIN(first, n * size - at));
    clt_free(stored);
    return st;
}

bool clt_tune_fits(const clt_ops *ops, uint64_t all, uint64_t most) {
    const clt_device_facts *f = clt_device_get_facts(clt_ops_device(ops));
    return all <= f->global_mem / 8 && most <= f->max_alloc;
}

bool clt_tune_worth(const clt_ops *ops, const clt_variant *v) {
    return clt_device_get_facts(clt_ops_device(ops))->type != CLT_DEVICE_CPU ||
           strstr(v->requires, "type=cpu") != NULL;
}
