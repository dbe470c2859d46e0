/* clbench attention: flash attention, forward and backward. */
#include "tools/clbench/bench.h"

#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

typedef struct {
    int64_t batch, seq, heads, dim;
    bool plain; /* without ALiBi */
    clt_attention_mask mask;
    bool eight; /* in 8-bit blocks */
} attention_shape;

enum { Q, K, V, O, DOUT, DQ, DK, DV, TENSORS };

typedef struct {
    bench *b;
    attention_shape s;
    clt_attention_grad_params p; /* p.fwd: the forward call */
    clt_ref t[TENSORS], lse, slopes;
    float *host[TENSORS], *hslopes;
} attention_work;

static clt_status call_forward(void *ctx) {
    attention_work *w = ctx;
    return w->s.eight ? clt_op_attention8_forward(w->b->ops, &w->p.fwd)
                      : clt_op_attention_forward(w->b->ops, &w->p.fwd);
}
static clt_status call_backward(void *ctx) {
    attention_work *w = ctx;
    return w->s.eight ? clt_op_attention8_backward(w->b->ops, &w->p)
                      : clt_op_attention_backward(w->b->ops, &w->p);
}

static clt_status make_work(bench *b, attention_shape s, attention_work *w) {
    const int64_t ld = s.heads * s.dim;
    const uint64_t n = (uint64_t)(s.batch * s.seq * ld);
    *w = (attention_work){.b = b, .s = s};
    for (int i = 0; i < TENSORS; i++)
        CLT_TRY(bench_tensor_as(b, b->type, n, (uint64_t)i + 1, "bench attention", &w->t[i], &w->host[i]));
    CLT_TRY(bench_tensor(b, (uint64_t)(s.batch * s.heads * s.seq), 20, "bench lse", &w->lse, NULL));
    CLT_TRY(bench_tensor(b, (uint64_t)s.heads, 21, "bench slopes", &w->slopes, &w->hslopes));
    clt_attention_params *f = &w->p.fwd;
    *f = (clt_attention_params){.batch = s.batch, .seq = s.seq, .heads = s.heads, .kv_heads = s.heads};
    f->head_dim = s.dim, f->scale = 1.0f / sqrtf((float)s.dim), f->window = -1, f->lse = w->lse;
    f->mask = s.mask, f->slopes = s.plain ? clt_ref_none() : w->slopes;
    clt_tensor *const to[TENSORS] = {&f->q, &f->k, &f->v, &f->o, &w->p.dout, &w->p.dq, &w->p.dk, &w->p.dv};
    for (int i = 0; i < TENSORS; i++) *to[i] = clt_tensor_of(w->t[i], ld, b->type);
    return CLT_OK;
}

static void free_work(attention_work *w) {
    for (int i = 0; i < TENSORS; i++) {
        bench_free(w->t[i]);
        clt_free(w->host[i]);
    }
    bench_free(w->lse);
    bench_free(w->slopes);
    clt_free(w->hslopes);
}

static clt_status compare(attention_work *w, int from, int to, bench_row *row) {
    const attention_shape *s = &w->s;
    const size_t n = (size_t)(s->batch * s->seq * s->heads * s->dim);
    float *got = clt_malloc(n * sizeof *got);
    clt_status st = CLT_OK;
    for (int i = from; i <= to && st == CLT_OK; i++) {
        bool same = false;
        st = clt_ref_read_as(w->t[i], w->b->type, got, n);
        if (st == CLT_OK)
            row->max_error = CLT_MAX(row->max_error, bench_difference(got, w->host[i], n, &same));
        row->ok = row->ok && same;
    }
    clt_free(got);
    return st;
}

/* The oracle's form of the call, on the host's tensors. */
static clt_ref_attention_params reference(const attention_work *w, float *lse) {
    const clt_attention_params *f = &w->p.fwd;
    clt_ref_attention_params r = clt_ref_attention_of(f);
    r.q = w->host[Q], r.k = w->host[K], r.v = w->host[V], r.o = w->host[O], r.lse = lse;
    r.lddout = r.lddq = r.lddk = r.lddv = f->q.ld;
    r.slopes = w->s.plain ? NULL : w->hslopes;
    r.dout = w->host[DOUT], r.dq = w->host[DQ], r.dk = w->host[DK], r.dv = w->host[DV];
    return r;
}

/* The oracle is slow, so words are compared for a smaller shape with the same head size. */
static clt_status check_bits(bench *b, attention_shape s, bench_row *forward, bench_row *backward) {
    const attention_shape small = {1,      CLT_MIN(s.seq, 200), CLT_MIN(s.heads, 2), s.dim, s.plain, s.mask,
                                   s.eight};
    attention_work w;
    clt_status st = make_work(b, small, &w);
    if (st == CLT_OK) st = call_forward(&w);
    if (st == CLT_OK) st = call_backward(&w);
    if (st == CLT_OK) {
        const size_t n = (size_t)(small.batch * small.seq * small.heads * small.dim);
        float *lse = clt_malloc((size_t)(small.batch * small.heads * small.seq) * sizeof *lse);
        const clt_ref_attention_params r = reference(&w, lse);
        (s.eight ? clt_ref_attention8_forward : clt_ref_attention_forward)(&r);
        clt_ref_round(b->type, r.o, n);
        (s.eight ? clt_ref_attention8_backward : clt_ref_attention_backward)(&r);
        for (int i = DQ; i <= DV; i++) clt_ref_round(b->type, w.host[i], n);
        clt_free(lse);
        st = compare(&w, O, O, forward);
        if (st == CLT_OK) st = compare(&w, DQ, DV, backward);
    }
    free_work(&w);
    return st;
}

/* Compares rows of the timed output, spread over samples, heads and positions, with the formula in double,
 * within the bound of clt_ref_attention_row. */
static clt_status check_rows(attention_work *w, bench_row *row) {
    enum { SAMPLES = 60 };
    const attention_shape *s = &w->s;
    const uint64_t stats = (uint64_t)(s->batch * s->heads * s->seq), n = stats * (uint64_t)s->dim;
    float *lse = clt_malloc(stats * sizeof *lse), *o = clt_malloc(n * sizeof *o);
    double *want = clt_malloc((size_t)(2 * s->dim) * sizeof *want), *bound = want + s->dim;
    const clt_ref_attention_params r = reference(w, lse);
    clt_status st = clt_ref_read_as(w->t[O], w->b->type, o, n);
    if (st == CLT_OK) st = clt_ref_read_f32(w->lse, lse, stats);
    row->checked = row->ok = st == CLT_OK;
    for (int64_t i = 0; i < SAMPLES && st == CLT_OK; i++) {
        const int64_t pick = i * 7919 + 13;
        const clt_ref_attention_at at = {pick % s->batch, pick / 3 % s->heads,
                                         i < 2 ? i * (s->seq - 1) : pick * 31 % s->seq};
        const clt_ref_attention_bound e = clt_ref_attention_row(&r, w->b->type, at, want, bound);
        const double got = (double)lse[(at.sample * s->heads + at.head) * s->seq + at.row];
        row->ok = row->ok && fabs(got - e.lse) <= e.lse_bound;
        for (int64_t d = 0; d < s->dim; d++) {
            const double error =
                fabs((double)o[((at.sample * s->seq + at.row) * s->heads + at.head) * s->dim + d] - want[d]);
            row->ok = row->ok && error <= bound[d];
            row->max_error = CLT_MAX(row->max_error, error);
        }
    }
    clt_free(want);
    clt_free(o);
    clt_free(lse);
    return st;
}

/* Compares one head of one sample of the device's matrix, from element `from`, with [seq, dim] values and
 * bounds. */
static clt_status compare_head(attention_work *w, int tensor, size_t from, const double *want,
                               const double *bound, bench_row *row) {
    const attention_shape *s = &w->s;
    const size_t ld = (size_t)(s->heads * s->dim), n = (size_t)(s->batch * s->seq) * ld;
    float *got = clt_malloc(n * sizeof *got);
    const clt_status st = clt_ref_read_as(w->t[tensor], w->b->type, got, n);
    for (size_t i = 0; i < (size_t)s->seq && st == CLT_OK; i++)
        for (size_t d = 0; d < (size_t)s->dim; d++) {
            const size_t at = i * (size_t)s->dim + d;
            const double error = fabs((double)got[from + i * ld + d] - want[at]);
            row->ok = row->ok && error <= bound[at];
            row->max_error = CLT_MAX(row->max_error, error);
        }
    clt_free(got);
    return st;
}

/* The same for the gradients of one head of the last sample, from the device's output and log-sum-exp. */
static clt_status check_head(attention_work *w, bench_row *row) {
    const attention_shape *s = &w->s;
    const int64_t b = s->batch - 1, h = s->heads / 2;
    const uint64_t stats = (uint64_t)(s->batch * s->heads * s->seq);
    const size_t ld = (size_t)(s->heads * s->dim), part = (size_t)(s->seq * s->dim),
                 from = (size_t)(b * s->seq) * ld + (size_t)(h * s->dim);
    float *lse = clt_malloc(stats * sizeof *lse);
    double *out = clt_malloc(6 * part * sizeof *out);
    clt_ref_attention_params r = reference(w, lse + (b * s->heads + h) * s->seq);
    r.batch = r.heads = r.kv_heads = 1;
    r.q += from, r.k += from, r.v += from, r.o += from, r.dout += from;
    r.slopes = r.slopes ? r.slopes + h : NULL;
    clt_status st = clt_ref_read_as(w->t[O], w->b->type, w->host[O], stats * (uint64_t)s->dim);
    if (st == CLT_OK) st = clt_ref_read_f32(w->lse, lse, stats);
    row->checked = row->ok = st == CLT_OK;
    const clt_ref_attention_gradients_out g = {
        out, out + part, out + 2 * part, out + 3 * part, out + 4 * part, out + 5 * part};
    if (st == CLT_OK) clt_ref_attention_gradients(&r, w->b->type, &g);
    for (int i = 0; i < 3 && st == CLT_OK; i++)
        st = compare_head(w, DQ + i, from, out + (size_t)i * part, out + (size_t)(3 + i) * part, row);
    clt_free(out);
    clt_free(lse);
    return st;
}

/* Checks the timed call within the bound; with numerics exact also words, whose error it then shows. In 8-bit
 * blocks only words. */
static clt_status check(attention_work *w, const bool *wanted, bench_row *row) {
    if (w->s.eight) {
        for (int i = 0; i < 2; i++) row[i].checked = row[i].ok = wanted[i];
        return check_bits(w->b, w->s, &row[0], &row[1]);
    }
    bench_row near[2] = {row[0], row[1]};
    if (wanted[0]) CLT_TRY(check_rows(w, &near[0]));
    if (wanted[1]) CLT_TRY(check_head(w, &near[1]));
    for (int i = 0; i < 2; i++) {
        row[i].checked = near[i].checked, row[i].ok = near[i].ok;
        row[i].max_error = w->b->fast ? near[i].max_error : 0;
    }
    return w->b->fast ? CLT_OK : check_bits(w->b, w->s, &row[0], &row[1]);
}

static clt_status run_shape(bench *b, attention_shape s) {
    attention_work w;
    /* two products of T x T x D forward, five backward; a causal mask needs half of each */
    const int64_t pairs = s.mask == CLT_MASK_CAUSAL ? s.seq * (s.seq + 1) / 2 : s.seq * s.seq;
    const double flops = 4.0 * (double)(s.batch * s.heads * s.dim) * (double)pairs;
    bench_row row[2] = {{.flops = flops, .type = b->type}, {.flops = 2.5 * flops, .type = b->type}};
    bool wanted[2];
    for (int i = 0; i < 2; i++) {
        snprintf(row[i].op, sizeof row[i].op, "attention%s %s", s.eight ? "8" : "", i ? "bwd" : "fwd");
        snprintf(row[i].shape, sizeof row[i].shape, "B%lld T%lld H%lld D%lld%s%s", (long long)s.batch,
                 (long long)s.seq, (long long)s.heads, (long long)s.dim, s.plain ? "" : " alibi",
                 s.mask == CLT_MASK_CAUSAL ? "" : " unmasked");
        wanted[i] = bench_wants(b, row[i].op, row[i].shape);
    }
    if (!wanted[0] && !wanted[1]) return CLT_OK;
    clt_status st = make_work(b, s, &w);
    if (st == CLT_OK) st = wanted[0] ? bench_time(b, call_forward, &w, &row[0].seconds) : call_forward(&w);
    if (st == CLT_OK && wanted[1]) st = bench_time(b, call_backward, &w, &row[1].seconds);
    if (st == CLT_OK) {
        snprintf(row[0].variant, sizeof row[0].variant, "%s",
                 s.eight ? clt_op_attention8_variant(b->ops, &w.p.fwd)
                         : clt_op_attention_variant(b->ops, &w.p.fwd));
        snprintf(row[1].variant, sizeof row[1].variant, "%s",
                 s.eight ? clt_op_attention8_backward_variant(b->ops, &w.p)
                         : clt_op_attention_backward_variant(b->ops, &w.p));
    }
    if (st == CLT_OK && b->check) st = check(&w, wanted, row);
    free_work(&w);
    for (int i = 0; i < 2 && st == CLT_OK; i++)
        if (wanted[i]) bench_add(b, &row[i]);
    return st;
}

#define SUITES "mpt-small, mpt-125m, mpt-1b, large, vit, vit-huge"

static clt_status run_suite(bench *b, clt_attention_mask mask, bool eight) {
    static const struct {
        const char *name;
        attention_shape s;
    } suite[] = {{"mpt-small", {4, 256, 4, 64}},         {"mpt-125m", {1, 256, 12, 64}},
                 {"mpt-125m", {1, 2048, 12, 64}},        {"mpt-125m", {2, 2048, 12, 64}},
                 {"mpt-1b", {1, 2048, 16, 128}},         {"large", {16, 2048, 12, 64, true}},
                 {"large", {8, 2048, 16, 128, true}},    {"large", {2, 4096, 32, 128, true}},
                 {"large", {16, 2048, 12, 64, false}},   {"large", {8, 2048, 16, 128, false}},
                 {"vit", {16, 197, 12, 64, true}},       {"vit", {16, 257, 16, 80, true}},
                 {"vit-huge", {128, 197, 16, 80, true}}, {"vit-huge", {128, 257, 16, 80, true}}};
    bool known = false;
    for (size_t i = 0; i < CLT_COUNT_OF(suite); i++)
        if (!strcmp(suite[i].name, b->suite)) {
            attention_shape s = suite[i].s;
            s.mask = mask;
            s.eight = eight;
            known = true;
            CLT_TRY(run_shape(b, s));
        }
    return known ? CLT_OK
                 : clt_error(CLT_USAGE, "clbench attention: unknown suite '%s'; suites: " SUITES, b->suite);
}

static const char *mask_name, *bits_name;

static int check_options(const clt_command *c) {
    if (strcmp(bits_name, "8") && strcmp(bits_name, "16"))
        return clt_options_fail(c, "--bits must be 8 or 16, not '%s'", bits_name);
    if (!strcmp(mask_name, "causal") || !strcmp(mask_name, "none")) return -1;
    return clt_options_fail(c, "--mask must be causal or none, not '%s'", mask_name);
}

int bench_attention(int argc, char **argv) {
    const clt_option more[] = {
        {"mask", 'm', CLT_OPT_STR, &mask_name, "MASK",
         "causal (default), or none: every query sees every key, as in vision transformers"},
        {"bits", 0, CLT_OPT_STR, &bits_name, "BITS",
         "16 (default), or 8: attention in 8-bit blocks, whose --check compares words only"}};
    const bench_about about = {
        .name = "attention",
        .summary =
            "Measures attention, with ALiBi unless the row says otherwise. The rate counts two T x T x D "
            "products forward and five backward, with a causal mask half of each. --check compares rows of "
            "the timed forward pass and the gradients of one head with the formula in double; with "
            "--numerics exact also every word of 200 tokens of two heads with the oracle, and prints that "
            "error.",
        .examples = "  clbench attention --check\n"
                    "  clbench attention --suite large --type bf16 --numerics fast --check\n"
                    "  clbench attention --suite large --type bf16 --bits 8 --check\n"
                    "  clbench attention --suite vit --mask none --type bf16 --numerics fast\n",
        .suites = SUITES,
        .more = more,
        .n_more = CLT_COUNT_OF(more),
        .check = check_options};
    bench b = {.suite = "mpt-125m"};
    mask_name = "causal";
    bits_name = "16";
    int code = bench_start(&b, &about, argc, argv);
    if (code >= 0) return code;
    return bench_end(&b, run_suite(&b, !strcmp(mask_name, "none") ? CLT_MASK_NONE : CLT_MASK_CAUSAL,
                                   !strcmp(bits_name, "8")));
}
