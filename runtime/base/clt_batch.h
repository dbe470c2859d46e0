/* clt_batch: samples in host memory, on their way from a loader to a model.
 *
 * A model family defines the layout of its batches: which arrays there are and how many bytes of each array
 * belong to one sample (clt_model_layout). The loader fills arrays of that layout. The trainer and the engine
 * slice and copy batches without knowing what the arrays mean. A global batch is divided over ranks and
 * lanes; a clt_batch holds some consecutive samples of it. */
#ifndef CLT_BATCH_H
#define CLT_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A target with this label is not part of the loss. */
#define CLT_LABEL_IGNORE (-100)

/* The arrays of a text batch, each int32 [samples, seq]. */
enum {
    CLT_TEXT_TOKENS,
    CLT_TEXT_TARGETS, /* the next token, or CLT_LABEL_IGNORE */
    CLT_TEXT_SEQ_IDS, /* index of the sequence that a token belongs to; absent: one sequence per sample */
    CLT_TEXT_FIELDS
};

enum { CLT_BATCH_MAX_FIELDS = 4 };

typedef struct {
    const char *name;
    size_t bytes; /* per sample; 0: the array is absent */
} clt_batch_field;

typedef struct {
    int n;
    clt_batch_field field[CLT_BATCH_MAX_FIELDS];
} clt_batch_layout;

/* Arrays are borrowed. */
typedef struct {
    int64_t samples; /* in these arrays */
    int64_t first;   /* index in the global batch of the first sample */
    const void *field[CLT_BATCH_MAX_FIELDS];
    const int32_t *sample_targets; /* [samples] number of targets in the loss; NULL: not counted */
    const int64_t *sample_ids;     /* [samples] indices in the data set; NULL: unknown */
    int64_t targets;               /* in the loss, sum over these samples */
    /* What throughput counts, sum over these samples: tokens without padding (images: samples). */
    int64_t tokens;
    /* Sums over the global batch; valid after the ranks have exchanged them. */
    int64_t global_samples, global_targets;
} clt_batch;

/* The layout of a text batch; seq_ids: with CLT_TEXT_SEQ_IDS. */
clt_batch_layout clt_text_layout(int64_t seq, bool seq_ids);

/* Samples [at, at + n) of b's arrays. The sums (targets, tokens) stay those of all of b. */
clt_batch clt_batch_slice(const clt_batch_layout *l, const clt_batch *b, int64_t at, int64_t n);

/* Bytes that clt_batch_copy needs for `samples` samples. */
size_t clt_batch_bytes(const clt_batch_layout *l, int64_t samples);
/* Copies b's arrays and sample_targets into `storage` (clt_batch_bytes bytes, aligned like malloc); *out
 * points into it. Sample ids are not copied: they are NULL in *out. */
void clt_batch_copy(const clt_batch_layout *l, const clt_batch *b, void *storage, clt_batch *out);

#endif
