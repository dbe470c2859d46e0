/* Token and position lookups, and their gradients: kernels of clkernels/embedding. */
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* Launches over (segments of `seg` columns of a row, count). */
static clt_status launch_segments(clt_ops *ops, const clt_variant *v, const char *name, size_t seg,
                                  int64_t cols, int64_t count, const clt_arg *args, int n) {
    clt_kernel *k;
    if (count == 0) return CLT_OK;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, name, v->options, &k));
    const size_t wg = (size_t)clt_variant_param(v, "WG", 1);
    size_t global[] = {CLT_ROUND_UP(CLT_CEIL_DIV((size_t)cols, seg), wg), (size_t)count}, local[] = {wg, 1};
    return clt_launch_rows(k, global, local, args, n);
}

static clt_status launch(clt_ops *ops, const clt_variant *v, const char *name, int64_t cols, int64_t count,
                         const clt_arg *args, int n) {
    return launch_segments(ops, v, name, (size_t)clt_variant_param(v, "SEG", 1), cols, count, args, n);
}

static clt_status run_forward(clt_ops *ops, const clt_variant *v, const clt_embedding_params *p) {
    clt_arg args[] = {CLT_REF(p->ids), CLT_REF(p->wte),  CLT_REF(p->wpe),   CLT_REF(p->out),
                      CLT_U64(p->seq), CLT_U64(p->cols), CLT_U64(p->vocab), CLT_F32(p->fraction)};
    return launch(ops, v, "embedding_forward", p->cols, p->rows, args, CLT_COUNT_OF(args));
}

static clt_status run_backward(clt_ops *ops, const clt_variant *v, const clt_embedding_grad_params *p) {
    if (p->dwte.buf) {
        clt_arg args[] = {CLT_REF(p->dx),     CLT_REF(p->ids),  CLT_REF(p->first), CLT_REF(p->row_begin),
                          CLT_REF(p->row_of), CLT_REF(p->dwte), CLT_U64(p->cols),  CLT_F32(p->fraction)};
        CLT_TRY(launch(ops, v, "embedding_backward", p->cols, p->unique, args, CLT_COUNT_OF(args)));
        if (clt_variant_param(v, "LONG", 0))
            CLT_TRY(launch_segments(ops, v, "embedding_backward_long", 4, p->cols, p->unique, args,
                                    CLT_COUNT_OF(args)));
    }
    if (!p->dwpe.buf) return CLT_OK;
    clt_arg args[] = {CLT_REF(p->dx),   CLT_REF(p->dwpe),           CLT_U64(p->rows),    CLT_U64(p->seq),
                      CLT_U64(p->cols), CLT_I32(p->accumulate_wpe), CLT_F32(p->fraction)};
    int64_t positions = p->accumulate_wpe ? CLT_MIN(p->seq, p->rows) : p->seq;
    return launch(ops, v, "positions_backward", p->cols, positions, args, CLT_COUNT_OF(args));
}

static clt_status run_add_rows(clt_ops *ops, const clt_variant *v, clt_ref dst, clt_ref src, clt_ref ids,
                               int64_t unique, int64_t cols) {
    clt_arg args[] = {CLT_REF(dst), CLT_REF(src), CLT_REF(ids), CLT_U64(cols)};
    return launch(ops, v, "add_rows", cols, unique, args, CLT_COUNT_OF(args));
}

/* --- the check: 42 rows of 6 samples look up 3 ids of a table of 5, one of them 39 times, a chain of more
 * than two of the blocks that embedding_backward_long has under way --- */

enum { ROWS = 42, SEQ = 7, VOCAB = 5, UNIQUE = 3 };
static const int32_t unique_ids[UNIQUE] = {1, 2, 4};
static const int32_t check_first[UNIQUE] = {0, 1, 0}, check_begin[UNIQUE + 1] = {0, 2, 3, ROWS};

/* What each row looks up, and the rows sorted by it. */
static void make_rows(int32_t ids[ROWS], int32_t sorted[ROWS]) {
    int at[UNIQUE];
    for (int u = 0; u < UNIQUE; u++) at[u] = check_begin[u];
    for (int r = 0; r < ROWS; r++) {
        const int u = r == 1 || r == 5 ? 0 : r == 3 ? 1 : 2;
        ids[r] = unique_ids[u];
        sorted[at[u]++] = r;
    }
}

/* wpe and fraction as in the call that wants the variant */
typedef struct {
    bool wpe, wide; /* wide: offsets and rows are multiples of 8 */
    float fraction;
} form;

static bool takes(const clt_variant *v, const void *call) {
    return !clt_variant_wide(v) || ((const form *)call)->wide;
}

static bool is_wide(int64_t cols, clt_ref a, clt_ref b, clt_ref c) {
    return clt_rowwise_wide(cols, (clt_rows[]){{a, 0}, {b, 0}, {c, 0}}, 3);
}

static void check_with(clt_check *c, const clt_variant *v, const form *call) {
    const int cols = clt_variant_wide(v) ? 40 : 37;
    const float fraction = call->fraction != 1.0f ? 0.3f : 1.0f;
    int32_t check_ids[ROWS], check_rows[ROWS];
    make_rows(check_ids, check_rows);
    float *wte = clt_check_random(c, VOCAB * cols, 1), *wpe = clt_check_random(c, SEQ * cols, 2);
    float *dx = clt_check_random(c, ROWS * cols, 3), *out = clt_check_zeros(c, ROWS * cols);
    clt_ref dwte = clt_check_upload(c, wte, VOCAB * cols), dwpe = clt_check_upload(c, wpe, SEQ * cols);
    clt_ref source = clt_check_upload(c, wte, VOCAB * cols), positions = clt_check_upload(c, wpe, SEQ * cols);
    clt_embedding_params f = {.rows = ROWS,
                              .seq = SEQ,
                              .cols = cols,
                              .vocab = VOCAB,
                              .fraction = fraction,
                              .ids = clt_check_upload(c, check_ids, ROWS),
                              .wte = source,
                              .wpe = call->wpe ? positions : clt_ref_none(),
                              .out = clt_check_blank(c, ROWS * cols)};
    clt_embedding_grad_params g = {.rows = ROWS,
                                   .seq = SEQ,
                                   .cols = cols,
                                   .unique = UNIQUE,
                                   .fraction = fraction,
                                   .dx = clt_check_upload(c, dx, ROWS * cols),
                                   .ids = clt_check_upload(c, unique_ids, UNIQUE),
                                   .first = clt_check_upload(c, check_first, UNIQUE),
                                   .row_begin = clt_check_upload(c, check_begin, UNIQUE + 1),
                                   .row_of = clt_check_upload(c, check_rows, ROWS),
                                   .dwte = dwte,
                                   .dwpe = dwpe,
                                   .accumulate_wpe = true};
    if (c->st == CLT_OK) c->st = run_forward(c->ops, v, &f);
    if (c->st == CLT_OK) c->st = run_backward(c->ops, v, &g);
    if (c->st == CLT_OK) c->st = run_add_rows(c->ops, v, dwte, source, g.ids, UNIQUE, cols);
    clt_ref_embedding_forward(ROWS, SEQ, cols, check_ids, wte, call->wpe ? wpe : NULL, fraction, out);
    clt_check_compare(c, "embedding", f.out, out, ROWS * cols);
    float *sum = clt_check_zeros(c, VOCAB * cols);
    for (int i = 0; i < VOCAB * cols; i++) sum[i] = i / cols == unique_ids[1] ? 0.0f : wte[i];
    clt_ref_embedding_backward(ROWS, SEQ, cols, check_ids, dx, fraction, sum, wpe);
    for (int u = 0; u < UNIQUE; u++)
        for (int i = unique_ids[u] * cols; i < (unique_ids[u] + 1) * cols; i++) sum[i] = sum[i] + wte[i];
    clt_check_compare(c, "embedding gradient", dwte, sum, VOCAB * cols);
    clt_check_compare(c, "position gradient", dwpe, wpe, SEQ * cols);
}

static clt_status check_variant(clt_ops *ops, const clt_variant *v, void *ctx) {
    clt_kernel *k;
    if (clt_kernel_try(clt_ops_device(ops), v->file, "add_rows", v->options, &k) != CLT_OK)
        return clt_variant_fail(ops, "%s does not build", v->file);
    clt_check c = {.ops = ops, .aligned = clt_variant_wide(v)};
    check_with(&c, v, ctx);
    return clt_check_end(&c);
}

/* --- the operations --- */

static clt_status pick(clt_ops *ops, const char *what, int64_t rows, int64_t seq, int64_t cols,
                       int64_t unique, form call, const clt_variant **v) {
    if (rows < 0 || seq < 1 || cols < 1 || unique < 0 || rows > INT32_MAX)
        return clt_error(CLT_FAIL, "%s: %lld rows of %lld columns, sequences of %lld, %lld ids make no sense",
                         what, (long long)rows, (long long)cols, (long long)seq, (long long)unique);
    char options[64];
    snprintf(options, sizeof options, " -DHAS_WPE=%d -DFRACTION=%d", call.wpe, call.fraction != 1.0f);
    return clt_variant_pick_for(ops, "embedding", options, takes, check_variant, &call, v);
}

clt_status clt_op_embedding_forward(clt_ops *ops, const clt_embedding_params *p) {
    const clt_variant *v;
    CLT_TRY(pick(ops, "embedding", p->rows, p->seq, p->cols, 0,
                 (form){p->wpe.buf != NULL, is_wide(p->cols, p->wte, p->wpe, p->out), p->fraction}, &v));
    return run_forward(ops, v, p);
}

/* Without positions' gradients the form is that of a model without positions: the same program as its
 * forward. */
clt_status clt_op_embedding_backward(clt_ops *ops, const clt_embedding_grad_params *p) {
    const clt_variant *v;
    CLT_TRY(pick(ops, "embedding backward", p->rows, p->seq, p->cols, p->unique,
                 (form){p->dwpe.buf != NULL, is_wide(p->cols, p->dx, p->dwte, p->dwpe), p->fraction}, &v));
    return run_backward(ops, v, p);
}

clt_status clt_op_embedding_add_rows(clt_ops *ops, clt_ref dst, clt_ref src, clt_ref ids, int64_t unique,
                                     int64_t cols) {
    const clt_variant *v;
    CLT_TRY(pick(ops, "embedding rows", 0, 1, cols, unique, (form){true, is_wide(cols, dst, src, src), 1.0f},
                 &v));
    return run_add_rows(ops, v, dst, src, ids, unique, cols);
}
