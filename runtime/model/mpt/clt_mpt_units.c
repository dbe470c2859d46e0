/* The units of an MPT, the order in which passes use them, and which tensors a pass reads where. */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <stdio.h>

/* --- the list --- */

int clt_mpt_units_of(const clt_slab_table *t, int64_t blocks, const char *prefix, const char *norm,
                     const char *head, clt_model_unit **units) {
    const int n = clt_mpt_block_unit((int)blocks) + 1;
    clt_model_unit *u = clt_calloc((size_t)n, sizeof *u);
    for (int i = 0; i < blocks; i++) {
        char *name = clt_format("%s%d.%s", prefix, i, norm);
        u[clt_mpt_block_unit(i)].first = clt_slab_table_find(t, name);
        clt_free(name);
    }
    u[n - 1].first = clt_slab_table_find(t, head);
    for (int i = 0; i < n; i++) u[i].end = i + 1 < n ? u[i + 1].first : t->n;
    *units = u;
    return n;
}

int clt_mpt_units(const clt_model_config *config, const clt_slab_table *t, clt_model_unit **units) {
    return clt_mpt_units_of(t, ((const clt_mpt_config *)config)->n_layers, "transformer.blocks.",
                            "norm_1.weight", "transformer.norm_f.weight", units);
}

int clt_mpt_order(const clt_model_config *config, clt_model_order_kind kind, int **order) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    const int head = clt_mpt_head_unit(c);
    const bool tied = c->tie_word_embeddings, gradients = kind == CLT_ORDER_GRADIENTS;
    int n = 0, *list = clt_calloc(2 * (size_t)head + 2, sizeof *list);
    for (int u = CLT_MPT_EMBEDDING_UNIT; u < head && !gradients; u++) list[n++] = u;
    if (tied && gradients) list[n++] = CLT_MPT_EMBEDDING_UNIT;
    list[n++] = head;
    if (tied && !gradients) list[n++] = CLT_MPT_EMBEDDING_UNIT;
    for (int u = head - 1; u > CLT_MPT_EMBEDDING_UNIT && kind != CLT_ORDER_FORWARD; u--) list[n++] = u;
    if (!tied && gradients) list[n++] = CLT_MPT_EMBEDDING_UNIT;
    *order = list;
    return n;
}

/* --- where a tensor is read --- */

bool clt_mpt_reads_wide(const clt_model_config *config, const clt_model_shape *shape, const clt_slab_table *t,
                        int entry) {
    (void)config;
    const bool embedding = entry == clt_slab_table_find(t, "transformer.wte.weight") ||
                           entry == clt_slab_table_find(t, "transformer.wpe.weight");
    return t->entry[entry].dims == 1 || (embedding && !shape->narrow_embeddings);
}

static bool reads_narrow(const clt_mpt *m, int entry) {
    return m->narrow && (entry == m->index.lm_head ||
                         !clt_model_reads_wide(&m->cfg.base, &m->shape, m->weights->table, entry));
}

/* --- the hooks --- */

static clt_status check_present(const clt_slab *slab, int entry, const char *what, const char *hook) {
    if (clt_slab_ref(slab, entry).buf) return CLT_OK;
    return clt_error(CLT_FAIL, "%s of tensor '%s' are absent after the hook %s; the hook must provide them",
                     what, slab->table->entry[entry].name, hook);
}

/* An absent tensor would count as one that the model does not have. */
clt_status clt_mpt_need(clt_mpt *m, int unit) {
    if (!m->base.need) return CLT_OK;
    CLT_TRY(clt_model_unit_need(&m->base, unit));
    for (int i = m->units[unit].first; i < m->units[unit].end; i++) {
        if (clt_model_reads_wide(&m->cfg.base, &m->shape, m->weights->table, i))
            CLT_TRY(check_present(m->weights, i, "fp32 weights", "need"));
        if (reads_narrow(m, i)) CLT_TRY(check_present(m->narrow, i, "16-bit weights", "need"));
    }
    return CLT_OK;
}

clt_status clt_mpt_done(clt_mpt *m, int unit) {
    return clt_model_unit_done(&m->base, unit);
}

clt_status clt_mpt_gradients_need(clt_mpt *m, const clt_model_pass *b, int unit) {
    if (!m->base.grads_need) return CLT_OK;
    CLT_TRY(clt_model_gradients_need(&m->base, unit));
    for (int i = m->units[unit].first; i < m->units[unit].end; i++)
        CLT_TRY(check_present(b->grads, i, "gradients", "grads_need"));
    return CLT_OK;
}
