/* The tensors of a family's files, from its table of names and the decoder's table of parameters. */
#include "runtime/model/hf/clt_hf_model.h"

typedef struct {
    const clt_mpt_config *cfg;
    const clt_slab_table *table;
    clt_weight_map *map;
    bool *found; /* [table->n]: has a part */
} expansion;

/* The pattern with the layer's number in place of '*', and the suffix behind it. */
static char *expand(const char *pattern, int64_t layer, const char *suffix) {
    const char *star = strchr(pattern, '*');
    if (!star) return clt_format("%s.%s", pattern, suffix);
    return clt_format("%.*s%lld%s.%s", (int)(star - pattern), pattern, (long long)layer, star + 1, suffix);
}

static void add_by_head(expansion *x, clt_map_part p) {
    const int64_t D = x->cfg->head_dim, Q = x->cfg->n_heads * D;
    p.rows = Q, p.block = D, p.stride = 3 * D;
    for (int i = 0; i < 3; i++) {
        p.first = i * Q;
        p.offset = i * D;
        clt_weight_map_add_part(x->map, &p);
    }
}

static void add_tensor(expansion *x, const clt_hf_tensor *t, int entry, const char *file) {
    const clt_slab_entry *e = &x->table->entry[entry];
    const int64_t Q = x->cfg->n_heads * x->cfg->head_dim, K = x->cfg->kv_n_heads * x->cfg->head_dim;
    int64_t shape[2] = {e->shape[0], e->dims > 1 ? e->shape[1] : 1};
    clt_map_part p = {.tensor = entry, .rows = shape[0], .cols = shape[1]};
    switch (t->layout) {
    case CLT_HF_SAME:
    case CLT_HF_BY_HEAD:
        break;
    case CLT_HF_TRANSPOSED:
        p.transposed = e->dims > 1;
        if (p.transposed) shape[0] = p.cols, shape[1] = p.rows;
        break;
    case CLT_HF_QUERIES:
        shape[0] = p.rows = Q;
        break;
    case CLT_HF_KEYS:
    case CLT_HF_VALUES:
        p.first = t->layout == CLT_HF_KEYS ? Q : Q + K;
        shape[0] = p.rows = K;
    }
    p.block = p.rows;
    p.file = clt_weight_map_add_file(x->map, file, e->dims, shape);
    x->found[entry] = true;
    if (t->layout == CLT_HF_BY_HEAD)
        add_by_head(x, p);
    else
        clt_weight_map_add_part(x->map, &p);
}

static void add_row(expansion *x, const clt_hf_tensor *t, int64_t layer) {
    static const char *const suffixes[] = {"weight", "bias"};
    for (size_t i = 0; i < CLT_COUNT_OF(suffixes); i++) {
        char *tensor = expand(t->tensor, layer, suffixes[i]), *file = expand(t->file, layer, suffixes[i]);
        const int entry = clt_slab_table_find(x->table, tensor);
        if (entry >= 0) add_tensor(x, t, entry, file);
        clt_free(tensor);
        clt_free(file);
    }
}

clt_status clt_hf_weight_map(const clt_model_config *config, const clt_slab_table *table,
                             clt_weight_map **out) {
    const clt_hf_family *f = clt_hf_family_of(config);
    expansion x = {.cfg = (const clt_mpt_config *)config,
                   .table = table,
                   .map = clt_calloc(1, sizeof *x.map),
                   .found = clt_calloc((size_t)table->n, sizeof *x.found)};
    clt_status st = CLT_OK;
    x.map->prefix = f->prefix;
    x.map->ignored = f->ignored;
    x.map->head = f->head;
    for (int i = 0; i < f->n_tensors; i++) {
        const int64_t n = strchr(f->tensors[i].tensor, '*') ? x.cfg->n_layers : 1;
        for (int64_t layer = 0; layer < n; layer++) add_row(&x, &f->tensors[i], layer);
    }
    for (int i = 0; i < table->n && st == CLT_OK; i++)
        if (!x.found[i])
            st = clt_error(CLT_FAIL, "the table of %s has no name for tensor '%s'; this is a bug",
                           f->model_type, table->entry[i].name);
    clt_free(x.found);
    if (st == CLT_OK)
        *out = x.map;
    else
        clt_weight_map_free(x.map);
    return st;
}
