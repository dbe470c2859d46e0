/* Element types in plain C: from fp32 to a stored element and back. */
#include <math.h>
#include <string.h>

#include "runtime/ops/ref/clt_ref.h"

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t clt_ref_f32_to_bf16(float x) {
    uint32_t u = bits_of(x), low = u & 0xffff;
    uint16_t b = (uint16_t)(u >> 16);
    if (isnan(x)) return b | 0x40;
    if (low > 0x8000 || (low == 0x8000 && (b & 1))) b++;
    return b;
}

float clt_ref_bf16_to_f32(uint16_t b) {
    return float_of((uint32_t)b << 16);
}

/* The value in units of the last place of a half of its magnitude; nearbyint rounds ties to even. */
uint16_t clt_ref_f32_to_f16(float x) {
    uint32_t u = bits_of(x);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (isnan(x)) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x3ff));
    double a = fabs((double)x);
    if (a >= 65520.0) return sign | 0x7c00;
    int e = a < 0x1p-14 ? -14 : ilogb(a);
    int64_t units = (int64_t)nearbyint(ldexp(a, 10 - e)); /* 0..2048 of 2^(e-10) */
    if (a < 0x1p-14) return (uint16_t)(sign | units);     /* 1024 units are the smallest normal half */
    return (uint16_t)(sign | (((e + 14) << 10) + units));
}

float clt_ref_f16_to_f32(uint16_t h) {
    int e = h >> 10 & 31, m = h & 0x3ff;
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    if (e == 31) return float_of(sign | 0x7f800000u | (m ? 0x400000u | (uint32_t)m << 13 : 0));
    double a = e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return float_of(sign | bits_of((float)a));
}

/* --- one element of each type --- */

static void f32_store(float x, void *to) {
    memcpy(to, &x, sizeof x);
}
static float f32_load(const void *from) {
    float x;
    memcpy(&x, from, sizeof x);
    return x;
}
static void bf16_store(float x, void *to) {
    const uint16_t b = clt_ref_f32_to_bf16(x);
    memcpy(to, &b, sizeof b);
}
static float bf16_load(const void *from) {
    uint16_t b;
    memcpy(&b, from, sizeof b);
    return clt_ref_bf16_to_f32(b);
}
static void f16_store(float x, void *to) {
    const uint16_t h = clt_ref_f32_to_f16(x);
    memcpy(to, &h, sizeof h);
}
static float f16_load(const void *from) {
    uint16_t h;
    memcpy(&h, from, sizeof h);
    return clt_ref_f16_to_f32(h);
}

/* A row of CLT_DTYPES needs <word>_store and <word>_load above. */
#define ROW(id, name, word, ...) [CLT_##id] = {word##_store, word##_load},
static const struct {
    void (*store)(float x, void *to);
    float (*load)(const void *from);
} element[CLT_DTYPE_COUNT] = {CLT_DTYPES(ROW)};
#undef ROW

/* --- many --- */

void clt_ref_narrow(clt_dtype type, const float *x, size_t n, void *out) {
    const size_t size = clt_dtype_bytes(type);
    for (size_t i = 0; i < n; i++) element[type].store(x[i], (char *)out + i * size);
}

void clt_ref_widen(clt_dtype type, const void *in, size_t n, float *x) {
    const size_t size = clt_dtype_bytes(type);
    for (size_t i = 0; i < n; i++) x[i] = element[type].load((const char *)in + i * size);
}

clt_status clt_ref_read_as(clt_ref r, clt_dtype type, float *x, size_t n) {
    const uint64_t size = clt_dtype_bytes(type);
    void *stored = clt_try_malloc(n * size);
    if (!stored) return clt_no_memory("a copy of a tensor", n * size);
    const clt_status st = clt_buffer_read(r.buf, r.off * size, stored, n * size);
    if (st == CLT_OK) clt_ref_widen(type, stored, n, x);
    clt_free(stored);
    return st;
}

float clt_ref_rounded(clt_dtype type, float x) {
    float stored;
    element[type].store(x, &stored);
    return element[type].load(&stored);
}

void clt_ref_round(clt_dtype type, float *x, size_t n) {
    for (size_t i = 0; i < n && type != CLT_F32; i++) x[i] = clt_ref_rounded(type, x[i]);
}
