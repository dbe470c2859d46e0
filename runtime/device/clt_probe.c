/* What a device can really do: each fact is a tiny program that was built and run. The results are stored in
 * the cache under the device's id, so only the first start on a device pays for them. Facts that were found
 * while memory or resources ran out are not: the next start asks again. */
#include "runtime/device/clt_device_private.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_philox.h"

enum { PROBE_TRIPLES = 4096, COPY_BYTES = 32 << 20, LOCAL_TOP = 256 << 10 };

/* --- one probe --- */

cl_program clt_probe_build(clt_device *dev, const char *source, const char *options) {
    cl_int e;
    char *ptx = NULL;
    cl_program p = clCreateProgramWithSource(dev->context, 1, &source, NULL, &e);
    clt_cl_count(dev, e);
    if (e != CL_SUCCESS) return NULL;
    e = clt_build_passes(dev, &p, source, options, true, &ptx);
    clt_cl_count(dev, e);
    clt_free(ptx);
    if (e == CL_SUCCESS) return p;
    clReleaseProgram(p);
    return NULL;
}

/* Queues the launch and the read of its result, and waits. */
static cl_int launch_and_read(clt_device *dev, cl_kernel k, cl_mem a, cl_mem b, void *out, size_t out_bytes,
                              size_t items, size_t group) {
    cl_event event;
    cl_int e = clSetKernelArg(k, 0, sizeof a, &a);
    if (e == CL_SUCCESS) e = clSetKernelArg(k, 1, sizeof b, &b);
    if (e == CL_SUCCESS) e = clEnqueueNDRangeKernel(dev->queue, k, 1, NULL, &items, &group, 0, NULL, NULL);
    if (e == CL_SUCCESS) e = clEnqueueReadBuffer(dev->queue, b, CL_FALSE, 0, out_bytes, out, 0, NULL, &event);
    return e == CL_SUCCESS ? clt_event_quiet(dev, event) : e;
}

bool clt_probe_run(clt_device *dev, cl_program p, const void *in, size_t in_bytes, void *out,
                   size_t out_bytes, size_t items, size_t group) {
    cl_int e1, e2, e3, e = CL_SUCCESS;
    memset(out, 0xff, out_bytes); /* a launch that does nothing must not find an older answer there */
    cl_kernel k = clCreateKernel(p, "probe", &e1);
    cl_mem a =
        clCreateBuffer(dev->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, in_bytes, (void *)in, &e2);
    cl_mem b = clCreateBuffer(dev->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, out_bytes, out, &e3);
    const bool made = e1 == CL_SUCCESS && e2 == CL_SUCCESS && e3 == CL_SUCCESS;
    if (made) e = launch_and_read(dev, k, a, b, out, out_bytes, items, group);
    const cl_int error[] = {e1, e2, e3, e};
    for (size_t i = 0; i < CLT_COUNT_OF(error); i++) clt_cl_count(dev, error[i]);
    if (e1 == CL_SUCCESS) clReleaseKernel(k);
    if (e2 == CL_SUCCESS) clReleaseMemObject(a);
    if (e3 == CL_SUCCESS) clReleaseMemObject(b);
    return made && e == CL_SUCCESS;
}

/* Builds and runs over 64 items in one group; each item reads and writes one word. */
static bool probe64(clt_device *dev, const char *source, const char *options, const uint32_t *in,
                    uint32_t *out) {
    cl_program p = clt_probe_build(dev, source, options);
    bool ok = p && clt_probe_run(dev, p, in, 64 * sizeof *in, out, 64 * sizeof *out, 64, 64);
    if (p) clReleaseProgram(p);
    return ok;
}

/* --- features --- */

static bool probe_half(clt_device *dev, const uint32_t *in) {
    static const char source[] = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n"
                                 "__kernel void probe(__global const uint *in, __global uint *out)\n"
                                 "{\n"
                                 "    size_t i = get_global_id(0);\n"
                                 "    half h = (half)(float)in[i];\n"
                                 "    out[i] = (uint)(float)(h * (half)0.5f + (half)1.0f);\n"
                                 "}\n";
    uint32_t out[64];
    if (!probe64(dev, source, "-cl-std=CL1.2", in, out)) return false;
    for (uint32_t i = 0; i < 64; i++)
        if (out[i] != i / 2 + 1) return false;
    return true;
}

static bool probe_fp64(clt_device *dev, const uint32_t *in) {
    static const char source[] = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
                                 "__kernel void probe(__global const uint *in, __global uint *out)\n"
                                 "{\n"
                                 "    size_t i = get_global_id(0);\n"
                                 "    double d = 1.0 + (double)in[i] * 0x1p-40;\n"
                                 "    out[i] = (uint)((d - 1.0) * 0x1p40);\n"
                                 "}\n";
    uint32_t out[64];
    return probe64(dev, source, "-cl-std=CL1.2", in, out) && memcmp(in, out, sizeof out) == 0;
}

/* Returns the size of a sub-group, 0 if the reduction over one does not build or run. */
static uint32_t probe_subgroups(clt_device *dev, const uint32_t *in) {
    static const char source[] = "#ifdef KHR\n"
                                 "#pragma OPENCL EXTENSION cl_khr_subgroups : enable\n"
                                 "#endif\n"
                                 "__kernel void probe(__global const uint *in, __global uint *out)\n"
                                 "{\n"
                                 "    size_t i = get_global_id(0);\n"
                                 "    uint all = sub_group_reduce_add(1u) * (in[i] == i);\n"
                                 "    out[i] = all == get_sub_group_size() ? get_max_sub_group_size() : 0;\n"
                                 "}\n";
    static const char *const options[] = {"-cl-std=CL1.2 -DKHR", "-cl-std=CL3.0", "-cl-std=CL2.0 -DKHR"};
    uint32_t out[64];
    for (size_t o = 0; o < CLT_COUNT_OF(options); o++)
        if (probe64(dev, source, options[o], in, out)) return out[0];
    return 0;
}

/* The extension cl_intel_subgroups, with sub-groups of 16: who reads what in a block read of words and of
 * halves of words, and a broadcast. Only asked of drivers that claim sub-groups. */
static bool probe_block_reads(clt_device *dev, const uint32_t *in) {
    static const char source[] =
        "#pragma OPENCL EXTENSION cl_intel_subgroups : enable\n"
        "#pragma OPENCL EXTENSION cl_intel_subgroups_short : enable\n"
        "__attribute__((intel_reqd_sub_group_size(16))) __attribute__((reqd_work_group_size(64, 1, 1)))\n"
        "__kernel void probe(__global const uint *in, __global uint *out)\n"
        "{\n"
        "    uint s = get_sub_group_id(), l = get_sub_group_local_id();\n"
        "    uint word = intel_sub_group_block_read(in + s * 16);\n"
        "    ushort half_word = intel_sub_group_block_read_us((__global const ushort *)(in + s * 16));\n"
        "    float from_5 = sub_group_broadcast((float)word, 5);\n"
        "    uint sum = word + ((uint)half_word << 8) + ((uint)from_5 << 16);\n"
        "    out[(s * 16 + l) & 63] = get_sub_group_size() == 16 ? sum : 0xffffffffu;\n"
        "}\n";
    uint32_t out[64];
    if (!dev->facts.says_subgroups || !probe64(dev, source, "-cl-std=CL1.2", in, out)) return false;
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t s = i / 16, l = i % 16, half = l % 2 ? 0 : in[s * 16 + l / 2];
        if (out[i] != i + (half << 8) + ((s * 16 + 5) << 16)) return false;
    }
    return true;
}

static bool probe_ptx(clt_device *dev, const uint32_t *in) {
    static const char source[] = "__kernel void probe(__global const uint *in, __global uint *out)\n"
                                 "{\n"
                                 "    size_t i = get_global_id(0);\n"
                                 "    uint lane;\n"
                                 "    __asm__ volatile(\"mov.u32 %0, %%laneid;\" : \"=r\"(lane));\n"
                                 "    out[i] = lane + (in[i] & 32u);\n"
                                 "}\n";
    uint32_t out[64];
    if (!clt_has_quirk(dev, CLT_QUIRK_TAKES_INLINE_ASM)) return false;
    return probe64(dev, source, "-cl-std=CL1.2", in, out) && memcmp(in, out, sizeof out) == 0;
}

/* The bits of a small integer as bf16. */
#define BF16(x) "(as_uint((float)(" x ")) >> 16)"
#define PAIR(x, y) BF16(x) " | " BF16(y) " << 16"

/* c[m, n] = a[m, n] for a = m + k and b the unit matrix: every element's place in the fragments shows. */
static bool probe_mma(clt_device *dev, const uint32_t *in) {
    static const char source[] =
        "__kernel void probe(__global const uint *in, __global float *out)\n"
        "{\n"
        "    uint i = (uint)get_local_id(0), r = (i & 31) >> 2, k = (i & 3) * 2 + (in[i] & 64u);\n"
        "    uint a0 = " PAIR("r + k", "r + k + 1") ", a1 = " PAIR(
            "r + 8 + k",
            "r + 8 + k + 1") ";\n"
                             "    uint a2 = " PAIR("r + k + 8", "r + k + 9") ", a3 = " PAIR(
                                 "r + k + 16",
                                 "r + k + 17") ";\n"
                                               "    uint b0 = " PAIR(
                                                   "k == r",
                                                   "k + 1 == r") ", b1 = 0;\n"
                                                                 "    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;\n"
                                                                 "    __asm__ "
                                                                 "volatile(\"mma.sync.aligned.m16n8k16.row."
                                                                 "col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                                                                 "\"\n"
                                                                 "                     \"{%4, %5, %6, %7}, "
                                                                 "{%8, %9}, {%0, %1, %2, %3};\"\n"
                                                                 "                     : \"+f\"(c0), "
                                                                 "\"+f\"(c1), \"+f\"(c2), \"+f\"(c3)\n"
                                                                 "                     : \"r\"(a0), "
                                                                 "\"r\"(a1), \"r\"(a2), \"r\"(a3), "
                                                                 "\"r\"(b0), \"r\"(b1));\n"
                                                                 "    if (i >= 32) return;\n"
                                                                 "    out[r * 8 + k] = c0;\n"
                                                                 "    out[r * 8 + k + 1] = c1;\n"
                                                                 "    out[(r + 8) * 8 + k] = c2;\n"
                                                                 "    out[(r + 8) * 8 + k + 1] = c3;\n"
                                                                 "}\n";
    float out[16 * 8];
    cl_program p = dev->facts.inline_ptx ? clt_probe_build(dev, source, "-cl-std=CL1.2") : NULL;
    bool ok = p && clt_probe_run(dev, p, in, 64 * sizeof *in, out, sizeof out, 64, 64);
    if (p) clReleaseProgram(p);
    for (int i = 0; ok && i < 16 * 8; i++) ok = out[i] == (float)(i / 8 + i % 8);
    return ok;
}

/* The same product with a (64 x 16) and b (8 x 16) in local memory, in blocks of 8 rows by 16 bytes. */
static bool probe_wgmma(clt_device *dev, const uint32_t *in) {
    static const char source[] =
        "#define DESC(p) ((ulong)(((uint)(ulong)(p) & 0x3ffffu) >> 4) | 8ul << 16 | 16ul << 32)\n"
        "__kernel __attribute__((reqd_work_group_size(128, 1, 1)))\n"
        "void probe(__global const uint *in, __global float *out)\n"
        "{\n"
        "    __local ushort a[64 * 16] __attribute__((aligned(128)));\n"
        "    __local ushort b[8 * 16] __attribute__((aligned(128)));\n"
        "    uint t = (uint)get_local_id(0), zero = in[t & 63] & 64u;\n"
        "    for (uint i = t; i < 64 * 16; i += 128) {\n"
        "        uint r = i / 16, k = i % 16, at = ((r / 8) * 2 + k / 8) * 64 + (r % 8) * 8 + k % 8;\n"
        "        a[at] = (ushort)" BF16(
            "r + k + zero") ";\n"
                            "        if (r < 8) b[at] = (ushort)" BF16(
                                "r == k") ";\n"
                                          "    }\n"
                                          "    __asm__ volatile(\"fence.proxy.async.shared::cta;\" ::: "
                                          "\"memory\");\n"
                                          "    barrier(CLK_LOCAL_MEM_FENCE);\n"
                                          "    float c0 = 0, c1 = 0, c2 = 0, c3 = 0;\n"
                                          "    __asm__ volatile(\"//@wgmma.fence.sync.aligned;\\n\"\n"
                                          "                     "
                                          "\"//@wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, "
                                          "%2, %3}, \"\n"
                                          "                     \"%4, %5, 1, 1, 1, 0, 0;\\n\"\n"
                                          "                     \"//@wgmma.commit_group.sync.aligned;\\n\"\n"
                                          "                     \"//@wgmma.wait_group.sync.aligned 0;\"\n"
                                          "                     : \"+f\"(c0), \"+f\"(c1), \"+f\"(c2), "
                                          "\"+f\"(c3)\n"
                                          "                     : \"l\"(DESC(a)), \"l\"(DESC(b)) : "
                                          "\"memory\");\n"
                                          "    uint at = ((t >> 5) * 16 + ((t & 31) >> 2)) * 8 + (t & 3) * "
                                          "2;\n"
                                          "    out[at] = c0;\n"
                                          "    out[at + 1] = c1;\n"
                                          "    out[at + 64] = c2;\n"
                                          "    out[at + 65] = c3;\n"
                                          "}\n";
    float out[64 * 8];
    cl_program p = dev->facts.inline_ptx ? clt_probe_build(dev, source, "-cl-std=CL1.2") : NULL;
    bool ok = p && clt_probe_run(dev, p, in, 64 * sizeof *in, out, sizeof out, 128, 128);
    if (p) clReleaseProgram(p);
    for (int i = 0; ok && i < 64 * 8; i++) ok = out[i] == (float)(i / 8 + i % 8);
    return ok;
}

/* A product of two tiles by the first wave, with the text that the kernels use: every number's place shows.
 */
static uint32_t probe_tile16(clt_device *dev, const uint32_t *in) {
    static const char source[] =
        "#include \"clt_tile16.clh\"\n"
        "#include \"clt_store.clh\"\n"
        "__kernel __attribute__((reqd_work_group_size(64, 1, 1)))\n"
        "void probe(__global const uint *in, __global float *out)\n"
        "{\n"
        "    __local ushort a[16 * 16] __attribute__((aligned(16))), b[16 * 16] "
        "__attribute__((aligned(16)));\n"
        "    int t = (int)get_local_id(0), l = t % CLT_WAVE;\n"
        "    for (int i = t; i < 256; i += 64) {\n"
        "        a[i] = CLT_ROUND(TYPE, (float)(i / 16 - i % 16 + (int)(in[t] & 64u)));\n"
        "        b[i] = CLT_ROUND(TYPE, (float)(i / 16 + 2 * (i % 16)));\n"
        "    }\n"
        "    barrier(CLK_LOCAL_MEM_FENCE);\n"
        "    clt_acc c = (clt_acc)((float)(in[t] & 64u) + 1.0f);\n"
        "    c = CLT_TILE16(TYPE, clt_frag_load(a, 16, l), clt_frag_load(b, 16, l), c);\n"
        "    if (t == 0) out[256] = CLT_WAVE;\n"
        "    if (t < CLT_WAVE)\n"
        "        for (int r = 0; r < CLT_ACC; r++) out[CLT_ACC_ROW(l, r) * 16 + l % 16] = c[r];\n"
        "}\n";
    static const char *const options[] = {"-cl-std=CL1.2 -DTYPE=1", "-cl-std=CL1.2 -DTYPE=2"};
    float out[257];
    bool ok = dev->facts.type == CLT_DEVICE_GPU;
    char *text = clt_source_expand("include/probe.cl", source);
    for (size_t o = 0; ok && o < CLT_COUNT_OF(options); o++) {
        cl_program p = clt_probe_build(dev, text, options[o]);
        ok = p && clt_probe_run(dev, p, in, 64 * sizeof *in, out, sizeof out, 64, 64);
        if (p) clReleaseProgram(p);
        for (int i = 0; ok && i < 256; i++) {
            int sum = 1;
            for (int k = 0; k < 16; k++) sum += (i / 16 - k) * (i % 16 + 2 * k);
            ok = out[i] == (float)sum;
        }
    }
    clt_free(text);
    return ok ? (uint32_t)out[256] : 0;
}

/* A static local array of `bytes` whose every word is written by one item and read by another. */
static bool local_holds(clt_device *dev, const uint32_t *in, size_t bytes) {
    static const char source[] = "__kernel void probe(__global const uint *in, __global uint *out)\n"
                                 "{\n"
                                 "    __local uint t[WORDS];\n"
                                 "    uint i = (uint)get_local_id(0), sum = 0;\n"
                                 "    for (uint j = i; j < WORDS; j += 64) t[j] = j + in[i] - i;\n"
                                 "    barrier(CLK_LOCAL_MEM_FENCE);\n"
                                 "    for (uint j = 63 - i; j < WORDS; j += 64) sum += t[j];\n"
                                 "    out[i] = sum;\n"
                                 "}\n";
    char options[64];
    uint32_t out[64], words = (uint32_t)(bytes / 4);
    snprintf(options, sizeof options, "-cl-std=CL1.2 -DWORDS=%u", words);
    if (!probe64(dev, source, options, in, out)) return false;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t sum = 0;
        for (uint32_t j = 63 - i; j < words; j += 64) sum += j;
        if (out[i] != sum) return false;
    }
    return true;
}

/* Whether the array is too large is what is asked, and drivers may say that as "out of resources". It is the
 * device's own answer if it comes twice and a small array still works. */
static bool local_works(clt_device *dev, const uint32_t *in, size_t bytes) {
    const uint64_t before = dev->counters.shortages;
    for (int i = 0; i < 2; i++) {
        const uint64_t now = dev->counters.shortages;
        if (local_holds(dev, in, bytes)) {
            dev->counters.shortages = before;
            return true;
        }
        if (dev->counters.shortages == now) return false;
    }
    if (local_holds(dev, in, 1024)) dev->counters.shortages = before;
    return false;
}

/* The claim holds for arrays passed as arguments; arrays declared in a kernel may be smaller or far larger.
 * On a CPU it is plain memory, and more than the claim is not tried. */
static uint64_t probe_local(clt_device *dev, const uint32_t *in) {
    uint64_t claim = CLT_MIN(dev->facts.local_mem_claimed, (uint64_t)LOCAL_TOP) >> 10;
    bool claim_works = claim > 0 && local_works(dev, in, claim << 10);
    if (claim_works && (dev->facts.local_is_global || dev->facts.type == CLT_DEVICE_CPU)) return claim << 10;
    uint64_t good = claim_works ? claim : 0, bad = claim_works ? (LOCAL_TOP >> 10) + 1 : claim;
    /* What GPUs have, less what their drivers keep: a hit is two programs instead of eight. */
    static const uint64_t usual[] = {227, 163, 99, 64};
    for (size_t i = 0; claim_works && good == claim && i < CLT_COUNT_OF(usual); i++) {
        if (usual[i] <= good || usual[i] >= bad) continue;
        if (!local_works(dev, in, usual[i] << 10)) {
            bad = usual[i];
            continue;
        }
        good = usual[i];
        if (good + 1 < bad && !local_works(dev, in, (good + 1) << 10)) bad = good + 1;
    }
    while (bad > good + 1) {
        uint64_t mid = (good + bad) / 2;
        if (local_works(dev, in, mid << 10))
            good = mid;
        else
            bad = mid;
    }
    return good << 10;
}

/* --- arithmetic --- */

/* Per triple: a/b, sqrt(a), fma(a, b, c), a*b, a+b. The pragma keeps the last two apart. */
static const char arithmetic_source[] = "#pragma OPENCL FP_CONTRACT OFF\n"
                                        "__kernel void probe(__global const float *in, __global float *out)\n"
                                        "{\n"
                                        "    size_t i = get_global_id(0);\n"
                                        "    float a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];\n"
                                        "    out[5 * i] = a / b;\n"
                                        "    out[5 * i + 1] = sqrt(a);\n"
                                        "    out[5 * i + 2] = fma(a, b, c);\n"
                                        "    out[5 * i + 3] = a * b;\n"
                                        "    out[5 * i + 4] = a + b;\n"
                                        "}\n";

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Any bits; every fourth triple is near the denormals, the first ones are all triples of special values. */
static void make_triples(float *in) {
    static const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u, 0x007fffffu,
                                       0x00800000u, 0x00800001u, 0x3f800000u, 0x3f800001u, 0xbf7fffffu,
                                       0x7f7fffffu, 0x7f800000u, 0xff800000u};
    enum { S = CLT_COUNT_OF(special) };
    for (uint32_t i = 0; i < PROBE_TRIPLES; i++)
        for (uint32_t j = 0; j < 3; j++) {
            uint32_t place = j == 0 ? i % S : j == 1 ? i / S % S : i / (S * S) % S;
            uint32_t u = special[place];
            if (i >= S * S * S) {
                uint32_t r[4], counter[4] = {i, j, 0, 0}, key[2] = {0, 0};
                clt_philox4x32(counter, key, r);
                u = i % 4 ? r[0] : (r[0] & 0x807fffffu) | ((r[1] % 48 + (j == 1 ? 104 : 0)) << 23);
            }
            in[3 * i + j] = from_bits(u);
        }
}

static bool denormal(float x) {
    return x != 0 && fabsf(x) < 0x1p-126f;
}

/* Equal bits, or both NaN: which NaN is not defined. */
static bool same(float x, float y) {
    return memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y);
}

/* Compares the device's results with the host's, whose own division, sqrt and fma are IEEE 754's. */
static void judge(clt_device_facts *f, const float *in, const float *out) {
    int wrong[5] = {0}, flushed = 0;
    for (int i = 0; i < PROBE_TRIPLES; i++) {
        float a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
        float want[5] = {a / b, sqrtf(a), fmaf(a, b, c), a * b, a + b};
        for (int j = 0; j < 5; j++) {
            if (same(want[j], out[5 * i + j])) continue;
            wrong[j]++;
            bool small = denormal(want[j]) || denormal(a) || denormal(b) || (j == 2 && denormal(c));
            flushed += small;
        }
    }
    f->exact_div = wrong[0] == 0;
    f->exact_sqrt = wrong[1] == 0;
    f->exact_fma = wrong[2] == 0;
    f->denormals = flushed == 0;
    static const char *const name[] = {"division", "sqrt", "fma", "multiplication", "addition"};
    f->exact = true;
    for (int j = 0; j < 5 && f->exact; j++) {
        if (!wrong[j]) continue;
        f->exact = false;
        snprintf(f->exact_reason, sizeof f->exact_reason,
                 "%s is not correctly rounded (%d of %d results differ)%s", name[j], wrong[j], PROBE_TRIPLES,
                 flushed ? ", denormals are flushed" : "");
    }
}

static void probe_arithmetic(clt_device *dev) {
    clt_device_facts *f = &dev->facts;
    float *in = clt_calloc(3 * PROBE_TRIPLES, sizeof *in), *out = clt_calloc(5 * PROBE_TRIPLES, sizeof *out);
    make_triples(in);
    cl_program p = clt_probe_build(dev, arithmetic_source, clt_kernel_common_options());
    f->correct_rounding_option = p != NULL;
    if (!p) p = clt_probe_build(dev, arithmetic_source, "-cl-std=CL1.2");
    if (p && clt_probe_run(dev, p, in, 3 * PROBE_TRIPLES * sizeof *in, out, 5 * PROBE_TRIPLES * sizeof *out,
                           PROBE_TRIPLES, 64))
        judge(f, in, out);
    else
        snprintf(f->exact_reason, sizeof f->exact_reason, "the arithmetic probe does not build or run");
    if (p) clReleaseProgram(p);
    clt_free(in);
    clt_free(out);
}

/* --- pinned copy --- */

/* Best of three copies from pinned, mapped host memory; 0 if the driver refuses anything. */
static double copy_speed(clt_device *dev, cl_mem pinned, cl_mem target) {
    cl_int e;
    cl_event event;
    double best = 0;
    void *p =
        clEnqueueMapBuffer(dev->queue, pinned, CL_FALSE, CL_MAP_WRITE, 0, COPY_BYTES, 0, NULL, &event, &e);
    if (e != CL_SUCCESS || clt_event_quiet(dev, event) != CL_SUCCESS) return 0;
    memset(p, 1, COPY_BYTES);
    for (int i = 0; i < 4; i++) { /* the first one allocates */
        double start = clt_now();
        if (clEnqueueWriteBuffer(dev->queue, target, CL_FALSE, 0, COPY_BYTES, p, 0, NULL, &event) !=
                CL_SUCCESS ||
            clt_event_quiet(dev, event) != CL_SUCCESS)
            break;
        double rate = 1e-9 * COPY_BYTES / (clt_now() - start);
        if (i > 0) best = CLT_MAX(best, rate);
    }
    clEnqueueUnmapMemObject(dev->queue, pinned, p, 0, NULL, NULL);
    return best;
}

static double probe_copy(clt_device *dev) {
    cl_int e1, e2;
    if (dev->facts.max_alloc < COPY_BYTES || dev->facts.global_mem < 8ull * COPY_BYTES) return 0;
    cl_mem pinned = clCreateBuffer(dev->context, CL_MEM_ALLOC_HOST_PTR, COPY_BYTES, NULL, &e1);
    cl_mem target = clCreateBuffer(dev->context, CL_MEM_READ_WRITE, COPY_BYTES, NULL, &e2);
    double rate = e1 == CL_SUCCESS && e2 == CL_SUCCESS ? copy_speed(dev, pinned, target) : 0;
    if (e1 == CL_SUCCESS) clReleaseMemObject(pinned);
    if (e2 == CL_SUCCESS) clReleaseMemObject(target);
    return rate;
}

/* --- storing the facts --- */

static void store(clt_device *dev, const char *name) {
    const clt_device_facts *f = &dev->facts;
    char *text = clt_format("%d %d %d %d %d %d %d %u %u %llu %d %d %d %d %d %d %.3f %s", f->half_arithmetic,
                            f->subgroups, f->block_reads, f->fp64, f->inline_ptx, f->mma_bf16, f->wgmma,
                            f->tile16_wave, f->subgroup_size, (unsigned long long)f->local_mem, f->exact_div,
                            f->exact_sqrt, f->exact_fma, f->denormals, f->correct_rounding_option, f->exact,
                            f->copy_gbps, f->exact_reason);
    clt_cache_put(dev->cache_dir, name, text, strlen(text));
    clt_free(text);
}

static bool restore(clt_device *dev, const char *name) {
    clt_device_facts *f = &dev->facts;
    char *text;
    size_t bytes;
    if (!clt_cache_get(dev->cache_dir, name, &text, &bytes)) return false;
    int flag[13], at = 0;
    unsigned long long local;
    bool ok =
        sscanf(text, "%d %d %d %d %d %d %d %u %u %llu %d %d %d %d %d %d %lf %n", &flag[0], &flag[1], &flag[2],
               &flag[3], &flag[4], &flag[5], &flag[6], &f->tile16_wave, &f->subgroup_size, &local, &flag[7],
               &flag[8], &flag[9], &flag[10], &flag[11], &flag[12], &f->copy_gbps, &at) == 17;
    if (ok) {
        bool *const to[] = {&f->half_arithmetic,
                            &f->subgroups,
                            &f->block_reads,
                            &f->fp64,
                            &f->inline_ptx,
                            &f->mma_bf16,
                            &f->wgmma,
                            &f->exact_div,
                            &f->exact_sqrt,
                            &f->exact_fma,
                            &f->denormals,
                            &f->correct_rounding_option,
                            &f->exact};
        for (size_t i = 0; i < CLT_COUNT_OF(to); i++) *to[i] = flag[i] != 0;
        f->local_mem = local;
        snprintf(f->exact_reason, sizeof f->exact_reason, "%s", text + at);
    }
    clt_free(text);
    return ok;
}

static void run_probes(clt_device *dev) {
    uint32_t in[64];
    for (uint32_t i = 0; i < 64; i++) in[i] = i;
    clt_device_facts *f = &dev->facts;
    probe_arithmetic(dev);
    f->half_arithmetic = probe_half(dev, in);
    f->fp64 = probe_fp64(dev, in);
    f->subgroup_size = probe_subgroups(dev, in);
    f->subgroups = f->subgroup_size > 0;
    f->block_reads = probe_block_reads(dev, in);
    f->inline_ptx = probe_ptx(dev, in);
    f->mma_bf16 = probe_mma(dev, in);
    f->wgmma = probe_wgmma(dev, in);
    f->tile16_wave = probe_tile16(dev, in);
    f->local_mem = probe_local(dev, in);
    f->copy_gbps = probe_copy(dev);
}

static void facts_name(const clt_device *dev, char name[64]) {
    snprintf(name, 64, "%s.facts", dev->id);
}

bool clt_probe_is_stored(const clt_device *dev) {
    char name[64], *path;
    if (!dev->cache_dir || dev->again) return false;
    facts_name(dev, name);
    path = clt_path_join(dev->cache_dir, name);
    const bool there = clt_io_is_file(path);
    clt_free(path);
    return there;
}

clt_status clt_probe(clt_device *dev) {
    char name[64];
    facts_name(dev, name);
    dev->facts.probed = true;
    if (!dev->again && restore(dev, name)) return CLT_OK;
    clt_hash128 key;
    clt_hash_parse(dev->id, &key);
    int lock = dev->cache_dir ? clt_cache_lock(dev->cache_dir, key, dev->timeout) : -1;
    if (dev->again || !restore(dev, name)) {
        double start = clt_now();
        const uint64_t before = dev->counters.shortages;
        run_probes(dev);
        clt_debug("probed %s in %.2f s", dev->facts.name, clt_now() - start);
        const bool short_of = dev->counters.shortages > before;
        if (!dev->hung && !short_of) store(dev, name);
        if (!dev->hung && short_of)
            clt_warn("%s ran out of memory or resources while it was probed: what it says that it cannot do "
                     "counts for this run alone",
                     dev->facts.name);
    }
    clt_cache_unlock(lock);
    if (dev->hung) return clt_hung_error(dev, "probing");
    return CLT_OK;
}
