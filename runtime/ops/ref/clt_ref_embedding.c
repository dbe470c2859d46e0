/* The oracle of the lookups and their gradients. clkernels/embedding/README.md has the formulas. */
#include "runtime/ops/ref/clt_ref.h"

void clt_ref_embedding_forward(int64_t rows, int64_t seq, int64_t cols, const int32_t *ids, const float *wte,
                               const float *wpe, float fraction, float *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float v = wte[ids[r] * cols + c];
            if (wpe) v = v + wpe[r % seq * cols + c];
            if (fraction != 1.0f) v = v * fraction + v * (1.0f - fraction);
            out[r * cols + c] = v;
        }
}

void clt_ref_embedding_backward(int64_t rows, int64_t seq, int64_t cols, const int32_t *ids, const float *dx,
                                float fraction, float *dwte, float *dwpe) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float g = dx[r * cols + c];
            if (fraction != 1.0f) g = fraction * g;
            if (dwte) dwte[ids[r] * cols + c] = dwte[ids[r] * cols + c] + g;
            if (dwpe) dwpe[r % seq * cols + c] = dwpe[r % seq * cols + c] + g;
        }
}
