/* clt_image_mix: mixup and cutmix by timm's rules (timm.data.Mixup in mode batch). One decision for each
 * global batch: mixup, x * lam + y * (1 - lam), or cutmix, a box of x replaced by the same box of y; labels
 * are mixed by lam, with cutmix by the box's area.
 *
 * The partner y of a sample is its neighbour in the global batch: positions 2 k and 2 k + 1 of a batch are
 * each other's partners (timm: the mirrored position). In a shuffled order neighbours are as random as any
 * pair, and a rank nearly always has both. The last sample of an odd batch is its own partner.
 *
 * Decisions are functions of (seed, epoch, batch): docs/numerics.md, rule 14. */
#ifndef CLT_IMAGE_MIX_H
#define CLT_IMAGE_MIX_H

#include "runtime/base/clt_base.h"

typedef struct {
    double mixup, cutmix; /* alpha of Beta(alpha, alpha), >= 0; 0: never this one */
    double prob;          /* that a batch is mixed */
    double switch_prob;   /* that it is by cutmix, where both may */
    uint64_t seed;
} clt_image_mix_params;

typedef struct {
    double lam; /* part of the sample's own label; 1: the batch is not mixed */
    bool cut;   /* by the box [top, bottom) x [left, right); else mixup */
    int64_t top, bottom, left, right;
} clt_image_mix;

/* Whether any batch is mixed. */
bool clt_image_mixes(const clt_image_mix_params *p);
/* What happens to batch `batch` of an epoch, of pictures of size x size pixels. */
clt_image_mix clt_image_mix_of(const clt_image_mix_params *p, int64_t epoch, int64_t batch, int64_t size);

/* Mixes pixels of two samples, fp32 [3, size, size]: x with y, and y with x unless `only_x`. */
void clt_image_mix_pixels(const clt_image_mix *m, int64_t size, float *x, float *y, bool only_x);
/* The targets [classes] of a sample of class a whose partner has class b: probabilities with `smoothing`
 * spread over all classes. */
void clt_image_targets(double lam, double smoothing, int64_t classes, int64_t a, int64_t b, float *out);

/* A number of Beta(alpha, alpha), alpha > 0, for this batch. For tests. */
double clt_image_beta(const clt_image_mix_params *p, int64_t epoch, int64_t batch, double alpha);

#endif
