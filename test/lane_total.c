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

float lt_value(int lane, uint64_t element) {
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

/* The tree over lanes [first, first + width); false: all of them are empty. Where gradients travel as bf16,
 * what one host owns of the tree is rounded, and before that what one rank owns. */
static bool tree(const lt_batch *b, int first, int width, travel to, uint64_t element, float *out) {
    const int lanes = b->split.lanes, each = to == HOSTS ? b->per_host : 1;
    if (to != NOBODY && owner(&b->split, first) / each == owner(&b->split, first + width - 1) / each) {
        bool some = tree(b, first, width, to == HOSTS ? RANKS : NOBODY, element, out);
        *out = rounded(*out);
        return some;
    }
    if (width == 1) {
        *out = lt_value(first, element);
        return clt_lane_sample_begin(b->samples, lanes, first) <
               clt_lane_sample_begin(b->samples, lanes, first + 1);
    }
    float l = 0, r = 0;
    bool left = tree(b, first, width / 2, to, element, &l);
    bool right = tree(b, first + width / 2, width / 2, to, element, &r);
    *out = left && right ? l + r : left ? l : r;
    return left || right;
}

/* The chain of additions over lane numbers, of lanes that have samples. */
static bool chain(const lt_batch *b, uint64_t element, float *out) {
    const int lanes = b->split.lanes;
    bool some = false;
    for (int i = 0; i < lanes; i++) {
        if (clt_lane_sample_begin(b->samples, lanes, i) == clt_lane_sample_begin(b->samples, lanes, i + 1))
            continue;
        *out = some ? *out + lt_value(i, element) : lt_value(i, element);
        some = true;
    }
    return some;
}

/* The total travels, too. A single rank's gradients do not. */
float lt_total(const lt_batch *b, uint64_t element) {
    const bool travels = b->bf16 && b->split.ranks > 1;
    const travel to = !travels ? NOBODY : b->per_host ? HOSTS : RANKS;
    float v = 0;
    if (b->split.chain) return chain(b, element, &v) ? v : 0;
    if (!tree(b, 0, b->split.lanes, to, element, &v)) return 0;
    return travels ? rounded(v) : v;
}
