/* loss_stream: softmax cross-entropy with one read and one write of each logit. A work-group processes row
 * after row, keeps a row in local memory between the passes and loads the next row meanwhile. For numerics
 * fast on NVIDIA: the base-2 exponential is the device's, and a row's sum is added in the order of the
 * work-items, the same in each run. README.md has the formulas and the bound.
 *
 * An item reads only the local memory that it filled, so no item waits for a free place: after storing the
 * gradients of eight logits it loads eight logits of a later row into their place.
 *
 * Macros: WG (a power of two, at least 64), COLS: the vocabulary, a multiple of 8; SLOTS (1, 2): rows in
 * local memory; GRAD 0|1; TYPE (clt_dtype of the logits). Offset and row distance are multiples of 8
 * elements; no softcap. Local memory: SLOTS * COLS elements and 1 KiB. Launch: any number of groups. Requires
 * mma_bf16 (include/clt_ptx.clh). */
#include "../include/clt_math.clh"
#define HALF_PTX 1
#include "../include/clt_ptx.clh"
#include "../include/clt_store.clh"

#ifndef WG
#define WG 512
#endif
#if WG < 64 || (WG & (WG - 1))
#error "WG is a power of two, at least 64"
#endif
#ifndef COLS
#define COLS 4096
#endif
#if COLS % 8 != 0
#error "COLS is a multiple of 8"
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#if SLOTS != 1 && SLOTS != 2
#error "SLOTS is 1 or 2"
#endif
#ifndef GRAD
#define GRAD 1
#endif
#ifndef TYPE
#define TYPE 1
#endif
typedef CLT_T(TYPE) elem;

#if SLOTS == 1
#define OTHERS 0
#else
#define OTHERS 1
#endif
#define LOG2_E 0x1.715476p+0f
#define LN_2 0x1.62e43p-1f
#define VECTORS (COLS / 8)
#define ROUNDS ((VECTORS + WG - 1) / WG)

typedef CLT_T8(TYPE) stored;

static inline float larger(float a, float b) {
    return a > b ? a : b;
}

/* The largest, and the sum, of 8 elements; the sum is a tree. */
static inline float max8(float8 v) {
    return larger(larger(larger(v.s0, v.s1), larger(v.s2, v.s3)), larger(larger(v.s4, v.s5), larger(v.s6, v.s7)));
}
static inline float sum8(float8 v) {
    const float4 a = v.lo + v.hi;
    const float2 b = a.lo + a.hi;
    return b.x + b.y;
}

/* The largest scaled logit so far, from TOP_NONE: top_of adds the logits of a vector, top_value reads it. For
 * bf16 it is two numbers, of even and odd elements, as they are stored; a negative scale inverts their signs. */
#if TYPE == 1
typedef uint top_logit;
#define TOP_NONE 0xff80ff80u /* -inf, twice */
static inline top_logit top_of(stored u, float scale, top_logit top) {
    u = u ^ (scale < 0.0f ? 0x80008000u : 0u);
    return clt_ptx_max2(clt_ptx_max2(clt_ptx_max2(u.x, u.y), clt_ptx_max2(u.z, u.w)), top);
}
static inline float top_value(top_logit top, float scale) {
    return larger(as_float(top << 16), as_float(top & 0xffff0000u)) * fabs(scale);
}
#else
typedef float top_logit;
#define TOP_NONE (-INFINITY)
static inline top_logit top_of(stored u, float scale, top_logit top) {
    return larger(max8(CLT_WIDEN8(TYPE, u) * scale), top);
}
static inline float top_value(top_logit top, float scale) {
    return top;
}
#endif

/* The sum, or the largest, of the items' v, to all items. s: one place per 32 items, other than that of the
 * preceding reduction. */
static inline float group_reduce(float v, int sum, __local float *s, uint item) {
    for (uint d = 16; d > 0; d /= 2) {
        const float other = clt_ptx_swap(v, d);
        v = sum ? v + other : larger(v, other);
    }
    if (item % 32 == 0) s[item / 32] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    v = s[item % (WG / 32)];
    for (uint d = WG / 64; d > 0; d /= 2) {
        const float other = clt_ptx_swap(v, d);
        v = sum ? v + other : larger(v, other);
    }
    return v;
}

static inline float8 exp2_of(float8 v) {
    return (float8)(clt_ptx_exp2(v.s0), clt_ptx_exp2(v.s1), clt_ptx_exp2(v.s2), clt_ptx_exp2(v.s3), clt_ptx_exp2(v.s4),
                    clt_ptx_exp2(v.s5), clt_ptx_exp2(v.s6), clt_ptx_exp2(v.s7));
}

/* An item's vectors of a row. */
#define EACH_VECTOR(i) _Pragma("unroll 4") for (uint n = 0, i = item; n < ROUNDS; n++, i += WG) if (i < VECTORS)

static inline void copy_vector(__local stored *to, __global const elem *from) {
    CLT_COPY8_OF(TYPE, CLT_COPY_PLACE(to), from);
}

/* Steps of the kernel, which use its variables by name. LOAD_FIRST_ROWS starts to load the group's first
 * rows. STORE_GRADIENT(i) stores the gradients of vector i, +0 in a row without a valid target;
 * STORE_OF_TARGET then stores the target's. */
#define LOAD_FIRST_ROWS()                                                                                    \
    for (uint s = 0; s < SLOTS; s++) {                                                                       \
        const uint r = own + s * groups;                                                                     \
        __global const elem *x = logits + r * ld;                                                            \
        if (r < rows) EACH_VECTOR(i) copy_vector(&place[s][i], x + 8 * i);                                   \
        CLT_COPY_COMMIT();                                                                                   \
    }
#if GRAD
#define STORE_GRADIENT(i)                                                                                    \
    {                                                                                                        \
        float8 d = (float8)(0.0f);                                                                           \
        if (there) d = exp2_of(fma(CLT_WIDEN8(TYPE, row[i]), (float8)(k), (float8)(top))) * factor;          \
        CLT_STORE8(TYPE, d, x + 8 * i);                                                                      \
    }
#define STORE_OF_TARGET()                                                                                    \
    if (there && item == (uint)target / 8 % WG) CLT_STORE(TYPE, of_target, x + target);
#else
#define STORE_GRADIENT(i)
#define STORE_OF_TARGET()
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
loss(__global elem *logits, ulong logits_off, __global const int *targets, ulong targets_off,
     __global float *token_loss, ulong token_loss_off, __global int *correct, ulong correct_off,
     __global const float *row_weight, ulong row_weight_off, ulong vocab, ulong ld, float scale, float softcap,
     float weight, uint rows) {
    __local stored place[SLOTS][VECTORS] __attribute__((aligned(16)));
    __local float of_max[WG / 32], of_sum[WG / 32], of_lower[WG / 32];
    const uint item = (uint)get_local_id(0), groups = (uint)get_num_groups(0), own = (uint)get_group_id(0);
    logits += logits_off;
    targets += targets_off;
    LOAD_FIRST_ROWS()
    int next = targets[own];
    for (uint r = own, slot = 0; r < rows; r += groups, slot = (slot + 1) % SLOTS) {
        __local stored *row = place[slot];
        __global elem *x = logits + r * ld;
        const int target = next;
        const bool there = target >= 0 && target < COLS;
        if (r + groups < rows) next = targets[r + groups];
        float factor = 0.0f, of_target = 0.0f, top = 0.0f;
        const float k = scale * LOG2_E;
        CLT_COPY_WAIT(OTHERS);
        if (there) {
            top_logit largest = TOP_NONE;
            EACH_VECTOR(i) largest = top_of(row[i], scale, largest);
            const float m = group_reduce(top_value(largest, scale), 0, of_max, item);
            const float target_x = CLT_LOAD(TYPE, (__local const elem *)row + target);
            float sum = 0.0f;
            top = -m * LOG2_E;
            EACH_VECTOR(i) sum = sum + sum8(exp2_of(fma(CLT_WIDEN8(TYPE, row[i]), (float8)(k), (float8)(top))));
            sum = group_reduce(sum, 1, of_sum, item);
            if (correct) {
                float lower = 0.0f;
                for (uint i = item; i < (uint)target; i += WG)
                    if (CLT_LOAD(TYPE, (__local const elem *)row + i) * scale == m) lower = 1.0f;
                lower = group_reduce(lower, 0, of_lower, item);
                if (item == 0) correct[correct_off + r] = target_x * scale == m && lower == 0.0f;
            }
            /* The target's exponent is computed like the others: all of them contain the rounding of m
             * log2(e), which cancels in the result. */
            const float exponent = fma(target_x, k, top);
            if (item == 0) token_loss[token_loss_off + r] = fma(-LN_2, exponent, clt_log(sum));
            const float w = row_weight ? row_weight[row_weight_off + r] : weight;
            factor = (1.0f / sum) * w * scale;
            of_target = (clt_ptx_exp2(exponent) / sum - 1.0f) * w * scale;
        } else if (item == 0) {
            token_loss[token_loss_off + r] = target < 0 ? 0.0f : NAN;
            if (correct) correct[correct_off + r] = 0;
        }
        /* The place of a vector is reused for a later row as soon as it has been processed. */
        const uint later = r + SLOTS * groups;
        __global const elem *y = logits + later * ld;
        EACH_VECTOR(i) {
            STORE_GRADIENT(i)
            if (later < rows) copy_vector(&row[i], y + 8 * i);
        }
        STORE_OF_TARGET()
        CLT_COPY_COMMIT();
    }
}
