#include "runtime/train/run/clt_icl_run.h"

#include <string.h>

#include "runtime/data/icl/clt_icl_text.h"

/* Items of a batch with what became of them. */
typedef struct {
    const clt_icl_run *r;
    const clt_icl_set *s;
    size_t first, n; /* items of this rank */
    clt_icl_item *item;
    const clt_icl_row **row; /* of all items */
    size_t n_rows;
    clt_icl_score *score; /* [n_rows] */
    clt_str *output;      /* [n] generation */
} item_batch;

/* --- making --- */

static clt_status check_lengths(const item_batch *b, size_t i) {
    const bool grows = b->s->task->kind == CLT_ICL_GENERATION;
    for (size_t k = 0; k < b->item[i].n_rows; k++) {
        const clt_icl_row *row = &b->item[i].row[k];
        if (!grows && (int64_t)row->n > b->s->task->max_seq_len)
            return clt_icl_set_fail(b->s, b->first + i, "the continuation leaves no room for the context");
        for (size_t j = 0; j < row->n; j++)
            if (row->ids[j] < 0 || row->ids[j] >= b->r->facts.vocab_size)
                return clt_icl_set_fail(b->s, b->first + i,
                                        "a token is outside the model's vocabulary: the tokenizer is not the "
                                        "model's");
    }
    return CLT_OK;
}

static bool has_padding(const clt_icl_set *s, const clt_icl_row *row) {
    const int64_t pad = clt_tokenizer_pad_id(s->tok), id = pad >= 0 ? pad : clt_tokenizer_eos_id(s->tok);
    for (size_t i = 0; i < row->n; i++)
        if (row->ids[i] == id) return true;
    return false;
}

static clt_status make_items(item_batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        CLT_TRY(clt_icl_set_item(b->s, b->first + i, &b->item[i]));
        CLT_TRY(check_lengths(b, i));
        b->n_rows += b->item[i].n_rows;
    }
    b->row = clt_calloc(b->n_rows + 1, sizeof *b->row);
    b->score = clt_calloc(b->n_rows + 1, sizeof *b->score);
    for (size_t i = 0, k = 0; i < b->n; i++)
        for (size_t j = 0; j < b->item[i].n_rows; j++) b->row[k++] = &b->item[i].row[j];
    return CLT_OK;
}

static void free_batch(item_batch *b) {
    for (size_t i = 0; i < b->n; i++) {
        clt_icl_item_free(&b->item[i]);
        clt_str_free(&b->output[i]);
    }
    clt_free(b->item);
    clt_free(b->output);
    clt_free(b->row);
    clt_free(b->score);
}

/* --- scoring --- */

/* The largest number of passes that a rank makes for this batch; 0 if ranks do not depend on each other. */
static clt_status count_passes(const item_batch *b, int64_t *passes) {
    const int ranks = clt_group_size(b->r->group);
    const int64_t mine = CLT_CEIL_DIV((int64_t)b->n_rows, clt_engine_most_texts(b->r->engine));
    *passes = 0;
    if (!clt_engine_shards_weights(b->r->engine)) return CLT_OK;
    int64_t *all = clt_calloc((size_t)ranks, sizeof *all);
    clt_status st = clt_group_all_gather(b->r->group, &mine, sizeof mine, all);
    for (int i = 0; i < ranks && st == CLT_OK; i++) *passes = CLT_MAX(*passes, all[i]);
    clt_free(all);
    return st;
}

static clt_status check_answer(const clt_icl_set *s, const clt_icl_item *item, const char *output,
                               bool *right) {
    const clt_icl_task *t = s->task;
    clt_str got = {0};
    size_t bytes;
    CLT_TRY(clt_icl_stops_find(t->stops, output, &bytes));
    clt_icl_answer(output, bytes, t->cot_delimiter, t->do_normalization, &got);
    *right = false;
    for (size_t i = 0; i < item->labels.n && !*right; i++) {
        clt_str want = {0};
        clt_icl_answer(item->labels.v[i], strlen(item->labels.v[i]), "", t->do_normalization, &want);
        *right = strncmp(got.s, want.s, want.len) == 0;
        clt_str_free(&want);
    }
    clt_str_free(&got);
    return CLT_OK;
}

static clt_status count_items(item_batch *b, clt_icl_sums *sums) {
    const bool generated = b->s->task->kind == CLT_ICL_GENERATION;
    for (size_t i = 0, k = 0; i < b->n; k += b->item[i++].n_rows) {
        clt_icl_outcome o = {.score = generated ? NULL : b->score + k, .output = b->output[i].s};
        if (generated) {
            CLT_TRY(check_answer(b->s, &b->item[i], o.output, &o.correct));
            sums->total++;
            sums->correct += o.correct;
        } else {
            clt_icl_sums_add(sums, b->s, &b->item[i], o.score, &o.chosen, &o.correct);
        }
        if (b->r->item) b->r->item(b->r->ctx, b->s, b->first + i, &b->item[i], &o);
    }
    return CLT_OK;
}

static clt_status run_batch(const clt_icl_run *r, const clt_icl_set *s, size_t first, size_t n,
                            clt_icl_sums *sums) {
    item_batch b = {.r = r, .s = s, .first = first, .n = n};
    int64_t passes;
    b.item = clt_calloc(n + 1, sizeof *b.item);
    b.output = clt_calloc(n + 1, sizeof *b.output);
    clt_status st = clt_group_agree(r->group, make_items(&b));
    if (st == CLT_OK) st = count_passes(&b, &passes);
    if (st == CLT_OK && s->task->kind == CLT_ICL_GENERATION)
        st = clt_icl_generate(r, s, b.row, n, b.output);
    else if (st == CLT_OK)
        st = clt_icl_score_rows(r, b.row, b.n_rows, passes, b.score);
    if (st == CLT_OK) st = count_items(&b, sums);
    for (size_t i = 0; i < b.n_rows && st == CLT_OK; i++) sums->padded += has_padding(s, b.row[i]);
    free_batch(&b);
    return st;
}

clt_status clt_icl_run_set(const clt_icl_run *r, const clt_icl_set *s, clt_icl_result *out) {
    const size_t ranks = (size_t)clt_group_size(r->group), rank = (size_t)clt_group_rank(r->group);
    const size_t B = s->batch_items, whole = CLT_CEIL_DIV(s->n, B * ranks);
    /* Foundry's evaluators of categories have no limit. */
    const bool limited = r->subset >= 0 && !s->category;
    const size_t batches = limited ? CLT_MIN(whole, (size_t)r->subset) : whole;
    const double start = clt_now();
    clt_icl_sums sums = {0};
    for (size_t i = 0; i < batches; i++) {
        const size_t first = CLT_MIN((i * ranks + rank) * B, s->n);
        CLT_TRY(run_batch(r, s, first, CLT_MIN(B, s->n - first), &sums));
        if (clt_group_stop(r->group)) return CLT_STOPPED;
    }
    CLT_TRY(clt_group_sum_i64(r->group, (int64_t *)&sums, sizeof sums / sizeof(int64_t)));
    if (sums.padded)
        clt_warn("%s: %lld rows have the padding token in their text; LLM Foundry masks it, cltrain reads it",
                 s->label, (long long)sums.padded);
    *out = (clt_icl_result){.samples = sums.total, .seconds = clt_now() - start};
    for (int m = 0; m < CLT_ICL_METRICS; m++) out->value[m] = clt_icl_sums_metric(&sums, (clt_icl_metric)m);
    return CLT_OK;
}
