/* What a Vision Transformer has before and behind its blocks: memory, the batch, patches and positions, the
 * pooled token, head and loss. */
#include <math.h>
#include <string.h>

#include "runtime/model/vit/clt_vit_internal.h"
#include "runtime/ops/clt_op_image.h"
#include "runtime/ops/ref/clt_ref.h"

static clt_vit *vit(clt_mpt *m) {
    return (clt_vit *)m;
}

/* --- memory --- */

static void begin(clt_mpt *m, const clt_model_config *config) {
    vit(m)->cfg = *(const clt_vit_config *)config;
    m->shape.seq = m->cfg.max_seq_len;
    vit(m)->cols = CLT_ROUND_UP(vit(m)->cfg.patch, (int64_t)16);
}

static void find_tensors(clt_mpt *m) {
    const clt_slab_table *t = m->weights->table;
    m->index.wte = m->index.wpe = -1;
    m->index.norm_f_b = t->n - 3;
    m->index.norm_f_w = t->n - 4;
    m->index.lm_head = t->n - 2;
    vit(m)->head_bias = t->n - 1;
    m->index.block = clt_malloc((size_t)m->cfg.n_layers * sizeof *m->index.block);
    memset(m->index.block, 0xff, (size_t)m->cfg.n_layers * sizeof *m->index.block); /* -1 */
    for (int i = 0; i < m->cfg.n_layers; i++) {
        clt_mpt_block_index *b = &m->index.block[i];
        int at = CLT_VIT_PATCH_BIAS + 1 + i * (m->cfg.attention_bias ? 12 : 11);
        b->norm1_w = at++;
        b->norm1_b = at++;
        b->wqkv = at++;
        if (m->cfg.attention_bias) b->bqkv = at++;
        b->wout = at++;
        b->bout = at++;
        b->norm2_w = at++;
        b->norm2_b = at++;
        b->wup = at++;
        b->bup = at++;
        b->wdown = at++;
        b->bdown = at++;
    }
}

static bool pads(const clt_vit *v) {
    return v->cols != v->cfg.patch;
}

/* The padding is 0 from here on. */
static clt_status take_padded(clt_mpt *m) {
    clt_vit *v = vit(m);
    const int64_t n = m->cfg.d_model * v->cols;
    const size_t bytes = clt_dtype_bytes(m->type);
    if (!pads(v)) return CLT_OK;
    CLT_TRY(clt_mpt_take(m, &m->memory.other, "patch weight", n, bytes, &v->padded));
    if (m->shape.training) CLT_TRY(clt_mpt_take(m, &m->memory.other, "patch weight", n, 4, &v->dpadded));
    return m->ops ? clt_buffer_fill32(v->padded.buf, 0, 0, (size_t)n * bytes) : CLT_OK;
}

static clt_status take(clt_mpt *m) {
    clt_vit *v = vit(m);
    const int64_t B = m->shape.microbatch, C = m->cfg.d_model, side = v->cfg.image_size;
    clt_model_memory *all = &m->memory;
    const clt_mpt_part part[] = {{&v->label, B, true},
                                 {&v->wanted, B * m->cfg.vocab_size, true},
                                 {&v->pixels, B * 3 * side * side, true},
                                 {&m->row_weight, B, m->shape.training}};
    CLT_TRY(clt_mpt_take_batch(m, part, CLT_COUNT_OF(part), &m->row_weight));
    CLT_TRY(clt_mpt_take(m, &all->activations, "patches", m->rows * v->cols, clt_dtype_bytes(m->type),
                         &v->patches));
    CLT_TRY(take_padded(m));
    CLT_TRY(clt_mpt_take(m, &all->other, "ranks", B, 4, &m->correct));
    if (v->cfg.average) CLT_TRY(clt_mpt_take(m, &all->activations, "mean", B * C, 4, &v->pooled));
    if (!m->shape.training) return CLT_OK;
    if (v->cfg.average) CLT_TRY(clt_mpt_take(m, &all->activations, "gradient", B * C, 4, &v->dpooled));
    CLT_TRY(clt_mpt_take(m, &all->other, "zeros", B * C, 4, &v->zeros));
    return m->ops ? clt_buffer_fill32(v->zeros.buf, 0, 0, (size_t)(B * C) * 4) : CLT_OK;
}

static clt_status take_host(clt_mpt *m) {
    size_t lack = 0;
    m->host = clt_mpt_host_array((size_t)m->words, sizeof *m->host, &lack);
    m->host_correct = clt_mpt_host_array((size_t)m->out_rows, sizeof *m->host_correct, &lack);
    return lack ? clt_no_memory("the model's host arrays", lack) : CLT_OK;
}

static clt_gemm_params patch_product(const clt_mpt *m, int64_t rows) {
    const clt_vit *v = (const clt_vit *)m;
    return (clt_gemm_params){.form = CLT_GEMM_NT,
                             .m = rows,
                             .n = m->cfg.d_model,
                             .k = v->cols,
                             .a = clt_tensor_of(v->patches, v->cols, m->type),
                             .c = clt_tensor_of(m->acts[0].x, m->cfg.d_model, CLT_F32)};
}

static clt_gemm_params patch_weight_product(const clt_mpt *m, int64_t rows) {
    const clt_vit *v = (const clt_vit *)m;
    return (clt_gemm_params){
        .form = CLT_GEMM_TN,
        .m = m->cfg.d_model,
        .n = v->cols,
        .k = rows,
        .k_group = m->shape.seq,
        .a = clt_tensor_of(m->type == CLT_F32 ? m->dx : m->dbranch, m->cfg.d_model, m->type),
        .b = clt_tensor_of(v->patches, v->cols, m->type)};
}

static uint64_t workspace(const clt_mpt *m, clt_device_type type) {
    const clt_gemm_params forward = patch_product(m, m->rows), backward = patch_weight_product(m, m->rows);
    return CLT_MAX(clt_op_gemm_workspace(type, &forward), clt_op_gemm_workspace(type, &backward));
}

/* --- the batch --- */

static clt_status upload(clt_mpt *m, const clt_model_pass *b, bool grad) {
    clt_vit *v = vit(m);
    const size_t B = (size_t)b->batch->samples, side = (size_t)v->cfg.image_size;
    const void *const *field = b->batch->field;
    memcpy(clt_mpt_host(m, v->pixels), field[CLT_IMAGE_PIXELS], B * 3 * side * side * 4);
    memcpy(clt_mpt_host(m, v->wanted), field[CLT_IMAGE_TARGETS], B * (size_t)m->cfg.vocab_size * 4);
    memcpy(clt_mpt_host(m, v->label), field[CLT_IMAGE_LABEL], B * 4);
    if (b->sample_weight) memcpy(clt_mpt_host(m, m->row_weight), b->sample_weight, B * 4);
    return clt_buffer_write(v->label.buf, 0, m->host, (size_t)(grad ? m->words : m->forward_words) * 4);
}

/* --- the embedding --- */

/* Tensor `entry` of a slab as rows of `cols` elements. */
static clt_tensor rows_of(const clt_slab *slab, int entry, int64_t cols, clt_dtype type) {
    return clt_tensor_of(clt_slab_ref(slab, entry), cols, type);
}

/* The patches' weight, as the product reads it. */
static clt_status patch_weight(clt_mpt *m, clt_tensor *out) {
    const clt_vit *v = vit(m);
    const clt_tensor stored =
        rows_of(m->narrow ? m->narrow : m->weights, CLT_VIT_PATCH_WEIGHT, v->cfg.patch, m->type);
    *out = pads(v) ? clt_tensor_of(v->padded, v->cols, m->type) : stored;
    return pads(v) ? clt_op_copy_rows(m->ops, m->cfg.d_model, v->cfg.patch, stored, *out) : CLT_OK;
}

/* The product g of the patches' weight gradient, into `grad`. */
static clt_status patch_gradient(clt_mpt *m, clt_gemm_params *g, clt_tensor grad) {
    const clt_vit *v = vit(m);
    const int64_t C = m->cfg.d_model, P = v->cfg.patch;
    g->c = pads(v) ? clt_tensor_of(v->dpadded, v->cols, CLT_F32) : grad;
    if (pads(v) && g->accumulate) CLT_TRY(clt_op_copy_rows(m->ops, C, P, grad, g->c));
    CLT_TRY(clt_op_gemm(m->ops, g));
    return pads(v) ? clt_op_copy_rows(m->ops, C, P, g->c, grad) : CLT_OK;
}

static clt_status embed(clt_mpt *m, const clt_model_pass *b) {
    const clt_vit *v = vit(m);
    const int64_t B = b->batch->samples, T = m->shape.seq, C = m->cfg.d_model, side = v->cfg.image_size;
    const clt_ref x = m->acts[0].x;
    CLT_TRY(clt_op_unfold_patches(m->ops, &(clt_unfold_params){B, side, side, v->cfg.patch_size, v->pixels,
                                                               clt_tensor_of(v->patches, v->cols, m->type)}));
    clt_gemm_params g = patch_product(m, B * T);
    CLT_TRY(patch_weight(m, &g.b));
    g.bias = clt_mpt_weight(m, CLT_VIT_PATCH_BIAS);
    CLT_TRY(clt_op_gemm(m->ops, &g));
    CLT_TRY(clt_model_made(&m->base, CLT_F32, x, (uint64_t)(B * T * C), "patch embedding"));
    CLT_TRY(clt_op_place_tokens(
        m->ops, &(clt_place_tokens_params){B, T, C, x, clt_slab_ref(m->weights, CLT_VIT_CLASS),
                                           clt_slab_ref(m->weights, CLT_VIT_POSITIONS)}));
    if (b->dropout && m->cfg.emb_pdrop > 0)
        CLT_TRY(clt_mpt_dropout(m, b, m->cfg.emb_pdrop, 0, CLT_SITE_EMBEDDING, CLT_F32, x, clt_ref_none(),
                                CLT_F32, x));
    return clt_model_made(&m->base, CLT_F32, x, (uint64_t)(B * T * C), "position embedding");
}

static clt_status embed_backward(clt_mpt *m, const clt_model_pass *b) {
    const clt_vit *v = vit(m);
    const int64_t B = b->batch->samples, T = m->shape.seq, C = m->cfg.d_model;
    const clt_tensor dx = clt_tensor_of(m->dx, C, CLT_F32),
                     dpos = rows_of(b->grads, CLT_VIT_POSITIONS, C, CLT_F32),
                     dclass = rows_of(b->grads, CLT_VIT_CLASS, C, CLT_F32);
    if (b->dropout && m->cfg.emb_pdrop > 0)
        CLT_TRY(clt_mpt_dropout(m, b, m->cfg.emb_pdrop, 0, CLT_SITE_EMBEDDING, CLT_F32, m->dx, clt_ref_none(),
                                CLT_F32, m->dx));
    CLT_TRY(clt_op_embedding_backward(m->ops, &(clt_embedding_grad_params){.rows = B * T,
                                                                           .seq = T,
                                                                           .cols = C,
                                                                           .dx = dx,
                                                                           .dwpe = dpos,
                                                                           .accumulate_wpe = !b->lane_first,
                                                                           .fraction = 1}));
    CLT_TRY(clt_op_copy_rows(m->ops, 1, C, dpos, dclass)); /* the same sum */
    /* Class tokens come from no patch: the bias does not see them. */
    CLT_TRY(clt_op_copy_rows(m->ops, B, C, clt_tensor_of(v->zeros, C, CLT_F32),
                             clt_tensor_of(m->dx, T * C, CLT_F32)));
    if (m->type != CLT_F32)
        CLT_TRY(clt_op_cast(m->ops, dx, clt_tensor_of(m->dbranch, C, m->type), (uint64_t)(B * T * C)));
    clt_gemm_params g = patch_weight_product(m, B * T);
    g.a_sum = clt_mpt_entry(b->grads, CLT_VIT_PATCH_BIAS);
    g.accumulate = !b->lane_first;
    const clt_tensor grad = rows_of(b->grads, CLT_VIT_PATCH_WEIGHT, v->cfg.patch, CLT_F32);
    CLT_TRY(patch_gradient(m, &g, grad));
    return clt_model_made(&m->base, CLT_F32, grad.ref, (uint64_t)(C * v->cfg.patch),
                          "gradient of patch_embed.proj.weight");
}

/* --- behind the blocks --- */

/* What the final norm reads, or its gradient: the class tokens of x, or the means. */
static clt_tensor norm_rows(clt_mpt *m, clt_ref x, clt_ref means) {
    const int64_t C = m->cfg.d_model;
    return vit(m)->cfg.average ? clt_tensor_of(means, C, CLT_F32)
                               : clt_tensor_of(x, m->shape.seq * C, CLT_F32);
}

static clt_status out(clt_mpt *m, const clt_model_pass *b) {
    const clt_vit *v = vit(m);
    const int64_t B = b->batch->samples, T = m->shape.seq, C = m->cfg.d_model;
    if (v->cfg.average)
        CLT_TRY(clt_op_mean_tokens(m->ops, &(clt_mean_tokens_params){B, T, C, m->x_last, v->pooled}));
    CLT_TRY(clt_op_norm_forward(m->ops, &(clt_norm_params){.eps = (float)m->cfg.norm_eps,
                                                           .rows = B,
                                                           .cols = C,
                                                           .heads = 1,
                                                           .x = norm_rows(m, m->x_last, v->pooled),
                                                           .y = clt_tensor_of(m->nf, C, m->type),
                                                           .w = clt_mpt_weight(m, m->index.norm_f_w),
                                                           .b = clt_mpt_weight(m, m->index.norm_f_b),
                                                           .mean = m->meanf,
                                                           .rstd = m->rstdf}));
    return clt_model_made(&m->base, m->type, m->nf, (uint64_t)(B * C), "final norm");
}

static clt_status out_backward(clt_mpt *m, const clt_model_pass *b) {
    const clt_vit *v = vit(m);
    const int64_t B = b->batch->samples, T = m->shape.seq, C = m->cfg.d_model;
    if (!v->cfg.average) CLT_TRY(clt_buffer_fill32(m->dx.buf, m->dx.off * 4, 0, (size_t)(B * T * C) * 4));
    CLT_TRY(
        clt_op_norm_backward(m->ops, &(clt_norm_grad_params){.eps = (float)m->cfg.norm_eps,
                                                             .rows = B,
                                                             .cols = C,
                                                             .heads = 1,
                                                             .rows_per_sample = 1,
                                                             .x = norm_rows(m, m->x_last, v->pooled),
                                                             .w = clt_mpt_weight(m, m->index.norm_f_w),
                                                             .dy = clt_tensor_of(m->dnf, C, m->dnorm_type),
                                                             .dx = norm_rows(m, m->dx, v->dpooled),
                                                             .dw = clt_mpt_entry(b->grads, m->index.norm_f_w),
                                                             .db = clt_mpt_entry(b->grads, m->index.norm_f_b),
                                                             .mean = m->meanf,
                                                             .rstd = m->rstdf,
                                                             .accumulate = !b->lane_first}));
    if (!v->cfg.average) return CLT_OK;
    return clt_op_mean_tokens_backward(m->ops, &(clt_mean_tokens_params){B, T, C, m->dx, v->dpooled});
}

/* Gradients of the head; d(logits) lie in m->logits. */
static clt_status head_backward(clt_mpt *m, const clt_model_pass *b) {
    const int64_t B = b->batch->samples, C = m->cfg.d_model, K = m->cfg.vocab_size;
    const clt_tensor d = clt_tensor_of(m->logits, K, m->type);
    CLT_TRY(clt_op_gemm(m->ops, &(clt_gemm_params){.form = CLT_GEMM_NN,
                                                   .m = B,
                                                   .n = C,
                                                   .k = K,
                                                   .a = d,
                                                   .b = clt_mpt_matrix(m, m->index.lm_head),
                                                   .c = clt_tensor_of(m->dnf, C, m->dnorm_type)}));
    CLT_TRY(
        clt_model_made(&m->base, m->dnorm_type, m->dnf, (uint64_t)(B * C), "gradient of the head's input"));
    const clt_gemm_params weight = {.form = CLT_GEMM_TN,
                                    .m = K,
                                    .n = C,
                                    .k = B,
                                    .k_group = 1,
                                    .a = d,
                                    .b = clt_tensor_of(m->nf, C, m->type),
                                    .c = clt_mpt_entry(b->grads, m->index.lm_head),
                                    .a_sum = clt_mpt_entry(b->grads, vit(m)->head_bias),
                                    .accumulate = !b->lane_first};
    CLT_TRY(clt_op_gemm(m->ops, &weight));
    return clt_model_made(&m->base, CLT_F32, weight.c.ref, (uint64_t)(K * C), "gradient of head.weight");
}

static clt_status head(clt_mpt *m, const clt_model_pass *b, bool grad, clt_ref correct) {
    const clt_vit *v = vit(m);
    const int64_t B = b->batch->samples, C = m->cfg.d_model, K = m->cfg.vocab_size;
    if (grad) CLT_TRY(clt_mpt_gradients_need(m, b, clt_mpt_head_unit(&m->cfg)));
    const clt_gemm_params g = clt_mpt_linear(m, B, m->index.lm_head, v->head_bias, m->nf, C, m->logits, K);
    CLT_TRY(clt_op_gemm(m->ops, &g));
    CLT_TRY(clt_model_made(&m->base, m->type, m->logits, (uint64_t)(B * K), "logits"));
    CLT_TRY(clt_op_loss_soft(
        m->ops, &(clt_loss_soft_params){.rows = B,
                                        .vocab = K,
                                        .logits = g.c,
                                        .targets = v->wanted,
                                        .label = v->label,
                                        .row_loss = b->sample_loss,
                                        .rank = correct,
                                        .grad = grad,
                                        .weight = b->weight,
                                        .row_weight = b->sample_weight ? m->row_weight : clt_ref_none()}));
    CLT_TRY(clt_model_made(&m->base, CLT_F32, b->sample_loss, (uint64_t)B, "loss"));
    if (!grad) return CLT_OK;
    CLT_TRY(clt_model_made(&m->base, m->type, m->logits, (uint64_t)(B * K), "gradient of the loss"));
    CLT_TRY(clt_model_turns(&m->base, true));
    return head_backward(m, b);
}

/* In double, of the logits as they are stored. */
static clt_model_prediction prediction_of(const float *z, int64_t classes) {
    int64_t best = 0;
    double sum = 0;
    for (int64_t k = 1; k < classes; k++)
        if (z[k] > z[best]) best = k;
    for (int64_t k = 0; k < classes; k++) sum += exp((double)z[k] - (double)z[best]);
    return (clt_model_prediction){(int32_t)best, (float)(1 / sum)};
}

clt_status clt_vit_predictions(clt_model *model, int64_t samples, clt_model_prediction *out) {
    const clt_mpt *m = (const clt_mpt *)model;
    const int64_t K = m->cfg.vocab_size;
    const size_t n = (size_t)(samples * K);
    float *logits = clt_try_calloc(n, sizeof *logits);
    if (!logits) return clt_no_memory("the logits of images", n * sizeof *logits);
    clt_status st = clt_ref_read_as(m->logits, m->type, logits, n);
    for (int64_t s = 0; s < samples && st == CLT_OK; s++) out[s] = prediction_of(logits + s * K, K);
    clt_free(logits);
    return st;
}

const clt_mpt_ends clt_vit_ends = {
    .bytes = sizeof(clt_vit),
    .begin = begin,
    .index = find_tensors,
    .take = take,
    .take_host = take_host,
    .workspace = workspace,
    .upload = upload,
    .embed = embed,
    .embed_backward = embed_backward,
    .out = out,
    .out_backward = out_backward,
    .head = head,
};
