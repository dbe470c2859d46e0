/* Softmax cross-entropy with probabilities as targets: clkernels/loss/loss_soft.cl. */
#include <string.h>

#include "runtime/ops/clt_check.h"
#include "runtime/ops/clt_op_loss.h"
#include "runtime/ops/clt_rowwise.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_status run(clt_ops *ops, const clt_variant *v, const clt_loss_soft_params *p) {
    clt_kernel *k;
    CLT_TRY(clt_kernel_get(clt_ops_device(ops), v->file, "loss_soft", v->options, &k));
    const clt_arg args[] = {CLT_REF(p->logits.ref), CLT_REF(p->targets),   CLT_REF(p->label),
                            CLT_REF(p->row_loss),   CLT_REF(p->rank),      CLT_REF(p->row_weight),
                            CLT_U64(p->vocab),      CLT_U64(p->logits.ld), CLT_F32(p->weight)};
    const size_t wg = (size_t)clt_variant_param(v, "WG", 1);
    return clt_launch(k, 1, (size_t[]){(size_t)p->rows * wg}, (size_t[]){wg}, args, CLT_COUNT_OF(args));
}

/* --- the check: smoothed and mixed targets, a single one, none; ties, and a label outside --- */

enum { ROWS = 5, VOCAB = 331, LD = VOCAB + 9, N = ROWS * LD };

static void make_targets(float *t) {
    for (int v = 0; v < VOCAB; v++) t[v] = (v == 7 ? 0.9f : 0.0f) + 0.1f / VOCAB;
    t[VOCAB + 330] = 1.0f;
    t[2 * VOCAB + 5] = 0.3f;
    t[2 * VOCAB + 200] = 0.7f;
    for (int v = 0; v < VOCAB; v++) t[4 * VOCAB + v] = 1.0f / VOCAB;
}

static void check_with(clt_check *c, const clt_variant *v, const clt_loss_soft_params *call, bool weighted) {
    static const int32_t label[ROWS] = {7, 330, 200, -100, 100};
    const float row_weight[ROWS] = {0.0625f, 0.1f, 0.5f, 0.03125f, 0.12f};
    const clt_dtype type = call->logits.type;
    float *x = clt_check_random(c, N, 1), *t = clt_check_zeros(c, ROWS * VOCAB),
          *loss = clt_check_zeros(c, ROWS), *words = clt_check_zeros(c, ROWS);
    int32_t rank[ROWS];
    for (int i = 0; i < N; i++) x[i] *= 8.0f;
    x[4 * LD + 100] = x[4 * LD + 99] = x[4 * LD + 200] = 9.0f;
    make_targets(t);
    clt_loss_soft_params p = {.rows = ROWS,
                              .vocab = VOCAB,
                              .grad = call->grad,
                              .weight = 0.125f,
                              .logits = clt_tensor_of(clt_check_upload_as(c, type, x, N), LD, type),
                              .targets = clt_check_upload(c, t, ROWS * VOCAB),
                              .label = clt_check_upload(c, label, ROWS),
                              .row_loss = clt_check_blank(c, ROWS),
                              .rank = clt_check_blank(c, ROWS)};
    if (weighted) p.row_weight = clt_check_upload(c, row_weight, ROWS);
    if (c->st == CLT_OK) c->st = run(c->ops, v, &p);
    clt_ref_loss_soft(ROWS, VOCAB, LD, x, t, label, p.grad, p.weight, weighted ? row_weight : NULL, loss,
                      rank);
    clt_check_compare(c, "losses", p.row_loss, loss, ROWS);
    clt_check_compare_as(c, type, p.grad ? "gradients" : "logits", p.logits.ref, x, N);
    memcpy(words, rank, sizeof rank);
    clt_check_compare(c, "ranks", p.rank, words, ROWS);
}

static clt_status check_variant(clt_ops *ops, const clt_variant *v, void *ctx) {
    clt_check c = {.ops = ops};
    for (int weighted = 0; weighted <= ((const clt_loss_soft_params *)ctx)->grad; weighted++)
        check_with(&c, v, ctx, weighted);
    return clt_check_end(&c);
}

clt_status clt_op_loss_soft(clt_ops *ops, const clt_loss_soft_params *p) {
    enum { MOST = 1 << 24 };
    const clt_tensor_named logits[] = {{"logits", p->logits}};
    if (p->rows < 0 || p->vocab < 1 || p->vocab >= MOST || p->logits.ld < p->vocab)
        return clt_error(CLT_FAIL, "loss: invalid shape: %lld rows of %lld logits, %lld apart",
                         (long long)p->rows, (long long)p->vocab, (long long)p->logits.ld);
    CLT_TRY(clt_tensor_check_types("loss", CLT_DTYPE_PLAIN, logits, 1));
    if (p->rows == 0) return CLT_OK;
    char options[64];
    const clt_variant *v;
    snprintf(options, sizeof options, " -DGRAD=%d -DTYPE=%d", p->grad, (int)p->logits.type);
    const clt_variant_question q = {.op = "loss_soft", .options = options, .check = check_variant, .call = p};
    CLT_TRY(clt_variant_pick_for(ops, &q, &v));
    return run(ops, v, p);
}
