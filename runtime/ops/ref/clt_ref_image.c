/* The oracle of the operations on patches and tokens of images. clkernels/image/README.md has the formulas.
 */
#include "runtime/ops/ref/clt_ref.h"

void clt_ref_unfold_patches(int64_t images, int64_t height, int64_t width, int64_t p, int64_t ld,
                            const float *pixels, float *out) {
    for (int64_t b = 0; b < images; b++) {
        for (int64_t c = 0; c < ld; c++) *out++ = 0.0f;
        for (int64_t y = 0; y + p <= height; y += p)
            for (int64_t x = 0; x + p <= width; x += p)
                for (int64_t c = 0; c < ld; c++) {
                    const int64_t at = ((b * 3 + c / (p * p)) * height + y + c / p % p) * width + x + c % p;
                    *out++ = c < 3 * p * p ? pixels[at] : 0.0f;
                }
    }
}

void clt_ref_place_tokens(int64_t images, int64_t tokens, int64_t cols, const float *first,
                          const float *position, float *x) {
    for (int64_t b = 0; b < images; b++)
        for (int64_t i = 0; i < tokens * cols; i++, x++) *x = (i < cols ? first[i] : *x) + position[i];
}

void clt_ref_mean_tokens(int64_t images, int64_t tokens, int64_t cols, const float *x, float *y) {
    const float part = 1.0f / (float)(tokens - 1);
    for (int64_t b = 0; b < images; b++, x += tokens * cols)
        for (int64_t c = 0; c < cols; c++) {
            float acc = 0.0f;
            for (int64_t t = 1; t < tokens; t++) acc = acc + x[t * cols + c];
            *y++ = acc * part;
        }
}

void clt_ref_mean_tokens_backward(int64_t images, int64_t tokens, int64_t cols, const float *dy, float *dx) {
    const float part = 1.0f / (float)(tokens - 1);
    for (int64_t b = 0; b < images; b++, dy += cols)
        for (int64_t i = 0; i < tokens * cols; i++) *dx++ = i < cols ? 0.0f : dy[i % cols] * part;
}
