/* Pairs are counted once. Merging a pair changes only the words that have it: a queue entry lists them. An
 * entry whose count is out of date returns to the queue with the current one when it is popped, so the queue
 * is never searched. */
#include "runtime/data/tokenizer/clt_bpe_train.h"

#include <string.h>

#include "runtime/base/clt_signal.h"

/* The words that got a pair since it was last queued. */
typedef struct {
    uint32_t *word;
    size_t n, cap;
} word_list;

typedef struct {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    word_list waiting; /* for the next queue entry */
    bool used;
} pair_slot;

typedef struct {
    int64_t count;
    uint64_t key;
    word_list words;
} queue_entry;

typedef struct {
    int32_t *symbols; /* of all words, word after word */
    size_t *start;
    uint32_t *length;
    const clt_word_count *words;
    pair_slot *pairs;
    size_t n_pairs, mask;
    queue_entry *queue; /* a heap, the first to be merged at the root */
    size_t queued, queue_cap;
    uint64_t *fresh; /* keys of the pairs with waiting words */
    size_t n_fresh, fresh_cap;
} trainer;

static clt_status no_memory(void) {
    return clt_no_memory("the pairs of neighbours in the words", 0);
}

/* Makes room for one more item of a growing array. */
static bool grow(void **items, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return true;
    const size_t more = *cap ? 2 * *cap : 4;
    void *moved = clt_try_realloc(*items, more * size);
    if (!moved) return false;
    *items = moved;
    *cap = more;
    return true;
}

static uint64_t key_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* --- the table of pairs --- */

static pair_slot *slot_of(const trainer *t, uint64_t key) {
    for (size_t i = (size_t)(key * 0x9e3779b97f4a7c15u >> 24) & t->mask;; i = (i + 1) & t->mask)
        if (!t->pairs[i].used || t->pairs[i].key == key) return &t->pairs[i];
}

static clt_status grow_pairs(trainer *t) {
    trainer larger = {.mask = t->pairs ? 2 * t->mask + 1 : (1 << 14) - 1};
    larger.pairs = clt_try_calloc(larger.mask + 1, sizeof *larger.pairs);
    if (!larger.pairs) return no_memory();
    for (size_t i = 0; t->pairs && i <= t->mask; i++)
        if (t->pairs[i].used) *slot_of(&larger, t->pairs[i].key) = t->pairs[i];
    clt_free(t->pairs);
    t->pairs = larger.pairs;
    t->mask = larger.mask;
    return CLT_OK;
}

/* Changes the count of a pair in a word. A pair that the word gains puts it on the pair's list. */
static clt_status count_pair(trainer *t, uint64_t key, int64_t change, uint32_t word) {
    if (2 * t->n_pairs >= t->mask) CLT_TRY(grow_pairs(t));
    pair_slot *p = slot_of(t, key);
    if (!p->used) {
        *p = (pair_slot){.key = key, .used = true};
        t->n_pairs++;
    }
    p->count += change * t->words->words[word].count;
    if (change < 0) return CLT_OK;
    word_list *w = &p->waiting;
    if (w->n && w->word[w->n - 1] == word) return CLT_OK;
    if (w->n == 0) {
        if (!grow((void **)&t->fresh, t->n_fresh, &t->fresh_cap, sizeof *t->fresh)) return no_memory();
        t->fresh[t->n_fresh++] = key;
    }
    if (!grow((void **)&w->word, w->n, &w->cap, sizeof *w->word)) return no_memory();
    w->word[w->n++] = word;
    return CLT_OK;
}

/* --- the queue --- */

static bool comes_first(const queue_entry *a, const queue_entry *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static clt_status push(trainer *t, queue_entry e) {
    if (!grow((void **)&t->queue, t->queued, &t->queue_cap, sizeof *t->queue)) return no_memory();
    size_t at = t->queued++;
    for (size_t up; at > 0 && comes_first(&e, &t->queue[up = (at - 1) / 2]); at = up)
        t->queue[at] = t->queue[up];
    t->queue[at] = e;
    return CLT_OK;
}

static queue_entry pop(trainer *t) {
    const queue_entry first = t->queue[0], last = t->queue[--t->queued];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < t->queued; at = child) {
        if (child + 1 < t->queued && comes_first(&t->queue[child + 1], &t->queue[child])) child++;
        if (!comes_first(&t->queue[child], &last)) break;
        t->queue[at] = t->queue[child];
    }
    if (t->queued) t->queue[at] = last;
    return first;
}

/* Queues the pairs that words gained. */
static clt_status queue_fresh(trainer *t) {
    clt_status st = CLT_OK;
    for (size_t i = 0; i < t->n_fresh && st == CLT_OK; i++) {
        pair_slot *p = slot_of(t, t->fresh[i]);
        if (p->count > 0)
            st = push(t, (queue_entry){p->count, p->key, p->waiting});
        else
            clt_free(p->waiting.word);
        if (st == CLT_OK) p->waiting = (word_list){0};
    }
    t->n_fresh = 0;
    return st;
}

/* --- merging --- */

/* Replaces the pair in a word, from left to right. */
static clt_status merge_word(trainer *t, uint32_t word, uint64_t key, int32_t merged) {
    const int32_t left = (int32_t)(key >> 32), right = (int32_t)(uint32_t)key;
    int32_t *s = t->symbols + t->start[word];
    const uint32_t n = t->length[word];
    uint32_t to = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (s[i] != left || i + 1 == n || s[i + 1] != right) {
            s[to++] = s[i];
            continue;
        }
        if (to > 0) {
            CLT_TRY(count_pair(t, key_of(s[to - 1], left), -1, word));
            CLT_TRY(count_pair(t, key_of(s[to - 1], merged), 1, word));
        }
        if (i + 2 < n) {
            CLT_TRY(count_pair(t, key_of(right, s[i + 2]), -1, word));
            CLT_TRY(count_pair(t, key_of(merged, s[i + 2]), 1, word));
        }
        s[to++] = merged;
        i++;
    }
    t->length[word] = to;
    return CLT_OK;
}

/* The id of the token that two tokens make together, which may exist already. */
static clt_status merged_token(clt_bpe_trained *out, uint64_t key, int32_t *id) {
    const clt_word *a = &out->tokens.words[key >> 32], *b = &out->tokens.words[(uint32_t)key];
    clt_str text = {0};
    clt_str_addn(&text, out->tokens.arena + a->at, a->bytes);
    clt_str_addn(&text, out->tokens.arena + b->at, b->bytes);
    clt_status st = clt_word_count_add(&out->tokens, text.s, text.len, 0);
    if (st == CLT_OK) *id = (int32_t)clt_word_count_find(&out->tokens, text.s, text.len);
    clt_str_free(&text);
    return st;
}

static clt_status add_merge(clt_bpe_trained *out, uint64_t key) {
    if (!grow((void **)&out->merges, out->n, &out->cap, sizeof *out->merges)) return no_memory();
    out->merges[out->n].left = (int32_t)(key >> 32);
    out->merges[out->n++].right = (int32_t)(uint32_t)key;
    return CLT_OK;
}

static clt_status merge_pair(trainer *t, const queue_entry *e, clt_bpe_trained *out) {
    int32_t merged;
    CLT_TRY(merged_token(out, e->key, &merged));
    CLT_TRY(add_merge(out, e->key));
    for (size_t i = 0; i < e->words.n; i++) CLT_TRY(merge_word(t, e->words.word[i], e->key, merged));
    return queue_fresh(t);
}

static clt_status merge_all(trainer *t, const clt_bpe_train_params *p, clt_bpe_trained *out) {
    clt_status st = CLT_OK;
    while (st == CLT_OK && (int64_t)out->tokens.n < p->vocab_size && t->queued) {
        queue_entry e = pop(t);
        const int64_t count = slot_of(t, e.key)->count;
        if (e.count != count) {
            e.count = count;
            st = push(t, e);
            continue;
        }
        const bool rare = e.count < 1 || e.count < p->min_frequency;
        if (!rare) st = clt_signal_received() ? CLT_STOPPED : merge_pair(t, &e, out);
        clt_free(e.words.word);
        if (rare) break;
    }
    return st;
}

/* --- the words --- */

static clt_status create(trainer *t, const clt_bpe_train_params *p) {
    const clt_word_count *w = t->words;
    t->symbols = clt_try_malloc(w->used * sizeof *t->symbols + 1);
    t->start = clt_try_malloc(w->n * sizeof *t->start + 1);
    t->length = clt_try_malloc(w->n * sizeof *t->length + 1);
    if (!t->symbols || !t->start || !t->length) return no_memory();
    for (size_t i = 0, at = 0; i < w->n; i++) {
        const unsigned char *text = (const unsigned char *)w->arena + w->words[i].at;
        t->start[i] = at;
        t->length[i] = w->words[i].bytes;
        for (uint32_t b = 0; b < w->words[i].bytes; b++) t->symbols[at++] = p->byte_id[text[b]];
    }
    for (uint32_t i = 0; i < w->n; i++)
        for (uint32_t s = 1; s < t->length[i]; s++) {
            const int32_t *pair = t->symbols + t->start[i] + s - 1;
            CLT_TRY(count_pair(t, key_of(pair[0], pair[1]), 1, i));
        }
    return queue_fresh(t);
}

static void destroy(trainer *t) {
    for (size_t i = 0; t->pairs && i <= t->mask; i++) clt_free(t->pairs[i].waiting.word);
    for (size_t i = 0; i < t->queued; i++) clt_free(t->queue[i].words.word);
    clt_free(t->symbols);
    clt_free(t->start);
    clt_free(t->length);
    clt_free(t->pairs);
    clt_free(t->queue);
    clt_free(t->fresh);
}

clt_status clt_bpe_train(const clt_word_count *words, const clt_bpe_train_params *p, clt_bpe_trained *out) {
    trainer t = {.words = words};
    clt_status st = grow_pairs(&t);
    if (st == CLT_OK) st = create(&t, p);
    if (st == CLT_OK) st = merge_all(&t, p, out);
    destroy(&t);
    return st;
}

void clt_bpe_trained_free(clt_bpe_trained *t) {
    clt_word_count_free(&t->tokens);
    clt_free(t->merges);
    *t = (clt_bpe_trained){0};
}
