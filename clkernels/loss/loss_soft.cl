/* loss_soft: softmax cross-entropy whose targets are probabilities; a row belongs to a work-group of WG items.
 * README.md defines the bits.
 *
 * Macros: WG (a power of two, at least 64, or 1), GRAD 0|1, TYPE (clt_dtype of the logits). */
#ifndef WG
#define WG 64
#endif
#if (WG < 64 && WG != 1) || (WG & (WG - 1))
#error "WG is a power of two, at least 64, or 1"
#endif
#ifndef GRAD
#define GRAD 1
#endif
#ifndef TYPE
#define TYPE 0
#endif
#include "../include/clt_math.clh"
#include "../include/clt_row.clh"
#include "../include/clt_store.clh"
#include "loss_max.clh"

/* The row sum of `term`, an expression of the element i, to all items. */
#define ROW_SUM(to, term)                                                                                    \
    float to;                                                                                                \
    {                                                                                                        \
        clt_lane_sums sums = clt_lane_sums_none();                                                           \
        if (item < 64)                                                                                       \
            for (uint k = 0; k < CLT_OWN_LANES; k++) {                                                       \
                float acc = 0.0f;                                                                            \
                for (size_t i = clt_own_lane(k); i < n; i += 64) acc = acc + (term);                         \
                sums = clt_lane_sums_add(sums, k, acc);                                                      \
            }                                                                                                \
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);                                                 \
        to = clt_lane_sums_tree(sums, s);                                                                    \
    }

/* How many logits precede the label's when they are sorted, the largest first, equal ones by their index;
 * n without a valid label. n is below 2^24. */
static inline int rank_of(__global const CLT_T(TYPE) *x, size_t n, int label, __local float *s, uint item) {
    const bool valid = label >= 0 && (ulong)label < n;
    const float z = CLT_LOAD(TYPE, x + (valid ? label : 0));
    clt_lane_sums sums = clt_lane_sums_none();
    if (item < 64)
        for (uint k = 0; k < CLT_OWN_LANES; k++) {
            float acc = 0.0f;
            for (size_t i = clt_own_lane(k); i < n; i += 64) {
                const float v = CLT_LOAD(TYPE, x + i);
                if (v > z || (v == z && i < (size_t)label)) acc = acc + 1.0f;
            }
            sums = clt_lane_sums_add(sums, k, acc);
        }
    barrier(CLK_LOCAL_MEM_FENCE);
    const float before = clt_lane_sums_tree(sums, s);
    return valid && z == z ? (int)before : (int)n;
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
loss_soft(__global CLT_T(TYPE) *logits, ulong logits_off, __global const float *targets, ulong targets_off,
          __global const int *label, ulong label_off, __global float *row_loss, ulong row_loss_off,
          __global int *rank, ulong rank_off, __global const float *row_weight, ulong row_weight_off, ulong vocab,
          ulong ld, float weight) {
    __local float s[WG];
    const size_t row = get_group_id(0), n = vocab;
    const uint item = (uint)get_local_id(0);
    __global CLT_T(TYPE) *x = logits + logits_off + row * ld;
    __global const float *t = targets + targets_off + row * n;
    float m = -INFINITY;
    for (size_t i = item; i < n; i += WG) {
        const float z = CLT_LOAD(TYPE, x + i);
        m = z > m ? z : m;
    }
    m = group_max(m, s, item);
    ROW_SUM(sum, clt_exp(CLT_LOAD(TYPE, x + i) - m))
    ROW_SUM(total, t[i])
    ROW_SUM(below, t[i] * (m - CLT_LOAD(TYPE, x + i)))
    if (item == 0) row_loss[row_loss_off + row] = clt_log(sum) * total + below;
    if (rank) {
        const int r = rank_of(x, n, label[label_off + row], s, item);
        if (item == 0) rank[rank_off + row] = r;
    }
#if GRAD
    const float r = 1.0f / sum, w = row_weight ? row_weight[row_weight_off + row] : weight;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* other items have read these logits */
    for (size_t i = item; i < n; i += WG) {
        const float p = clt_exp(CLT_LOAD(TYPE, x + i) - m) * r;
        const float d = (p * total - t[i]) * w;
        CLT_STORE(TYPE, d, x + i);
    }
#endif
}
