#include "runtime/base/clt_batch.h"

#include <string.h>

#include "runtime/base/clt_base.h"

clt_batch_layout clt_text_layout(int64_t seq, bool seq_ids) {
    const size_t bytes = (size_t)seq * sizeof(int32_t);
    return (clt_batch_layout){.n = CLT_TEXT_FIELDS,
                              .field = {[CLT_TEXT_TOKENS] = {"tokens", bytes},
                                        [CLT_TEXT_TARGETS] = {"targets", bytes},
                                        [CLT_TEXT_SEQ_IDS] = {"sequence ids", seq_ids ? bytes : 0}}};
}

clt_batch_layout clt_image_layout(int64_t height, int64_t width, int64_t classes) {
    const size_t pixels = 3 * (size_t)height * (size_t)width;
    return (clt_batch_layout){.n = CLT_IMAGE_FIELDS,
                              .field = {[CLT_IMAGE_PIXELS] = {"pixels", pixels * sizeof(float)},
                                        [CLT_IMAGE_TARGETS] = {"targets", (size_t)classes * sizeof(float)},
                                        [CLT_IMAGE_LABEL] = {"label", sizeof(int32_t)}}};
}

const clt_batch_field *clt_batch_layout_lacks(const clt_batch_layout *have, const clt_batch_layout *need) {
    for (int i = 0; i < need->n; i++) {
        const clt_batch_field *n = &need->field[i], *h = i < have->n ? &have->field[i] : NULL;
        if (n->bytes && (!h || h->bytes != n->bytes || strcmp(h->name, n->name) != 0)) return n;
    }
    return NULL;
}

clt_batch clt_batch_slice(const clt_batch_layout *l, const clt_batch *b, int64_t at, int64_t n) {
    clt_batch s = *b;
    s.samples = n;
    s.first = b->first + at;
    for (int i = 0; i < l->n; i++)
        if (b->field[i]) s.field[i] = (const char *)b->field[i] + (size_t)at * l->field[i].bytes;
    if (b->sample_targets) s.sample_targets = b->sample_targets + at;
    if (b->sample_ids) s.sample_ids = b->sample_ids + at;
    return s;
}

/* Each array starts at an address that is aligned for every type. */
static size_t array_bytes(size_t sample_bytes, int64_t samples) {
    return CLT_ROUND_UP(sample_bytes * (size_t)samples, sizeof(max_align_t));
}

size_t clt_batch_bytes(const clt_batch_layout *l, int64_t samples) {
    size_t bytes = array_bytes(sizeof(int32_t), samples); /* sample_targets */
    for (int i = 0; i < l->n; i++) bytes += array_bytes(l->field[i].bytes, samples);
    return bytes;
}

/* Copies one array to *to and moves *to behind it. */
static void *copy_array(char **to, const void *from, size_t sample_bytes, int64_t samples) {
    void *at = memcpy(*to, from, sample_bytes * (size_t)samples);
    *to += array_bytes(sample_bytes, samples);
    return at;
}

void clt_batch_copy(const clt_batch_layout *l, const clt_batch *b, void *storage, clt_batch *out) {
    char *to = storage;
    *out = *b;
    out->sample_ids = NULL;
    if (b->sample_targets)
        out->sample_targets = copy_array(&to, b->sample_targets, sizeof *b->sample_targets, b->samples);
    for (int i = 0; i < l->n; i++)
        if (b->field[i]) out->field[i] = copy_array(&to, b->field[i], l->field[i].bytes, b->samples);
}
