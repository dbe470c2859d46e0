#include "runtime/ops/clt_rowwise.h"

#include "runtime/base/clt_philox.h"

static clt_status launch(clt_ops *ops, const clt_variant *v, const char *kernel, uint64_t rows, uint64_t cols,
                         const clt_arg *args, int n) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, kernel, v->options, &k));
    uint64_t seg = (uint64_t)clt_variant_param(v, "SEG", 1), wg = (uint64_t)clt_variant_param(v, "WG", 1);
    size_t global[2] = {CLT_ROUND_UP(CLT_CEIL_DIV(cols, seg), wg), rows}, local[2] = {wg, 1};
    return clt_launch_rows(k, global, local, args, n);
}

clt_status clt_rowwise_launch(clt_ops *ops, const clt_variant *v, const clt_rowwise *r) {
    if (r->rows <= 0 || r->cols <= 0) return CLT_OK;
    clt_arg args[1 + 3 * CLT_ROWWISE_TENSORS + CLT_ROWWISE_MORE];
    int n = 0;
    bool flat = !r->by_row;
    for (int i = 0; i < r->tensors; i++) flat = flat && r->t[i].ld == r->cols;
    const uint64_t rows = flat ? 1 : (uint64_t)r->rows, cols = (uint64_t)(flat ? r->rows * r->cols : r->cols);
    args[n++] = CLT_U64(cols);
    for (int i = 0; i < r->tensors; i++) {
        const clt_arg matrix[3] = {CLT_REF(r->t[i].ref), CLT_U64(r->t[i].ld)};
        for (int j = 0; j < 3; j++) args[n++] = matrix[j];
    }
    for (int i = 0; i < r->n_more; i++) args[n++] = r->more[i];
    return launch(ops, v, r->kernel, rows, cols, args, n);
}

clt_status clt_vector_launch(clt_ops *ops, const clt_variant *v, const char *kernel, uint64_t count,
                             const clt_arg *args, int n) {
    if (count == 0) return CLT_OK;
    clt_arg all[1 + CLT_VECTOR_ARGS];
    all[0] = CLT_U64(count);
    for (int i = 0; i < n; i++) all[i + 1] = args[i];
    return launch(ops, v, kernel, 1, count, all, n + 1);
}

bool clt_rowwise_wide(const clt_rowwise *r) {
    bool wide = r->cols % 8 == 0;
    for (int i = 0; i < r->tensors; i++) wide = wide && r->t[i].ld % 8 == 0 && r->t[i].ref.off % 8 == 0;
    return wide;
}

bool clt_rowwise_takes(const clt_variant *v, const void *call) {
    return !clt_variant_wide(v) || ((const clt_rowwise_call *)call)->wide;
}

clt_status clt_check_parts(clt_ops *ops, size_t count, clt_ref part[CLT_CHECK_PARTS]) {
    uint64_t step = CLT_ROUND_UP((uint64_t)count + 8, 64);
    clt_buffer *b;
    CLT_TRY(clt_ops_scratch(ops, 3, step * CLT_CHECK_PARTS * sizeof(float), &b));
    for (uint64_t i = 0; i < CLT_CHECK_PARTS; i++) part[i] = (clt_ref){b, i * step + 5};
    return CLT_OK;
}

void clt_check_fill(float *x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word[4];
        clt_philox4x32((uint32_t[4]){(uint32_t)i, seed, 0, 0}, (uint32_t[2]){0, 0}, word);
        float magnitude = (float)(word[0] >> 8) * 0x1p-18f;
        for (uint32_t e = word[1] % 21; e > 0; e--) magnitude *= 0.5f;
        x[i] = word[2] & 1 ? -magnitude : magnitude;
    }
}
