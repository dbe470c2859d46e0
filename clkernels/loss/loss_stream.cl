/* loss_stream: softmax cross-entropy with one read and one write of each logit: a work-group holds its row in local
 * memory between the passes. For numerics fast on NVIDIA: the base-2 exponential is the device's own, and a row's sum is
 * added in the order of the work-items, the same on each run. README.md has the formulas and the bound.
 *
 * Macros: WG (a power of two, at least 64), COLS: the vocabulary, a multiple of 8; GRAD 0|1; TYPE (clt_dtype of the
 * logits). Offset and row distance are multiples of 8 elements; no softcap. Local memory: COLS elements. Requires mma_bf16
 * (include/clt_ptx.clh). On an H200 (driver 580), bf16, 4096 x 50368: 3.1 TB/s; loss_group takes eight times as long. */
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
#ifndef GRAD
#define GRAD 1
#endif
#ifndef TYPE
#define TYPE 1
#endif
typedef CLT_T(TYPE) elem;

#define LOG2_E 0x1.715476p+0f
#define VECTORS (COLS / 8)
#define ROUNDS ((VECTORS + WG - 1) / WG)

/* Eight logits as they are stored, from global and local memory, and their values. */
#if TYPE == 0
typedef float8 stored;
#define FETCH(p) clt_load8_0(p)
#define VALUES(u) (u)
#else
typedef uint4 stored;
#define FETCH(p) (*(__global const uint4 *)(p))
#if TYPE == 1
#define VALUES(u)                                                                                            \
    as_float8((uint8)((u).x << 16, (u).x & 0xffff0000u, (u).y << 16, (u).y & 0xffff0000u, (u).z << 16,       \
                      (u).z & 0xffff0000u, (u).w << 16, (u).w & 0xffff0000u))
#else
#define VALUES(u) ((float8)(clt_widen4_2(as_ushort8(u).lo), clt_widen4_2(as_ushort8(u).hi)))
#endif
#endif

static inline float larger(float a, float b) {
    return a > b ? a : b;
}

/* The largest of m and the logits stored in u, two by two; sign: the bits to turn first (of a negative scale). */
#if TYPE == 1
static inline uint largest_of(stored u, uint sign, uint m) {
    u = u ^ sign;
    return clt_ptx_max2(clt_ptx_max2(clt_ptx_max2(u.x, u.y), clt_ptx_max2(u.z, u.w)), m);
}
#endif

/* Of 8 elements, in the order of a tree. */
static inline float max8(float8 v) {
    return larger(larger(larger(v.s0, v.s1), larger(v.s2, v.s3)), larger(larger(v.s4, v.s5), larger(v.s6, v.s7)));
}
static inline float sum8(float8 v) {
    const float4 a = v.lo + v.hi;
    const float2 b = a.lo + a.hi;
    return b.x + b.y;
}

/* The sum, or the largest, of the items' v, to all of them: eight at a time. */
static inline float group_reduce(float v, int sum, __local float *s, uint item) {
    barrier(CLK_LOCAL_MEM_FENCE);
    s[item] = v;
    uint left = WG;
    for (uint n = WG / 8; n > 0; n /= 8) {
        float8 e = (float8)(0.0f);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < n) e = vload8(item, s);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < n) s[item] = sum ? sum8(e) : max8(e);
        left = n;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    v = s[0];
    for (uint i = 1; i < left; i++) v = sum ? v + s[i] : larger(v, s[i]);
    return v;
}

static inline float8 exp2_of(float8 v) {
    return (float8)(clt_ptx_exp2(v.s0), clt_ptx_exp2(v.s1), clt_ptx_exp2(v.s2), clt_ptx_exp2(v.s3), clt_ptx_exp2(v.s4),
                    clt_ptx_exp2(v.s5), clt_ptx_exp2(v.s6), clt_ptx_exp2(v.s7));
}

static inline void fill_row(__global elem *x, float v, uint item) {
    for (uint i = item; i < VECTORS; i += WG) CLT_STORE8(TYPE, (float8)(v), x + 8 * i);
}

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void
loss(__global elem *logits, ulong logits_off, __global const int *targets, ulong targets_off,
     __global float *token_loss, ulong token_loss_off, __global int *correct, ulong correct_off,
     __global const float *row_weight, ulong row_weight_off, ulong vocab, ulong ld, float scale, float softcap,
     float weight) {
    __local stored row[VECTORS];
    __local float s[WG];
    const size_t r = get_group_id(0);
    const uint item = (uint)get_local_id(0);
    const int target = targets[targets_off + r];
    __global elem *x = logits + logits_off + r * ld;
    if (target < 0 || target >= COLS) {
        if (item == 0) token_loss[token_loss_off + r] = target < 0 ? 0.0f : NAN;
        if (item == 0 && correct) correct[correct_off + r] = 0;
#if GRAD
        fill_row(x, 0.0f, item);
#endif
        return;
    }
    float m = -INFINITY;
#if TYPE == 1
    const uint sign = scale < 0.0f ? 0x80008000u : 0u;
    uint top2 = 0xff80ff80u; /* twice -inf */
#pragma unroll 4
    for (uint n = 0; n < ROUNDS; n++) {
        const uint i = item + n * WG;
        if (i >= VECTORS) continue;
        const stored u = FETCH(x + 8 * i);
        row[i] = u;
        top2 = largest_of(u, sign, top2);
    }
    m = larger(as_float(top2 << 16), as_float(top2 & 0xffff0000u)) * fabs(scale);
#else
#pragma unroll 4
    for (uint n = 0; n < ROUNDS; n++) {
        const uint i = item + n * WG;
        if (i >= VECTORS) continue;
        const stored u = FETCH(x + 8 * i);
        row[i] = u;
        m = larger(max8(VALUES(u) * scale), m);
    }
#endif
    const float target_z = CLT_LOAD(TYPE, x + target) * scale;
    m = group_reduce(m, 0, s, item);
    const float k = scale * LOG2_E, top = -m * LOG2_E;
    float sum = 0.0f;
#pragma unroll 4
    for (uint n = 0; n < ROUNDS; n++) {
        const uint i = item + n * WG;
        if (i >= VECTORS) continue;
        const stored u = row[i];
        sum = sum + sum8(exp2_of(fma(VALUES(u), (float8)(k), (float8)(top))));
    }
    sum = group_reduce(sum, 1, s, item);
    if (correct) {
        float lower = 0.0f;
        for (uint i = item; i < (uint)target; i += WG)
            if (CLT_LOAD(TYPE, (__local const elem *)row + i) * scale == m) lower = 1.0f;
        lower = group_reduce(lower, 0, s, item);
        if (item == 0) correct[correct_off + r] = target_z == m && lower == 0.0f;
    }
    if (item == 0) token_loss[token_loss_off + r] = clt_log(sum) + (m - target_z);
#if GRAD
    const float w = row_weight ? row_weight[row_weight_off + r] : weight, factor = (1.0f / sum) * w * scale;
    const float of_target = (clt_exp(target_z - m) / sum - 1.0f) * w * scale;
#pragma unroll 4
    for (uint n = 0; n < ROUNDS; n++) {
        const uint i = item + n * WG;
        if (i >= VECTORS) continue;
        const stored u = row[i];
        float8 d = exp2_of(fma(VALUES(u), (float8)(k), (float8)(top))) * factor;
        if (i == (uint)target / 8) d = (int8)(0, 1, 2, 3, 4, 5, 6, 7) == (int8)(target % 8) ? (float8)(of_target) : d;
        CLT_STORE8(TYPE, d, x + 8 * i);
    }
#endif
}
