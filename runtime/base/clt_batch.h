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

/* The label of a position without a target: the loss does not use it, and no count of targets includes it. */
#define CLT_LABEL_IGNORE (-100)

/* The arrays of a text batch, each int32 [samples, seq]: one value for each token position. */
enum {
    CLT_TEXT_TOKENS,
    CLT_TEXT_TARGETS, /* the label: the token of the next position, or CLT_LABEL_IGNORE */
    CLT_TEXT_SEQ_IDS, /* number of the text that the token belongs to, from 0 in each sample and never
                       * decreasing within it; absent: each sample is one text */
    CLT_TEXT_FIELDS   /* how many arrays */
};

enum { CLT_BATCH_MAX_FIELDS = 4 };

/* The arrays of a batch of images of `classes` classes. */
enum {
    CLT_IMAGE_PIXELS,  /* fp32 [samples, 3, height, width], RGB, normalised: what the model reads */
    CLT_IMAGE_TARGETS, /* fp32 [samples, classes]: the probabilities that the loss compares with; smoothing
                        * and mixing of labels have been applied */
    CLT_IMAGE_LABEL,   /* int32 [samples]: the class that accuracy counts; of a mixture the larger part */
    CLT_IMAGE_FIELDS   /* how many arrays */
};

typedef struct {
    const char *name; /* for messages; lives as long as the layout */
    size_t bytes;     /* per sample; 0: the array is absent */
} clt_batch_field;

typedef struct {
    int n; /* entries of `field`, absent arrays included */
    clt_batch_field field[CLT_BATCH_MAX_FIELDS];
} clt_batch_layout;

/* A batch borrows its arrays. The layout says what field[i] is. */
typedef struct {
    int64_t samples;                         /* in these arrays */
    int64_t first;                           /* index of the first of these samples in the global batch */
    const void *field[CLT_BATCH_MAX_FIELDS]; /* NULL: absent */
    const int32_t *sample_targets; /* [samples] targets of each sample that the loss uses; NULL: unknown */
    const int64_t *sample_ids;     /* [samples] index of each sample in the data set; NULL: unknown */
    int64_t targets;               /* targets of these samples that the loss uses */
    int64_t tokens; /* of these samples, without padding: what throughput counts (images: samples) */
    /* Samples and targets of the global batch; valid after the ranks have exchanged them. */
    int64_t global_samples, global_targets;
} clt_batch;

/* The layout of a text batch with `seq` positions per sample. seq_ids: with the array CLT_TEXT_SEQ_IDS. */
clt_batch_layout clt_text_layout(int64_t seq, bool seq_ids);
/* The layout of a batch of images with `height` x `width` pixels. */
clt_batch_layout clt_image_layout(int64_t height, int64_t width, int64_t classes);

/* The first array that a model with layout `need` reads and batches with layout `have` lack, or have with
 * another name or size; NULL: there is none. */
const clt_batch_field *clt_batch_layout_lacks(const clt_batch_layout *have, const clt_batch_layout *need);

/* Samples at to at + n - 1 of b, which must exist. The result points into b's arrays; `first` is moved by
 * `at`. The sums are copied unchanged: `targets` and `tokens` still count all samples of b. */
clt_batch clt_batch_slice(const clt_batch_layout *l, const clt_batch *b, int64_t at, int64_t n);

/* Bytes of storage that are enough for clt_batch_copy of a batch with `samples` samples. */
size_t clt_batch_bytes(const clt_batch_layout *l, int64_t samples);
/* Copies b's arrays and sample_targets into `storage`: clt_batch_bytes(l, b->samples) bytes of the caller,
 * aligned like malloc. *out points into `storage` and has b's counts. It has no sample ids (NULL). */
void clt_batch_copy(const clt_batch_layout *l, const clt_batch *b, void *storage, clt_batch *out);

#endif
