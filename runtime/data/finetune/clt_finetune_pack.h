/* clt_finetune_pack: several samples in one row, as LLM Foundry's BinPackCollator puts them. A bin is a row
 * that is being filled. The samples of a batch are sorted by length and put into bins, first fit; the largest
 * bins become the rows of the batch, and the others wait for the next batch. Only lengths matter, so the rows
 * of any batch can be computed again without the tokens.
 *
 * What is left is carried from batch to batch and from epoch to epoch: a packer is the state of that chain.
 * Not thread-safe. */
#ifndef CLT_FINETUNE_PACK_H
#define CLT_FINETUNE_PACK_H

#include "runtime/base/clt_base.h"

/* Samples that share a row, in this order. */
typedef struct {
    int64_t *sample;
    int32_t n, cap;
    int64_t size; /* tokens */
} clt_pack_bin;

typedef struct clt_bin_packer clt_bin_packer;

/* rows: of a batch. row_size: most tokens of a row; longer samples must not be added. most_left: bins that
 * wait for the next batch at most; -1: all. */
clt_bin_packer *clt_bin_packer_create(int64_t rows, int64_t row_size, int64_t most_left);
void clt_bin_packer_destroy(clt_bin_packer *p); /* NULL is allowed */

/* Packs the n samples of one batch; sizes[i] is the tokens of samples[i], 1 to row_size. *bins is the rows of
 * the batch, *n_bins <= rows, valid until the next call. CLT_NO_MEMORY. */
clt_status clt_bin_packer_add(clt_bin_packer *p, const int64_t *samples, const int32_t *sizes, size_t n,
                              const clt_pack_bin **bins, size_t *n_bins);
/* Bins that wait. */
size_t clt_bin_packer_left(const clt_bin_packer *p);

/* packing_ratio: auto. Tries ratios on the first samples of the order: sizes[n], of which n is at most
 * clt_pack_profile_samples. Returns the largest ratio below the first one that leaves tokens behind; 1: no
 * packing. `tried` (may be NULL) receives what was measured, at most CLT_PACK_RATIOS entries, *n_tried of
 * them. The rules are those of Foundry's auto_packing_ratio. */
enum { CLT_PACK_RATIOS = 20 };
typedef struct {
    double ratio, padding, waste; /* the last two in percent: of the rows, of the samples' tokens */
} clt_pack_trial;
int64_t clt_pack_profile_samples(int64_t rows, int64_t row_size);
clt_status clt_pack_profile(int64_t rows, int64_t row_size, const int32_t *sizes, size_t n, double *ratio,
                            clt_pack_trial *tried, size_t *n_tried);

#endif
