/* loss_wide: loss_group.cl for 16-bit logits without a softcap whose rows start at multiples of eight elements:
 * each item reads eight logits at once, and computes their exponentials together. The bits are those of README.md.
 *
 * Macros: WG (a power of two, at least 128), GRAD 0|1, APART 0|1, TYPE (1, 2). vocab, ld and the offset of the logits
 * are multiples of 8. Local memory: 68 WG bytes. */
#ifndef WG
#define WG 256
#endif
#if WG < 128 || (WG & (WG - 1))
#error "WG is a power of two, at least 128"
#endif
#ifndef TYPE
#define TYPE 1
#endif
#include "../include/clt_math.clh"
#include "../include/clt_row.clh"
#include "loss_max.clh"
#include "loss_z.clh"
#if TYPE == 0 || SOFTCAP
#error "loss_wide is for 16-bit logits without a softcap"
#endif

#define PART (8 * WG) /* elements of a row whose exponentials are in local memory at a time */
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)

typedef struct {
    float v[8];
} eight;

static inline eight load_z(__global const elem *x, float scale) {
    const float8 f = CLT_WIDEN8(TYPE, CLT_FETCH8(TYPE, x)) * scale;
    const eight e = {{f.s0, f.s1, f.s2, f.s3, f.s4, f.s5, f.s6, f.s7}};
    return e;
}

/* exp(z - m) */
static inline eight exp_of(eight z, float m) {
    EACH(i, 8) z.v[i] = clt_exp(z.v[i] - m);
    return z;
}

static inline float row_max(__global const elem *x, size_t n, float scale, __local float *s, uint item) {
    float m = -INFINITY;
    for (size_t i = item * 8; i < n; i += PART) {
        const eight z = load_z(x + i, scale);
        EACH(j, 8) m = z.v[j] > m ? z.v[j] : m;
    }
    return group_max(m, s, item);
}

/* Whether an element below the target is the largest, too. */
static inline bool has_lower(__global const elem *x, size_t target, float m, float scale, __local float *s,
                             uint item) {
    float lower = 0.0f;
    for (size_t i = item * 8; i < target; i += PART) {
        const eight z = load_z(x + i, scale);
        EACH(j, 8) if (z.v[j] == m && i + j < target) lower = 1.0f;
    }
    return group_max(lower, s, item) != 0.0f;
}

/* Row sum of exp(z - m): all items compute a part of the row, and the 64 lanes add it while the next one is
 * computed. parts: 2 * PART floats. */
static inline float row_exp_sum(__global const elem *x, size_t n, float m, float scale, __local float *s,
                                __local float *parts, uint item) {
    clt_lane_sums sums = clt_lane_sums_none();
    float acc = 0.0f;
    for (size_t first = 0; first < n; first += PART) {
        __local float *part = parts + (first / PART & 1) * PART;
        const size_t i = first + item * 8;
        const uint count = (uint)min(n - first, (size_t)PART);
        if (i < n) {
            const eight e = exp_of(load_z(x + i, scale), m);
            vstore4((float4)(e.v[0], e.v[1], e.v[2], e.v[3]), 0, part + item * 8);
            vstore4((float4)(e.v[4], e.v[5], e.v[6], e.v[7]), 1, part + item * 8);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < 64)
            for (uint k = item; k < count; k += 64) acc = acc + part[k];
    }
    if (item < 64) sums = clt_lane_sums_add(sums, 0, acc);
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); /* logits that were read before may be written after it */
    return clt_lane_sums_tree(sums, s);
}

#if GRAD
/* r: 1 over the row sum; w: the row's weight. */
static inline void row_gradient(__global elem *x, size_t n, size_t target, float m, float r, float w, float scale,
                                uint item) {
    for (size_t i = item * 8; i < n; i += PART) {
        eight d = exp_of(load_z(x + i, scale), m);
        EACH(j, 8) d.v[j] = d.v[j] * r;
#if !APART
        EACH(j, 8) if (i + j == target) d.v[j] = d.v[j] - 1.0f;
#endif
        EACH(j, 8) d.v[j] = d.v[j] * w * scale;
        const float8 f = (float8)(d.v[0], d.v[1], d.v[2], d.v[3], d.v[4], d.v[5], d.v[6], d.v[7]);
        CLT_STORE8(TYPE, f, x + i);
    }
}
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
loss(__global elem *logits, ulong logits_off, __global const int *targets, ulong targets_off,
     __global float *token_loss, ulong token_loss_off, __global int *correct, ulong correct_off,
     __global const float *row_weight, ulong row_weight_off, ulong vocab, ulong ld, float scale, float softcap,
     float weight) {
    __local float s[WG], parts[2 * PART];
    const size_t row = get_group_id(0), n = vocab;
    const uint item = (uint)get_local_id(0);
    const int target = targets[targets_off + row];
    const bool valid = target >= 0 && (ulong)target < vocab;
    __global elem *x = logits + logits_off + row * ld;
    /* In front of the test: Intel's compiler for CPUs moves a load from behind it to here, and takes -100 for an
     * offset of 4 billion. And in front of the barriers that let the gradient overwrite the logits. */
    const float z = CLT_LOAD(TYPE, x + (valid ? target : 0)) * scale;
    if (!valid) {
        if (item == 0) token_loss[token_loss_off + row] = target < 0 ? 0.0f : NAN;
        if (item == 0 && correct) correct[correct_off + row] = 0;
#if GRAD
        barrier(CLK_GLOBAL_MEM_FENCE); /* all items have loaded z */
        for (size_t i = item; i < n; i += WG) CLT_STORE(TYPE, 0.0f, x + i);
#endif
        return;
    }
    const float m = row_max(x, n, scale, s, item);
    if (correct) {
        const bool first = z == m && !has_lower(x, (size_t)target, m, scale, s, item);
        if (item == 0) correct[correct_off + row] = first;
    }
    const float sum = row_exp_sum(x, n, m, scale, s, parts, item);
    if (item == 0) token_loss[token_loss_off + row] = clt_log(sum) + (m - z);
#if GRAD
    const float w = row_weight ? row_weight[row_weight_off + row] : weight;
    row_gradient(x, n, (size_t)target, m, 1.0f / sum, w, scale, item);
#endif
}
