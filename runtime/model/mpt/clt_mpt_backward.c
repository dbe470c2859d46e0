/* The backward pass of an MPT, from the gradient of norm_f's output down to the embedding. Weight gradients
 * go to the lane's accumulator (clt_model_pass.grads). */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <string.h>

typedef struct {
    clt_mpt *m;
    const clt_model_pass *b;
    int64_t rows;
    bool kv_written[CLT_MPT_MAX_LAYERS]; /* a later block has already put its part into this source's dk and
                                            dv */
    int summed; /* the bias whose gradient the last norm's backward pass made on the way, or -1 */
    int open;   /* the gradients of units from this one on may be written */
} backward_pass;

static clt_tensor grad_of(const backward_pass *p, int entry) {
    return clt_mpt_entry(p->b->grads, entry);
}

/* The gradients of `unit` and of the units behind it may be written from now on. */
static clt_status open_gradients(backward_pass *p, int unit) {
    if (unit >= p->open) return CLT_OK;
    p->open = unit;
    return clt_mpt_gradients_need(p->m, p->b, unit);
}

/* Rows of C in fp32, as the residual stream and its gradient. */
static clt_tensor wide_rows(const clt_mpt *m, clt_ref r) {
    return clt_tensor_of(r, m->cfg.d_model, CLT_F32);
}

/* Gradients of weight w and bias `bias` of a Linear from dy [R, out], quantised in `d`, and its input x
 * [R, in], quantised in `in` or, with NULL, here. */
static clt_status linear_weights(backward_pass *p, int w, int bias, clt_ref dy, int64_t lddy,
                                 const clt_mpt_blocks *d, clt_ref x, int64_t ldx, const clt_mpt_blocks *in,
                                 const char *what) {
    clt_mpt *m = p->m;
    const clt_slab_entry *e = &m->weights->table->entry[w];
    clt_gemm_params g = {.form = CLT_GEMM_TN,
                         .m = e->shape[0],
                         .n = e->shape[1],
                         .k = p->rows,
                         .k_group = m->shape.seq,
                         .a = clt_tensor_of(dy, lddy, m->type),
                         .b = clt_tensor_of(x, ldx, m->type),
                         .c = grad_of(p, w),
                         .accumulate = !p->b->lane_first};
    if (bias != p->summed) g.a_sum = grad_of(p, bias);
    CLT_TRY(clt_mpt_linear_product(m, &g, w, d, in));
    return clt_model_made(&m->base, CLT_F32, g.c.ref, e->count, "gradient of %s (%s)", e->name, what);
}

/* dy [R, out] of weight w in 8 bits: for the next product with w, and until the weight's gradient in `place`.
 */
static clt_status quantise_gradient(backward_pass *p, clt_mpt_eight_place place, int w, clt_ref dy,
                                    int64_t lddy, clt_mpt_blocks *out) {
    clt_mpt *m = p->m;
    const clt_mpt_operand of = {
        .x = clt_tensor_of(dy, lddy, m->type), .rows = p->rows, .cols = m->weights->table->entry[w].shape[0]};
    return clt_mpt_gradient(m, place, &of, out);
}

/* dx [R, in] (+)= dy [R, out] * W, all of the branches' type. */
static clt_gemm_params linear_data(backward_pass *p, int w, clt_ref dy, int64_t lddy, clt_ref dx,
                                   int64_t lddx, bool accumulate) {
    const clt_slab_entry *e = &p->m->weights->table->entry[w];
    return (clt_gemm_params){.form = CLT_GEMM_NN,
                             .m = p->rows,
                             .n = e->shape[1],
                             .k = e->shape[0],
                             .a = clt_tensor_of(dy, lddy, p->m->type),
                             .b = clt_mpt_matrix(p->m, w),
                             .c = clt_tensor_of(dx, lddx, p->m->type),
                             .accumulate = accumulate};
}

/* The same into the gradient of a norm's output, from dy in `d`. */
static clt_status data_of_norm(backward_pass *p, int w, clt_ref dy, int64_t lddy, bool accumulate,
                               const clt_mpt_blocks *d) {
    clt_gemm_params g = linear_data(p, w, dy, lddy, p->m->dnorm, p->m->cfg.d_model, accumulate);
    g.c.type = p->m->dnorm_type;
    return clt_mpt_linear_product(p->m, &g, w, d, NULL);
}

/* The same; dy is quantised in `d`, in `place`. */
static clt_status norm_data(backward_pass *p, int w, clt_ref dy, int64_t lddy, bool accumulate,
                            clt_mpt_eight_place place, clt_mpt_blocks *d) {
    CLT_TRY(quantise_gradient(p, place, w, dy, lddy, d));
    return data_of_norm(p, w, dy, lddy, accumulate, d);
}

static bool branches_drop(const backward_pass *p) {
    return p->b->dropout && (p->m->cfg.resid_pdrop > 0 || p->m->cfg.drop_path > 0);
}

/* A branch ends with something else than its product: the gradient that enters it is not that of the residual
 * stream. */
static bool branches_end_otherwise(const backward_pass *p) {
    return branches_drop(p) || p->m->cfg.post_norms;
}

/* Where the gradient is rounded for the next branch on the way; a branch's dropout or norm does that itself.
 */
static clt_ref rounded(const backward_pass *p) {
    return branches_end_otherwise(p) || p->m->type == CLT_F32 ? clt_ref_none() : p->m->dbranch;
}

/* Where a norm's output is made again on the way: only the weight gradients of what follows the norm need it,
 * so they come after its backward pass. */
static clt_ref again(const backward_pass *p, clt_ref y) {
    return p->m->shape.recompute == CLT_RECOMPUTE_NORMS ? y : clt_ref_none();
}

/* A C-wide norm backward without its tensors of rows; dw and db go to the accumulator. */
static clt_status norm_grad(backward_pass *p, int w, int b, clt_norm_grad_params *g) {
    const clt_mpt_config *c = &p->m->cfg;
    *g = (clt_norm_grad_params){.rms = c->rms_norm,
                                .eps = (float)c->norm_eps,
                                .rows = p->rows,
                                .cols = c->d_model,
                                .heads = 1,
                                .rows_per_sample = p->m->shape.seq,
                                .dw = grad_of(p, w),
                                .db = grad_of(p, b),
                                .accumulate = !p->b->lane_first};
    return clt_mpt_norm_weight(p->m, w, &g->w);
}

/* dx = [residual +] gradient of a C-wide norm in front of a branch or the head; dx_copy and y: see
 * clt_norm_grad_params. `next`: the bias, of unit `unit`, at the end of the branch that dx enters next, -1:
 * none; its gradient is the column sums of what enters, which is written here, unless the branch ends
 * otherwise or the copy comes later. */
static clt_status norm_backward(backward_pass *p, clt_ref x, clt_ref mean, clt_ref rstd, int w, int b,
                                clt_ref dy, clt_ref residual, clt_ref dx, clt_ref dx_copy, int next, int unit,
                                clt_ref y) {
    clt_mpt *m = p->m;
    int64_t C = m->cfg.d_model;
    clt_norm_grad_params g;
    p->summed = branches_end_otherwise(p) || (m->type != CLT_F32 && !dx_copy.buf) ? -1 : next;
    if (p->summed >= 0) CLT_TRY(open_gradients(p, unit));
    CLT_TRY(norm_grad(p, w, b, &g));
    g.x = wide_rows(m, x);
    g.mean = mean;
    g.rstd = rstd;
    g.dy = clt_tensor_of(dy, C, m->dnorm_type);
    g.dx = wide_rows(m, dx);
    g.residual = wide_rows(m, residual);
    g.dx_copy = clt_tensor_of(dx_copy, C, m->type);
    g.dx_sum = grad_of(p, p->summed);
    g.y = clt_tensor_of(y, C, m->type);
    g.b = clt_mpt_weight(m, b);
    return clt_op_norm_backward(m->ops, &g);
}

/* Through the norm after a branch, into the branches' type. */
static clt_status post_norm_backward(backward_pass *p, int layer, clt_mpt_branch branch) {
    clt_mpt *m = p->m;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_post *post = &m->acts[layer].post[branch];
    const int64_t C = m->cfg.d_model;
    clt_norm_grad_params g;
    CLT_TRY(norm_grad(p, x->post_w[branch], x->post_b[branch], &g));
    g.x = clt_tensor_of(post->out, C, m->type);
    g.mean = post->mean;
    g.rstd = post->rstd;
    g.dy = wide_rows(m, m->dx);
    g.dx = clt_tensor_of(m->dbranch, C, m->type);
    CLT_TRY(clt_op_norm_backward(m->ops, &g));
    return clt_model_made(&m->base, m->type, m->dbranch, (uint64_t)(p->rows * C),
                          "block %d: gradient before post_norm_%d", layer, branch + 1);
}

/* The gradient that enters a branch: dx itself, rounded to the branches' type, or through the branch's
 * dropout or norm. */
static clt_status branch_gradient(backward_pass *p, int layer, clt_mpt_branch branch, clt_ref *out) {
    clt_mpt *m = p->m;
    double rate;
    int site;
    *out = m->dbranch;
    if (m->cfg.post_norms) return post_norm_backward(p, layer, branch);
    clt_mpt_branch_drops(m, p->b, layer, branch, &rate, &site);
    if (branches_drop(p))
        return clt_mpt_dropout(m, p->b, rate, layer, site, CLT_F32, m->dx, clt_ref_none(), m->type,
                               m->dbranch);
    if (m->type == CLT_F32) *out = m->dx; /* else the norm's backward pass left the rounded copy there */
    return CLT_OK;
}

/* The hidden values of a gated MLP again, from what was before the activation. */
static clt_status hidden_again(backward_pass *p, const clt_mpt_acts *a) {
    clt_mpt *m = p->m;
    int64_t R = p->rows, F = m->cfg.ffn_hidden;
    if (m->shape.recompute != CLT_RECOMPUTE_NORMS || !m->cfg.glu) return CLT_OK;
    return clt_op_glu_forward(m->ops, &(clt_glu_params){.act = m->cfg.activation,
                                                        .rows = R,
                                                        .cols = F,
                                                        .gate = clt_tensor_of(a->gate, F, m->type),
                                                        .up = clt_tensor_of(a->up, F, m->type),
                                                        .y = clt_tensor_of(a->act, F, m->type)});
}

/* Gradients of the hidden values in front of the activation, and of the down projection. Where casts apply
 * the activation's derivative, the former are still those of the hidden values. */
static clt_status mlp_hidden_backward(backward_pass *p, int layer) {
    clt_mpt *m = p->m;
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_acts *a = &m->acts[layer];
    int64_t R = p->rows, C = c->d_model, F = c->ffn_hidden;
    clt_mpt_blocks blocks;
    clt_ref d;
    CLT_TRY(branch_gradient(p, layer, CLT_MPT_MLP, &d));
    CLT_TRY(quantise_gradient(p, CLT_MPT_EIGHT_DY, x->wdown, d, C, &blocks));
    CLT_TRY(hidden_again(p, a));
    clt_gemm_params g = linear_data(p, x->wdown, d, C, c->glu ? m->dact : m->dup, F, false);
    if (!c->glu && !clt_mpt_casts_activate(m)) {
        g.grad_act = c->activation;
        g.grad_pre = clt_tensor_of(a->up, F, m->type);
        if (m->shape.recompute == CLT_RECOMPUTE_NORMS) g.again = clt_tensor_of(a->act, F, m->type);
    }
    CLT_TRY(clt_mpt_linear_product(m, &g, x->wdown, &blocks, NULL));
    const clt_mpt_operand hidden = clt_mpt_hidden_operand(m, layer, R);
    clt_mpt_blocks in;
    CLT_TRY(clt_mpt_input_again(m, x->wdown, &hidden, &in));
    CLT_TRY(linear_weights(p, x->wdown, x->bdown, d, C, &blocks, hidden.x.ref, F, &in, "mlp"));
    if (c->glu)
        CLT_TRY(
            clt_op_glu_backward(m->ops, &(clt_glu_grad_params){.act = c->activation,
                                                               .rows = R,
                                                               .cols = F,
                                                               .gate = clt_tensor_of(a->gate, F, m->type),
                                                               .up = clt_tensor_of(a->up, F, m->type),
                                                               .dy = g.c,
                                                               .dgate = clt_tensor_of(m->dgate, F, m->type),
                                                               .dup = clt_tensor_of(m->dup, F, m->type)}));
    return CLT_OK;
}

/* The data gradient of the up projection, with the derivative of the activation that a cast applies. */
static clt_status up_data(backward_pass *p, int layer, clt_mpt_blocks *up) {
    clt_mpt *m = p->m;
    const int64_t F = m->cfg.ffn_hidden;
    const clt_mpt_operand of = {.x = clt_tensor_of(m->dup, F, m->type),
                                .rows = p->rows,
                                .cols = F,
                                .grad_act = clt_mpt_casts_activate(m) ? m->cfg.activation : CLT_ACT_NONE,
                                .grad_pre = clt_mpt_casts_activate(m)
                                                ? clt_tensor_of(m->acts[layer].up, F, m->type)
                                                : clt_tensor_none()};
    CLT_TRY(clt_mpt_gradient(m, CLT_MPT_EIGHT_DY, &of, up));
    CLT_TRY(data_of_norm(p, m->index.block[layer].wup, m->dup, F, false, up));
    return clt_model_made(&m->base, m->type, m->dup, (uint64_t)(p->rows * F),
                          "block %d: gradient of the mlp's hidden values", layer);
}

static clt_status mlp_backward(backward_pass *p, int layer) {
    clt_mpt *m = p->m;
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_acts *a = &m->acts[layer];
    int64_t C = c->d_model, F = c->ffn_hidden;
    clt_mpt_blocks up, gate, n2;
    CLT_TRY(mlp_hidden_backward(p, layer));
    CLT_TRY(up_data(p, layer, &up));
    if (c->glu) CLT_TRY(norm_data(p, x->wgate, m->dgate, F, true, CLT_MPT_EIGHT_DY_1, &gate));
    /* With parallel_residual attention's branch has the same gradient as this one: dx and its copy stay. */
    const bool parallel = c->parallel_residual;
    CLT_TRY(norm_backward(p, clt_mpt_mlp_input(m, layer), a->mean2, a->rstd2, x->norm2_w, x->norm2_b,
                          m->dnorm, m->dx, parallel ? m->dmid : m->dx, parallel ? clt_ref_none() : rounded(p),
                          parallel ? -1 : x->bout, clt_mpt_block_unit(layer), again(p, a->n2)));
    const clt_mpt_operand in = {.x = clt_tensor_of(a->n2, C, m->type), .rows = p->rows, .cols = C};
    CLT_TRY(clt_mpt_input_again(m, x->wup, &in, &n2));
    CLT_TRY(linear_weights(p, x->wup, x->bup, m->dup, F, &up, a->n2, C, &n2, "mlp"));
    if (c->glu) CLT_TRY(linear_weights(p, x->wgate, x->bgate, m->dgate, F, &gate, a->n2, C, &n2, "mlp"));
    return clt_model_made(&m->base, CLT_F32, parallel ? m->dmid : m->dx, (uint64_t)(p->rows * C),
                          "block %d: gradient before norm_2", layer);
}

static clt_status qk_norm_backward(backward_pass *p, int64_t heads, int64_t col, clt_ref in, int w, int b,
                                   clt_ref mean, clt_ref rstd, clt_ref dqkv) {
    clt_mpt *m = p->m;
    const clt_mpt_config *c = &m->cfg;
    clt_tensor d = clt_tensor_at(clt_tensor_of(dqkv, m->width, m->type), 0, col);
    return clt_op_norm_backward(
        m->ops, &(clt_norm_grad_params){.eps = 1e-5f,
                                        .rows = p->rows,
                                        .cols = c->qk_gn ? c->head_dim : heads * c->head_dim,
                                        .heads = c->qk_gn ? heads : 1,
                                        .rows_per_sample = m->shape.seq,
                                        .x = clt_tensor_at(clt_tensor_of(in, m->width, m->type), 0, col),
                                        .w = clt_mpt_weight(m, w),
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dy = d,
                                        .dx = d,
                                        .dw = grad_of(p, w),
                                        .db = grad_of(p, b),
                                        .accumulate = !p->b->lane_first});
}

/* Back through positions, qk norms and clip, in place on dqkv. */
static clt_status qkv_backward(backward_pass *p, int layer, clt_ref dqkv) {
    clt_mpt *m = p->m;
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_acts *a = &m->acts[layer];
    bool own_kv = c->layer[layer].reuse_kv < 0;
    int64_t R = p->rows, T = m->shape.seq, W = m->width, Q = c->n_heads * c->head_dim;
    if (m->rope.buf && !c->layer[layer].nope) {
        clt_rope_params rope = {.rows = R,
                                .seq = T,
                                .heads = c->n_heads,
                                .head_dim = c->head_dim,
                                .x = clt_tensor_of(dqkv, W, m->type),
                                .cos_sin = m->rope,
                                .inverse = true,
                                .dims = c->rope_dims};
        CLT_TRY(clt_op_rope(m->ops, &rope));
        rope.heads = c->kv_n_heads;
        rope.x = clt_tensor_at(rope.x, 0, Q);
        if (own_kv) CLT_TRY(clt_op_rope(m->ops, &rope));
    }
    CLT_TRY(clt_mpt_temper(m, R, dqkv));
    if (c->qk_ln || c->qk_gn) {
        clt_ref in = c->clip_qkv > 0 ? a->clipped : a->raw;
        CLT_TRY(qk_norm_backward(p, c->n_heads, 0, in, x->q_ln_w, x->q_ln_b, a->q_mean, a->q_rstd, dqkv));
        if (own_kv)
            CLT_TRY(
                qk_norm_backward(p, c->kv_n_heads, Q, in, x->k_ln_w, x->k_ln_b, a->k_mean, a->k_rstd, dqkv));
    }
    if (!(c->clip_qkv > 0)) return CLT_OK;
    return clt_op_clip_backward(m->ops, &(clt_clip_grad_params){.limit = (float)c->clip_qkv,
                                                                .rows = R,
                                                                .cols = own_kv ? W : Q,
                                                                .x = clt_tensor_of(a->raw, W, m->type),
                                                                .dy = clt_tensor_of(dqkv, W, m->type),
                                                                .dx = clt_tensor_of(dqkv, W, m->type)});
}

/* The weight, the bias and the first column of part i of q|k|v, or of all of it where it is one projection;
 * false: there are no more parts. */
static bool projection(const clt_mpt *m, int layer, int i, int *w, int *b, uint64_t *col) {
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    int64_t Q = c->n_heads * c->head_dim, K = c->kv_n_heads * c->head_dim;
    const int ws[] = {x->wq, x->wk, x->wv}, bs[] = {x->bq, x->bk, x->bv};
    const int64_t at[] = {0, Q, Q + K};
    bool fused = x->wqkv >= 0;
    if (i == (fused || c->layer[layer].reuse_kv >= 0 ? 1 : 3)) return false;
    *w = fused ? x->wqkv : ws[i];
    *b = fused ? x->bqkv : bs[i];
    *col = fused ? 0 : (uint64_t)at[i];
    return true;
}

static clt_status projections_backward(backward_pass *p, int layer, clt_ref dqkv) {
    clt_mpt *m = p->m;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_acts *a = &m->acts[layer];
    int64_t C = m->cfg.d_model, W = m->width;
    static const clt_mpt_eight_place place[] = {CLT_MPT_EIGHT_DY, CLT_MPT_EIGHT_DY_1, CLT_MPT_EIGHT_DY_2};
    clt_mpt_blocks d[CLT_COUNT_OF(place)], n1;
    uint64_t col;
    int w, b;
    for (int i = 0; projection(m, layer, i, &w, &b, &col); i++)
        CLT_TRY(norm_data(p, w, clt_ref_at(dqkv, col), W, i > 0, place[i], &d[i]));
    CLT_TRY(norm_backward(p, a->x, a->mean1, a->rstd1, x->norm1_w, x->norm1_b, m->dnorm,
                          m->cfg.parallel_residual ? m->dmid : m->dx, m->dx, rounded(p),
                          layer ? m->index.block[layer - 1].bdown : -1, clt_mpt_block_unit(layer - 1),
                          again(p, a->n1)));
    const clt_mpt_operand in = {.x = clt_tensor_of(a->n1, C, m->type), .rows = p->rows, .cols = C};
    CLT_TRY(clt_mpt_input_again(m, x->wqkv >= 0 ? x->wqkv : x->wq, &in, &n1));
    for (int i = 0; projection(m, layer, i, &w, &b, &col); i++)
        CLT_TRY(linear_weights(p, w, b, clt_ref_at(dqkv, col), W, &d[i], a->n1, C, &n1, "attention"));
    return CLT_OK;
}

static clt_status attention_backward(backward_pass *p, int layer) {
    clt_mpt *m = p->m;
    const clt_mpt_config *c = &m->cfg;
    const clt_mpt_block_index *x = &m->index.block[layer];
    const clt_mpt_acts *a = &m->acts[layer];
    int64_t R = p->rows, C = c->d_model, W = m->width, Q = c->n_heads * c->head_dim,
            K = c->kv_n_heads * c->head_dim;
    int64_t source = c->layer[layer].reuse_kv >= 0 ? c->layer[layer].reuse_kv : layer;
    clt_ref d, dqkv = m->dqkv[layer];
    clt_tensor dkv = clt_tensor_of(m->dqkv[source], W, m->type);
    CLT_TRY(branch_gradient(p, layer, CLT_MPT_ATTENTION, &d));
    clt_mpt_blocks blocks;
    CLT_TRY(quantise_gradient(p, CLT_MPT_EIGHT_DY, x->wout, d, C, &blocks));
    clt_gemm_params g = linear_data(p, x->wout, d, C, m->datt, Q, false);
    CLT_TRY(clt_mpt_linear_product(m, &g, x->wout, &blocks, NULL));
    CLT_TRY(linear_weights(p, x->wout, x->bout, d, C, &blocks, a->att, Q, NULL, "attention"));
    clt_attention_grad_params att = {.fwd = clt_mpt_attention(m, p->b, layer),
                                     .dout = g.c,
                                     .dq = clt_tensor_of(dqkv, W, m->type),
                                     .dk = clt_tensor_at(dkv, 0, Q),
                                     .dv = clt_tensor_at(dkv, 0, Q + K),
                                     .accumulate_kv = p->kv_written[source],
                                     .spare = m->spare,
                                     .spare_elements = m->spare_elements};
    CLT_TRY(m->shape.eight_attention ? clt_op_attention8_backward(m->ops, &att)
                                     : clt_op_attention_backward(m->ops, &att));
    p->kv_written[source] = true;
    CLT_TRY(
        clt_model_made(&m->base, m->type, dqkv, (uint64_t)(R * Q), "block %d: gradient of attention", layer));
    CLT_TRY(qkv_backward(p, layer, dqkv));
    CLT_TRY(projections_backward(p, layer, dqkv));
    return clt_model_made(&m->base, CLT_F32, m->dx, (uint64_t)(R * C), "block %d: gradient before norm_1",
                          layer);
}

clt_status clt_mpt_embedding_backward(clt_mpt *m, const clt_model_pass *b) {
    const clt_mpt_config *c = &m->cfg;
    const int64_t C = c->d_model, R = b->batch->samples * m->shape.seq;
    clt_tensor dwte = clt_mpt_entry(b->grads, m->index.wte),
               lookup = clt_tensor_of(m->lookups.sum, C, CLT_F32);
    if (b->dropout && c->emb_pdrop > 0)
        CLT_TRY(clt_mpt_dropout(m, b, c->emb_pdrop, 0, CLT_SITE_EMBEDDING, CLT_F32, m->dx, clt_ref_none(),
                                CLT_F32, m->dx));
    CLT_TRY(clt_mpt_scale_embedding(m, R, m->dx));
    /* Untied, the table's own accumulator takes the lookups: rows that no token names must be +0. */
    if (!c->tie_word_embeddings && b->lane_first)
        CLT_TRY(clt_buffer_fill32(dwte.ref.buf, dwte.ref.off * 4, 0, (size_t)(c->vocab_size * C) * 4));

    CLT_TRY(clt_op_embedding_backward(
        m->ops, &(clt_embedding_grad_params){.rows = R,
                                             .seq = m->shape.seq,
                                             .cols = C,
                                             .unique = m->lookups.unique,
                                             .dx = wide_rows(m, m->dx),
                                             .ids = m->lookups.ids,
                                             .first = m->lookups.first,
                                             .row_begin = m->lookups.begin,
                                             .row_of = m->lookups.row_of,
                                             .dwte = m->lookups.sum.buf ? lookup : dwte,
                                             .dwpe = clt_mpt_entry(b->grads, m->index.wpe),
                                             .accumulate_wpe = !b->lane_first,
                                             .fraction = (float)c->embedding_fraction}));
    if (!b->lane_last || !m->lookups.sum.buf) return CLT_OK;
    CLT_TRY(clt_mpt_lists_add(m, &m->lookups, dwte));
    return clt_model_made(&m->base, CLT_F32, dwte.ref, (uint64_t)(c->vocab_size * C),
                          "gradient of transformer.wte.weight");
}

/* The gradients of a unit are queued. The sums of norms and biases that were left for later are made first.
 */
static clt_status ready(backward_pass *p, int unit) {
    clt_mpt *m = p->m;
    if (!m->base.ready || !p->b->lane_last) return CLT_OK;
    CLT_TRY(clt_op_sums_now(m->ops));
    CLT_TRY(clt_model_gradients_ready(&m->base, p->b, m->units[unit].first, m->units[unit].end));
    clt_op_sums_later(m->ops);
    return CLT_OK;
}

/* From norm_f's output to the last block's, and what follows from it; the head's gradients are there. */
static clt_status final_norm_backward(backward_pass *p) {
    clt_mpt *m = p->m;
    const int unit = clt_mpt_head_unit(&m->cfg);
    const uint64_t count = (uint64_t)(p->rows * m->cfg.d_model);
    CLT_TRY(open_gradients(p, unit));
    p->summed = -1;
    if (m->ends->out_backward)
        CLT_TRY(m->ends->out_backward(m, p->b));
    else
        CLT_TRY(norm_backward(p, m->x_last, m->meanf, m->rstdf, m->index.norm_f_w, m->index.norm_f_b, m->dnf,
                              clt_ref_none(), m->dx, clt_ref_none(),
                              m->index.block[m->cfg.n_layers - 1].bdown, unit - 1, clt_ref_none()));
    CLT_TRY(clt_mpt_done(m, unit));
    /* Not on the way: x_last, which that pass reads, may be where the copy goes. */
    if (rounded(p).buf)
        CLT_TRY(clt_op_cast(m->ops, wide_rows(m, m->dx), clt_tensor_of(m->dbranch, m->cfg.d_model, m->type),
                            count));
    CLT_TRY(clt_model_made(&m->base, CLT_F32, m->dx, count, "gradient before norm_f"));
    return ready(p, unit);
}

static clt_status block_backward(backward_pass *p, int layer) {
    clt_mpt *m = p->m;
    const int unit = clt_mpt_block_unit(layer);
    CLT_TRY(clt_mpt_need(m, unit));
    CLT_TRY(clt_mpt_inputs_return(m, layer));
    /* x_last is free: the recomputed block's output goes there and is not used. */
    if (m->shape.recompute == CLT_RECOMPUTE_BLOCKS) CLT_TRY(clt_mpt_block_forward(m, p->b, layer, m->x_last));
    CLT_TRY(open_gradients(p, unit));
    CLT_TRY(mlp_backward(p, layer));
    CLT_TRY(attention_backward(p, layer));
    CLT_TRY(clt_mpt_done(m, unit));
    return ready(p, unit);
}

static clt_status passes(clt_mpt *m, const clt_model_pass *b) {
    const bool tied = m->cfg.tie_word_embeddings;
    backward_pass p = {.m = m, .b = b, .rows = b->batch->samples * m->shape.seq, .summed = -1};
    /* The head has opened its own unit, or that of the embedding that it shares. */
    p.open = clt_mpt_head_unit(&m->cfg) + tied;
    CLT_TRY(final_norm_backward(&p));
    for (int i = (int)m->cfg.n_layers - 1; i >= 0; i--) CLT_TRY(block_backward(&p, i));
    if (!tied) CLT_TRY(open_gradients(&p, CLT_MPT_EMBEDDING_UNIT));
    CLT_TRY(m->ends->embed_backward(m, b));
    return ready(&p, CLT_MPT_EMBEDDING_UNIT);
}

clt_status clt_mpt_backward(clt_mpt *m, const clt_model_pass *b) {
    /* Nobody looks at what norms make for weights and biases before the end. */
    clt_op_sums_later(m->ops);
    const clt_status made = passes(m, b), ended = clt_op_sums_now(m->ops);
    return made != CLT_OK ? made : ended;
}
