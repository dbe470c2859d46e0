/* The reader of fine-tuning data (clt_reader.h): samples that share a row, behind one another, with labels,
 * sequence ids and padding. */
#include <string.h>

#include "runtime/data/clt_reader.h"
#include "runtime/data/finetune/clt_finetune_plan.h"

typedef struct {
    clt_reader base;
    int64_t T;
    int32_t pad;
    bool pads_left;
    clt_finetune_samples *samples;
    clt_finetune_plan *plan;
    int64_t *member; /* of the row that is being read */
    size_t members, member_cap;
} finetune_reader;

/* --- one row --- */

static int64_t row_tokens(const finetune_reader *r) {
    int64_t n = 0;
    for (size_t i = 0; i < r->members; i++) n += clt_finetune_samples_get(r->samples, r->member[i]).n;
    return n;
}

/* A sample at position `at` of a row. A label is the id at its own position; the first label of a sample that
 * follows another one does not count, as no token of the sample stands before it. */
static void write_sample(const clt_finetune_row *s, int64_t at, int32_t part, const clt_loader_view *v) {
    memcpy(v->input_ids + at, s->ids, (size_t)s->n * sizeof *s->ids);
    for (int32_t i = 0; i < s->spans; i++)
        for (int32_t k = s->span[2 * i]; k < s->span[2 * i + 1]; k++)
            if (k > 0 || part == 0) v->labels[at + k] = s->ids[k];
    for (int64_t i = at; i < at + s->n; i++) {
        v->attention_mask[i] = 1;
        v->sequence_id[i] = part;
    }
}

/* The row as Foundry's collator writes it. */
static clt_status show_row(clt_reader *base, int64_t epoch, int64_t row, clt_loader_view *v) {
    finetune_reader *r = (finetune_reader *)base;
    CLT_TRY(clt_finetune_plan_row(r->plan, epoch, row, &r->member, &r->member_cap, &r->members));
    v->tokens = row_tokens(r);
    v->samples = r->member;
    v->num_samples = r->members;
    v->pads_left = r->pads_left;
    v->packed = clt_finetune_plan_packs(r->plan);
    for (int64_t i = 0; i < r->T; i++) {
        v->input_ids[i] = r->pad;
        v->labels[i] = CLT_LABEL_IGNORE;
        v->attention_mask[i] = 0;
        v->sequence_id[i] = -1;
    }
    int64_t at = r->pads_left ? r->T - v->tokens : 0;
    for (size_t i = 0; i < r->members; i++) {
        const clt_finetune_row s = clt_finetune_samples_get(r->samples, r->member[i]);
        write_sample(&s, at, (int32_t)i, v);
        at += s.n;
    }
    return CLT_OK;
}

/* The row as a model takes it: the label of a position is the next one's, and padding is a sequence of its
 * own behind the others, because sequence ids do not decrease. */
static clt_status read_row(clt_reader *base, int64_t row, int64_t epoch,
                           void *const out[CLT_BATCH_MAX_FIELDS], clt_sample_counts *counts) {
    finetune_reader *r = (finetune_reader *)base;
    int32_t *targets = out[CLT_TEXT_TARGETS], *ids = out[CLT_TEXT_SEQ_IDS];
    CLT_TRY(clt_finetune_plan_row(r->plan, epoch, row, &r->member, &r->member_cap, &r->members));
    counts->sample = r->member[0];
    counts->tokens = row_tokens(r);
    int64_t at = 0;
    int32_t *tokens = out[CLT_TEXT_TOKENS];
    for (int64_t i = 0; i < r->T; i++) {
        tokens[i] = r->pad;
        targets[i] = CLT_LABEL_IGNORE;
        ids[i] = (int32_t)r->members;
    }
    for (size_t m = 0; m < r->members; m++) {
        const clt_finetune_row s = clt_finetune_samples_get(r->samples, r->member[m]);
        memcpy(tokens + at, s.ids, (size_t)s.n * sizeof *s.ids);
        for (int64_t i = at; i < at + s.n; i++) ids[i] = (int32_t)m;
        for (int32_t i = 0; i < s.spans; i++)
            for (int32_t k = CLT_MAX(s.span[2 * i], 1); k < s.span[2 * i + 1]; k++) {
                targets[at + k - 1] = s.ids[k];
                counts->targets++;
            }
        at += s.n;
    }
    return CLT_OK;
}

static clt_status epoch_rows(clt_reader *base, int64_t epoch, int64_t *rows) {
    return clt_finetune_plan_rows(((finetune_reader *)base)->plan, epoch, rows);
}

static clt_status row_members(clt_reader *base, int64_t epoch, int64_t row, int64_t **ids, size_t *cap,
                              size_t *n) {
    return clt_finetune_plan_row(((finetune_reader *)base)->plan, epoch, row, ids, cap, n);
}

static clt_status row_ids(clt_reader *base, int64_t epoch, int64_t first, int64_t count, int64_t *ids) {
    finetune_reader *r = (finetune_reader *)base;
    if (clt_finetune_plan_packs(r->plan))
        return clt_error(CLT_BAD_CONFIG, "packed rows have several samples: use cltrain data batches");
    for (int64_t i = 0; i < count; i++) {
        CLT_TRY(clt_finetune_plan_row(r->plan, epoch, first + i, &r->member, &r->member_cap, &r->members));
        ids[i] = r->member[0];
    }
    return CLT_OK;
}

/* --- opening --- */

static clt_status check_params(const clt_loader_params *p) {
    if (p->finetune.batch < 1)
        return clt_error(CLT_BAD_CONFIG, "cannot make batches of %lld samples", (long long)p->finetune.batch);
    if (p->max_seq_len < 1 || p->max_rows > ((int64_t)1 << 40) / p->max_seq_len)
        return clt_error(CLT_BAD_CONFIG, "cannot read %lld samples of %lld tokens at once",
                         (long long)p->max_rows, (long long)p->max_seq_len);
    return CLT_OK;
}

static clt_status open_finetune(finetune_reader *r, const clt_loader_params *p) {
    clt_finetune_shards shards;
    CLT_TRY(check_params(p));
    r->T = p->max_seq_len;
    r->base.layout = clt_text_layout(r->T, true);
    clt_status st = clt_finetune_samples_load(p, &r->samples, &shards);
    if (st == CLT_OK) {
        r->pad = clt_finetune_samples_pad(r->samples, &r->pads_left);
        st = clt_finetune_plan_create(p, r->samples, &shards, &r->plan);
    }
    if (st == CLT_OK) {
        r->base.samples = clt_finetune_plan_samples(r->plan);
        r->base.canonical_nodes = clt_finetune_plan_canonical_nodes(r->plan);
    }
    clt_finetune_shards_free(&shards);
    return st;
}

static void close_finetune(clt_reader *base) {
    finetune_reader *r = (finetune_reader *)base;
    clt_finetune_plan_destroy(r->plan);
    clt_finetune_samples_free(r->samples);
    clt_free(r->member);
    clt_free(r);
}

clt_status clt_finetune_reader_open(const clt_loader_params *p, clt_reader **out) {
    static const clt_reader_ops finetuning = {.name = "finetuning",
                                              .read = read_row,
                                              .show = show_row,
                                              .rows = epoch_rows,
                                              .members = row_members,
                                              .ids = row_ids,
                                              .close = close_finetune};
    finetune_reader *r = clt_calloc(1, sizeof *r);
    r->base.ops = &finetuning;
    clt_status st = open_finetune(r, p);
    if (st == CLT_OK)
        *out = &r->base;
    else
        close_finetune(&r->base);
    return st;
}
