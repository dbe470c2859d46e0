#include "test/lane_total.h"

#include <string.h>

/* To bf16's nearest, ties to even; of finite numbers. */
static float rounded(float v) {
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    u = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&v, &u, sizeof v);
    return v;
}

static float value(int lane, uint64_t element) {
    uint64_t x = (element + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(lane + 1) * 0xc2b2ae3d27d4eb4fu;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    if ((x & 63) == 0) return (x & 64) ? -0.0f : 0.0f;
    uint32_t exponent = (x & 63) == 1 ? 0 : 117 + (uint32_t)(x >> 8) % 20;
    uint32_t bits = (uint32_t)(x >> 40) << 31 | exponent << 23 | ((uint32_t)(x >> 13) & 0x7fffffu);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static int owner(const clt_lane_split *s, int lane) {
    int r = 0;
    while (clt_lane_begin(s, r + 1) <= lane) r++;
    return r;
}

/* The next ones that sums travel between. */
typedef enum { NOBODY, RANKS, HOSTS } travel;

/* What a part of the lanes has for some elements; false: all lanes of the part are empty. */
typedef struct {
    const lt_batch *b;
    uint64_t first, count; /* at most PIECE */
} piece;
enum { PIECE = 1024 };

static bool lane(const piece *p, int number, float *out) {
    const int64_t samples = p->b->samples;
    const int lanes = p->b->split.lanes;
    if (clt_lane_sample_begin(samples, lanes, number) == clt_lane_sample_begin(samples, lanes, number + 1))
        return false;
    for (uint64_t i = 0; i < p->count; i++) out[i] = value(number, p->first + i);
    return true;
}

/* The tree over lanes [first, first + width). Where gradients travel as bf16, what one host owns of the tree
 * is rounded, and before that what one rank owns. */
static bool tree(const piece *p, int first, int width, travel to, float *out) {
    const clt_lane_split *split = &p->b->split;
    const int each = to == HOSTS ? p->b->per_host : 1;
    if (to != NOBODY && owner(split, first) / each == owner(split, first + width - 1) / each) {
        if (!tree(p, first, width, to == HOSTS ? RANKS : NOBODY, out)) return false;
        for (uint64_t i = 0; i < p->count; i++) out[i] = rounded(out[i]);
        return true;
    }
    if (width == 1) return lane(p, first, out);
    float right[PIECE];
    if (!tree(p, first, width / 2, to, out)) return tree(p, first + width / 2, width / 2, to, out);
    if (tree(p, first + width / 2, width / 2, to, right))
        for (uint64_t i = 0; i < p->count; i++) out[i] += right[i];
    return true;
}

/* The chain of additions over lane numbers, of lanes that have samples. */
static bool chain(const piece *p, float *out) {
    float next[PIECE];
    bool some = false;
    for (int number = 0; number < p->b->split.lanes; number++) {
        if (!lane(p, number, some ? next : out)) continue;
        for (uint64_t i = 0; some && i < p->count; i++) out[i] += next[i];
        some = true;
    }
    return some;
}

/* The total travels, too. A single rank's gradients do not. */
static void total(const piece *p, float *out) {
    const lt_batch *b = p->b;
    const bool travels = b->bf16 && b->split.ranks > 1;
    const travel to = !travels ? NOBODY : b->per_host ? HOSTS : RANKS;
    const bool some = b->split.chain ? chain(p, out) : tree(p, 0, b->split.lanes, to, out);
    for (uint64_t i = 0; i < p->count; i++)
        out[i] = !some ? 0 : travels && !b->split.chain ? rounded(out[i]) : out[i];
}

void lt_values(int lane, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = value(lane, first + i);
}

void lt_totals(const lt_batch *b, uint64_t first, uint64_t count, float *out) {
    for (uint64_t at = 0; at < count; at += PIECE) {
        const piece p = {b, first + at, CLT_MIN(count - at, (uint64_t)PIECE)};
        total(&p, out + at);
    }
}
