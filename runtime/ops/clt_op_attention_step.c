/* Attention of one new position for each of a few texts: the rows of attention_step.vt. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_attention_step.h"
#include "runtime/ops/ref/clt_ref.h"

typedef clt_attention_step_params params;

enum { MOST_HEAD = 512, OPTIONS = 192, SLOT_PARTS = 0 };

/* What programs are made for. */
static void make_options(const params *p, char out[OPTIONS]) {
    snprintf(out, OPTIONS,
             " -DHEAD_DIM=%lld -DTYPE=%d -DROTATED=%lld -DTEMPER=%d -DAPPEND=%d -DALIBI=%d -DSOFTCAP=%d "
             "-DWINDOW=%d",
             (long long)p->head_dim, (int)p->cache.type, (long long)p->rotated, p->temperature.buf != NULL,
             !p->shared, p->slopes.buf != NULL, p->softcap > 0.0f, p->window >= 0);
}

/* --- launches --- */

/* Keys that a row sees at most. */
static int64_t most_keys(const params *p) {
    return p->window >= 0 ? CLT_MIN(p->longest, p->window + 1) : p->longest;
}

/* Keys of a work-group: all, unless they are many. */
static int64_t keys_each(const clt_variant *v, const params *p) {
    const int64_t each = clt_variant_param(v, "EACH", 512), all = most_keys(p);
    return all <= 2 * each ? 2 * each : each;
}

static clt_status join(clt_ops *ops, const clt_variant *v, const params *p, int64_t groups,
                       clt_buffer *part) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_step_join", v->options, &k));
    const clt_arg args[] = {CLT_BUF(part),        CLT_U32(groups),    CLT_U32(p->heads),
                            CLT_REF(p->position), CLT_U32(p->window), CLT_U32(keys_each(v, p)),
                            CLT_REF(p->o.ref),    CLT_U32(p->o.ld)};
    const size_t global[2] = {(size_t)CLT_ROUND_UP(p->heads * p->head_dim, (int64_t)64), (size_t)p->rows};
    return clt_launch_rows(k, global, (size_t[]){64, 1}, args, CLT_COUNT_OF(args));
}

static clt_status run(clt_ops *ops, const clt_variant *v, const params *p) {
    const int64_t each = keys_each(v, p), groups = CLT_CEIL_DIV(most_keys(p), each);
    const size_t items = (size_t)clt_variant_param(v, "ITEMS", 256);
    const int64_t q = p->heads * p->head_dim, kv = p->kv_heads * p->head_dim;
    clt_kernel *k;
    clt_buffer *part = NULL;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "attention_step", v->options, &k));
    if (groups > 1)
        CLT_TRY(clt_ops_scratch(ops, SLOT_PARTS,
                                (uint64_t)(p->rows * p->heads * groups * (p->head_dim + 2)) * sizeof(float),
                                &part));
    const clt_arg args[] = {CLT_REF(p->qkv.ref),
                            CLT_U32(p->qkv.ld),
                            CLT_U32(q),
                            CLT_U32(q + kv),
                            CLT_REF(p->cache.ref),
                            CLT_U32(p->cache.ld),
                            CLT_U32(p->room),
                            CLT_REF(p->position),
                            CLT_REF(p->place),
                            CLT_REF(p->angles),
                            CLT_REF(p->temperature),
                            CLT_REF(p->slopes),
                            CLT_U32(p->heads / p->kv_heads),
                            CLT_F32(p->scale),
                            CLT_F32(p->softcap),
                            CLT_U32(p->window),
                            CLT_U32(each),
                            CLT_REF(p->o.ref),
                            CLT_U32(p->o.ld),
                            CLT_BUF(part)};
    CLT_TRY(clt_launch(k, 3, (size_t[]){items * (size_t)groups, (size_t)p->heads, (size_t)p->rows},
                       (size_t[]){items, 1, 1}, args, CLT_COUNT_OF(args)));
    return groups > 1 ? join(ops, v, p, groups, part) : CLT_OK;
}

/* --- the check --- */

/* Two texts with two query heads on one key/value head: a short one, and one whose keys several work-groups
 * share. */
enum { ROWS = 2, HEADS = 2, ROOM = 1400 };
static const int32_t positions[ROWS] = {40, ROOM - 1}, places[ROWS] = {1, 0};

typedef struct {
    params p;
    float *qkv, *cache, *angles, *temperature, *slopes;
} problem;

static problem make_problem(clt_check *c, const params *like) {
    const size_t D = (size_t)like->head_dim, width = (HEADS + 2) * D, cached = (size_t)ROWS * ROOM * 2 * D;
    const clt_dtype type = like->cache.type;
    problem x = {.p = *like};
    params *p = &x.p;
    p->rows = ROWS, p->heads = HEADS, p->kv_heads = 1, p->room = p->longest = ROOM;
    p->scale = 1.0f / sqrtf((float)D);
    if (p->window >= 0) p->window = 1100;
    x.qkv = clt_check_random(c, ROWS * width, 11);
    x.cache = clt_check_random(c, cached, 12);
    x.angles = clt_check_random(c, ROOM * CLT_MAX((size_t)p->rotated, 2), 13);
    x.temperature = clt_check_random(c, ROOM, 14);
    x.slopes = clt_check_random(c, HEADS, 15);
    for (int i = 0; i < HEADS && c->st == CLT_OK; i++) x.slopes[i] = 1.0f / (float)(64 << i);
    p->qkv = clt_tensor_of(clt_check_upload(c, x.qkv, ROWS * width), (int64_t)width, CLT_F32);
    p->cache = clt_tensor_of(clt_check_upload_as(c, type, x.cache, cached), 2 * (int64_t)D, type);
    p->position = clt_check_upload(c, positions, ROWS);
    p->place = clt_check_upload(c, places, ROWS);
    if (p->rotated) p->angles = clt_check_upload(c, x.angles, ROOM * (size_t)p->rotated);
    if (like->temperature.buf) p->temperature = clt_check_upload(c, x.temperature, ROOM);
    if (like->slopes.buf) p->slopes = clt_check_upload(c, x.slopes, HEADS);
    p->o = clt_tensor_of(clt_check_blank(c, ROWS * HEADS * D), HEADS * (int64_t)D, CLT_F32);
    return x;
}

/* A head's element d after rotation by the angles of a position. */
static double turned(const problem *x, const float *head, int64_t position, int64_t d) {
    const int64_t half = x->p.rotated / 2;
    if (d >= x->p.rotated) return (double)head[d];
    const float *cs = x->angles + (position * half + d % half) * 2;
    const double a = (double)head[d % half], b = (double)head[d % half + half];
    return d < half ? a * (double)cs[0] - b * (double)cs[1] : b * (double)cs[0] + a * (double)cs[1];
}

/* Puts row r's key and value into the host's cache, as the kernel does into its own. */
static void append(problem *x, int r) {
    const int64_t D = x->p.head_dim, at = places[r] * (int64_t)ROOM + positions[r];
    const float *row = x->qkv + r * x->p.qkv.ld;
    float *to = x->cache + at * 2 * D;
    if (x->p.shared) return;
    for (int64_t d = 0; d < D; d++) {
        to[d] = (float)turned(x, row + HEADS * D, positions[r], d);
        to[D + d] = row[(HEADS + 1) * D + d];
    }
    clt_ref_round(x->p.cache.type, to, (size_t)(2 * D));
}

/* The score of key j, and in *sum the sum of its products' magnitudes. */
static double score(const problem *x, int r, int h, const double *query, int64_t j, double *sum) {
    const params *p = &x->p;
    const float *key = x->cache + (places[r] * (int64_t)ROOM + j) * 2 * p->head_dim;
    double s = 0;
    *sum = 0;
    for (int64_t d = 0; d < p->head_dim; d++) {
        s += query[d] * (double)key[d];
        *sum += fabs(query[d] * (double)key[d]);
    }
    s *= (double)p->scale;
    *sum *= (double)p->scale;
    if (p->softcap > 0) s = (double)p->softcap * tanh(s / (double)p->softcap);
    return p->slopes.buf ? s + (double)x->slopes[h] * (double)(j - positions[r]) : s;
}

/* One head of one row by the formula in double: o[D]; returns the largest difference that is allowed. A score
 * is off by D 2^-22 times its products' magnitudes, rotation and rounding of a new key included; that moves a
 * probability by twice as much, relatively, and values are at most 1. Sums of weights add 2^-14. */
static double formula(const problem *x, int r, int h, double *o) {
    const params *p = &x->p;
    const int64_t D = p->head_dim, last = positions[r];
    const int64_t first = p->window >= 0 ? CLT_MAX(last - p->window, 0) : 0;
    double query[MOST_HEAD], most = -INFINITY, l = 0, off = 0, magnitude;
    for (int64_t d = 0; d < D; d++) {
        query[d] = turned(x, x->qkv + r * p->qkv.ld + h * D, last, d);
        if (p->temperature.buf) query[d] *= (double)x->temperature[last];
        o[d] = 0;
    }
    for (int64_t j = first; j <= last; j++) most = fmax(most, score(x, r, h, query, j, &magnitude));
    for (int64_t j = first; j <= last; j++) {
        const float *value = x->cache + ((places[r] * (int64_t)ROOM + j) * 2 + 1) * D;
        const double w = exp(score(x, r, h, query, j, &magnitude) - most);
        off = fmax(off, magnitude);
        l += w;
        for (int64_t d = 0; d < D; d++) o[d] += w * (double)value[d];
    }
    for (int64_t d = 0; d < D; d++) o[d] /= l;
    return 2 * off * (double)D * 0x1p-22 + 0x1p-14;
}

static clt_status compare(clt_ops *ops, problem *x, const float *got) {
    const int64_t D = x->p.head_dim;
    double want[MOST_HEAD];
    for (int r = 0; r < ROWS; r++) append(x, r);
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++) {
            const double bound = formula(x, r, h, want);
            const float *o = got + (r * HEADS + h) * D;
            for (int64_t d = 0; d < D; d++)
                if (!(fabs((double)o[d] - want[d]) <= bound))
                    return clt_variant_fail(
                        ops, "row %d, head %d, element %lld is %.9g, the formula gives %.9g, bound %.3g", r,
                        h, (long long)d, (double)o[d], want[d], bound);
        }
    return CLT_OK;
}

/* The new rows of the cache: rounding after rotation may differ by one unit. */
static clt_status compare_cache(clt_ops *ops, const problem *x) {
    const size_t D = (size_t)x->p.head_dim;
    float row[2 * MOST_HEAD];
    for (int r = 0; r < ROWS; r++) {
        const uint64_t at = ((uint64_t)places[r] * ROOM + (uint64_t)positions[r]) * 2 * D;
        CLT_TRY(clt_ref_read_as(clt_ref_at(x->p.cache.ref, at), x->p.cache.type, row, 2 * D));
        for (size_t d = 0; d < 2 * D; d++) {
            const double want = (double)x->cache[at + d], unit = clt_dtype_table[x->p.cache.type].unit;
            if (!(fabs((double)row[d] - want) <= 4 * unit * fabs(want) + 0x1p-22))
                return clt_variant_fail(ops, "cache of row %d, element %zu is %.9g instead of %.9g", r, d,
                                        (double)row[d], want);
        }
    }
    return CLT_OK;
}

static clt_status check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const params *like = ctx;
    clt_check c = {.ops = ops, .aligned = true};
    problem x = make_problem(&c, like);
    const size_t n = (size_t)(ROWS * HEADS * like->head_dim);
    float *got = clt_check_zeros(&c, n);
    if (c.st == CLT_OK) c.st = run(ops, v, &x.p);
    if (c.st == CLT_OK && !clt_variant_is_rehearsed(ops)) {
        c.st = clt_ref_read_f32(x.p.o.ref, got, n);
        if (c.st == CLT_OK) c.st = compare(ops, &x, got);
        if (c.st == CLT_OK) c.st = compare_cache(ops, &x);
    }
    return clt_check_end(&c);
}

/* --- the call --- */

static bool takes(const clt_variant *v, const void *call) {
    const params *p = call;
    const uint64_t align = 16 / clt_dtype_bytes(p->cache.type);
    (void)v;
    return p->head_dim % 8 == 0 && p->head_dim <= MOST_HEAD && p->rotated <= p->head_dim &&
           p->rotated % 2 == 0 && p->heads % p->kv_heads == 0 && p->cache.ref.off % align == 0 &&
           (uint64_t)p->cache.ld % align == 0;
}

static clt_status choose(clt_ops *ops, const params *p, const clt_variant **out) {
    char options[OPTIONS];
    make_options(p, options);
    const clt_variant_question q = {
        .op = "attention_step", .options = options, .takes = takes, .check = check, .call = p};
    return clt_variant_pick_optional(ops, &q, out);
}

clt_status clt_op_attention_step_takes(clt_ops *ops, const params *p, bool *takes) {
    const clt_variant *v;
    CLT_TRY(choose(ops, p, &v));
    *takes = v != NULL;
    return CLT_OK;
}

clt_status clt_op_attention_step(clt_ops *ops, const params *p) {
    const clt_variant *v;
    const int64_t width = (p->heads + (p->shared ? 0 : 2 * p->kv_heads)) * p->head_dim;
    CLT_TRY(choose(ops, p, &v));
    if (!v || p->rows < 1 || p->longest < 1 || p->longest > p->room)
        return clt_error(CLT_FAIL,
                         "attention_step: no kernel of this device takes %lld texts of %lld positions",
                         (long long)p->rows, (long long)p->longest);
    CLT_TRY(clt_tensor_check_fits("attention_step", "qkv", &p->qkv, p->rows, width));
    CLT_TRY(clt_tensor_check_fits("attention_step", "o", &p->o, p->rows, p->heads * p->head_dim));
    CLT_TRY(
        clt_tensor_check_fits("attention_step", "cache", &p->cache, p->room, 2 * p->kv_heads * p->head_dim));
    return run(ops, v, p);
}
