/* 8-bit blocks from fp32, bf16 and fp16: the rows of quantize.vt, and the rules of clt_blocks8. */
#include "runtime/ops/clt_op_quantize.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* --- the rules of a matrix in blocks --- */

static clt_status check_format(const char *op, const char *name, const clt_blocks8 *b) {
    if (!clt_blocks8_present(b) || !b->scale.buf)
        return clt_error(CLT_FAIL, "%s: the 8-bit matrix %s or its scales are missing", op, name);
    if (b->block != 64 && b->block != 128)
        return clt_error(CLT_FAIL, "%s: %s has blocks of %d; supported: 64, 128", op, name, (int)b->block);
    if (b->tile != 1 && b->tile != b->block)
        return clt_error(CLT_FAIL, "%s: a scale of %s is for %d rows; supported: 1, %d", op, name,
                         (int)b->tile, (int)b->block);
    if (b->q.off % 16 || b->ld % 16)
        return clt_error(CLT_FAIL,
                         "%s: rows of %s start at byte %llu, %lld apart; both must be multiples of 16", op,
                         name, (unsigned long long)b->q.off, (long long)b->ld);
    return CLT_OK;
}

/* Whether `rows` rows of `cols` elements of `size` bytes, `ld` apart, lie inside the buffer. */
static bool fits(clt_ref at, int64_t ld, int64_t rows, int64_t cols, uint64_t size) {
    const uint64_t have = clt_buffer_bytes(at.buf) / size;
    const uint64_t need = (uint64_t)(rows - 1) * (uint64_t)ld + (uint64_t)cols;
    return (rows == 1 || ld >= cols) && at.off <= have && need <= have - at.off;
}

clt_status clt_blocks8_check(const char *op, const char *name, const clt_blocks8 *b, int64_t rows,
                             int64_t k) {
    CLT_TRY(check_format(op, name, b));
    if (k % b->block)
        return clt_error(CLT_FAIL, "%s: %s has rows of %lld elements, which are no whole blocks of %d", op,
                         name, (long long)k, (int)b->block);
    if (!fits(b->q, b->ld, rows, k, 1))
        return clt_error(CLT_FAIL,
                         "%s: %s [%lld, %lld] from byte %llu on, rows %lld apart, exceeds its buffer "
                         "or overlaps itself",
                         op, name, (long long)rows, (long long)k, (unsigned long long)b->q.off,
                         (long long)b->ld);
    if (!fits(b->scale, b->ld_scale, k / b->block, CLT_CEIL_DIV(rows, b->tile), sizeof(float)))
        return clt_error(CLT_FAIL,
                         "%s: the %lld x %lld scales of %s, rows %lld apart, exceed their buffer or "
                         "overlap",
                         op, (long long)(k / b->block), (long long)CLT_CEIL_DIV(rows, b->tile), name,
                         (long long)b->ld_scale);
    return CLT_OK;
}

/* --- launching --- */

/* Whether kernels compute or store y (VALUES of clkernels/quantize/quantize_value.clh). */
static bool has_values(const clt_quantize_params *p) {
    return p->act != CLT_ACT_NONE || p->grad_act != CLT_ACT_NONE || clt_tensor_present(p->y);
}

enum { ALONG = 1, ACROSS = 2, TILE = 4 }; /* flags of the kernels */

static const clt_blocks8 *either(const clt_quantize_params *p) {
    return clt_blocks8_present(&p->along) ? &p->along : &p->across;
}

static int64_t sample_of(const clt_quantize_params *p) {
    return clt_blocks8_present(&p->across) ? p->rows_per_sample : p->rows;
}

static clt_status run(clt_ops *ops, const clt_variant *v, const clt_quantize_params *p) {
    const clt_blocks8 *any = either(p);
    const int64_t block = any->block, sample = sample_of(p);
    const int64_t wg = clt_variant_wide(v) ? block / 8 * (block / 8) : clt_variant_param(v, "WG", 1);
    const uint32_t flags = (clt_blocks8_present(&p->along) ? ALONG : 0) |
                           (clt_blocks8_present(&p->across) ? ACROSS : 0) | (any->tile > 1 ? TILE : 0);
    clt_kernel *kernel;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "quantize", v->options, &kernel));
    const clt_arg args[] = {CLT_U32(p->rows),         CLT_U32(p->cols),
                            CLT_U32(sample),          CLT_U32(flags),
                            CLT_REF(p->x.ref),        CLT_U64(p->x.ld),
                            CLT_REF(p->along.q),      CLT_U64(p->along.ld),
                            CLT_REF(p->along.scale),  CLT_U64(p->along.ld_scale),
                            CLT_REF(p->across.q),     CLT_U64(p->across.ld),
                            CLT_REF(p->across.scale), CLT_U64(p->across.ld_scale),
                            CLT_REF(p->grad_pre.ref), CLT_U64(p->grad_pre.ld),
                            CLT_REF(p->y.ref),        CLT_U64(p->y.ld)};
    const int n = CLT_COUNT_OF(args), of_values = 6;
    const size_t global[2] = {(size_t)(CLT_CEIL_DIV(p->cols, block) * wg),
                              (size_t)(p->rows / sample * CLT_CEIL_DIV(sample, block))};
    return clt_launch_rows(kernel, global, (size_t[]){(size_t)wg, 1}, args,
                           has_values(p) ? n : n - of_values);
}

/* --- the check of a row: ragged samples and columns, both orientations, rows and tiles, every type, what is
 * made of x, y as another tensor and in place of x --- */

typedef struct { /* what rows are asked for, and checked for */
    const clt_quantize_params *p;
    uint64_t local_mem;
} quantize_call;

typedef struct {
    int64_t rows, cols, sample;
    int32_t tile;
    clt_dtype type;
} check_case;

typedef struct { /* an output on both sides */
    clt_blocks8 device;
    clt_ref_blocks8 host;
    size_t words, scales;
} check_output;

static check_output make_output(clt_check *c, const check_case *t, int32_t block, bool across) {
    const int64_t lines = across ? t->cols : t->rows;
    const int64_t k =
        across ? clt_blocks8_across_k(t->rows, t->sample, block) : clt_blocks8_along_k(t->cols, block);
    const int64_t ld_scale = CLT_CEIL_DIV(lines, t->tile) + 3;
    check_output o = {.words = (size_t)(lines * k / 4), .scales = (size_t)(k / block * ld_scale)};
    float *const blank = clt_check_zeros(c, o.words + o.scales);
    memset(blank, 0x55, (o.words + o.scales) * sizeof *blank);
    o.device = (clt_blocks8){.ld = k, .ld_scale = ld_scale, .block = block, .tile = t->tile};
    o.device.q = clt_check_upload(c, blank, o.words);
    o.device.scale = clt_check_upload(c, blank, o.scales);
    o.device.q.off *= 4;
    o.host = (clt_ref_blocks8){(int8_t *)blank, k, blank + o.words, ld_scale, block, t->tile};
    return o;
}

/* The numbers are compared as bytes: as floats, words with the bits of a NaN would all be equal. */
static void compare_output(clt_check *c, const char *what, const check_output *o) {
    const size_t bytes = o->words * 4;
    size_t i = 0;
    int8_t *got = clt_calloc(bytes, 1);
    if (c->st == CLT_OK) c->st = clt_buffer_read(o->device.q.buf, o->device.q.off, got, bytes);
    while (c->st == CLT_OK && i < bytes && got[i] == o->host.q[i]) i++;
    if (c->st == CLT_OK && i < bytes)
        c->st = clt_variant_fail(c->ops, "%s: number %zu is %d, the oracle has %d", what, i, got[i],
                                 o->host.q[i]);
    clt_free(got);
    clt_check_compare(c, what, o->device.scale, o->host.scale, o->scales);
}

/* Numbers of all sizes, and an infinity. */
static float *check_numbers(clt_check *c, size_t n) {
    float *x = clt_check_random(c, n, 31);
    for (size_t i = 0; i < n; i++) x[i] *= i % 5 ? 1.0f : i % 7 ? 0x1p-130f : 0x1p60f;
    x[n / 2] = INFINITY;
    return x;
}

/* like: what is made of x, and whether y is stored; in_place: as x. */
static void check_one(clt_check *c, const clt_variant *v, const check_case *t,
                      const clt_quantize_params *like, bool in_place) {
    const int32_t block = either(like)->block;
    const int64_t ld = t->cols + (clt_variant_wide(v) ? 8 : 3);
    const size_t n = (size_t)(t->rows * ld);
    float *x = check_numbers(c, n), *g = clt_check_random(c, n, 32), *y = clt_check_zeros(c, n);
    for (size_t i = 0; i < n; i++) g[i] *= 6.0f;
    const clt_tensor at = clt_tensor_of(clt_check_upload_as(c, t->type, x, n), ld, t->type);
    const clt_tensor grad = clt_tensor_of(clt_check_upload_as(c, t->type, g, n), ld, t->type);
    const clt_tensor other = clt_tensor_of(clt_check_upload_as(c, t->type, y, n), ld, t->type);
    check_output along = make_output(c, t, block, false), across = make_output(c, t, block, true);
    clt_quantize_params p = {t->rows,      t->cols,       t->sample, at,
                             along.device, across.device, like->act, like->grad_act};
    clt_ref_quantize_params r = {t->rows,    t->cols,     t->sample, x,         ld,
                                 along.host, across.host, p.act,     p.grad_act};
    if (p.grad_act != CLT_ACT_NONE) p.grad_pre = grad;
    r.grad_pre = g, r.ldgrad = r.ldy = ld, r.type = t->type;
    if (clt_tensor_present(like->y)) p.y = in_place ? at : other, r.y = in_place ? x : y;
    if (c->st == CLT_OK) c->st = run(c->ops, v, &p);
    clt_ref_quantize(&r);
    compare_output(c, "along", &along);
    compare_output(c, "across", &across);
    clt_check_compare_as(c, t->type, "x", at.ref, x, n);
    clt_check_compare_as(c, t->type, "y", other.ref, y, n);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const quantize_call *call = ctx;
    const clt_quantize_params *like = call->p;
    const int64_t more = clt_variant_wide(v) ? 5 : 0;
    const check_case cases[] = {{270, 203 + more, 135, 1, like->x.type},
                                {150, 259 + more, 150, either(like)->block, like->x.type}};
    clt_check c = {.ops = ops, .aligned = true};
    for (size_t i = 0; i < CLT_COUNT_OF(cases) && c.st == CLT_OK; i++)
        check_one(&c, v, &cases[i], like, i > 0);
    return clt_check_end(&c);
}

/* --- the call --- */

static clt_status check_sizes(const clt_quantize_params *p) {
    const bool across = clt_blocks8_present(&p->across);
    if (p->rows < 1 || p->cols < 1 || p->rows > INT_MAX || p->cols > INT_MAX)
        return clt_error(CLT_FAIL, "quantize: sizes %lld x %lld are not in 1..%d", (long long)p->rows,
                         (long long)p->cols, INT_MAX);
    if (!across && !clt_blocks8_present(&p->along))
        return clt_error(CLT_FAIL, "quantize: no output is given");
    if (across && (p->rows_per_sample < 1 || p->rows % p->rows_per_sample))
        return clt_error(CLT_FAIL, "quantize: samples of %lld rows do not divide %lld rows",
                         (long long)p->rows_per_sample, (long long)p->rows);
    return CLT_OK;
}

static clt_status check_outputs(const clt_quantize_params *p) {
    const clt_blocks8 *a = &p->along, *b = &p->across;
    if (clt_blocks8_present(a)) {
        CLT_TRY(check_format("quantize", "along", a));
        CLT_TRY(clt_blocks8_check("quantize", "along", a, p->rows, clt_blocks8_along_k(p->cols, a->block)));
    }
    if (!clt_blocks8_present(b)) return CLT_OK;
    CLT_TRY(check_format("quantize", "across", b));
    if (b->tile > 1 && p->rows_per_sample != p->rows)
        return clt_error(CLT_FAIL, "quantize: tiles need rows_per_sample %lld, the number of rows",
                         (long long)p->rows);
    const int64_t k = clt_blocks8_across_k(p->rows, p->rows_per_sample, b->block);
    CLT_TRY(clt_blocks8_check("quantize", "across", b, p->cols, k));
    if (clt_blocks8_present(a) && (a->block != b->block || a->tile != b->tile))
        return clt_error(CLT_FAIL, "quantize: along has blocks of %d and tiles of %d, across %d and %d",
                         (int)a->block, (int)a->tile, (int)b->block, (int)b->tile);
    return CLT_OK;
}

/* Whether no element of a is one of b; both have rows x cols elements of one type. */
static bool are_apart(const clt_tensor *a, const clt_tensor *b, int64_t rows, int64_t cols) {
    const clt_tensor *low = a->ref.off < b->ref.off ? a : b, *high = low == a ? b : a;
    const uint64_t distance = high->ref.off - low->ref.off, ld = (uint64_t)low->ld, n = (uint64_t)cols;
    if (a->ref.buf != b->ref.buf || distance >= (uint64_t)(rows - 1) * ld + n) return true;
    return rows > 1 && a->ld == b->ld && distance % ld >= n && distance % ld + n <= ld;
}

static clt_status check_y(const clt_quantize_params *p) {
    const clt_tensor *x = &p->x, *y = &p->y;
    const bool same = x->ref.buf == y->ref.buf && x->ref.off == y->ref.off && x->ld == y->ld;
    CLT_TRY(clt_tensor_check_fits("quantize", "y", y, p->rows, p->cols));
    if (!same && !are_apart(x, y, p->rows, p->cols))
        return clt_error(CLT_FAIL,
                         "quantize: y overlaps x; it must be x (same place, rows %lld apart) or another "
                         "tensor",
                         (long long)x->ld);
    if (p->grad_act != CLT_ACT_NONE && !are_apart(&p->grad_pre, y, p->rows, p->cols))
        return clt_error(CLT_FAIL, "quantize: y overlaps grad_pre");
    return CLT_OK;
}

/* x and what is made of it. */
static clt_status check_values(const clt_quantize_params *p) {
    const clt_tensor_named list[] = {{"x", p->x}, {"grad_pre", p->grad_pre}, {"y", p->y}};
    const bool slope = p->grad_act != CLT_ACT_NONE;
    if ((unsigned)p->act >= CLT_ACT_COUNT || (unsigned)p->grad_act >= CLT_ACT_COUNT)
        return clt_error(CLT_FAIL, "quantize: unknown activation %d or %d", (int)p->act, (int)p->grad_act);
    if (slope && p->act != CLT_ACT_NONE)
        return clt_error(CLT_FAIL, "quantize: act and grad_act are both given; supported: one of them");
    if (slope != clt_tensor_present(p->grad_pre))
        return clt_error(CLT_FAIL, "quantize: grad_act and grad_pre must be given together");
    CLT_TRY(clt_tensor_check_one_type("quantize", CLT_DTYPE_PLAIN, list, CLT_COUNT_OF(list)));
    CLT_TRY(clt_tensor_check_fits("quantize", "x", &p->x, p->rows, p->cols));
    if (slope) CLT_TRY(clt_tensor_check_fits("quantize", "grad_pre", &p->grad_pre, p->rows, p->cols));
    return clt_tensor_present(p->y) ? check_y(p) : CLT_OK;
}

static bool in_eights(const clt_tensor *t) {
    return !clt_tensor_present(*t) || (t->ld % 8 == 0 && t->ref.off % 8 == 0);
}

/* The body for CPUs keeps a patch of y in local memory. */
static bool takes(const clt_variant *v, const void *ctx) {
    const quantize_call *call = ctx;
    const clt_quantize_params *p = call->p;
    const uint64_t block = (uint64_t)either(p)->block, patch = block * block * clt_dtype_bytes(p->x.type);
    const bool wide = p->cols % 8 == 0 && in_eights(&p->x) && in_eights(&p->grad_pre) && in_eights(&p->y);
    if (!strcmp(v->body, "cpu") && has_values(p) && block * (block + 16) + patch > call->local_mem)
        return false;
    return clt_rowwise_takes(v, &(clt_rowwise_call){p->x.type, wide});
}

static void set_options(const clt_quantize_params *p, char *out, size_t size) {
    char values[48] = "";
    if (has_values(p))
        snprintf(values, sizeof values, " -DACT=%d -DGRAD_ACT=%d -DKEEP_Y=%d", (int)p->act, (int)p->grad_act,
                 clt_tensor_present(p->y));
    snprintf(out, size, "%s", "");
    if (p->x.type) snprintf(out, size, " -DX_TYPE=%d", (int)p->x.type);
    if (either(p)->block == 64) strcat(out, " -DBLOCK=64");
    strcat(out, values);
}

clt_status clt_op_quantize(clt_ops *ops, const clt_quantize_params *p) {
    const quantize_call call = {p, clt_device_get_facts(clt_ops_device(ops))->local_mem};
    const clt_variant *v;
    char options[96];
    CLT_TRY(check_sizes(p));
    CLT_TRY(check_values(p));
    CLT_TRY(check_outputs(p));
    set_options(p, options, sizeof options);
    const clt_variant_question q = {
        .op = "quantize", .options = options, .takes = takes, .check = check, .call = &call};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run(ops, v, p);
}
