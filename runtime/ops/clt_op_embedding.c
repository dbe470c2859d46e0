/* Token and position lookups, and their gradients: kernels of clkernels/embedding. */
#include "runtime/ops/clt_op_embedding.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* Launches work-items over (segments of `seg` columns of a row, count). */
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
    clt_arg args[] = {CLT_REF(p->ids), CLT_REF(p->wte.ref), CLT_REF(p->wpe.ref), CLT_REF(p->out.ref),
                      CLT_U64(p->seq), CLT_U64(p->cols),    CLT_U64(p->vocab),   CLT_F32(p->fraction)};
    return launch(ops, v, "embedding_forward", p->cols, p->rows, args, CLT_COUNT_OF(args));
}

static clt_status run_backward(clt_ops *ops, const clt_variant *v, const clt_embedding_grad_params *p) {
    if (clt_tensor_present(p->dwte)) {
        clt_arg args[] = {CLT_REF(p->dx.ref), CLT_REF(p->ids),      CLT_REF(p->first), CLT_REF(p->row_begin),
                          CLT_REF(p->row_of), CLT_REF(p->dwte.ref), CLT_U64(p->cols),  CLT_F32(p->fraction)};
        CLT_TRY(launch(ops, v, "embedding_backward", p->cols, p->unique, args, CLT_COUNT_OF(args)));
        if (clt_variant_param(v, "LONG", 0))
            CLT_TRY(launch_segments(ops, v, "embedding_backward_long", 4, p->cols, p->unique, args,
                                    CLT_COUNT_OF(args)));
    }
    if (!clt_tensor_present(p->dwpe)) return CLT_OK;
    clt_arg args[] = {CLT_REF(p->dx.ref), CLT_REF(p->dwpe.ref),       CLT_U64(p->rows),    CLT_U64(p->seq),
                      CLT_U64(p->cols),   CLT_I32(p->accumulate_wpe), CLT_F32(p->fraction)};
    int64_t positions = p->accumulate_wpe ? CLT_MIN(p->seq, p->rows) : p->seq;
    return launch(ops, v, "positions_backward", p->cols, positions, args, CLT_COUNT_OF(args));
}

static clt_status run_add_rows(clt_ops *ops, const clt_variant *v, const clt_embedding_add_params *p) {
    clt_arg args[] = {CLT_REF(p->dst.ref), CLT_REF(p->src.ref), CLT_REF(p->ids), CLT_U64(p->cols)};
    return launch(ops, v, "add_rows", p->cols, p->unique, args, CLT_COUNT_OF(args));
}

/* --- the check --- */

/* 42 rows of 6 samples look up 3 ids of a table of 5, one of them 39 times: a chain longer than two of the
 * blocks that embedding_backward_long loads ahead. */

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

/* wpe, fraction and the tables' type as in the call that needs a row */
typedef struct {
    bool wpe, wide; /* wide: offsets and rows are multiples of 8 */
    float fraction;
    clt_dtype type;
} form;

static bool takes(const clt_variant *v, const void *call) {
    return !clt_variant_wide(v) || ((const form *)call)->wide;
}

static bool is_wide(int64_t cols, clt_tensor a, clt_tensor b, clt_tensor c) {
    const clt_rowwise rows = {.cols = cols, .tensors = 3, .t = {a, b, c}};
    return clt_rowwise_wide(&rows);
}

/* n rows of `cols` elements on the device; data NULL: blank ones. */
static clt_tensor upload(clt_check *c, const float *data, size_t n, int64_t cols) {
    return clt_tensor_of(clt_check_upload(c, data, n * (size_t)cols), cols, CLT_F32);
}

/* The same of any type; rounds `data` to it. */
static clt_tensor table(clt_check *c, clt_dtype type, float *data, size_t n, int64_t cols) {
    return clt_tensor_of(clt_check_upload_as(c, type, data, n * (size_t)cols), cols, type);
}

static void check_with(clt_check *c, const clt_variant *v, const form *call) {
    const int cols = clt_variant_wide(v) ? 40 : 37;
    const float fraction = call->fraction != 1.0f ? 0.3f : 1.0f;
    int32_t check_ids[ROWS], check_rows[ROWS];
    make_rows(check_ids, check_rows);
    float *wte = clt_check_random(c, VOCAB * cols, 1), *wpe = clt_check_random(c, SEQ * cols, 2);
    float *dx = clt_check_random(c, ROWS * cols, 3), *out = clt_check_zeros(c, ROWS * cols);
    const clt_tensor words = table(c, call->type, wte, VOCAB, cols),
                     places = table(c, call->type, wpe, SEQ, cols);
    const clt_tensor dwte = upload(c, wte, VOCAB, cols), dwpe = upload(c, wpe, SEQ, cols);
    const clt_tensor source = upload(c, wte, VOCAB, cols);
    clt_embedding_params f = {.rows = ROWS,
                              .seq = SEQ,
                              .cols = cols,
                              .vocab = VOCAB,
                              .fraction = fraction,
                              .ids = clt_check_upload(c, check_ids, ROWS),
                              .wte = words,
                              .wpe = call->wpe ? places : clt_tensor_none(),
                              .out = upload(c, NULL, ROWS, cols)};
    clt_embedding_grad_params g = {.rows = ROWS,
                                   .seq = SEQ,
                                   .cols = cols,
                                   .unique = UNIQUE,
                                   .fraction = fraction,
                                   .dx = upload(c, dx, ROWS, cols),
                                   .ids = clt_check_upload(c, unique_ids, UNIQUE),
                                   .first = clt_check_upload(c, check_first, UNIQUE),
                                   .row_begin = clt_check_upload(c, check_begin, UNIQUE + 1),
                                   .row_of = clt_check_upload(c, check_rows, ROWS),
                                   .dwte = dwte,
                                   .dwpe = dwpe,
                                   .accumulate_wpe = true};
    const clt_embedding_add_params add = {UNIQUE, cols, g.ids, source, dwte};
    if (c->st == CLT_OK) c->st = run_forward(c->ops, v, &f);
    if (c->st == CLT_OK) c->st = run_backward(c->ops, v, &g);
    if (c->st == CLT_OK) c->st = run_add_rows(c->ops, v, &add);
    clt_ref_embedding_forward(ROWS, SEQ, cols, check_ids, wte, call->wpe ? wpe : NULL, fraction, out);
    clt_check_compare(c, "embedding", f.out.ref, out, ROWS * cols);
    float *sum = clt_check_zeros(c, VOCAB * cols);
    for (int i = 0; i < VOCAB * cols; i++) sum[i] = i / cols == unique_ids[1] ? 0.0f : wte[i];
    clt_ref_embedding_backward(ROWS, SEQ, cols, check_ids, dx, fraction, sum, wpe);
    for (int u = 0; u < UNIQUE; u++)
        for (int i = unique_ids[u] * cols; i < (unique_ids[u] + 1) * cols; i++) sum[i] = sum[i] + wte[i];
    clt_check_compare(c, "embedding gradient", dwte.ref, sum, VOCAB * cols);
    clt_check_compare(c, "position gradient", dwpe.ref, wpe, SEQ * cols);
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

/* Tensors are fp32 without gaps. */
static clt_status check_tensors(const char *op, int64_t cols, const clt_tensor_named *list, int n) {
    CLT_TRY(clt_tensor_check_types(op, clt_dtype_bit(CLT_F32), list, n));
    return clt_tensor_check_dense(op, cols, list, n);
}

static clt_status check_sizes(const char *op, int64_t rows, int64_t seq, int64_t cols, int64_t unique) {
    if (rows >= 0 && seq >= 1 && cols >= 1 && unique >= 0 && rows <= INT32_MAX) return CLT_OK;
    return clt_error(CLT_FAIL, "%s: invalid shape: %lld rows of %lld columns, sequences of %lld, %lld ids",
                     op, (long long)rows, (long long)cols, (long long)seq, (long long)unique);
}

static clt_status pick(clt_ops *ops, form call, const clt_variant **v) {
    char options[64];
    const int n =
        snprintf(options, sizeof options, " -DHAS_WPE=%d -DFRACTION=%d", call.wpe, call.fraction != 1.0f);
    if (call.type != CLT_F32)
        snprintf(options + n, sizeof options - (size_t)n, " -DTABLE_TYPE=%d", (int)call.type);
    const clt_variant_question q = {
        .op = "embedding", .options = options, .takes = takes, .check = check_variant, .call = &call};
    return clt_variant_pick_for(ops, &q, v);
}

clt_status clt_op_embedding_forward(clt_ops *ops, const clt_embedding_params *p) {
    const clt_tensor_named tables[] = {{"wte", p->wte}, {"wpe", p->wpe}}, out = {"out", p->out};
    const bool wide = is_wide(p->cols, p->wte, p->wpe, p->out);
    const clt_variant *v;
    CLT_TRY(check_sizes("embedding", p->rows, p->seq, p->cols, 0));
    CLT_TRY(clt_tensor_check_one_type("embedding", CLT_DTYPE_PLAIN, tables, CLT_COUNT_OF(tables)));
    CLT_TRY(clt_tensor_check_dense("embedding", p->cols, tables, CLT_COUNT_OF(tables)));
    CLT_TRY(check_tensors("embedding", p->cols, &out, 1));
    CLT_TRY(pick(ops, (form){clt_tensor_present(p->wpe), wide, p->fraction, p->wte.type}, &v));
    return run_forward(ops, v, p);
}

/* Without gradients of positions the options are those of a model without positions, so that both passes
 * share a program. */
clt_status clt_op_embedding_backward(clt_ops *ops, const clt_embedding_grad_params *p) {
    const clt_tensor_named all[] = {{"dx", p->dx}, {"dwte", p->dwte}, {"dwpe", p->dwpe}};
    const clt_variant *v;
    CLT_TRY(check_sizes("embedding backward", p->rows, p->seq, p->cols, p->unique));
    CLT_TRY(check_tensors("embedding backward", p->cols, all, CLT_COUNT_OF(all)));
    CLT_TRY(pick(
        ops,
        (form){clt_tensor_present(p->dwpe), is_wide(p->cols, p->dx, p->dwte, p->dwpe), p->fraction, CLT_F32},
        &v));
    return run_backward(ops, v, p);
}

clt_status clt_op_embedding_add_rows(clt_ops *ops, const clt_embedding_add_params *p) {
    const clt_tensor_named all[] = {{"src", p->src}, {"dst", p->dst}};
    const clt_variant *v;
    CLT_TRY(check_sizes("embedding rows", 0, 1, p->cols, p->unique));
    CLT_TRY(check_tensors("embedding rows", p->cols, all, CLT_COUNT_OF(all)));
    CLT_TRY(pick(ops, (form){true, is_wide(p->cols, p->dst, p->src, p->src), 1.0f, CLT_F32}, &v));
    return run_add_rows(ops, v, p);
}
