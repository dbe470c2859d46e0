/* Positions of another grid of patches, as timm resamples them (resample_abs_pos_embed): bicubic, a = -0.5,
 * with antialiasing, half-pixel centres, in both directions one after the other. In double, rounded once. */
#include <math.h>
#include <string.h>

#include "runtime/model/vit/clt_vit_internal.h"

/* Keys' cubic kernel with a = -0.5. */
static double cubic(double x) {
    x = fabs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/* The weights [from] of the places of a line of `from` at place i of a line of `to`. */
static void weights_of(int64_t from, int64_t to, int64_t i, double *w) {
    const double scale = (double)from / (double)to, wide = fmax(scale, 1), centre = ((double)i + 0.5) * scale;
    double sum = 0;
    for (int64_t k = 0; k < from; k++) sum += w[k] = cubic(((double)k + 0.5 - centre) / wide);
    for (int64_t k = 0; k < from; k++) w[k] /= sum;
}

/* All weights [to, from] of a line. */
static double *all_weights(int64_t from, int64_t to) {
    double *w = clt_malloc((size_t)(from * to) * sizeof *w);
    for (int64_t i = 0; i < to; i++) weights_of(from, to, i, w + i * from);
    return w;
}

static void resample(int64_t from, int64_t to, int64_t cols, const float *x, float *y) {
    double *w = all_weights(from, to), *line = clt_malloc((size_t)(from * to) * sizeof *line);
    for (int64_t c = 0; c < cols; c++) {
        for (int64_t r = 0; r < from; r++)
            for (int64_t i = 0; i < to; i++) {
                double sum = 0;
                for (int64_t k = 0; k < from; k++)
                    sum += w[i * from + k] * (double)x[(r * from + k) * cols + c];
                line[r * to + i] = sum;
            }
        for (int64_t r = 0; r < to; r++)
            for (int64_t i = 0; i < to; i++) {
                double sum = 0;
                for (int64_t k = 0; k < from; k++) sum += w[r * from + k] * line[k * to + i];
                y[(r * to + i) * cols + c] = (float)sum;
            }
    }
    clt_free(w);
    clt_free(line);
}

bool clt_vit_resample(const clt_model_config *config, int entry, const int64_t *shape, const float *from,
                      float *to) {
    const clt_vit_config *v = (const clt_vit_config *)config;
    const int64_t C = v->block.d_model, grid = (int64_t)sqrt((double)(shape[1] - 1));
    if (entry != CLT_VIT_POSITIONS || shape[0] != 1 || shape[2] != C || grid < 1 ||
        grid * grid + 1 != shape[1])
        return false;
    if (!to) return true;
    memcpy(to, from, (size_t)C * sizeof *to); /* the class token's */
    resample(grid, v->grid, C, from + C, to + C);
    return true;
}
