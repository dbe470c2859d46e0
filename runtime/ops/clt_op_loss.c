/* Softmax cross-entropy in place: kernels of clkernels/loss. */
#include <string.h>

#include "clt_check.h"
#include "ref/clt_ref.h"

static clt_status run_loss(clt_ops *ops, const clt_variant *v, const clt_loss_params *p) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "loss", v->options, &k));
    clt_arg args[] = {CLT_REF(p->logits),  CLT_REF(p->targets),    CLT_REF(p->token_loss),
                      CLT_REF(p->correct), CLT_REF(p->row_weight), CLT_U64(p->vocab),
                      CLT_U64(p->ld),      CLT_F32(p->scale),      CLT_F32(p->softcap),
                      CLT_F32(p->weight)};
    /* One work-item per row, or one work-group of WG items. */
    size_t local = (size_t)clt_variant_param(v, "WG", 1), global = (size_t)p->rows * local;
    return clt_launch(k, 1, &global, &local, args, CLT_COUNT_OF(args));
}

/* --- the check: ordinary rows, one ignored, ties, in the form that the call needs --- */

enum { ROWS = 5, VOCAB = 331, LD = 340 };

static void check_with(clt_check *c, const clt_variant *v, clt_dtype type, bool grad, float softcap) {
    const int32_t targets[ROWS] = {0, 330, -100, 77, 100};
    float *x = clt_check_random(c, ROWS * LD, 1), *loss = clt_check_zeros(c, ROWS);
    int32_t correct[ROWS];
    for (int i = 0; i < ROWS * LD; i++) x[i] *= 8.0f;
    x[4 * LD + 100] = x[4 * LD + 99] = x[4 * LD + 200] = 9.0f;
    x[3 * LD + 77] = x[3 * LD + 78] = 9.5f;
    clt_loss_params p = {.rows = ROWS,
                         .vocab = VOCAB,
                         .ld = LD,
                         .scale = 0.75f,
                         .softcap = softcap,
                         .grad = grad,
                         .weight = 0.125f,
                         .type = type,
                         .logits = clt_check_upload_as(c, type, x, ROWS * LD),
                         .targets = clt_check_upload(c, targets, ROWS),
                         .token_loss = clt_check_blank(c, ROWS),
                         .correct = clt_check_blank(c, ROWS)};
    if (c->st == CLT_OK) c->st = run_loss(c->ops, v, &p);
    clt_ref_loss(ROWS, VOCAB, LD, x, targets, p.scale, softcap, grad, p.weight, NULL, loss, correct);
    clt_check_compare(c, "token losses", p.token_loss, loss, ROWS);
    clt_check_compare_as(c, type, grad ? "gradients" : "logits", p.logits, x, ROWS * LD);
    /* 0 and 1 as words: compared like floats */
    float *words = clt_check_zeros(c, ROWS);
    memcpy(words, correct, sizeof correct);
    clt_check_compare(c, "correct", p.correct, words, ROWS);
}

static clt_status check_variant(clt_ops *ops, const clt_variant *v, void *ctx) {
    const clt_loss_params *call = ctx;
    clt_kernel *k;
    if (clt_kernel_try(clt_ops_device(ops), v->file, "loss", v->options, &k) != CLT_OK)
        return clt_variant_fail(ops, "%s does not build", v->file);
    clt_check c = {.ops = ops};
    check_with(&c, v, call->type, call->grad, call->softcap > 0.0f ? 5.0f : 0.0f);
    return clt_check_end(&c);
}

/* --- the operation --- */

clt_status clt_op_loss(clt_ops *ops, const clt_loss_params *p) {
    if (p->rows < 0 || p->vocab < 1 || p->ld < p->vocab)
        return clt_error(CLT_FAIL, "loss: %lld rows of %lld logits, %lld apart, make no sense",
                         (long long)p->rows, (long long)p->vocab, (long long)p->ld);
    if (p->rows == 0) return CLT_OK;
    char options[64];
    clt_loss_params call = *p;
    const clt_variant *v;
    snprintf(options, sizeof options, " -DSOFTCAP=%d -DGRAD=%d -DTYPE=%d", p->softcap > 0.0f, p->grad,
             (int)p->type);
    CLT_TRY(clt_variant_pick_with(ops, "loss", options, check_variant, &call, &v));
    return run_loss(ops, v, p);
}
