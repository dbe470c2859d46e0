#include "runtime/model/mpt/clt_mpt_config.h"

#include <math.h>

#include "runtime/base/clt_dmath.h"
#include "runtime/model/mpt/clt_mpt_config_internal.h"

/* --- from what is written to what is meant --- */

static clt_status fail(clt_schema_reader *r, const char *path, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static clt_status fail(clt_schema_reader *r, const char *path, const char *key, const char *fmt, ...) {
    char *full = *path ? clt_format("%s.%s", path, key) : clt_strdup(key);
    va_list ap;
    va_start(ap, fmt);
    char *text = clt_vformat(fmt, ap);
    va_end(ap);
    clt_status st = clt_schema_fail(r, full, "%s", text);
    clt_free(text);
    clt_free(full);
    return st;
}

static clt_status check_ranges(clt_schema_reader *r, const char *path, const clt_mpt_config_raw *raw) {
    const struct {
        const char *key;
        int64_t v, most;
    } whole[] = {{"d_model", raw->d_model, 1 << 20},
                 {"n_heads", raw->n_heads, 1 << 16},
                 {"n_layers", raw->n_layers, CLT_MPT_MAX_LAYERS},
                 {"max_seq_len", raw->max_seq_len, 1 << 24},
                 {"vocab_size", raw->vocab_size, 1 << 30}};
    for (size_t i = 0; i < CLT_COUNT_OF(whole); i++)
        if (whole[i].v < 1 || whole[i].v > whole[i].most)
            return fail(r, path, whole[i].key, "is %lld: it must be from 1 to %lld", (long long)whole[i].v,
                        (long long)whole[i].most);
    const struct {
        const char *key;
        double v;
    } drop[] = {{"resid_pdrop", raw->resid_pdrop},
                {"emb_pdrop", raw->emb_pdrop},
                {"attn_config.attn_pdrop", raw->attn_pdrop}};
    for (size_t i = 0; i < CLT_COUNT_OF(drop); i++)
        if (!(drop[i].v >= 0 && drop[i].v < 1))
            return fail(r, path, drop[i].key, "is %g: a probability of dropping is at least 0 and below 1",
                        drop[i].v);
    const struct {
        const char *key;
        double v;
    } positive[] = {{"norm_eps", raw->norm_eps},
                    {"embedding_scale", raw->embedding_scale},
                    {"attn_config.rope_theta", raw->rope_theta},
                    {"attn_config.alibi_bias_max", raw->alibi_bias_max},
                    {"attn_config.rope_hf_config.factor", raw->rope_factor},
                    {"attn_config.attn_temperature_tuning.floor_scale", raw->temperature_floor}};
    for (size_t i = 0; i < CLT_COUNT_OF(positive); i++)
        if (!(positive[i].v > 0))
            return fail(r, path, positive[i].key, "is %g: it must be above 0", positive[i].v);
    if (!(raw->embedding_fraction > 0 && raw->embedding_fraction <= 1))
        return fail(r, path, "embedding_fraction", "is %g: it must be above 0 and at most 1",
                    raw->embedding_fraction);
    if (raw->norm_offset != 0 && raw->norm_offset != 1)
        return fail(r, path, "norm_offset", "is %g: it must be 0 or 1", raw->norm_offset);
    if (raw->post_norms && raw->resid_pdrop > 0)
        return fail(r, path, "post_norms", "does not support dropout of branches; set resid_pdrop to 0");
    if (raw->window < -1)
        return fail(r, path, "attn_config.sliding_window_size", "must be -1 (off) or at least 0");
    return CLT_OK;
}

/* Optional numbers were preset to NaN, so that "not given" and 0 differ. */
static double or_else(double v, double fallback) {
    return isnan(v) ? fallback : v;
}

static clt_status check_optional_positive(clt_schema_reader *r, const char *path,
                                          const clt_mpt_config_raw *raw) {
    const struct {
        const char *key;
        double v;
    } opt[] = {{"attn_config.clip_qkv", raw->clip_qkv},
               {"attn_config.softmax_scale", raw->softmax_scale},
               {"attn_config.attn_logit_softcapping", raw->attn_logit_softcapping},
               {"final_logit_softcapping", raw->final_logit_softcapping}};
    for (size_t i = 0; i < CLT_COUNT_OF(opt); i++)
        if (!isnan(opt[i].v) && !(opt[i].v > 0))
            return fail(r, path, opt[i].key, "is %g: it must be above 0", opt[i].v);
    return CLT_OK;
}

static clt_status resolve_heads(clt_schema_reader *r, const char *path, const clt_mpt_config_raw *raw,
                                clt_mpt_config *c) {
    static const char *const types[] = {"multihead", "multiquery", "grouped_query"};
    int64_t H = raw->n_heads;
    if (raw->d_model % H != 0)
        return fail(r, path, "d_model", "is %lld, which n_heads %lld does not divide",
                    (long long)raw->d_model, (long long)H);
    c->head_dim = raw->head_dim ? raw->head_dim : raw->d_model / H;
    if (c->head_dim < 1 || c->head_dim > 1 << 16) return fail(r, path, "head_dim", "must be from 1 to 65536");
    int64_t kv = raw->attn_type == 0 ? H : raw->attn_type == 1 ? 1 : raw->kv_n_heads;
    if (raw->attn_type == 2 && raw->kv_n_heads == 0)
        return fail(r, path, "attn_config.attn_type", "grouped_query_attention needs kv_n_heads beside it");
    if (raw->kv_n_heads && raw->kv_n_heads != kv)
        return fail(r, path, "attn_config.kv_n_heads", "is %lld, but %s attention has %lld",
                    (long long)raw->kv_n_heads, types[raw->attn_type], (long long)kv);
    if (kv < 1 || kv > H || H % kv != 0)
        return fail(r, path, "attn_config.kv_n_heads", "is %lld: it must divide n_heads %lld", (long long)kv,
                    (long long)H);
    c->kv_n_heads = kv;
    if (raw->qk_ln && raw->qk_gn) return fail(r, path, "attn_config.qk_gn", "and qk_ln cannot both be true");
    if (raw->rope && raw->rope_fraction == 1 && c->head_dim % 2 != 0)
        return fail(r, path, "attn_config.rope", "needs an even head size, not %lld", (long long)c->head_dim);
    return CLT_OK;
}

static clt_status resolve_ffn(clt_schema_reader *r, const char *path, const clt_mpt_config_raw *raw,
                              clt_mpt_config *c) {
    double hidden = raw->ffn_hidden ? (double)raw->ffn_hidden : (double)raw->d_model * raw->expansion_ratio;
    if (!(hidden >= 1 && hidden <= 1 << 24))
        return fail(r, path, raw->ffn_hidden ? "ffn_config.ffn_hidden_size" : "expansion_ratio",
                    "makes the MLP %g wide: it must be from 1 to %d", hidden, 1 << 24);
    if (hidden != floor(hidden))
        return fail(r, path, "expansion_ratio", "times d_model is %.10g, which is not a whole number",
                    hidden);
    c->ffn_hidden = (int64_t)hidden;
    c->glu = raw->glu;
    c->activation = raw->activation;
    return CLT_OK;
}

static clt_status resolve_init(clt_schema_reader *r, const char *path, const clt_mpt_config_raw *raw,
                               clt_mpt_config *c) {
    double a = raw->init_gain;
    const double gains[] = {clt_dsqrt(2), 1, 1, 5.0 / 3, clt_dsqrt(2 / (1 + a * a)), 0.75};
    c->init = (clt_init_kind)raw->init;
    c->init_fan_out = raw->fan_out;
    c->init_gain = raw->init_gain;
    c->init_nonlinearity_gain = gains[raw->nonlinearity];
    c->init_std = or_else(raw->init_std, 0);
    if (c->init == CLT_INIT_BASELINE && isnan(raw->init_std))
        return fail(r, path, "init_config.init_std", "must be given with baseline_");
    if (c->init_std < 0) return fail(r, path, "init_config.init_std", "must not be negative");
    double L = (double)raw->n_layers;
    c->init_div_is_residual = raw->div_residual == -1 ? clt_dsqrt(2 * L) : raw->div_residual;
    if (c->init == CLT_INIT_NEOX) c->init_div_is_residual = L / clt_dsqrt(10);
    c->emb_init_std = or_else(raw->emb_init_std, -1);
    if (!isnan(raw->emb_init_std) && raw->emb_init_std < 0)
        return fail(r, path, "init_config.emb_init_std", "must not be negative");
    c->emb_init_uniform = raw->emb_limits.given && c->emb_init_std < 0;
    c->emb_init_low = raw->emb_limits.low;
    c->emb_init_high = raw->emb_limits.high;
    if (c->emb_init_uniform && c->emb_init_low > c->emb_init_high)
        return fail(r, path, "init_config.emb_init_uniform_lim", "has its lower limit above the upper one");
    return CLT_OK;
}

static clt_status resolve_rope(clt_schema_reader *r, const char *path, const clt_mpt_config_raw *raw,
                               clt_mpt_config *c) {
    static const clt_rope_kind kinds[] = {CLT_ROPE_PLAIN, CLT_ROPE_LINEAR, CLT_ROPE_DYNAMIC, CLT_ROPE_LLAMA3};
    c->rope = !raw->rope ? CLT_ROPE_NONE : raw->rope_impl == 0 ? CLT_ROPE_PLAIN : kinds[raw->rope_hf_type];
    if (!(raw->rope_fraction > 0 && raw->rope_fraction <= 1))
        return fail(r, path, "attn_config.rope_fraction", "is %g: it must be above 0 and at most 1",
                    raw->rope_fraction);
    c->rope_dims = (int64_t)floor((double)c->head_dim * raw->rope_fraction);
    if (raw->rope && (c->rope_dims < 2 || c->rope_dims % 2 != 0))
        return fail(r, path, "attn_config.rope_fraction",
                    "%g of a head of %lld is %lld: the number of rotated dimensions must be even and above 0",
                    raw->rope_fraction, (long long)c->head_dim, (long long)c->rope_dims);
    c->rope_fraction = raw->rope_fraction;
    c->rope_theta = raw->rope_theta;
    c->rope_factor = raw->rope_factor;
    c->rope_low_freq_factor = raw->rope_low;
    c->rope_high_freq_factor = raw->rope_high;
    c->rope_original_max_positions = raw->rope_original;
    if (c->rope != CLT_ROPE_LLAMA3) return CLT_OK;
    if (!(raw->rope_low > 0 && raw->rope_high > raw->rope_low) || raw->rope_original < 1)
        return fail(
            r, path, "attn_config.rope_hf_config",
            "needs 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings above 0");
    return CLT_OK;
}

static void resolve_plain(const clt_mpt_config_raw *raw, clt_mpt_config *c) {
    c->d_model = raw->d_model;
    c->n_heads = raw->n_heads;
    c->n_layers = raw->n_layers;
    c->max_seq_len = raw->max_seq_len;
    c->vocab_size = raw->vocab_size;
    c->resid_pdrop = raw->resid_pdrop;
    c->emb_pdrop = raw->emb_pdrop;
    c->attn_pdrop = raw->attn_pdrop;
    c->learned_pos_emb = raw->learned_pos_emb && !raw->alibi && !raw->rope;
    c->no_bias = raw->no_bias;
    c->attention_bias = raw->attention_bias < 0 ? !raw->no_bias : raw->attention_bias;
    c->out_bias = c->mlp_bias = c->norm_bias = !raw->no_bias;
    c->tie_word_embeddings = raw->tie_word_embeddings;
    c->fused_qkv = raw->fused_qkv;
    c->rms_norm = raw->norm >= 2;
    c->norm_eps = raw->norm_eps;
    c->norm_offset = raw->norm_offset;
    c->post_norms = raw->post_norms;
    c->parallel_residual = raw->parallel_residual;
    c->embedding_scale = raw->embedding_scale;
    c->padding_id = -1;
    c->embedding_fraction = raw->embedding_fraction;
    c->logit_scale = raw->logit_scale.inv_sqrt_d_model ? 1 / clt_dsqrt((double)raw->d_model)
                                                       : or_else(raw->logit_scale.number, 1);
    c->final_logit_softcapping = or_else(raw->final_logit_softcapping, 0);
    c->qk_ln = raw->qk_ln;
    c->qk_gn = raw->qk_gn;
    c->clip_qkv = or_else(raw->clip_qkv, 0);
    c->softmax_scale =
        or_else(raw->softmax_scale, 1 / clt_dsqrt((double)raw->d_model / (double)raw->n_heads));
    c->attn_logit_softcapping = or_else(raw->attn_logit_softcapping, 0);
    c->attn_uses_sequence_id = raw->attn_uses_sequence_id;
    c->alibi = raw->alibi;
    c->alibi_bias_max = raw->alibi_bias_max;
    c->temperature_floor_scale = raw->temperature_floor;
    c->temperature_attn_scale = raw->temperature_scale;
}

/* Alibi and rope turn learned positions off; a file that asks for them gets a notice. */
static void note_positions(clt_schema_reader *r, const char *path, const json_t *o,
                           const clt_mpt_config_raw *raw) {
    if (!r->notices || !(raw->alibi || raw->rope) || !json_is_true(json_object_get(o, "learned_pos_emb")))
        return;
    char *key = clt_format("%s.learned_pos_emb", path);
    clt_notices_add(r->notices, key, "alibi and rope turn learned positions off");
    clt_free(key);
}

static clt_status resolve(clt_schema_reader *r, const char *path, const json_t *o,
                          const clt_mpt_config_raw *raw, clt_mpt_config *c) {
    CLT_TRY(check_ranges(r, path, raw));
    CLT_TRY(check_optional_positive(r, path, raw));
    CLT_TRY(resolve_heads(r, path, raw, c));
    CLT_TRY(resolve_ffn(r, path, raw, c));
    CLT_TRY(resolve_rope(r, path, raw, c));
    CLT_TRY(resolve_init(r, path, raw, c));
    resolve_plain(raw, c);
    note_positions(r, path, o, raw);
    return clt_mpt_config_blocks(r, path, raw->block_overrides, raw->window, c);
}

/* What a config.json means in Foundry's words: the MptConfig of transformers calls norm_eps
 * layer_norm_epsilon. A new reference. */
static json_t *foundry_keys(json_t *o) {
    json_t *eps = json_object_get(o, "layer_norm_epsilon");
    if (!eps || json_object_get(o, "norm_eps")) return json_incref(o);
    json_t *with = json_copy(o);
    json_object_set(with, "norm_eps", eps);
    return with;
}

clt_status clt_mpt_config_read(clt_schema_reader *r, const char *path, json_t *o, clt_model_config *out) {
    clt_mpt_config_raw raw = {.attention_bias = -1};
    raw.clip_qkv = raw.softmax_scale = raw.attn_logit_softcapping = raw.final_logit_softcapping = NAN;
    raw.logit_scale.number = raw.emb_init_std = raw.init_std = NAN;
    json_t *keys = r->ignore_unknown ? foundry_keys(o) : json_incref(o);
    clt_status st = clt_schema_read(r, &clt_mpt_config_model_schema, path, keys, &raw);
    if (st == CLT_OK) st = resolve(r, path, keys, &raw, (clt_mpt_config *)out);
    json_decref(keys);
    return st;
}
