/* Softmax cross-entropy in place: kernels of clkernels/loss. */
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_loss.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

/* Rows of loss_stream.cl: for a vocabulary that fits into local memory and is aligned to 8 elements. */
static bool is_stream(const clt_variant *v) {
    return strcmp(v->body, "stream") == 0;
}

/* Rows of loss_wide.cl are for 16-bit logits that are aligned to 8 elements, without a softcap. */
static bool in_eights(const clt_loss_params *p) {
    return p->vocab % 8 == 0 && p->logits.ld % 8 == 0 && p->logits.ref.off % 8 == 0;
}
static bool fits(const clt_variant *v, const void *call) {
    const clt_loss_params *p = call;
    return !clt_variant_wide(v) || (p->logits.type != CLT_F32 && !(p->softcap > 0.0f) && in_eights(p));
}

/* Rows that fit a work-group of loss_stream.cl, 0 to 2: the second is loaded while the first is processed. */
static int stream_rows(const clt_ops *ops, const clt_loss_params *p) {
    const uint64_t row = (uint64_t)p->vocab * clt_dtype_bytes(p->logits.type), others = 4096;
    const uint64_t local = clt_device_get_facts(clt_ops_device(ops))->local_mem;
    if (p->softcap > 0.0f || !in_eights(p) || local < others) return 0;
    return (int)CLT_MIN((local - others) / row, (uint64_t)2);
}

/* most: upper bound of a streaming row's work-groups; 0: as many as the device runs at once. */
static clt_status run_loss(clt_ops *ops, const clt_variant *v, const clt_loss_params *p, size_t most) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "loss", v->options, &k));
    clt_arg args[] = {CLT_REF(p->logits.ref), CLT_REF(p->targets),    CLT_REF(p->token_loss),
                      CLT_REF(p->correct),    CLT_REF(p->row_weight), CLT_U64(p->vocab),
                      CLT_U64(p->logits.ld),  CLT_F32(p->scale),      CLT_F32(p->softcap),
                      CLT_F32(p->weight),     CLT_U32(p->rows)};
    /* One work-item per row, or one work-group of WG items; a streaming group processes several rows. */
    size_t local = (size_t)clt_variant_param(v, "WG", 1), groups = (size_t)p->rows;
    if (!most) most = (size_t)clt_device_get_facts(clt_ops_device(ops))->compute_units;
    if (is_stream(v)) groups = CLT_MIN(groups, most);
    const size_t global = groups * local;
    return clt_launch(k, 1, &global, &local, args, (int)CLT_COUNT_OF(args) - !is_stream(v));
}

/* --- the check: ordinary rows, an ignored one and ties, in the call's form --- */

enum { ROWS = 5, VOCAB = 331, LONG_VOCAB = 4200 /* two parts of loss_wide.cl and a piece */ };

/* Rows of `numerics: fast` are compared with the oracle's values before the store. The terms e^(z-m) have a
 * relative error of (|z - m| + 4) 2^-23 and sums add positive terms only. So a loss differs by less than
 * 2^-16 relative plus 2^-16 absolute, a gradient by 2^-16 relative (the target's: of the weight). */
static void compare(clt_check *c, const clt_variant *v, clt_dtype type, const char *what, clt_ref got,
                    const float *want, size_t n, double weight) {
    const clt_check_bound near = {.relative = 0x1p-16, .absolute = 0x1p-16 * weight};
    if (!is_stream(v))
        clt_check_compare_as(c, type, what, got, want, n);
    else if (c->st == CLT_OK)
        c->st = clt_check_near(c->ops, type, what, got, want, n, near);
}

static void check_with(clt_check *c, const clt_variant *v, const clt_loss_params *call, bool weighted) {
    const int32_t targets[ROWS] = {0, 330, -100, 77, 100};
    /* at most `weight`, which the bound assumes, except for the ignored row */
    const float row_weight[ROWS] = {0.0625f, 0.1f, 0.5f, 0.03125f, 0.12f};
    const clt_dtype type = call->logits.type;
    const int64_t vocab = is_stream(v) ? call->vocab : clt_variant_wide(v) ? LONG_VOCAB : VOCAB;
    const int64_t ld = is_stream(v) || clt_variant_wide(v) ? vocab + 8 : vocab + 9;
    const size_t n = (size_t)(ROWS * ld);
    float *x = clt_check_random(c, n, 1), *loss = clt_check_zeros(c, ROWS);
    int32_t correct[ROWS];
    for (size_t i = 0; i < n; i++) x[i] *= 8.0f;
    x[4 * ld + 100] = x[4 * ld + 99] = x[4 * ld + 200] = 9.0f;
    x[3 * ld + 77] = x[3 * ld + 78] = 9.5f;
    clt_loss_params p = {.rows = ROWS,
                         .vocab = vocab,
                         .scale = 0.75f,
                         .softcap = call->softcap > 0.0f ? 5.0f : 0.0f,
                         .grad = call->grad,
                         .apart = call->apart,
                         .weight = 0.125f,
                         .logits = clt_tensor_of(clt_check_upload_as(c, type, x, n), ld, type),
                         .targets = clt_check_upload(c, targets, ROWS),
                         .token_loss = clt_check_blank(c, ROWS),
                         .correct = clt_check_blank(c, ROWS)};
    if (weighted) p.row_weight = clt_check_upload(c, row_weight, ROWS);
    if (c->st == CLT_OK) c->st = run_loss(c->ops, v, &p, 2); /* so that a group has up to three rows */
    clt_ref_loss(ROWS, vocab, ld, x, targets, p.scale, p.softcap, p.grad, p.apart, p.weight,
                 weighted ? row_weight : NULL, loss, correct);
    compare(c, v, CLT_F32, "token losses", p.token_loss, loss, ROWS, 1.0);
    compare(c, v, type, p.grad ? "gradients" : "logits", p.logits.ref, x, n, (double)p.weight);
    /* 0 and 1 as integers: compared as words */
    float *words = clt_check_zeros(c, ROWS);
    memcpy(words, correct, sizeof correct);
    clt_check_compare(c, "correct", p.correct, words, ROWS);
}

static clt_status check_variant(clt_ops *ops, const clt_variant *v, void *ctx) {
    clt_kernel *k;
    if (clt_kernel_try(clt_ops_device(ops), v->file, "loss", v->options, &k) != CLT_OK)
        return clt_variant_fail(ops, "%s does not build", v->file);
    clt_check c = {.ops = ops, .aligned = is_stream(v) || clt_variant_wide(v)};
    /* Weights of rows are an argument: one program, and one verdict, for calls with and without them. */
    for (int weighted = 0; weighted <= ((const clt_loss_params *)ctx)->grad; weighted++)
        check_with(&c, v, ctx, weighted);
    return clt_check_end(&c);
}

static bool takes_other(const clt_variant *v, const void *call) {
    return !is_stream(v) && fits(v, call);
}

/* --- the operation --- */

clt_status clt_op_loss(clt_ops *ops, const clt_loss_params *p) {
    const clt_tensor_named logits[] = {{"logits", p->logits}};
    if (p->rows < 0 || p->vocab < 1 || p->logits.ld < p->vocab)
        return clt_error(CLT_FAIL, "loss: invalid shape: %lld rows of %lld logits, %lld apart",
                         (long long)p->rows, (long long)p->vocab, (long long)p->logits.ld);
    CLT_TRY(clt_tensor_check_types("loss", CLT_DTYPE_PLAIN, logits, 1));
    if (p->rows == 0) return CLT_OK;
    char options[96];
    const clt_variant *v;
    const int stream = p->vocab > 330 && !p->apart ? stream_rows(ops, p) : 0;
    int n = snprintf(options, sizeof options, " -DSOFTCAP=%d -DGRAD=%d -DTYPE=%d%s", p->softcap > 0.0f,
                     p->grad, (int)p->logits.type, p->apart && p->grad ? " -DAPART=1" : "");
    if (stream)
        snprintf(options + n, sizeof options - (size_t)n, " -DCOLS=%d -DSLOTS=%d", (int)p->vocab, stream);
    const clt_variant_question q = {.op = "loss",
                                    .options = options,
                                    .takes = stream ? fits : takes_other,
                                    .check = check_variant,
                                    .call = p};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run_loss(ops, v, p, 0);
}
