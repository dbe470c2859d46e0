/* clt_batch: samples on the host, as a loader makes them and a model takes them.
 *
 * A model family says in a layout which arrays a batch has and how many bytes of each belong to one sample
 * (clt_model_layout); the loader fills arrays of that layout; everything between them (the trainer, the
 * engine, microbatches) slices and copies batches without knowing what is in them. A global batch is divided
 * over ranks and lanes; a clt_batch holds some consecutive samples of it. */
#ifndef CLT_BATCH_H
#define CLT_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Targets that take no part in the loss have this label. */
#define CLT_LABEL_IGNORE (-100)

/* The arrays of a batch of text, each int32 [samples, seq]. */
enum {
    CLT_TEXT_TOKENS,
    CLT_TEXT_TARGETS, /* the next token, or CLT_LABEL_IGNORE */
    CLT_TEXT_SEQ_IDS, /* which sequence of the sample a token belongs to; absent: the sample is one */
    CLT_TEXT_FIELDS
};

enum { CLT_BATCH_MAX_FIELDS = 4 };

typedef struct {
    const char *name;
    size_t bytes; /* of one sample; 0: the array is absent */
} clt_batch_field;

typedef struct {
    int n;
    clt_batch_field field[CLT_BATCH_MAX_FIELDS];
} clt_batch_layout;

/* Arrays are borrowed. */
typedef struct {
    int64_t samples; /* in the arrays */
    int64_t first;   /* place of the first of them in the global batch */
    const void *field[CLT_BATCH_MAX_FIELDS];
    const int32_t *sample_targets; /* [samples] targets in the loss; NULL: not counted */
    const int64_t *sample_ids;     /* [samples] of the data set; NULL: unknown */
    int64_t targets;               /* in the loss, of these samples */
    int64_t tokens; /* what throughput counts: tokens without padding (images: samples), of these samples */
    /* Of the whole global batch, once ranks have exchanged them. */
    int64_t global_samples, global_targets;
} clt_batch;

/* The arrays int32 [samples, seq] of a batch of text. */
clt_batch_layout clt_text_layout(int64_t seq, bool seq_ids);

/* Samples [at, at + n) of b's arrays, counted from its first one. Sums over samples (targets, tokens) are
 * those of b. */
clt_batch clt_batch_slice(const clt_batch_layout *l, const clt_batch *b, int64_t at, int64_t n);

/* Bytes that clt_batch_copy needs for so many samples. */
size_t clt_batch_bytes(const clt_batch_layout *l, int64_t samples);
/* Copies b's arrays and sample_targets into `storage` (clt_batch_bytes, aligned as malloc aligns); *out
 * points into it. Sample ids stay behind: they are NULL in *out. */
void clt_batch_copy(const clt_batch_layout *l, const clt_batch *b, void *storage, clt_batch *out);

#endif
