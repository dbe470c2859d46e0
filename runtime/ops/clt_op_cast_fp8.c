/* Matrices of 8-bit floating point from fp32, bf16 and fp16: the rows of cast_fp8.vt, and the rules of
 * clt_codes8. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_fp8.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

enum { PATCH = 128, ALONG = 1, ACROSS = 2, AMAX = 4, STORE_Y = 8 }; /* as in the kernel */

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

static bool makes_y(const clt_cast_fp8_params *p) {
    return p->act || p->grad_act;
}

static clt_status run(clt_ops *ops, const clt_variant *v, const clt_cast_fp8_params *p) {
    const int64_t wg = clt_variant_param(v, "WG", 64);
    const uint32_t flags = (clt_codes8_present(&p->along) ? ALONG : 0) |
                           (clt_codes8_present(&p->across) ? ACROSS : 0) | (p->amax.buf ? AMAX : 0) |
                           (clt_tensor_present(p->y) ? STORE_Y : 0);
    clt_kernel *kernel;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "cast_fp8", v->options, &kernel));
    const clt_tensor g = p->grad_act ? p->grad_pre : clt_tensor_none();
    const clt_arg args[] = {CLT_U32(p->rows),     CLT_U32(p->cols),     CLT_U32(flags),
                            CLT_REF(p->x.ref),    CLT_U64(p->x.ld),     CLT_REF(g.ref),
                            CLT_U64(g.ld),        CLT_REF(p->y.ref),    CLT_U64(p->y.ld),
                            CLT_REF(p->scale),    CLT_REF(p->amax),     CLT_REF(p->along.q),
                            CLT_U64(p->along.ld), CLT_REF(p->across.q), CLT_U64(p->across.ld)};
    const size_t global[2] = {(size_t)(CLT_CEIL_DIV(p->cols, PATCH) * wg),
                              (size_t)CLT_CEIL_DIV(p->rows, PATCH)};
    return clt_launch_rows(kernel, global, (size_t[]){(size_t)wg, 1}, args, CLT_COUNT_OF(args));
}

/* --- which rows take a call --- */

static bool is_fast(const clt_variant *v) {
    return clt_variant_param(v, "FAST", 0) != 0;
}
/* Rows that take only sizes, row distances and offsets of multiples of 8 elements. The fast row of
 * clt_op_activation is one of them, whose bits a fast row has. */
static bool needs_eights(const clt_variant *v) {
    return is_fast(v) || clt_variant_wide(v);
}
static bool in_eights(const clt_tensor *t) {
    return !clt_tensor_present(*t) || (t->ref.off % 8 == 0 && t->ld % 8 == 0);
}

static bool can_do(const clt_variant *v, const void *call) {
    const clt_cast_fp8_params *p = call;
    const bool eights =
        p->cols % 8 == 0 && in_eights(&p->x) && in_eights(&p->y) && (!p->grad_act || in_eights(&p->grad_pre));
    if (!(clt_variant_param(v, "FORMATS", -1) >> either(p)->format & 1)) return false;
    if (needs_eights(v) && !eights) return false;
    return !is_fast(v) || (p->x.type != CLT_F32 && (p->act == CLT_ACT_GELU || p->grad_act == CLT_ACT_GELU));
}

/* Activations other than the fast GELU take so many registers that wide groups leave a unit half empty. On
 * CPUs the rows of narrower groups are faster. */
static bool does_well(const clt_variant *v, const void *call) {
    return can_do(v, call) && !(clt_variant_wide(v) && makes_y(call) && !is_fast(v));
}
static bool does_well_on_cpu(const clt_variant *v, const void *call) {
    return can_do(v, call) && !clt_variant_wide(v);
}
static clt_variant_takes takes(clt_ops *ops) {
    const bool cpu = clt_device_get_facts(clt_ops_device(ops))->type == CLT_DEVICE_CPU;
    return clt_variant_forced(ops, "cast_fp8") ? can_do : cpu ? does_well_on_cpu : does_well;
}

/* --- the check of a row: ragged rows and columns, both orientations, with and without a NaN, y beside x, in
 * its place and absent --- */

enum { ROWS = 147, LARGE = 100 };

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

/* The codes are compared as bytes: as floats, words with the bits of a NaN would all be equal. With any_nan a
 * NaN may have another sign. */
static void compare_output(clt_check *c, const char *what, const clt_codes8 *device, const check_output *o,
                           bool any_nan) {
    const size_t bytes = o->words * 4;
    uint8_t *got = clt_calloc(bytes, 1);
    if (c->st == CLT_OK) c->st = clt_buffer_read(device->q.buf, device->q.off, got, bytes);
    for (size_t i = 0; i < bytes && c->st == CLT_OK; i++) {
        const uint8_t want = o->host.q[i];
        if (got[i] == want) continue;
        if (!any_nan || !isnan(clt_ref_fp8_to_f32(device->format, want)) ||
            !isnan(clt_ref_fp8_to_f32(device->format, got[i])))
            c->st = clt_variant_fail(c->ops, "%s: code %zu is 0x%02x, the oracle has 0x%02x", what, i, got[i],
                                     want);
        if (clt_variant_is_rehearsed(c->ops)) break;
    }
    clt_free(got);
}

/* amax is compared as bits; a NaN has those of the element. */
static void compare_amax(clt_check *c, clt_ref got, float want) {
    float amax = 0;
    if (c->st == CLT_OK) c->st = clt_buffer_read(got.buf, got.off * sizeof amax, &amax, sizeof amax);
    if (c->st == CLT_OK && memcmp(&amax, &want, sizeof amax) && !(isnan(amax) && isnan(want)))
        c->st = clt_variant_fail(c->ops, "amax is %.9g, the oracle has %.9g", (double)amax, (double)want);
}

/* A call on both sides; the oracle has y, from which it makes the codes. */
typedef struct {
    clt_cast_fp8_params p;
    clt_ref_cast_fp8_params r;
    check_output along, across;
    size_t n; /* elements of x with its gaps */
} check_call;

/* An input. Numbers that pass an activation are of the sizes that it is for. */
static float *make_input(clt_check *c, const clt_cast_fp8_params *like, size_t n, uint64_t seed) {
    float *x = clt_check_random(c, n, seed);
    const bool plain = !makes_y(like);
    for (size_t i = 0; i < n; i++)
        x[i] *= i % 5 ? (plain ? 100.0f : 4.0f) : i % 7 ? 0x1p-20f : plain ? 0x1p40f : (float)LARGE;
    return x;
}

static void add_y(clt_check *c, const clt_cast_fp8_params *like, bool in_place, check_call *k) {
    const clt_dtype type = like->x.type;
    float *y = in_place ? (float *)k->r.x : clt_check_random(c, k->n, 33);
    k->r.y = y, k->r.ldy = k->r.ldx;
    if (!makes_y(like) && !clt_tensor_present(like->y)) return;
    k->p.y = in_place ? k->p.x : clt_tensor_of(clt_check_upload_as(c, type, y, k->n), k->r.ldx, type);
}

static check_call make_call(clt_check *c, const clt_variant *v, const clt_cast_fp8_params *like,
                            bool with_nan) {
    const int64_t cols = needs_eights(v) ? 216 : 211, ld = cols + (needs_eights(v) ? 8 : 3);
    const clt_fp8 format = either(like)->format;
    const clt_dtype type = like->x.type;
    check_call k = {.n = (size_t)(ROWS * ld)};
    float *x = make_input(c, like, k.n, 31), *g = make_input(c, like, k.n, 32), *one = clt_check_zeros(c, 2);
    if (with_nan) x[k.n / 2] = NAN;
    if (with_nan && !is_fast(v)) x[k.n / 3] = -INFINITY;
    k.p = (clt_cast_fp8_params){.rows = ROWS, .cols = cols, .act = like->act, .grad_act = like->grad_act};
    k.p.x = clt_tensor_of(clt_check_upload_as(c, type, x, k.n), ld, type);
    if (like->grad_act) k.p.grad_pre = clt_tensor_of(clt_check_upload_as(c, type, g, k.n), ld, type);
    one[0] = 3.0f;
    k.p.scale = clt_check_upload(c, one, 2);
    k.p.amax = (clt_ref){k.p.scale.buf, k.p.scale.off + 1};
    k.r = (clt_ref_cast_fp8_params){.rows = ROWS, .cols = cols, .x = x, .ldx = ld, .grad_pre = g};
    k.r.ld_grad = ld, k.r.type = type, k.r.act = like->act, k.r.grad_act = like->grad_act;
    k.r.scale = one[0], k.r.format = format;
    add_y(c, like, with_nan, &k);
    k.along = make_output(c, ROWS, clt_codes8_k(cols), format);
    k.across = make_output(c, cols, clt_codes8_k(ROWS), format);
    return k;
}

/* Runs the oracle and compares y. The fast rows' y is near that of the oracle, and the codes are those of the
 * device's y. */
static void compare_y(clt_check *c, const clt_variant *v, check_call *k) {
    const clt_dtype type = k->p.x.type;
    const double factor = k->p.grad_act ? LARGE : 1;
    clt_ref_cast_fp8(&k->r);
    if (c->st != CLT_OK || !clt_tensor_present(k->p.y)) return;
    if (!is_fast(v)) {
        clt_check_compare_as(c, type, "y", k->p.y.ref, k->r.y, k->n);
        return;
    }
    /* Both are rounded, and may be rounded to different neighbours: a whole unit instead of half of one. */
    c->st =
        clt_check_near(c->ops, type, "y", k->p.y.ref, k->r.y, k->n,
                       (clt_check_bound){.relative = clt_dtype_table[type].unit, .absolute = 5e-7 * factor});
    if (c->st == CLT_OK) c->st = clt_ref_read_as(k->p.y.ref, type, k->r.y, k->n);
}

static void run_and_compare(clt_check *c, const clt_variant *v, check_call *k, bool again) {
    const check_output *a = &k->along, *b = &k->across;
    const bool any_nan = makes_y(&k->p);
    clt_cast_fp8_params p = k->p;
    p.along = again ? make_output(c, ROWS, clt_codes8_k(p.cols), a->device.format).device : a->device;
    p.across = again ? make_output(c, p.cols, clt_codes8_k(ROWS), a->device.format).device : b->device;
    if (again) p.y = clt_tensor_none();
    if (c->st == CLT_OK) c->st = run(c->ops, v, &p);
    float amax = 0.0f;
    if (!again) {
        compare_y(c, v, k);
        k->r.x = k->r.y, k->r.act = k->r.grad_act = CLT_ACT_NONE, k->r.y = NULL;
        k->r.along = a->host, k->r.across = b->host;
    }
    k->r.amax = &amax;
    clt_ref_cast_fp8(&k->r);
    compare_output(c, "along", &p.along, a, any_nan);
    compare_output(c, "across", &p.across, b, any_nan);
    compare_amax(c, p.amax, amax);
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_cast_fp8_params *like = ctx;
    clt_check c = {.ops = ops, .aligned = true};
    for (int with_nan = 0; with_nan < 2; with_nan++) {
        check_call k = make_call(&c, v, like, with_nan);
        run_and_compare(&c, v, &k, false);
        if (makes_y(like) && !with_nan) run_and_compare(&c, v, &k, true);
    }
    return clt_check_end(&c);
}

/* --- the call --- */

/* The bytes of rows of n bytes, ld apart. */
typedef struct {
    const char *name;
    const clt_buffer *buf;
    uint64_t at, ld, n, rows;
} span;

static span span_of(const char *name, const clt_tensor *t, const clt_cast_fp8_params *p) {
    const uint64_t size = clt_tensor_present(*t) ? clt_dtype_bytes(t->type) : 1;
    return (span){name,
                  t->ref.buf,
                  t->ref.off * size,
                  (uint64_t)t->ld * size,
                  (uint64_t)p->cols * size,
                  (uint64_t)p->rows};
}
static span span_of_codes(const char *name, const clt_codes8 *m, int64_t rows, int64_t k) {
    return (span){name, m->q.buf, m->q.off, (uint64_t)m->ld, (uint64_t)k, (uint64_t)rows};
}

/* Columns of one matrix do not overlap. */
static bool overlap(const span *a, const span *b) {
    const uint64_t end_a = a->at + (a->rows - 1) * a->ld + a->n, end_b = b->at + (b->rows - 1) * b->ld + b->n;
    if (!a->buf || a->buf != b->buf || a->at >= end_b || b->at >= end_a) return false;
    const uint64_t apart = a->ld ? (a->at > b->at ? a->at - b->at : b->at - a->at) % a->ld : 0;
    const uint64_t first = a->at > b->at ? b->n : a->n, second = a->at > b->at ? a->n : b->n;
    return a->ld != b->ld || apart < first || a->ld - apart < second;
}

static clt_status check_overlaps(const clt_cast_fp8_params *p) {
    const clt_tensor none = clt_tensor_none();
    const span s[] = {span_of("y", &p->y, p),
                      span_of_codes("along", &p->along, p->rows, clt_codes8_k(p->cols)),
                      span_of_codes("across", &p->across, p->cols, clt_codes8_k(p->rows)),
                      span_of("x", &p->x, p), span_of("grad_pre", p->grad_act ? &p->grad_pre : &none, p)};
    for (size_t out = 0; out < 3; out++)
        for (size_t i = out + 1; i < CLT_COUNT_OF(s); i++) {
            const bool same = out == 0 && s[i].at == s[0].at && s[i].ld == s[0].ld && i >= 3;
            if (!same && overlap(&s[out], &s[i]))
                return clt_error(CLT_FAIL, "cast_fp8: %s overlaps %s%s", s[out].name, s[i].name,
                                 out == 0 && i >= 3 ? " without being the same place" : "");
        }
    return CLT_OK;
}

static clt_status check_activations(const clt_cast_fp8_params *p) {
    if ((unsigned)p->act >= CLT_ACT_COUNT || (unsigned)p->grad_act >= CLT_ACT_COUNT)
        return clt_error(CLT_FAIL, "cast_fp8: unknown activation %d",
                         (int)((unsigned)p->act >= CLT_ACT_COUNT ? p->act : p->grad_act));
    if (p->act && p->grad_act) return clt_error(CLT_FAIL, "cast_fp8: act and grad_act are both given");
    if (p->grad_act && !clt_tensor_present(p->grad_pre))
        return clt_error(CLT_FAIL, "cast_fp8: grad_act is given, but grad_pre is missing");
    return CLT_OK;
}

/* x, grad_pre and y. */
static clt_status check_tensors(const clt_cast_fp8_params *p) {
    const clt_tensor_named t[] = {
        {"x", p->x}, {"y", p->y}, {"grad_pre", p->grad_act ? p->grad_pre : clt_tensor_none()}};
    CLT_TRY(clt_tensor_check_one_type("cast_fp8", CLT_DTYPE_PLAIN, t, CLT_COUNT_OF(t)));
    for (size_t i = 0; i < CLT_COUNT_OF(t); i++)
        if (i == 0 || clt_tensor_present(t[i].t))
            CLT_TRY(clt_tensor_check_fits("cast_fp8", t[i].name, &t[i].t, p->rows, p->cols));
    return CLT_OK;
}

static clt_status check_params(const clt_cast_fp8_params *p) {
    const bool along = clt_codes8_present(&p->along), across = clt_codes8_present(&p->across);
    if (p->rows < 1 || p->cols < 1 || p->rows > INT_MAX || p->cols > INT_MAX)
        return clt_error(CLT_FAIL, "cast_fp8: sizes %lld x %lld are not in 1..%d", (long long)p->rows,
                         (long long)p->cols, INT_MAX);
    if (!along && !across) return clt_error(CLT_FAIL, "cast_fp8: no output is given");
    if (!p->scale.buf) return clt_error(CLT_FAIL, "cast_fp8: the scale is missing");
    CLT_TRY(check_activations(p));
    CLT_TRY(check_tensors(p));
    if (along) CLT_TRY(clt_codes8_check("cast_fp8", "along", &p->along, p->rows, clt_codes8_k(p->cols)));
    if (across) CLT_TRY(clt_codes8_check("cast_fp8", "across", &p->across, p->cols, clt_codes8_k(p->rows)));
    if (along && across && p->along.format != p->across.format)
        return clt_error(CLT_FAIL, "cast_fp8: along is %s, across %s", clt_fp8_table[p->along.format].name,
                         clt_fp8_table[p->across.format].name);
    return check_overlaps(p);
}

static void describe(const void *call, char *out, size_t size) {
    const clt_cast_fp8_params *p = call;
    snprintf(out, size, "%lldx%lld of %s to %s%s", (long long)p->rows, (long long)p->cols,
             clt_dtype_name(p->x.type), clt_fp8_table[either(p)->format].name,
             p->act        ? " with an activation"
             : p->grad_act ? " with an activation's derivative"
                           : "");
}

clt_status clt_op_cast_fp8(clt_ops *ops, const clt_cast_fp8_params *p) {
    const clt_variant *v;
    char options[96];
    CLT_TRY(check_params(p));
    int n =
        snprintf(options, sizeof options, " -DFORMAT=%d -DX_TYPE=%d", (int)either(p)->format, (int)p->x.type);
    if (makes_y(p))
        snprintf(options + n, sizeof options - (size_t)n, " -D%s=%d", p->act ? "ACT" : "GRAD_ACT",
                 (int)(p->act ? p->act : p->grad_act));
    else if (clt_tensor_present(p->y))
        snprintf(options + n, sizeof options - (size_t)n, " -DWITH_Y=1");
    const clt_variant_question q = {.op = "cast_fp8",
                                    .options = options,
                                    .takes = takes(ops),
                                    .check = check,
                                    .call = p,
                                    .describe = describe};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run(ops, v, p);
}
