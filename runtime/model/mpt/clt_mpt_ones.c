/* The ones of the loss's gradient, apart from its probabilities (clt_mpt_has_ones): a row of d(logits) is
 * (p - y) * w * scale, of which the head's products in 8 bits take p * w * scale, and these functions the
 * rest, f = -(w * scale) at the target. It adds f * W[target] to the gradient of the head's input, and f *
 * input to row `target` of the gradient of the head's weight. */
#include "runtime/model/mpt/clt_mpt_internal.h"

/* A row without a target reads row 0, times +0. */
void clt_mpt_ones_set(clt_mpt *m, const clt_model_pass *b) {
    const int64_t T = m->shape.seq;
    const int32_t *target = b->batch->field[CLT_TEXT_TARGETS];
    int32_t *id = clt_mpt_host(m, m->one_id);
    float *factor = (float *)(void *)clt_mpt_host(m, m->one_factor);
    for (int64_t r = 0; r < b->batch->samples * T; r++) {
        const bool counts = target[r] >= 0 && target[r] < m->cfg.vocab_size;
        const float w = b->sample_weight ? b->sample_weight[r / T] : b->weight;
        id[r] = counts ? target[r] : 0;
        factor[r] = counts ? -(w * (float)m->cfg.logit_scale) : 0.0f;
    }
}

static clt_tensor dx_of(const clt_mpt *m) {
    return clt_tensor_of(m->dx, m->cfg.d_model, CLT_F32);
}

/* Each row of dx times its f. */
static clt_status weigh(clt_mpt *m, int64_t rows) {
    return clt_op_scale_rows(m->ops,
                             &(clt_scale_rows_params){rows, rows, m->cfg.d_model, dx_of(m), m->one_factor});
}

clt_status clt_mpt_ones_data(clt_mpt *m, const clt_model_pass *b) {
    const int64_t rows = b->batch->samples * m->shape.seq;
    CLT_TRY(
        clt_op_embedding_forward(m->ops, &(clt_embedding_params){.rows = rows,
                                                                 .seq = m->shape.seq,
                                                                 .cols = m->cfg.d_model,
                                                                 .vocab = m->cfg.vocab_size,
                                                                 .ids = m->one_id,
                                                                 .wte = clt_mpt_matrix(m, m->index.lm_head),
                                                                 .out = dx_of(m),
                                                                 .fraction = 1.0f}));
    return weigh(m, rows);
}

clt_status clt_mpt_lists_add(clt_mpt *m, const clt_mpt_lists *l, clt_tensor to) {
    CLT_TRY(clt_buffer_write(l->lane_ids.buf, 0, l->lane_list, (size_t)l->lane_count * sizeof *l->lane_list));
    return clt_op_embedding_add_rows(
        m->ops, &(clt_embedding_add_params){.unique = l->lane_count,
                                            .cols = m->cfg.d_model,
                                            .ids = l->lane_ids,
                                            .src = clt_tensor_of(l->sum, m->cfg.d_model, CLT_F32),
                                            .dst = to});
}

clt_status clt_mpt_ones_weight(clt_mpt *m, const clt_model_pass *b) {
    const int64_t rows = b->batch->samples * m->shape.seq, C = m->cfg.d_model;
    const clt_mpt_lists *l = &m->ones;
    const clt_tensor input = clt_tensor_of(m->nf, C, m->type),
                     grad = clt_mpt_entry(b->grads, m->index.lm_head);
    if (m->type == CLT_F32)
        CLT_TRY(clt_op_copy_rows(m->ops, rows, C, input, dx_of(m)));
    else
        CLT_TRY(clt_op_cast(m->ops, input, dx_of(m), (uint64_t)(rows * C)));
    CLT_TRY(weigh(m, rows));
    CLT_TRY(clt_op_embedding_backward(m->ops,
                                      &(clt_embedding_grad_params){.rows = rows,
                                                                   .seq = m->shape.seq,
                                                                   .cols = C,
                                                                   .unique = l->unique,
                                                                   .dx = dx_of(m),
                                                                   .ids = l->ids,
                                                                   .first = l->first,
                                                                   .row_begin = l->begin,
                                                                   .row_of = l->row_of,
                                                                   .dwte = clt_tensor_of(l->sum, C, CLT_F32),
                                                                   .fraction = 1.0f}));
    if (!b->lane_last) return CLT_OK;
    CLT_TRY(clt_mpt_lists_add(m, l, grad));
    return clt_model_made(&m->base, CLT_F32, grad.ref, (uint64_t)(m->cfg.vocab_size * C),
                          "gradient of the head's weight with the targets' ones");
}
