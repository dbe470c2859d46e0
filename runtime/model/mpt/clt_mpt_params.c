/* The parameter table of an MPT and its initial values (LLM Foundry's names and init_config). */
#include "runtime/model/mpt/clt_mpt_internal.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/base/clt_philox.h"

/* --- table --- */

static void add(clt_slab_table *t, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void add(clt_slab_table *t, int64_t rows, int64_t cols, const char *fmt, ...) {
    char name[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    if (cols)
        clt_slab_table_add(t, name, 2, (int64_t[]){rows, cols});
    else
        clt_slab_table_add(t, name, 1, (int64_t[]){rows});
}

/* A Linear: weight [out, in] and, if `bias`, bias [out]. */
static void add_linear(clt_slab_table *t, const char *prefix, int64_t out, int64_t in, bool bias) {
    add(t, out, in, "%s.weight", prefix);
    if (bias) add(t, out, 0, "%s.bias", prefix);
}

static void add_norm(clt_slab_table *t, const char *prefix, int64_t cols, bool bias) {
    add(t, cols, 0, "%s.weight", prefix);
    if (bias) add(t, cols, 0, "%s.bias", prefix);
}

static void add_attention(const clt_mpt_config *c, int layer, clt_slab_table *t, const char *block) {
    int64_t q = c->n_heads * c->head_dim, kv = c->kv_n_heads * c->head_dim;
    bool own_kv = c->layer[layer].reuse_kv < 0;
    char p[128];
    if (own_kv && c->fused_qkv) {
        snprintf(p, sizeof p, "%s.attn.Wqkv", block);
        add_linear(t, p, q + 2 * kv, c->d_model, c->attention_bias);
    } else {
        static const char *name[] = {"Wq", "Wk", "Wv"};
        for (int i = 0; i < (own_kv ? 3 : 1); i++) {
            snprintf(p, sizeof p, "%s.attn.%s", block, name[i]);
            add_linear(t, p, i == 0 ? q : kv, c->d_model, c->attention_bias);
        }
    }
    /* The qk norms are always layer norms, whatever norm_type says. */
    if (c->qk_ln || c->qk_gn) {
        snprintf(p, sizeof p, "%s.attn.q_ln", block);
        add_norm(t, p, c->qk_gn ? c->head_dim : q, c->norm_bias);
        snprintf(p, sizeof p, "%s.attn.k_ln", block);
        if (own_kv) add_norm(t, p, c->qk_gn ? c->head_dim : kv, c->norm_bias);
    }
    snprintf(p, sizeof p, "%s.attn.out_proj", block);
    add_linear(t, p, c->d_model, q, c->out_bias);
}

static void add_block(const clt_mpt_config *c, int layer, clt_slab_table *t) {
    bool norm_bias = c->norm_bias && !c->rms_norm;
    char block[64], p[128];
    snprintf(block, sizeof block, "transformer.blocks.%d", layer);
    snprintf(p, sizeof p, "%s.norm_1", block);
    add_norm(t, p, c->d_model, norm_bias);
    add_attention(c, layer, t, block);
    snprintf(p, sizeof p, "%s.post_norm_1", block);
    if (c->post_norms) add_norm(t, p, c->d_model, norm_bias);
    snprintf(p, sizeof p, "%s.norm_2", block);
    add_norm(t, p, c->d_model, norm_bias);
    snprintf(p, sizeof p, "%s.ffn.up_proj", block);
    add_linear(t, p, c->ffn_hidden, c->d_model, c->mlp_bias);
    snprintf(p, sizeof p, "%s.ffn.down_proj", block);
    add_linear(t, p, c->d_model, c->ffn_hidden, c->mlp_bias);
    snprintf(p, sizeof p, "%s.ffn.gate_proj", block);
    if (c->glu) add_linear(t, p, c->ffn_hidden, c->d_model, c->mlp_bias);
    snprintf(p, sizeof p, "%s.post_norm_2", block);
    if (c->post_norms) add_norm(t, p, c->d_model, norm_bias);
}

clt_status clt_mpt_table(const clt_model_config *config, clt_slab_table *t) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    add(t, c->vocab_size, c->d_model, "transformer.wte.weight");
    if (c->learned_pos_emb) add(t, c->max_seq_len, c->d_model, "transformer.wpe.weight");
    for (int i = 0; i < c->n_layers; i++) add_block(c, i, t);
    add_norm(t, "transformer.norm_f", c->d_model, c->norm_bias && !c->rms_norm);
    if (!c->tie_word_embeddings) add(t, c->vocab_size, c->d_model, "lm_head.weight");
    clt_slab_table_finish(t);
    return CLT_OK;
}

double clt_mpt_train_flops_per_token(const clt_model_config *config, int64_t seq) {
    const clt_mpt_config *c = (const clt_mpt_config *)config;
    return 6.0 * (double)clt_model_param_count(config) +
           12.0 * (double)c->n_layers * (double)c->d_model * (double)seq;
}

static int find(const clt_slab_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int find(const clt_slab_table *t, const char *fmt, ...) {
    char name[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    return clt_slab_table_find(t, name);
}

void clt_mpt_index_create(const clt_mpt_config *c, const clt_slab_table *t, clt_mpt_index *x) {
    x->wte = find(t, "transformer.wte.weight");
    x->wpe = find(t, "transformer.wpe.weight");
    x->norm_f_w = find(t, "transformer.norm_f.weight");
    x->norm_f_b = find(t, "transformer.norm_f.bias");
    x->lm_head = c->tie_word_embeddings ? x->wte : find(t, "lm_head.weight");
    x->block = clt_calloc((size_t)c->n_layers, sizeof *x->block);
    for (int i = 0; i < c->n_layers; i++) {
        clt_mpt_block_index *b = &x->block[i];
        const struct {
            int *at;
            const char *name;
        } names[] = {
            {&b->norm1_w, "norm_1.weight"},
            {&b->norm1_b, "norm_1.bias"},
            {&b->post_w[0], "post_norm_1.weight"},
            {&b->post_b[0], "post_norm_1.bias"},
            {&b->post_w[1], "post_norm_2.weight"},
            {&b->post_b[1], "post_norm_2.bias"},
            {&b->wqkv, "attn.Wqkv.weight"},
            {&b->bqkv, "attn.Wqkv.bias"},
            {&b->wq, "attn.Wq.weight"},
            {&b->bq, "attn.Wq.bias"},
            {&b->wk, "attn.Wk.weight"},
            {&b->bk, "attn.Wk.bias"},
            {&b->wv, "attn.Wv.weight"},
            {&b->bv, "attn.Wv.bias"},
            {&b->q_ln_w, "attn.q_ln.weight"},
            {&b->q_ln_b, "attn.q_ln.bias"},
            {&b->k_ln_w, "attn.k_ln.weight"},
            {&b->k_ln_b, "attn.k_ln.bias"},
            {&b->wout, "attn.out_proj.weight"},
            {&b->bout, "attn.out_proj.bias"},
            {&b->norm2_w, "norm_2.weight"},
            {&b->norm2_b, "norm_2.bias"},
            {&b->wgate, "ffn.gate_proj.weight"},
            {&b->bgate, "ffn.gate_proj.bias"},
            {&b->wup, "ffn.up_proj.weight"},
            {&b->bup, "ffn.up_proj.bias"},
            {&b->wdown, "ffn.down_proj.weight"},
            {&b->bdown, "ffn.down_proj.bias"},
        };
        for (size_t k = 0; k < CLT_COUNT_OF(names); k++)
            *names[k].at = find(t, "transformer.blocks.%d.%s", i, names[k].name);
    }
}

void clt_mpt_token_index(clt_mpt *m) {
    clt_mpt_index_create(&m->cfg, m->weights->table, &m->index);
}

void clt_mpt_index_free(clt_mpt_index *x) {
    clt_free(x->block);
    x->block = NULL;
}

/* --- initial values --- */

typedef clt_mpt_init_rule init_rule;

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Standard deviation or bound of the named scheme for a matrix of this fan. */
static init_rule scheme(const clt_mpt_config *c, double fan_in, double fan_out, bool linear) {
    double d = (double)c->d_model, fan = c->init_fan_out ? fan_out : fan_in;
    switch (c->init) {
    case CLT_INIT_KAIMING_NORMAL:
        return (init_rule){CLT_MPT_INIT_NORMAL, c->init_nonlinearity_gain / clt_dsqrt(fan), 0, 1};
    case CLT_INIT_KAIMING_UNIFORM: {
        double bound = c->init_nonlinearity_gain * clt_dsqrt(3.0 / fan);
        return (init_rule){CLT_MPT_INIT_UNIFORM, -bound, bound, 1};
    }
    case CLT_INIT_XAVIER_NORMAL:
        return (init_rule){CLT_MPT_INIT_NORMAL, c->init_gain * clt_dsqrt(2.0 / (fan_in + fan_out)), 0, 1};
    case CLT_INIT_XAVIER_UNIFORM: {
        double bound = c->init_gain * clt_dsqrt(6.0 / (fan_in + fan_out));
        return (init_rule){CLT_MPT_INIT_UNIFORM, -bound, bound, 1};
    }
    case CLT_INIT_BASELINE:
        return (init_rule){CLT_MPT_INIT_NORMAL, c->init_std, 0, 1};
    case CLT_INIT_SMALL:
    case CLT_INIT_NEOX:
        return (init_rule){CLT_MPT_INIT_NORMAL, clt_dsqrt(2.0 / (5.0 * d)), 0, 1};
    case CLT_INIT_DEFAULT:
        break;
    }
    /* torch's reset_parameters: Linear U(-1/sqrt(fan_in), ...), Embedding N(0, 1) */
    if (!linear) return (init_rule){CLT_MPT_INIT_NORMAL, 1, 0, 1};
    return (init_rule){CLT_MPT_INIT_UNIFORM, -1.0 / clt_dsqrt(fan_in), 1.0 / clt_dsqrt(fan_in), 1};
}

/* A fused Wqkv is initialised slice by slice, one head's rows at a time (matters only for fan_out and
 * xavier). */
static double rows_of_slice(const clt_mpt_config *c, const clt_slab_entry *e) {
    bool qkv = strstr(e->name, ".attn.W") != NULL;
    return qkv ? (double)c->head_dim : (double)e->shape[0];
}

static init_rule rule_of(const clt_mpt_config *c, const clt_slab_entry *e) {
    bool embedding = ends_with(e->name, "wte.weight") || ends_with(e->name, "wpe.weight");
    if (e->dims == 1) {
        bool norm_weight = strstr(e->name, "norm_") && ends_with(e->name, ".weight");
        bool qk_norm = ends_with(e->name, "_ln.weight");
        return (init_rule){CLT_MPT_INIT_CONSTANT, norm_weight ? 1 - c->norm_offset : qk_norm, 0, 1};
    }
    if (embedding) {
        if (c->emb_init_std >= 0) return (init_rule){CLT_MPT_INIT_NORMAL, c->emb_init_std, 0, 1};
        if (c->emb_init_uniform)
            return (init_rule){CLT_MPT_INIT_UNIFORM, c->emb_init_low, c->emb_init_high, 1};
    }
    init_rule r = scheme(c, (double)e->shape[1], rows_of_slice(c, e), !embedding);
    bool residual = ends_with(e->name, "out_proj.weight") || ends_with(e->name, "down_proj.weight");
    if (residual && c->init_div_is_residual > 0) r.divisor = c->init_div_is_residual;
    return r;
}

void clt_mpt_init_range(const clt_model_config *config, const clt_slab_table *t, int entry, uint64_t seed,
                        uint64_t first, uint64_t count, float *out) {
    const init_rule r = rule_of((const clt_mpt_config *)config, &t->entry[entry]);
    clt_mpt_init_fill(&r, entry, seed, first, count, out);
}

void clt_mpt_init_fill(const clt_mpt_init_rule *rule, int entry, uint64_t seed, uint64_t first,
                       uint64_t count, float *out) {
    const init_rule r = *rule;
    uint32_t key[2], w[4] = {0};
    clt_philox_key(seed, CLT_RNG_INIT, key);
    for (uint64_t i = first; i < first + count; i++) {
        if (r.kind == CLT_MPT_INIT_CONSTANT) {
            out[i - first] = (float)r.a;
            continue;
        }
        if (i % 4 == 0 || i == first)
            clt_philox4x32((uint32_t[]){(uint32_t)(i / 4), (uint32_t)(i / 4 >> 32), (uint32_t)entry, 0}, key,
                           w);
        double u = ((double)w[i % 4] + 0.5) * 0x1p-32;
        double v = r.kind == CLT_MPT_INIT_NORMAL ? r.a * clt_dnormal_quantile(u) : r.a + (r.b - r.a) * u;
        out[i - first] = (float)(v / r.divisor);
    }
}
