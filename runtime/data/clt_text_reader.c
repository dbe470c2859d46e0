/* Samples of text: token columns as they are, text columns through the tokenizer; labels and sequence ids as
 * LLM Foundry's collator makes them. */
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/clt_reader.h"
#include "runtime/data/clt_tokenizer.h"

typedef struct {
    clt_reader base;
    int64_t T, vocab_size;
    int32_t eos, bos, pad; /* -1: none */
    clt_mds *mds;
    clt_tokenizer *tokenizer; /* NULL for token columns */
    clt_str text;
    bool compared; /* the length of a sample and T */
} text_reader;

/* --- one sample --- */

/* Data of another length are read all the same, and are often a mistake. */
static void compare_length(text_reader *t, int64_t sample, int64_t length) {
    t->compared = true;
    if (length == t->T) return;
    clt_info("sample %lld of %s has %lld tokens, and max_seq_len is %lld: %s", (long long)sample,
             clt_mds_dir(t->mds), (long long)length, (long long)t->T,
             length < t->T ? "such rows are padded" : "the rest of such samples is not used");
}

static clt_status read_tokens(text_reader *t, int64_t sample, int32_t *row, int64_t *n) {
    if (!t->tokenizer) {
        int64_t length;
        CLT_TRY(clt_mds_get_tokens(t->mds, sample, t->T, t->vocab_size, row, n, &length));
        if (!t->compared) compare_length(t, sample, length);
        return CLT_OK;
    }
    size_t got;
    CLT_TRY(clt_mds_get_text(t->mds, sample, &t->text));
    CLT_TRY(clt_tokenizer_encode(t->tokenizer, t->text.s, t->text.len,
                                 clt_tokenizer_default_flags(t->tokenizer), row, (size_t)t->T, &got));
    *n = (int64_t)got;
    return CLT_OK;
}

/* Labels: the next token; ignored past the end and where it is the padding id. Returns how many are not
 * ignored. */
static int64_t make_targets(const text_reader *t, const int32_t *row, int64_t n, int32_t *targets) {
    int64_t counted = 0;
    for (int64_t i = 0; i < t->T; i++) {
        bool ignored = i + 1 >= n || (t->pad >= 0 && row[i + 1] == t->pad);
        targets[i] = ignored ? CLT_LABEL_IGNORE : row[i + 1];
        counted += !ignored;
    }
    return counted;
}

static void make_seq_ids(const text_reader *t, const int32_t *row, int32_t *ids) {
    int32_t id = 0;
    for (int64_t i = 0; i < t->T; i++) {
        if (t->bos >= 0) id += row[i] == t->bos;
        ids[i] = id;
        if (t->eos >= 0) id += row[i] == t->eos;
    }
}

static clt_status read_sample(clt_reader *r, int64_t sample, int64_t epoch,
                              void *const row[CLT_BATCH_MAX_FIELDS], clt_sample_counts *out) {
    text_reader *t = (text_reader *)r;
    int32_t *tokens = row[CLT_TEXT_TOKENS];
    (void)epoch; /* text is the same in every epoch */
    CLT_TRY(read_tokens(t, sample, tokens, &out->tokens));
    for (int64_t i = out->tokens; i < t->T; i++) tokens[i] = t->pad >= 0 ? t->pad : 0;
    out->targets = make_targets(t, tokens, out->tokens, row[CLT_TEXT_TARGETS]);
    if (row[CLT_TEXT_SEQ_IDS]) make_seq_ids(t, tokens, row[CLT_TEXT_SEQ_IDS]);
    return CLT_OK;
}

static size_t shard_of(const clt_reader *r, int64_t sample) {
    return clt_mds_fetch_shard(((const text_reader *)r)->mds, sample);
}

/* In Foundry's collator a label is the id at its own position. */
static clt_status show_sample(clt_reader *r, int64_t epoch, int64_t sample, clt_loader_view *v) {
    text_reader *t = (text_reader *)r;
    clt_sample_counts counts = {0};
    void *row[CLT_BATCH_MAX_FIELDS] = {[CLT_TEXT_TOKENS] = v->input_ids, [CLT_TEXT_TARGETS] = v->labels};
    if (r->layout.field[CLT_TEXT_SEQ_IDS].bytes) row[CLT_TEXT_SEQ_IDS] = v->sequence_id;
    CLT_TRY(read_sample(r, sample, epoch, row, &counts));
    v->tokens = counts.tokens;
    for (int64_t i = 0; i < t->T; i++) {
        const bool ignored = i >= counts.tokens || (t->pad >= 0 && v->input_ids[i] == t->pad);
        v->labels[i] = ignored ? CLT_LABEL_IGNORE : v->input_ids[i];
        v->attention_mask[i] = i < counts.tokens;
    }
    return CLT_OK;
}

/* --- opening --- */

static clt_status check_params(const clt_loader_params *p) {
    if (p->max_seq_len < 1 || p->max_seq_len > INT32_MAX)
        return clt_error(CLT_BAD_CONFIG, "dataset.max_seq_len %lld must be at least 1",
                         (long long)p->max_seq_len);
    if (p->vocab_size > INT32_MAX)
        return clt_error(CLT_BAD_CONFIG, "vocab_size %lld does not fit int32", (long long)p->vocab_size);
    if (p->max_rows > ((int64_t)1 << 40) / p->max_seq_len)
        return clt_error(CLT_BAD_CONFIG, "cannot read %lld samples at once", (long long)p->max_rows);
    if (p->eos_token_id >= 0 && p->bos_token_id >= 0)
        return clt_error(CLT_BAD_CONFIG,
                         "eos_token_id and bos_token_id cannot both mark sequences; give one of them");
    return CLT_OK;
}

static clt_status open_tokenizer(text_reader *t, const char *name) {
    char why[1024];
    clt_error_quiet(true);
    clt_status st = clt_tokenizer_open(name, &t->tokenizer);
    clt_error_quiet(false);
    if (st != CLT_OK) {
        snprintf(why, sizeof why, "%s", clt_last_error());
        return clt_error(st, "%s holds text, not tokens: %s", clt_mds_dir(t->mds), why);
    }
    if (t->vocab_size > 0 && t->vocab_size < clt_tokenizer_vocab_size(t->tokenizer))
        return clt_error(CLT_BAD_CONFIG, "vocab_size %lld is smaller than the %lld ids of tokenizer '%s'",
                         (long long)t->vocab_size, (long long)clt_tokenizer_vocab_size(t->tokenizer), name);
    return CLT_OK;
}

clt_status clt_reader_open_mds(const clt_loader_params *p, clt_mds **out) {
    if (!p->local || !*p->local) {
        char *local = NULL;
        if (!p->remote || !*p->remote)
            return clt_error(CLT_BAD_CONFIG,
                             "dataset.local is missing; name the folder that holds the dataset");
        CLT_TRY(clt_fetch_default_local(p->remote, &local));
        clt_info("%s is copied to %s; set `local` to choose the folder", p->remote, local);
        clt_loader_params with = *p;
        with.local = local;
        const clt_status st = clt_reader_open_mds(&with, out);
        clt_free(local);
        return st;
    }
    const bool split = p->split && *p->split, remote = p->remote && *p->remote && p->fetch;
    char *dir = split ? clt_path_join(p->local, p->split) : clt_strdup(p->local);
    char *from = !remote ? NULL : split ? clt_path_join(p->remote, p->split) : clt_strdup(p->remote);
    const clt_mds_params mp = {.validate_hash = p->validate_hash,
                               .token_encoding_type = p->token_encoding_type,
                               .cache_bytes = p->cache_bytes,
                               .fetch = remote ? p->fetch : NULL,
                               .remote = from,
                               .keep_zip = p->keep_zip,
                               .retries = (int)CLT_MIN(p->download_retry, INT32_MAX),
                               .timeout = p->download_timeout};
    const clt_status st = clt_mds_open(dir, &mp, out);
    clt_free(from);
    clt_free(dir);
    return st;
}

static clt_status list_shards(text_reader *t) {
    size_t n = clt_mds_num_shards(t->mds);
    t->base.shard_samples = clt_try_calloc(n, sizeof *t->base.shard_samples);
    if (!t->base.shard_samples) return clt_no_memory(clt_mds_dir(t->mds), n * sizeof(int64_t));
    t->base.shards = n;
    for (size_t i = 0; i < n; i++) {
        clt_mds_shard s;
        clt_mds_shard_info(t->mds, i, &s);
        t->base.shard_samples[i] = s.samples;
    }
    return CLT_OK;
}

static clt_status open_text(text_reader *t, const clt_loader_params *p) {
    CLT_TRY(check_params(p));
    t->T = p->max_seq_len;
    t->vocab_size = p->vocab_size;
    t->eos = (int32_t)p->eos_token_id;
    t->bos = (int32_t)p->bos_token_id;
    t->pad = (int32_t)p->pad_token_id;
    t->base.layout = clt_text_layout(t->T, t->eos >= 0 || t->bos >= 0);
    CLT_TRY(clt_reader_open_mds(p, &t->mds));
    if (!clt_mds_has_tokens(t->mds)) CLT_TRY(open_tokenizer(t, p->tokenizer));
    CLT_TRY(list_shards(t));
    return clt_mds_preload(t->mds);
}

static void close_text(clt_reader *r) {
    text_reader *t = (text_reader *)r;
    clt_str_free(&t->text);
    clt_tokenizer_close(t->tokenizer);
    clt_mds_close(t->mds);
    clt_free(t->base.shard_samples);
    clt_free(t);
}

clt_status clt_text_reader_open(const clt_loader_params *p, clt_reader **out) {
    static const clt_reader_ops text = {
        .name = "text", .read = read_sample, .show = show_sample, .shard = shard_of, .close = close_text};
    text_reader *t = clt_calloc(1, sizeof *t);
    t->base.ops = &text;
    clt_status st = open_text(t, p);
    if (st == CLT_OK)
        *out = &t->base;
    else
        close_text(&t->base);
    return st;
}
