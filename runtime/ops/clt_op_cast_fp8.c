/* Matrices of 8-bit floating point from fp32, bf16 and fp16: the rows of cast_fp8.vt, and the rules of
 * clt_codes8. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/ref/clt_ref.h"

enum { PATCH = 128, ALONG = 1, ACROSS = 2, AMAX = 4 }; /* as in the kernel */

/* --- the rules of a matrix --- */

static bool fits(const clt_codes8 *m, int64_t rows, int64_t k) {
    const uint64_t have = clt_buffer_bytes(m->q.buf);
    const uint64_t need = (uint64_t)(rows - 1) * (uint64_t)m->ld + (uint64_t)k;
    return (rows == 1 || m->ld >= k) && m->q.off <= have && need <= have - m->q.off;
}

clt_status clt_codes8_check(const char *op, const char *name, const clt_codes8 *m, int64_t rows, int64_t k) {
    if (!clt_codes8_present(m)) return clt_error(CLT_FAIL, "%s: the 8-bit matrix %s is missing", op, name);
    if ((unsigned)m->format >= CLT_FP8_COUNT)
        return clt_error(CLT_FAIL, "%s: %s has the unknown 8-bit format %d", op, name, (int)m->format);
    if (m->q.off % CLT_CODES8_ALIGN || m->ld % CLT_CODES8_ALIGN || k % CLT_CODES8_ALIGN)
        return clt_error(CLT_FAIL,
                         "%s: rows of %s have %lld codes and start at byte %llu, %lld apart; these must be "
                         "multiples of %d",
                         op, name, (long long)k, (unsigned long long)m->q.off, (long long)m->ld,
                         CLT_CODES8_ALIGN);
    if (!fits(m, rows, k))
        return clt_error(CLT_FAIL,
                         "%s: %s [%lld, %lld] from byte %llu on, rows %lld apart, exceeds its buffer or "
                         "overlaps itself",
                         op, name, (long long)rows, (long long)k, (unsigned long long)m->q.off,
                         (long long)m->ld);
    return CLT_OK;
}

/* --- launching --- */

static const clt_codes8 *either(const clt_cast_fp8_params *p) {
    return clt_codes8_present(&p->along) ? &p->along : &p->across;
}

static clt_status run(clt_ops *ops, const clt_variant *v, const clt_cast_fp8_params *p) {
    const int64_t wg = clt_variant_param(v, "WG", 64);
    const uint32_t flags = (clt_codes8_present(&p->along) ? ALONG : 0) |
                           (clt_codes8_present(&p->across) ? ACROSS : 0) | (p->amax.buf ? AMAX : 0);
    clt_kernel *kernel;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "cast_fp8", v->options, &kernel));
    const clt_arg args[] = {CLT_U32(p->rows),     CLT_U32(p->cols),     CLT_U32(flags),
                            CLT_REF(p->x.ref),    CLT_U64(p->x.ld),     CLT_REF(p->scale),
                            CLT_REF(p->amax),     CLT_REF(p->along.q),  CLT_U64(p->along.ld),
                            CLT_REF(p->across.q), CLT_U64(p->across.ld)};
    const size_t global[2] = {(size_t)(CLT_CEIL_DIV(p->cols, PATCH) * wg),
                              (size_t)CLT_CEIL_DIV(p->rows, PATCH)};
    return clt_launch_rows(kernel, global, (size_t[]){(size_t)wg, 1}, args, CLT_COUNT_OF(args));
}

/* --- the check of a row: ragged rows and columns, both orientations, with and without a NaN --- */

typedef struct { /* an output on both sides */
    clt_codes8 device;
    clt_ref_codes8 host;
    size_t words;
} check_output;

static check_output make_output(clt_check *c, int64_t lines, int64_t k, clt_fp8 format) {
    check_output o = {.words = (size_t)(lines * (k + 16) / 4)};
    float *const blank = clt_check_zeros(c, o.words);
    memset(blank, 0x55, o.words * sizeof *blank);
    o.device = (clt_codes8){.q = clt_check_upload(c, blank, o.words), .ld = k + 16, .format = format};
    o.device.q.off *= 4;
    o.host = (clt_ref_codes8){.q = (uint8_t *)blank, .ld = k + 16, .format = format};
    return o;
}

/* The codes are compared as bytes: as floats, words with the bits of a NaN would all be equal. */
static void compare_output(clt_check *c, const char *what, const check_output *o) {
    const size_t bytes = o->words * 4;
    size_t i = 0;
    uint8_t *got = clt_calloc(bytes, 1);
    if (c->st == CLT_OK) c->st = clt_buffer_read(o->device.q.buf, o->device.q.off, got, bytes);
    while (c->st == CLT_OK && i < bytes && got[i] == o->host.q[i]) i++;
    if (c->st == CLT_OK && i < bytes)
        c->st = clt_variant_fail(c->ops, "%s: code %zu is 0x%02x, the oracle has 0x%02x", what, i, got[i],
                                 o->host.q[i]);
    clt_free(got);
}

/* amax is compared as bits; a NaN has those of the element. */
static void compare_amax(clt_check *c, clt_ref got, float want) {
    float amax = 0;
    if (c->st == CLT_OK) c->st = clt_buffer_read(got.buf, got.off * sizeof amax, &amax, sizeof amax);
    if (c->st == CLT_OK && memcmp(&amax, &want, sizeof amax) && !(isnan(amax) && isnan(want)))
        c->st = clt_variant_fail(c->ops, "amax is %.9g, the oracle has %.9g", (double)amax, (double)want);
}

static void check_one(clt_check *c, const clt_variant *v, const clt_cast_fp8_params *like, bool with_nan) {
    enum { ROWS = 147, COLS = 211, LD = COLS + 3 };
    const clt_fp8 format = either(like)->format;
    float *x = clt_check_random(c, ROWS * LD, 31), *one = clt_check_zeros(c, 2);
    for (size_t i = 0; i < ROWS * LD; i++) x[i] *= i % 5 ? 100.0f : i % 7 ? 0x1p-20f : 0x1p40f;
    if (with_nan) x[ROWS * LD / 2] = NAN, x[ROWS * LD / 3] = -INFINITY;
    const clt_ref at = clt_check_upload_as(c, like->x.type, x, ROWS * LD);
    one[0] = 3.0f, one[1] = 0.0f;
    const clt_ref numbers = clt_check_upload(c, one, 2);
    check_output along = make_output(c, ROWS, clt_codes8_k(COLS), format),
                 across = make_output(c, COLS, clt_codes8_k(ROWS), format);
    const clt_cast_fp8_params p = {.rows = ROWS,
                                   .cols = COLS,
                                   .x = clt_tensor_of(at, LD, like->x.type),
                                   .scale = numbers,
                                   .amax = {numbers.buf, numbers.off + 1},
                                   .along = along.device,
                                   .across = across.device};
    if (c->st == CLT_OK) c->st = run(c->ops, v, &p);
    float amax = 0.0f;
    clt_ref_cast_fp8(
        &(clt_ref_cast_fp8_params){ROWS, COLS, x, LD, one[0], &amax, format, along.host, across.host});
    compare_output(c, "along", &along);
    compare_output(c, "across", &across);
    compare_amax(c, p.amax, amax);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    clt_check c = {.ops = ops, .aligned = true};
    for (int with_nan = 0; with_nan < 2; with_nan++) check_one(&c, v, ctx, with_nan);
    return clt_check_end(&c);
}

/* --- the call --- */

static clt_status check_call(const clt_cast_fp8_params *p) {
    const clt_tensor_named x[] = {{"x", p->x}};
    const bool along = clt_codes8_present(&p->along), across = clt_codes8_present(&p->across);
    if (p->rows < 1 || p->cols < 1 || p->rows > INT_MAX || p->cols > INT_MAX)
        return clt_error(CLT_FAIL, "cast_fp8: sizes %lld x %lld are not in 1..%d", (long long)p->rows,
                         (long long)p->cols, INT_MAX);
    if (!along && !across) return clt_error(CLT_FAIL, "cast_fp8: no output is given");
    if (!p->scale.buf) return clt_error(CLT_FAIL, "cast_fp8: the scale is missing");
    CLT_TRY(clt_tensor_check_types("cast_fp8", CLT_DTYPE_PLAIN, x, 1));
    CLT_TRY(clt_tensor_check_fits("cast_fp8", "x", &p->x, p->rows, p->cols));
    if (along) CLT_TRY(clt_codes8_check("cast_fp8", "along", &p->along, p->rows, clt_codes8_k(p->cols)));
    if (across) CLT_TRY(clt_codes8_check("cast_fp8", "across", &p->across, p->cols, clt_codes8_k(p->rows)));
    if (along && across && p->along.format != p->across.format)
        return clt_error(CLT_FAIL, "cast_fp8: along is %s, across %s", clt_fp8_table[p->along.format].name,
                         clt_fp8_table[p->across.format].name);
    return CLT_OK;
}

static bool takes(const clt_variant *v, const void *call) {
    const clt_cast_fp8_params *p = call;
    return clt_variant_param(v, "FORMATS", -1) >> either(p)->format & 1;
}

static void describe(const void *call, char *out, size_t size) {
    const clt_cast_fp8_params *p = call;
    snprintf(out, size, "%lldx%lld of %s to %s", (long long)p->rows, (long long)p->cols,
             clt_dtype_name(p->x.type), clt_fp8_table[either(p)->format].name);
}

clt_status clt_op_cast_fp8(clt_ops *ops, const clt_cast_fp8_params *p) {
    const clt_variant *v;
    char options[48];
    CLT_TRY(check_call(p));
    snprintf(options, sizeof options, " -DFORMAT=%d -DX_TYPE=%d", (int)either(p)->format, (int)p->x.type);
    const clt_variant_question q = {.op = "cast_fp8",
                                    .options = options,
                                    .takes = takes,
                                    .check = check,
                                    .call = p,
                                    .describe = describe};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run(ops, v, p);
}
