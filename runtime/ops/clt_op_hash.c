/* A hash of a tensor's bits, equal on every device, so that ranks can compare their copies. */
#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status hash(clt_ops *ops, const clt_variant *v, clt_ref x, uint64_t count, uint64_t first,
                       clt_ref sums) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "hash", v->options, &k));
    size_t wg = (size_t)clt_variant_param(v, "WG", 1), all = CLT_HASH_SUMS * wg;
    return clt_launch(k, 1, &all, &wg,
                      (clt_arg[]){CLT_U64(count / 2), CLT_U64(first / 2), CLT_REF(x), CLT_REF(sums)}, 6);
}

uint64_t clt_hash_total(const uint64_t *sums, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += sums[i];
    return total;
}

/* More pairs than a CPU's items process at once, with a ragged end; the sums after them stay unchanged. */
static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    (void)ctx;
    enum { N = 2 * (8 * CLT_HASH_SUMS + 13), FIRST = 6, PLACE = 2 * CLT_HASH_SUMS + 8 };
    float *x = clt_malloc(N * sizeof *x);
    uint64_t sums[CLT_HASH_SUMS];
    clt_ref part[CLT_CHECK_PARTS];
    clt_status st = clt_check_parts(ops, CLT_MAX(N, PLACE), part);
    clt_check_fill(x, N, 31);
    if (st == CLT_OK) part[0] = clt_check_place(v, CLT_F32, part[0]);
    clt_ref place = {part[1].buf, CLT_CEIL_DIV(part[1].off, 2)};
    if (st == CLT_OK) st = clt_ref_write_f32(part[0], x, N);
    if (st == CLT_OK) st = hash(ops, v, part[0], N, FIRST, place);
    if (st == CLT_OK) st = clt_buffer_read(place.buf, place.off * sizeof *sums, sums, sizeof sums);
    uint64_t want = clt_ref_hash(x, N, FIRST);
    if (st == CLT_OK && clt_hash_total(sums, CLT_HASH_SUMS) != want)
        st = clt_variant_fail(ops, "hash: %016llx, the oracle has %016llx",
                              (unsigned long long)clt_hash_total(sums, CLT_HASH_SUMS),
                              (unsigned long long)want);
    clt_free(x);
    return st;
}

clt_status clt_op_hash(clt_ops *ops, clt_ref x, uint64_t count, uint64_t first, clt_ref sums) {
    if (count % 2 || first % 2)
        return clt_error(CLT_FAIL, "hash: %llu elements from element %llu: both numbers must be even",
                         (unsigned long long)count, (unsigned long long)first);
    const clt_variant *v;
    const clt_rowwise row = {.tensors = 1, .t = {{.ref = x}}};
    const clt_rowwise_call call = {CLT_F32, clt_rowwise_wide(&row)};
    const clt_variant_question q = {
        .op = "hash", .options = "", .takes = clt_rowwise_takes, .check = check, .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return hash(ops, v, x, count, first, sums);
}
