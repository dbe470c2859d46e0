#include "runtime/data/tokenizer/clt_bpe.h"

#include <string.h>
#include <xxhash.h>

#include "runtime/data/tokenizer/clt_codepoint.h"

/* --- the characters of byte-level vocabularies --- */

static bool is_visible(unsigned b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* The invisible bytes in order are 0 to 0x20, 0x7f to 0xa0 and 0xad. */
static unsigned byte_codepoint(unsigned b) {
    if (is_visible(b)) return b;
    return 0x100 + (b <= 0x20 ? b : b <= 0xa0 ? b - 0x7f + 33 : 67);
}

static int codepoint_byte(unsigned c) {
    if (c < 0x100) return is_visible(c) ? (int)c : -1;
    c -= 0x100;
    return c <= 0x20 ? (int)c : c < 67 ? (int)(c - 33 + 0x7f) : c == 67 ? 0xad : -1;
}

size_t clt_byte_char(unsigned char byte, char out[2]) {
    const unsigned c = byte_codepoint(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

bool clt_byte_chars_decode(const char *text, size_t bytes, char *out, size_t *n) {
    *n = 0;
    for (size_t at = 0; at < bytes;) {
        size_t length;
        int byte = codepoint_byte(clt_codepoint_at(text + at, &length));
        if (byte < 0) return false;
        out[(*n)++] = (char)byte;
        at += length;
    }
    return true;
}

/* --- merges --- */

static size_t pair_slot(const clt_bpe *b, int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (size_t)(h >> 32) & b->mask;
}

static clt_bpe_merge *find_merge(const clt_bpe *b, int32_t left, int32_t right) {
    for (size_t i = pair_slot(b, left, right);; i = (i + 1) & b->mask) {
        clt_bpe_merge *m = &b->merges[i];
        if (m->rank == UINT32_MAX || (m->left == left && m->right == right)) return m;
    }
}

clt_status clt_bpe_reserve(clt_bpe *b, size_t n) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    b->merges = clt_try_malloc(slots * sizeof *b->merges);
    if (!b->merges) return clt_no_memory("the merges of a tokenizer", slots * sizeof *b->merges);
    memset(b->merges, 0xff, slots * sizeof *b->merges);
    b->mask = slots - 1;
    return CLT_OK;
}

void clt_bpe_add_merge(clt_bpe *b, int32_t left, int32_t right, int32_t merged) {
    *find_merge(b, left, right) = (clt_bpe_merge){(uint32_t)b->n_merges++, left, right, merged};
}

/* --- preparation --- */

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */
enum { MARK_BYTES = 3 };

static bool is_mark(const char *s, const char *end) {
    return end - s >= MARK_BYTES && memcmp(s, space_mark, MARK_BYTES) == 0;
}

/* Whether U+2581 follows a different character in the text. */
static bool has_inner_mark(const char *s, size_t bytes) {
    const char *end = s + bytes;
    bool other = false;
    while (s < end) {
        const bool mark = is_mark(s, end);
        if (mark && other) return true;
        other = !mark;
        s += mark ? MARK_BYTES : 1;
    }
    return false;
}

static bool merges_divide(const clt_bpe *b) {
    size_t n;
    if (b->byte_level || b->ignore_merges || clt_vocab_find(b->vocab, space_mark, MARK_BYTES) < 0)
        return false;
    for (size_t i = 0; i <= b->mask; i++) {
        const clt_bpe_merge *m = &b->merges[i];
        if (m->rank == UINT32_MAX) continue;
        const char *text = clt_vocab_get(b->vocab, m->merged, &n);
        if (has_inner_mark(text, n)) return false;
    }
    return true;
}

static bool is_byte_token(const clt_bpe *b, int32_t id) {
    for (int i = 0; i < 256; i++)
        if (b->byte_id[i] == id) return true;
    return false;
}

static void add_pairs(clt_bpe *b, const char *text, size_t bytes) {
    for (size_t i = 1; i < bytes; i++) {
        const unsigned pair = (unsigned)(unsigned char)text[i - 1] << 8 | (unsigned char)text[i];
        b->pairs[pair / 64] |= (uint64_t)1 << pair % 64;
    }
}

/* Neighbours in tokens, as bytes of the text. With characters, a merge of byte tokens has other bytes in the
 * text than in the vocabulary: then no division is known to be right. */
static clt_status list_pairs(clt_bpe *b) {
    char *raw = clt_try_malloc(b->vocab->arena.len + 1);
    if (!raw) return clt_no_memory("the texts of a vocabulary", b->vocab->arena.len);
    b->divides_at_pairs = true;
    for (size_t i = 0; i <= b->mask; i++) {
        const clt_bpe_merge *m = &b->merges[i];
        size_t bytes, n;
        if (m->rank == UINT32_MAX) continue;
        const char *text = clt_vocab_get(b->vocab, m->merged, &bytes);
        if (b->byte_level && clt_byte_chars_decode(text, bytes, raw, &n))
            add_pairs(b, raw, n);
        else
            add_pairs(b, text, bytes);
        if (!b->byte_level && (is_byte_token(b, m->left) || is_byte_token(b, m->right)))
            b->divides_at_pairs = false;
    }
    clt_free(raw);
    return CLT_OK;
}

static clt_status list_raw_texts(clt_bpe *b) {
    char *raw = clt_try_malloc(b->vocab->arena.len + 1);
    if (!raw) return clt_no_memory("the texts of a vocabulary", b->vocab->arena.len);
    clt_status st = clt_vocab_create(&b->raw, b->vocab->n, b->vocab->arena.len);
    for (size_t id = 0; st == CLT_OK && id < b->vocab->n; id++) {
        size_t bytes, n;
        const char *text = clt_vocab_get(b->vocab, (int32_t)id, &bytes);
        if (text && clt_byte_chars_decode(text, bytes, raw, &n)) clt_vocab_add(&b->raw, (int32_t)id, raw, n);
    }
    clt_free(raw);
    return st;
}

clt_status clt_bpe_prepare(clt_bpe *b) {
    for (unsigned i = 0; i < 256; i++) {
        char c[8];
        size_t n =
            b->byte_level ? clt_byte_char((unsigned char)i, c) : (size_t)snprintf(c, sizeof c, "<0x%02X>", i);
        b->byte_id[i] = clt_vocab_find(b->vocab, c, n);
    }
    for (int i = 0; i < 128; i++) b->ascii_id[i] = clt_vocab_find(b->vocab, &(char){(char)i}, 1);
    b->divides = merges_divide(b);
    CLT_TRY(list_pairs(b));
    return b->byte_level && b->ignore_merges ? list_raw_texts(b) : CLT_OK;
}

void clt_bpe_free(clt_bpe *b) {
    clt_vocab_free(&b->raw);
    clt_free(b->merges);
    b->merges = NULL;
}

/* --- work space --- */

enum { CACHE_SLOTS = 1 << 15, CACHED_BYTES = 30, CACHED_IDS = 8, SHORT = 48, LONG = 512 };

/* One piece of text and its ids; the size of a cache line. */
typedef struct {
    uint8_t bytes, n; /* bytes 0: empty */
    char text[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
} cached;

/* A list of symbols whose neighbours are found through prev and next; index -1: none. */
struct clt_bpe_work {
    cached *cache;
    int32_t *id, *prev, *next;
    size_t cap;
    uint64_t *heap; /* rank << 32 | left symbol; the smallest first */
    size_t n_heap, cap_heap;
};

clt_bpe_work *clt_bpe_work_create(void) {
    clt_bpe_work *w = clt_calloc(1, sizeof *w);
    w->cache = clt_try_aligned_alloc(CACHE_SLOTS * sizeof *w->cache);
    if (w->cache) return w;
    clt_free(w);
    return NULL;
}

void clt_bpe_work_destroy(clt_bpe_work *w) {
    if (!w) return;
    clt_free(w->cache);
    clt_free(w->id);
    clt_free(w->prev);
    clt_free(w->next);
    clt_free(w->heap);
    clt_free(w);
}

static bool grow_array(void **p, size_t bytes) {
    void *q = clt_try_realloc(*p, bytes);
    if (q) *p = q;
    return q != NULL;
}

static clt_status reserve_symbols(clt_bpe_work *w, size_t n) {
    if (n <= w->cap) return CLT_OK;
    const size_t cap = CLT_MAX(n, 256), bytes = cap * sizeof *w->id;
    if (!grow_array((void **)&w->id, bytes) || !grow_array((void **)&w->prev, bytes) ||
        !grow_array((void **)&w->next, bytes))
        return clt_no_memory("the symbols of a piece of text", 3 * bytes);
    w->cap = cap;
    return CLT_OK;
}

/* --- symbols --- */

static size_t byte_symbols(const clt_bpe *b, int32_t *id, const char *s, size_t bytes) {
    size_t n = 0;
    bool unknown = false;
    for (size_t i = 0; i < bytes; i++) {
        const int32_t byte = b->byte_id[(unsigned char)s[i]];
        const bool fused = byte < 0 && unknown && b->fuse_unk;
        unknown = byte < 0;
        if (byte >= 0)
            id[n++] = byte;
        else if (b->unk >= 0 && !fused)
            id[n++] = b->unk;
    }
    return n;
}

/* Whether the character became the tokens of its bytes. */
static bool fall_back(const clt_bpe *b, const char *s, size_t bytes, int32_t *id, size_t *n) {
    if (!b->byte_fallback) return false;
    for (size_t i = 0; i < bytes; i++)
        if (b->byte_id[(unsigned char)s[i]] < 0) return false;
    for (size_t i = 0; i < bytes; i++) id[(*n)++] = b->byte_id[(unsigned char)s[i]];
    return true;
}

static int32_t character_id(const clt_bpe *b, const char *s, size_t bytes) {
    return bytes == 1 ? b->ascii_id[(unsigned char)*s] : clt_vocab_find(b->vocab, s, bytes);
}

/* An unknown token waits for a known character, so that it can be fused. As in the package `tokenizers`,
 * bytes of a fallback overtake it. */
static size_t character_symbols(const clt_bpe *b, int32_t *id, const char *s, size_t bytes) {
    size_t n = 0;
    bool waits = false;
    for (size_t at = 0, length; at < bytes; at += length) {
        clt_codepoint_at(s + at, &length);
        const int32_t known = character_id(b, s + at, length);
        if (known >= 0) {
            if (waits) id[n++] = b->unk;
            waits = false;
            id[n++] = known;
        } else if (!fall_back(b, s + at, length, id, &n) && b->unk >= 0) {
            if (waits && !b->fuse_unk) id[n++] = b->unk;
            waits = true;
        }
    }
    if (waits) id[n++] = b->unk;
    return n;
}

/* --- merging --- */

/* For a few symbols: looks for the lowest rank every time. */
static size_t merge_few(const clt_bpe *b, int32_t *id, size_t n) {
    uint32_t rank[SHORT];
    int32_t merged[SHORT];
    for (size_t i = 0; i + 1 < n; i++) {
        const clt_bpe_merge *m = find_merge(b, id[i], id[i + 1]);
        rank[i] = m->rank;
        merged[i] = m->merged;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) break;
        id[best] = merged[best];
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        memmove(merged + best, merged + best + 1, (n - best - 1) * sizeof *merged);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const clt_bpe_merge *m = find_merge(b, id[i], id[i + 1]);
            rank[i] = m->rank;
            merged[i] = m->merged;
        }
    }
    return n;
}

/* A heap with four children: they lie in one cache line. */
static void sift_down(uint64_t *heap, size_t n, size_t i) {
    const uint64_t v = heap[i];
    for (size_t child; (child = 4 * i + 1) < n; i = child) {
        for (size_t k = child + 1, end = CLT_MIN(child + 4, n); k < end; k++)
            if (heap[k] < heap[child]) child = k;
        if (v <= heap[child]) break;
        heap[i] = heap[child];
    }
    heap[i] = v;
}

static clt_status reserve_heap(clt_bpe_work *w, size_t n) {
    if (n <= w->cap_heap) return CLT_OK;
    const size_t cap = CLT_MAX(n, w->cap_heap + w->cap_heap / 2), bytes = cap * sizeof *w->heap;
    if (!grow_array((void **)&w->heap, bytes)) return clt_no_memory("the merges of a piece of text", bytes);
    w->cap_heap = cap;
    return CLT_OK;
}

static clt_status push(clt_bpe_work *w, uint64_t v) {
    CLT_TRY(reserve_heap(w, w->n_heap + 1));
    size_t i = w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 4] > v; i = (i - 1) / 4) w->heap[i] = w->heap[(i - 1) / 4];
    w->heap[i] = v;
    return CLT_OK;
}

static uint64_t pop(clt_bpe_work *w) {
    const uint64_t v = w->heap[0];
    w->heap[0] = w->heap[--w->n_heap];
    if (w->n_heap > 0) sift_down(w->heap, w->n_heap, 0);
    return v;
}

static clt_status push_pair(const clt_bpe *b, clt_bpe_work *w, int32_t left) {
    if (left < 0 || w->next[left] < 0) return CLT_OK;
    const clt_bpe_merge *m = find_merge(b, w->id[left], w->id[w->next[left]]);
    return m->rank == UINT32_MAX ? CLT_OK : push(w, (uint64_t)m->rank << 32 | (uint32_t)left);
}

static clt_status first_pairs(const clt_bpe *b, clt_bpe_work *w, size_t n) {
    w->n_heap = 0;
    CLT_TRY(reserve_heap(w, n));
    for (size_t i = 0; i < n; i++) {
        w->prev[i] = (int32_t)i - 1;
        w->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
        const clt_bpe_merge *m = i + 1 < n ? find_merge(b, w->id[i], w->id[i + 1]) : NULL;
        if (m && m->rank != UINT32_MAX) w->heap[w->n_heap++] = (uint64_t)m->rank << 32 | i;
    }
    for (size_t i = w->n_heap; i-- > 0;) sift_down(w->heap, w->n_heap, i);
    return CLT_OK;
}

/* Merges symbol `left` with the next one, which is then no symbol any more (its id is -1). */
static clt_status merge_at(const clt_bpe *b, clt_bpe_work *w, int32_t left, int32_t merged) {
    const int32_t right = w->next[left];
    w->id[left] = merged;
    w->id[right] = -1;
    w->next[left] = w->next[right];
    if (w->next[left] >= 0) w->prev[w->next[left]] = left;
    CLT_TRY(push_pair(b, w, w->prev[left]));
    return push_pair(b, w, left);
}

/* For many symbols: a heap of pairs. An entry counts if the symbols there still are that pair. */
static clt_status merge_many(const clt_bpe *b, clt_bpe_work *w, size_t *n) {
    CLT_TRY(first_pairs(b, w, *n));
    while (w->n_heap > 0) {
        const uint64_t top = pop(w);
        const int32_t left = (int32_t)(uint32_t)top;
        if (w->id[left] < 0 || w->next[left] < 0) continue;
        const clt_bpe_merge *m = find_merge(b, w->id[left], w->id[w->next[left]]);
        if (m->rank == top >> 32) CLT_TRY(merge_at(b, w, left, m->merged));
    }
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++)
        if (w->id[i] >= 0) w->id[kept++] = w->id[i];
    *n = kept;
    return CLT_OK;
}

/* --- pieces --- */

static void append(clt_id_list *out, const int32_t *ids, size_t n) {
    n = CLT_MIN(n, out->max - out->n);
    if (n) memcpy(out->ids + out->n, ids, n * sizeof *ids);
    out->n += n;
}

/* The ids of a piece without regard to ignore_merges, in w->id. */
static clt_status merge_piece(const clt_bpe *b, clt_bpe_work *w, const char *s, size_t bytes, size_t *n) {
    if (bytes > INT32_MAX)
        return clt_error(CLT_BAD_DATA,
                         "a text has %zu bytes without a place to divide it; at most %d are "
                         "supported",
                         bytes, INT32_MAX);
    CLT_TRY(reserve_symbols(w, bytes));
    *n = b->byte_level ? byte_symbols(b, w->id, s, bytes) : character_symbols(b, w->id, s, bytes);
    if (*n > SHORT) return merge_many(b, w, n);
    *n = merge_few(b, w->id, *n);
    return CLT_OK;
}

/* The id of a piece that is a token as a whole, if that counts; -1. */
static int32_t whole_piece(const clt_bpe *b, const char *s, size_t bytes) {
    return b->ignore_merges ? clt_vocab_find(b->byte_level ? &b->raw : b->vocab, s, bytes) : -1;
}

/* The ids of a piece in w->id. */
static clt_status encode_piece(const clt_bpe *b, clt_bpe_work *w, const char *s, size_t bytes, size_t *n) {
    const int32_t whole = whole_piece(b, s, bytes);
    if (whole < 0) return merge_piece(b, w, s, bytes, n);
    CLT_TRY(reserve_symbols(w, 1));
    w->id[0] = whole;
    *n = 1;
    return CLT_OK;
}

static bool is_known(const clt_bpe *b, unsigned char byte) {
    return b->byte_level ? b->byte_id[byte] >= 0 : byte < 0x80 && b->ascii_id[byte] >= 0;
}

/* The bytes before the first two known neighbours that no merge joins. */
static size_t unpaired_part(const clt_bpe *b, const char *s, size_t bytes) {
    for (size_t i = 1; i < bytes; i++) {
        const unsigned char left = (unsigned char)s[i - 1], right = (unsigned char)s[i];
        const unsigned pair = (unsigned)left << 8 | right;
        if (!(b->pairs[pair / 64] >> pair % 64 & 1) && is_known(b, left) && is_known(b, right)) return i;
    }
    return bytes;
}

/* A long piece, in parts if they are independent of each other: a few symbols are merged faster. */
static clt_status encode_long(const clt_bpe *b, clt_bpe_work *w, const char *s, size_t bytes,
                              clt_id_list *out) {
    const int32_t whole = whole_piece(b, s, bytes);
    if (whole >= 0) append(out, &whole, 1);
    while (whole < 0 && bytes > 0 && out->n < out->max) {
        const size_t part = b->divides_at_pairs ? unpaired_part(b, s, bytes) : bytes;
        size_t n = 0;
        CLT_TRY(merge_piece(b, w, s, part, &n));
        append(out, w->id, n);
        s += part;
        bytes -= part;
    }
    return CLT_OK;
}

static clt_status encode_cached(const clt_bpe *b, clt_bpe_work *w, const char *s, size_t bytes,
                                clt_id_list *out) {
    cached *c = bytes <= CACHED_BYTES ? &w->cache[XXH3_64bits(s, bytes) % CACHE_SLOTS] : NULL;
    size_t n = 0;
    if (bytes > LONG) return encode_long(b, w, s, bytes, out);
    if (c && c->bytes == bytes && memcmp(c->text, s, bytes) == 0) {
        append(out, c->ids, c->n);
        return CLT_OK;
    }
    CLT_TRY(encode_piece(b, w, s, bytes, &n));
    append(out, w->id, n);
    if (!c || n > CACHED_IDS) return CLT_OK;
    c->bytes = (uint8_t)bytes;
    c->n = (uint8_t)n;
    memcpy(c->text, s, bytes);
    if (n) memcpy(c->ids, w->id, n * sizeof *w->id);
    return CLT_OK;
}

/* The bytes before the first U+2581 that follows a different character. */
static size_t divided_part(const char *s, size_t bytes) {
    const char *at = s, *end = s + bytes;
    while (is_mark(at, end)) at += MARK_BYTES;
    while (at < end) {
        const char *lead = memchr(at, space_mark[0], (size_t)(end - at));
        if (!lead) return bytes;
        if (is_mark(lead, end)) return (size_t)(lead - s);
        at = lead + 1;
    }
    return bytes;
}

clt_status clt_bpe_encode(const clt_bpe *b, clt_bpe_work *w, const char *piece, size_t bytes,
                          clt_id_list *out) {
    while (bytes > 0 && out->n < out->max) {
        const size_t part = b->divides ? divided_part(piece, bytes) : bytes;
        CLT_TRY(encode_cached(b, w, piece, part, out));
        piece += part;
        bytes -= part;
    }
    return CLT_OK;
}
