#include "runtime/ops/clt_rowwise.h"

#include "runtime/base/clt_philox.h"

static clt_status launch(clt_ops *ops, const clt_variant *v, const char *name, const char *options,
                         uint64_t rows, uint64_t cols, const clt_arg *args, int n) {
    char all[512];
    snprintf(all, sizeof all, "%s%s", v->options, options);
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, all, &k));
    uint64_t seg = (uint64_t)clt_variant_param(v, "SEG", 1), wg = (uint64_t)clt_variant_param(v, "WG", 1);
    size_t global[2] = {CLT_ROUND_UP(CLT_CEIL_DIV(cols, seg), wg), rows}, local[2] = {wg, 1};
    return clt_launch_rows(k, global, local, args, n);
}

clt_status clt_rowwise_launch(clt_ops *ops, const clt_variant *v, const char *name, const char *options,
                              bool flat, int64_t rows, int64_t cols, const clt_rows *matrix, int matrices,
                              const clt_arg *more, int n_more) {
    if (rows <= 0 || cols <= 0) return CLT_OK;
    clt_arg args[1 + 3 * CLT_ROWWISE_MAX + CLT_ROWWISE_MAX];
    int n = 0;
    for (int i = 0; i < matrices; i++) flat = flat && matrix[i].ld == cols;
    if (flat) {
        cols *= rows;
        rows = 1;
    }
    args[n++] = CLT_U64(cols);
    for (int i = 0; i < matrices; i++) {
        const clt_arg m[3] = {CLT_REF(matrix[i].ref), CLT_U64(matrix[i].ld)};
        for (int j = 0; j < 3; j++) args[n++] = m[j];
    }
    for (int i = 0; i < n_more; i++) args[n++] = more[i];
    return launch(ops, v, name, options, (uint64_t)rows, (uint64_t)cols, args, n);
}

clt_status clt_vector_launch(clt_ops *ops, const clt_variant *v, const char *name, const char *options,
                             uint64_t count, const clt_arg *args, int n) {
    if (count == 0) return CLT_OK;
    clt_arg all[1 + 3 * CLT_ROWWISE_MAX + CLT_ROWWISE_MAX];
    all[0] = CLT_U64(count);
    for (int i = 0; i < n; i++) all[i + 1] = args[i];
    return launch(ops, v, name, options, 1, count, all, n + 1);
}

bool clt_rowwise_wide(int64_t cols, const clt_rows *matrix, int matrices) {
    bool wide = cols % 8 == 0;
    for (int i = 0; i < matrices; i++) wide = wide && matrix[i].ld % 8 == 0 && matrix[i].ref.off % 8 == 0;
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
