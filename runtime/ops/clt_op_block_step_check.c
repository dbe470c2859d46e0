/* The check of block_step.vt's rows: a block with the call's program, heads and grid, but fewer columns, at a
 * position with many keys and at one with few, against the formula in double. Each step is compared from what
 * the row computed before it. Repeated runs, between which results are overwritten, must give the same bits:
 * a group that does not wait for the others reads NaN. */
#include <math.h>
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_block_step_internal.h"
#include "runtime/ops/ref/clt_ref.h"

enum { ROOM = 300, WIDTH = 520, HIDDEN = 1104, RUNS = 8, PRODUCTS = 4 };
static const int32_t positions[] = {ROOM - 1, 2};

/* A product's tensors on the host; gate and the norm's are NULL where it has none. */
typedef struct {
    float *w, *gate, *bias, *gate_bias, *norm_w, *norm_b;
} weights;

typedef struct {
    clt_block_step_params p;
    weights w[PRODUCTS];
    float *x, *cache, *angles, *temperature, *slopes;
    float *qkv, *mid, *hidden, *y, *again;
    double *z, *off; /* an input, and what its elements may be off by */
    int32_t position;
} problem;

/* --- the problem --- */

static void make_product(clt_check *c, clt_linear_params *p, weights *w, int64_t n, int64_t k,
                         uint64_t seed) {
    const size_t count = (size_t)(n * k);
    const bool gated = clt_tensor_present(p->gate), biased = clt_tensor_present(p->bias);
    const clt_dtype type = p->w.type;
    p->n = n, p->k = k;
    w->w = clt_check_random(c, count, seed);
    p->w = clt_tensor_of(clt_check_upload_as(c, type, w->w, count), k, type);
    if (gated) {
        w->gate = clt_check_random(c, count, seed + 1);
        p->gate = clt_tensor_of(clt_check_upload_as(c, type, w->gate, count), k, type);
    }
    if (biased) {
        w->bias = clt_check_random(c, (size_t)n, seed + 2);
        p->bias = clt_tensor_vector(clt_check_upload(c, w->bias, (size_t)n), CLT_F32);
    }
    if (clt_tensor_present(p->gate_bias)) {
        w->gate_bias = clt_check_random(c, (size_t)n, seed + 3);
        p->gate_bias = clt_tensor_vector(clt_check_upload(c, w->gate_bias, (size_t)n), CLT_F32);
    }
    if (clt_tensor_present(p->norm_w)) {
        w->norm_w = clt_check_random(c, (size_t)k, seed + 4);
        p->norm_w = clt_tensor_vector(clt_check_upload(c, w->norm_w, (size_t)k), CLT_F32);
    }
    if (clt_tensor_present(p->norm_b)) {
        w->norm_b = clt_check_random(c, (size_t)k, seed + 5);
        p->norm_b = clt_tensor_vector(clt_check_upload(c, w->norm_b, (size_t)k), CLT_F32);
    }
}

static clt_tensor blank(clt_check *c, int64_t n) {
    return clt_tensor_of(clt_check_blank(c, (size_t)n), n, CLT_F32);
}

static void make_attention(clt_check *c, problem *x) {
    clt_attention_step_params *a = &x->p.attention;
    const size_t ldc = (size_t)(2 * a->kv_heads * a->head_dim), cached = 2 * ROOM * ldc,
                 angles = ROOM * (size_t)CLT_MAX(a->rotated, 2);
    const int32_t place = 1;
    a->longest = a->room = ROOM;
    a->scale = 0.125f / sqrtf((float)a->head_dim);
    if (a->window >= 0) a->window = 211;
    x->cache = clt_check_random(c, cached, 71);
    x->angles = clt_check_random(c, angles, 72);
    x->temperature = clt_check_random(c, ROOM, 73);
    x->slopes = clt_check_random(c, (size_t)a->heads, 74);
    a->cache =
        clt_tensor_of(clt_check_upload_as(c, a->cache.type, x->cache, cached), (int64_t)ldc, a->cache.type);
    if (a->rotated) a->angles = clt_check_upload(c, x->angles, angles);
    if (a->temperature.buf) a->temperature = clt_check_upload(c, x->temperature, ROOM);
    for (int64_t h = 0; h < a->heads && c->st == CLT_OK; h++) x->slopes[h] = 1.0f / (float)(64 + h);
    if (a->slopes.buf) a->slopes = clt_check_upload(c, x->slopes, (size_t)a->heads);
    a->position = clt_check_upload(c, positions, 1);
    a->place = clt_check_upload(c, &place, 1);
}

static problem make_problem(clt_check *c, const clt_block_step_params *like) {
    problem x = {.p = *like};
    clt_block_step_params *p = &x.p;
    const int64_t C = CLT_MIN(like->qkv.k, (int64_t)WIDTH), F = CLT_MIN(like->hidden.n, (int64_t)HIDDEN),
                  A = like->out.k, W = like->qkv.n, most = CLT_MAX(CLT_MAX(C, F), A);
    make_product(c, &p->qkv, &x.w[0], W, C, 10);
    make_product(c, &p->out, &x.w[1], C, A, 20);
    make_product(c, &p->hidden, &x.w[2], F, C, 30);
    make_product(c, &p->down, &x.w[3], C, F, 40);
    make_attention(c, &x);
    x.x = clt_check_random(c, (size_t)C, 50);
    x.qkv = clt_check_zeros(c, (size_t)W);
    x.mid = clt_check_zeros(c, (size_t)C);
    x.hidden = clt_check_zeros(c, (size_t)F);
    x.y = clt_check_zeros(c, (size_t)C);
    x.again = clt_check_zeros(c, (size_t)C);
    x.z = (double *)(void *)clt_check_zeros(c, 2 * (size_t)most);
    x.off = (double *)(void *)clt_check_zeros(c, 2 * (size_t)most);
    p->qkv.x = p->out.residual = clt_tensor_of(clt_check_upload(c, x.x, (size_t)C), C, CLT_F32);
    p->qkv.y = p->attention.qkv = blank(c, W);
    p->out.y = p->hidden.x = p->down.residual = blank(c, C);
    p->hidden.y = p->down.x = blank(c, F);
    p->down.y = blank(c, C);
    return x;
}

/* --- the formula --- */

/* The norm of a row, into z. Its roundings are part of a product's bound. */
static void normalise(problem *x, const clt_linear_params *p, const weights *w, const float *from) {
    double mean = 0, s = 0;
    for (int64_t i = 0; i < p->k && p->norm == CLT_LINEAR_LAYER_NORM; i++)
        mean += (double)from[i] / (double)p->k;
    for (int64_t i = 0; i < p->k; i++) s += ((double)from[i] - mean) * ((double)from[i] - mean);
    for (int64_t i = 0; i < p->k; i++) {
        x->z[i] = ((double)from[i] - mean) / sqrt(s / (double)p->k + (double)p->eps);
        if (w->norm_w) x->z[i] *= (double)w->norm_w[i];
        if (w->norm_b) x->z[i] += (double)w->norm_b[i];
        x->off[i] = 0;
    }
}

/* Output j and what it may be off by: k 2^-22 times the magnitudes of its products, as in the check of
 * linear.vt, and what the inputs are off by. */
static double dot(const problem *x, const float *w, const float *bias, int64_t k, int64_t j, double *bound) {
    double s = bias ? (double)bias[j] : 0, size = fabs(s), off = 0;
    for (int64_t i = 0; i < k; i++) {
        const double v = (double)w[j * k + i];
        s += v * x->z[i];
        size += fabs(v * x->z[i]);
        off += fabs(v) * x->off[i];
    }
    *bound = (double)(k + 16) * 0x1p-22 * size + off;
    return s;
}

static clt_status compare(clt_ops *ops, problem *x, const char *what, const clt_linear_params *p,
                          const weights *w, const float *residual, const float *got) {
    for (int64_t j = 0; j < p->n; j++) {
        double bound, gate_bound, want = dot(x, w->w, w->bias, p->k, j, &bound);
        if (w->gate) {
            const double g = dot(x, w->gate, w->gate_bias, p->k, j, &gate_bound),
                         a = p->act ? (double)clt_ref_act(p->act, (float)g) : g;
            gate_bound = 1.2 * gate_bound + 0x1p-20 * (fabs(g) + 1);
            bound = fabs(a) * bound + (fabs(want) + bound) * gate_bound;
            want *= a;
        } else if (p->act) {
            bound = 1.2 * bound + 0x1p-20 * (fabs(want) + 1);
            want = (double)clt_ref_act(p->act, (float)want);
        }
        if (residual) want += (double)residual[j];
        bound += 0x1p-22 * (fabs(want) + 1);
        if (!(fabs((double)got[j] - want) <= bound))
            return clt_variant_fail(
                ops, "position %d, %s: element %lld is %.9g, the formula gives %.9g, bound %.3g",
                (int)x->position, what, (long long)j, (double)got[j], want, bound);
    }
    return CLT_OK;
}

/* A head's element d after rotation by the angles of the position. */
static double turned(const problem *x, const float *head, int64_t d) {
    const int64_t half = x->p.attention.rotated / 2;
    if (d >= x->p.attention.rotated) return (double)head[d];
    const float *cs = x->angles + (x->position * half + d % half) * 2;
    const double a = (double)head[d % half], b = (double)head[d % half + half];
    return d < half ? a * (double)cs[0] - b * (double)cs[1] : b * (double)cs[0] + a * (double)cs[1];
}

/* The cache's row of a position. */
static float *cached(const problem *x, int64_t j) {
    return x->cache + (ROOM + j) * x->p.attention.cache.ld;
}

/* Reads the new row of the cache and compares it: rounding after rotation may differ by one unit. */
static clt_status compare_cache(clt_ops *ops, problem *x) {
    const clt_attention_step_params *a = &x->p.attention;
    const int64_t D = a->head_dim, KV = a->kv_heads * D;
    const float *key = x->qkv + a->heads * D;
    float *row = cached(x, x->position);
    CLT_TRY(clt_ref_read_as(clt_ref_at(a->cache.ref, (uint64_t)(row - x->cache)), a->cache.type, row,
                            (size_t)(2 * KV)));
    for (int64_t i = 0; i < 2 * KV; i++) {
        const double want = i < KV ? turned(x, key + i / D * D, i % D) : (double)key[i];
        if (!(fabs((double)row[i] - want) <= 4 * clt_dtype_table[a->cache.type].unit * fabs(want) + 0x1p-20))
            return clt_variant_fail(ops, "position %d, cache: element %lld is %.9g instead of %.9g",
                                    (int)x->position, (long long)i, (double)row[i], want);
    }
    return CLT_OK;
}

/* The score of key j; *off is raised to what it may be off by: D 2^-22 times its products' magnitudes. */
static double score(const problem *x, int64_t h, const double *query, int64_t j, double *off) {
    const clt_attention_step_params *a = &x->p.attention;
    const float *key = cached(x, j) + h / (a->heads / a->kv_heads) * a->head_dim;
    double s = 0, size = 0;
    for (int64_t d = 0; d < a->head_dim; d++) {
        s += query[d] * (double)key[d];
        size += fabs(query[d] * (double)key[d]);
    }
    *off = fmax(*off, size * (double)a->scale * (double)a->head_dim * 0x1p-22);
    s *= (double)a->scale;
    if (a->softcap > 0) s = (double)a->softcap * tanh(s / (double)a->softcap);
    return a->slopes.buf ? s + (double)x->slopes[h] * (double)(j - x->position) : s;
}

/* Attention of one head into z. An error of a score moves a probability by twice as much, relatively; sums of
 * weights add 2^-14. */
static void attend(problem *x, int64_t h) {
    const clt_attention_step_params *a = &x->p.attention;
    const int64_t D = a->head_dim, last = x->position,
                  first = a->window >= 0 ? CLT_MAX(last - a->window, 0) : 0,
                  value_at = (a->kv_heads + h / (a->heads / a->kv_heads)) * D;
    double query[CLT_BLOCK_MOST_HEAD], weight[ROOM], most = -INFINITY, l = 0, off = 0, large = 1;
    for (int64_t d = 0; d < D; d++) {
        query[d] = turned(x, x->qkv + h * D, d);
        if (a->temperature.buf) query[d] *= (double)x->temperature[last];
        x->z[h * D + d] = 0;
    }
    for (int64_t j = first; j <= last; j++) most = fmax(most, weight[j] = score(x, h, query, j, &off));
    for (int64_t j = first; j <= last; j++) l += weight[j] = exp(weight[j] - most);
    for (int64_t j = first; j <= last; j++)
        for (int64_t d = 0; d < D; d++) {
            const double v = (double)cached(x, j)[value_at + d];
            x->z[h * D + d] += weight[j] / l * v;
            large = fmax(large, fabs(v));
        }
    for (int64_t d = 0; d < D; d++) x->off[h * D + d] = (2 * off + 0x1p-14) * large;
}

static clt_status compare_all(clt_ops *ops, problem *x) {
    const clt_block_step_params *p = &x->p;
    normalise(x, &p->qkv, &x->w[0], x->x);
    CLT_TRY(compare(ops, x, "qkv", &p->qkv, &x->w[0], NULL, x->qkv));
    CLT_TRY(compare_cache(ops, x));
    for (int64_t h = 0; h < p->attention.heads; h++) attend(x, h);
    CLT_TRY(compare(ops, x, "out", &p->out, &x->w[1], x->x, x->mid));
    normalise(x, &p->hidden, &x->w[2], x->mid);
    CLT_TRY(compare(ops, x, "hidden", &p->hidden, &x->w[2], NULL, x->hidden));
    for (int64_t i = 0; i < p->down.k; i++) x->z[i] = (double)x->hidden[i], x->off[i] = 0;
    return compare(ops, x, "down", &p->down, &x->w[3], x->mid, x->y);
}

/* --- runs --- */

static clt_status overwrite(const clt_linear_params *p) {
    const size_t size = sizeof(float);
    return clt_buffer_fill32(p->y.ref.buf, (size_t)p->y.ref.off * size, 0x7fc0dead, (size_t)p->n * size);
}

static clt_status run_once(clt_ops *ops, const clt_variant *v, const problem *x, const clt_block_plan *plan) {
    uint32_t count[2];
    clt_buffer *counters;
    CLT_TRY(overwrite(&x->p.qkv));
    CLT_TRY(overwrite(&x->p.out));
    CLT_TRY(overwrite(&x->p.hidden));
    CLT_TRY(overwrite(&x->p.down));
    CLT_TRY(clt_block_run(ops, v, &x->p, plan, true));
    CLT_TRY(clt_ops_counters(ops, 2, &counters));
    CLT_TRY(clt_buffer_read(counters, 0, count, sizeof count));
    if (!count[0] && !count[1]) return CLT_OK;
    CLT_TRY(clt_buffer_fill32(counters, 0, 0, sizeof count));
    return clt_variant_fail(ops, "the launch's work-groups do not run at the same time (counters %#x, %u)",
                            (unsigned)count[0], (unsigned)count[1]);
}

static clt_status run_at(clt_ops *ops, const clt_variant *v, problem *x, const clt_block_plan *plan,
                         int32_t position) {
    const clt_block_step_params *p = &x->p;
    const size_t y = (size_t)p->down.n;
    const clt_ref at = p->attention.position;
    x->position = position;
    CLT_TRY(clt_buffer_write(at.buf, (size_t)at.off * sizeof position, &position, sizeof position));
    CLT_TRY(run_once(ops, v, x, plan));
    if (clt_variant_is_rehearsed(ops)) return CLT_OK;
    CLT_TRY(clt_ref_read_f32(p->qkv.y.ref, x->qkv, (size_t)p->qkv.n));
    CLT_TRY(clt_ref_read_f32(p->out.y.ref, x->mid, (size_t)p->out.n));
    CLT_TRY(clt_ref_read_f32(p->hidden.y.ref, x->hidden, (size_t)p->hidden.n));
    CLT_TRY(clt_ref_read_f32(p->down.y.ref, x->y, y));
    CLT_TRY(compare_all(ops, x));
    for (int i = 1; i < RUNS; i++) {
        CLT_TRY(run_once(ops, v, x, plan));
        CLT_TRY(clt_ref_read_f32(p->down.y.ref, x->again, y));
        if (memcmp(x->again, x->y, y * sizeof *x->y) != 0)
            return clt_variant_fail(ops, "position %d: run %d gives other bits than the first", (int)position,
                                    i);
    }
    return CLT_OK;
}

clt_status clt_block_check(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_block_step_params *like = ctx;
    const clt_block_plan plan = clt_block_plan_of(ops, like);
    clt_check c = {.ops = ops, .aligned = true};
    problem x = make_problem(&c, like);
    for (size_t i = 0; i < CLT_COUNT_OF(positions) && c.st == CLT_OK; i++)
        c.st = run_at(ops, v, &x, &plan, positions[i]);
    return clt_check_end(&c);
}
