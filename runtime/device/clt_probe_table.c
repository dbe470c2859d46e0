/* The questions of clkernels/probe/: how each is asked, and what a right answer is. The kernel files say what
 * a wrong answer looks like. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_host.h"
#include "runtime/base/clt_philox.h"
#include "runtime/device/clt_probe.h"

#define CL12 CLT_LANGUAGE_OPTION
enum { TRIPLES = 4096 };

/* --- which devices are asked --- */

static bool says_subgroups(const clt_device *dev) {
    return dev->facts.says_subgroups;
}

static bool is_gpu(const clt_device *dev) {
    return dev->facts.type == CLT_DEVICE_GPU;
}

static bool is_cpu(const clt_device *dev) {
    return dev->facts.type == CLT_DEVICE_CPU;
}

static bool takes_inline_asm(const clt_device *dev) {
    return clt_has_quirk(dev, CLT_QUIRK_TAKES_INLINE_ASM);
}

static bool has_inline_ptx(const clt_device *dev) {
    return dev->facts.inline_ptx;
}

/* --- features --- */

static double check_half(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    const uint32_t *out = a->out;
    for (uint32_t i = 0; i < 64; i++)
        if (out[i] != i / 2 + 1) return 0;
    return 1;
}

/* out[i] = in[i] = i. */
static double check_same(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    return memcmp(a->in, a->out, 64 * sizeof *a->in) == 0;
}

static double check_subgroups(const clt_probe_answer *a, clt_device_facts *f) {
    const uint32_t *out = a->out;
    for (int i = 1; i < 64; i++)
        if (out[i] != out[0]) return 0;
    f->subgroups = out[0] > 0;
    return out[0];
}

static double check_block_reads(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    const uint32_t *out = a->out;
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t s = i / 16, l = i % 16, half_word = l % 2 ? 0 : a->in[s * 16 + l / 2];
        if (out[i] != i + (half_word << 8) + ((s * 16 + 5) << 16)) return 0;
    }
    return 1;
}

/* c[m][n] = m + n for `rows` rows of 8 columns. */
static bool is_sum_of_indices(const float *c, int rows) {
    for (int i = 0; i < rows * 8; i++)
        if (c[i] != (float)(i / 8 + i % 8)) return false;
    return true;
}

static double check_mma(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    return is_sum_of_indices(a->out, 16);
}

/* Two products, one after the other. */
static double check_mma_f16(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    const float *out = a->out;
    return is_sum_of_indices(out, 16) && is_sum_of_indices(out + 16 * 8, 16);
}

static double check_wgmma(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    return is_sum_of_indices(a->out, 64);
}

static double check_tile16(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    const float *out = a->out;
    for (int i = 0; i < 256; i++) {
        int sum = 1;
        for (int k = 0; k < 16; k++) sum += (i / 16 - k) * (i % 16 + 2 * k);
        if (out[i] != (float)sum) return 0;
    }
    return out[256] == 32 || out[256] == 64 ? out[256] : 0;
}

/* Compilers that do not say what they compile for take the processor that they run on. */
static double check_vector_bits(const clt_probe_answer *a, clt_device_facts *f) {
    (void)f;
    const uint32_t *out = a->out, bits = out[0];
    for (uint32_t i = 1; i < 64; i++)
        if (out[i] != bits + i) return 0;
    if (bits == 0) return clt_host_vector_bits();
    return bits == 128 || bits == 256 || bits == 512 ? bits : 0;
}

/* --- arithmetic --- */

/* Any bits; every fourth triple is near the denormals, the first ones are all triples of special values. */
static void fill_triples(uint32_t *in) {
    static const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u, 0x007fffffu,
                                       0x00800000u, 0x00800001u, 0x3f800000u, 0x3f800001u, 0xbf7fffffu,
                                       0x7f7fffffu, 0x7f800000u, 0xff800000u};
    enum { S = CLT_COUNT_OF(special) };
    for (uint32_t i = 0; i < TRIPLES; i++)
        for (uint32_t j = 0; j < 3; j++) {
            const uint32_t place = j == 0 ? i % S : j == 1 ? i / S % S : i / (S * S) % S;
            uint32_t u = special[place];
            if (i >= S * S * S) {
                uint32_t r[4], counter[4] = {i, j, 0, 0}, key[2] = {0, 0};
                clt_philox4x32(counter, key, r);
                u = i % 4 ? r[0] : (r[0] & 0x807fffffu) | ((r[1] % 48 + (j == 1 ? 104 : 0)) << 23);
            }
            in[3 * i + j] = u;
        }
}

static bool is_denormal(float x) {
    return x != 0 && fabsf(x) < 0x1p-126f;
}

/* Equal bits, or both NaN: which NaN is not defined. */
static bool is_same(float x, float y) {
    return memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y);
}

/* Compares the device's results with the host's, whose own division, sqrt and fma are IEEE 754's. */
static double check_exact(const clt_probe_answer *a, clt_device_facts *f) {
    static const char *const name[] = {"division", "sqrt", "fma", "multiplication", "addition"};
    const float *out = a->out;
    int wrong[5] = {0}, flushed = 0, first = 0;
    for (int i = 0; i < TRIPLES; i++) {
        float x[3];
        memcpy(x, a->in + 3 * i, sizeof x);
        const float want[5] = {x[0] / x[1], sqrtf(x[0]), fmaf(x[0], x[1], x[2]), x[0] * x[1], x[0] + x[1]};
        for (int j = 0; j < 5; j++) {
            if (is_same(want[j], out[5 * i + j])) continue;
            wrong[j]++;
            flushed += is_denormal(want[j]) || is_denormal(x[0]) || is_denormal(x[1]) ||
                       (j == 2 && is_denormal(x[2]));
        }
    }
    f->exact_div = wrong[0] == 0;
    f->exact_sqrt = wrong[1] == 0;
    f->exact_fma = wrong[2] == 0;
    f->denormals = flushed == 0;
    while (first < 5 && !wrong[first]) first++;
    if (first < 5)
        snprintf(f->exact_reason, sizeof f->exact_reason,
                 "%s is not correctly rounded (%d of %d results differ)%s", name[first], wrong[first],
                 TRIPLES, flushed ? ", denormals are flushed" : "");
    return first == 5;
}

/* --- the table --- */

const clt_probe_row clt_probe_rows[] = {
    {.fact = CLT_FACT_exact,
     .file = "probe/exact.cl",
     .options = {CL12 " " CLT_ROUNDING_OPTION, CL12},
     .sets = CLT_ASK_FIRST_BUILT,
     .items = TRIPLES,
     .in = 3 * TRIPLES,
     .out = 5 * TRIPLES,
     .built = CLT_FACT_correct_rounding_option,
     .fill = fill_triples,
     .check = check_exact},
    {.fact = CLT_FACT_half_arithmetic,
     .file = "probe/half_arithmetic.cl",
     .options = {CL12},
     .check = check_half},
    {.fact = CLT_FACT_fp64, .file = "probe/fp64.cl", .options = {CL12}, .check = check_same},
    {.fact = CLT_FACT_subgroup_size,
     .file = "probe/subgroup_size.cl",
     .options = {CL12 " -DKHR", "-cl-std=CL3.0", "-cl-std=CL2.0 -DKHR"},
     .sets = CLT_ASK_FIRST_RUN,
     .check = check_subgroups},
    {.fact = CLT_FACT_block_reads,
     .file = "probe/block_reads.cl",
     .options = {CL12},
     .applies = says_subgroups,
     .check = check_block_reads},
    {.fact = CLT_FACT_inline_ptx,
     .file = "probe/inline_ptx.cl",
     .options = {CL12},
     .applies = takes_inline_asm,
     .check = check_same},
    {.fact = CLT_FACT_mma_f16,
     .file = "probe/mma_f16.cl",
     .options = {CL12},
     .applies = has_inline_ptx,
     .out = 2 * 16 * 8,
     .check = check_mma_f16},
    {.fact = CLT_FACT_mma_bf16,
     .file = "probe/mma_bf16.cl",
     .options = {CL12},
     .applies = has_inline_ptx,
     .out = 16 * 8,
     .check = check_mma},
    {.fact = CLT_FACT_wgmma,
     .file = "probe/wgmma.cl",
     .options = {CL12},
     .applies = has_inline_ptx,
     .items = 128,
     .group = 128,
     .out = 64 * 8,
     .check = check_wgmma},
    {.fact = CLT_FACT_tile16_wave,
     .file = "probe/tile16_wave.cl",
     .options = {CL12 " -DTYPE=1", CL12 " -DTYPE=2"},
     .sets = CLT_ASK_ALL,
     .applies = is_gpu,
     .out = 16 * 16 + 1,
     .check = check_tile16},
    {.fact = CLT_FACT_vector_bits,
     .file = "probe/vector_bits.cl",
     .options = {CL12},
     .applies = is_cpu,
     .check = check_vector_bits},
    {.fact = CLT_FACT_local_mem, .file = "probe/local_mem.cl", .ask = clt_probe_local_mem},
    {.fact = CLT_FACT_copy_gbps, .ask = clt_probe_copy},
};
const int clt_probe_rows_count = (int)CLT_COUNT_OF(clt_probe_rows);
