/* The device's peak rates: what kernels reach that do nothing but fma, products of matrix units, or copies.
 */
#include "runtime/device/clt_device_private.h"

#include <string.h>

#include "runtime/base/clt_host.h"
#include "runtime/device/clt_record.h"

#define LONG_ENOUGH 0.05 /* seconds over which the fastest launch is looked for */

typedef struct {
    clt_kernel *kernel;
    size_t items, group;
    clt_arg arg[5];
} work;

/* Seconds of the fastest launch, of `rounds` and of as many as fit in `least` seconds: other work on the
 * device makes a launch slower, never faster. */
static clt_status best_of(clt_device *dev, const work *w, int rounds, double least, double *seconds) {
    const double began = clt_now();
    double best = 0;
    for (int i = 0; i < rounds || clt_now() - began < least; i++) {
        CLT_TRY(clt_device_finish(dev));
        double start = clt_now();
        CLT_TRY(clt_launch(w->kernel, 1, &w->items, &w->group, w->arg, 5));
        CLT_TRY(clt_device_finish(dev));
        double took = clt_now() - start;
        best = i == 0 ? took : CLT_MIN(best, took);
    }
    *seconds = best;
    return CLT_OK;
}

/* The rate of a kernel whose work-items do `each` FLOP in each of n rounds: more rounds, until a launch takes
 * much longer than starting it and waiting for it. */
static clt_status rate_of(clt_device *dev, work *w, clt_buffer *out, float m, float c, uint64_t n,
                          double each, double *flops) {
    double seconds = 0;
    for (;; n *= 4) {
        const clt_arg arg[5] = {CLT_REF(((clt_ref){out, 0})), CLT_F32(m), CLT_F32(c), CLT_U64(n)};
        memcpy(w->arg, arg, sizeof arg);
        CLT_TRY(best_of(dev, w, 2, 0, &seconds));
        if (seconds > 0.01) break;
    }
    CLT_TRY(best_of(dev, w, 6, LONG_ENOUGH, &seconds));
    *flops = each * (double)n * (double)w->items / seconds;
    return CLT_OK;
}

/* Limits the work-group to what the device allows for this kernel, and the items to whole groups. */
static void fit_groups(work *w) {
    w->group = CLT_MIN(w->group, CLT_MIN(clt_kernel_max_work_group(w->kernel), w->items));
    w->items -= w->items % w->group;
}

/* `lanes` floats per item and accumulator. */
static clt_status fma_rate(clt_device *dev, const char *type, int lanes, int acc, clt_buffer *out,
                           double *flops) {
    enum { RUN = 16 };
    char options[64];
    snprintf(options, sizeof options, "-DT=%s -DACC=%d -DRUN=%d", type, acc, RUN);
    bool cpu = dev->facts.type == CLT_DEVICE_CPU;
    work w = {.items = cpu ? dev->facts.compute_units * 4u : dev->facts.compute_units * 2048u,
              .group = cpu ? 1 : 256};
    CLT_TRY(clt_kernel_get(dev, "peak/peak_fma.cl", "peak_fma", options, &w.kernel));
    fit_groups(&w);
    double rate;
    CLT_TRY(rate_of(dev, &w, out, 0.999f, 0.001f, 100, 2.0 * RUN * lanes * acc, &rate));
    *flops = CLT_MAX(*flops, rate);
    return CLT_OK;
}

static clt_status copy_rate(clt_device *dev, clt_buffer *x, clt_buffer *y, double *bytes_per_second) {
    bool cpu = dev->facts.type == CLT_DEVICE_CPU;
    size_t wide = cpu ? 64 : 16, elements = clt_buffer_bytes(x) / wide, run = cpu ? 1024 : 4;
    work w = {.items = CLT_MAX(elements / run, (size_t)1), .group = cpu ? 1 : 256};
    char options[128];
    /* CPU: an item copies a contiguous run. GPU: neighbouring items take neighbouring elements. */
    snprintf(options, sizeof options,
             cpu ? "-DT=float16 -DRUN_OF_ITEM=%zu -DSTEP=1" : "-DT=float4 -DRUN_OF_ITEM=1 -DSTEP=%zu",
             cpu ? run : w.items);
    CLT_TRY(clt_kernel_get(dev, "peak/peak_copy.cl", "peak_copy", options, &w.kernel));
    fit_groups(&w);
    const clt_arg arg[5] = {CLT_REF(((clt_ref){x, 0})), CLT_REF(((clt_ref){y, 0})), CLT_U64(run)};
    memcpy(w.arg, arg, sizeof arg);
    double seconds;
    CLT_TRY(best_of(dev, &w, 6, LONG_ENOUGH, &seconds));
    *bytes_per_second = 2.0 * (double)(w.items * run * wide) / seconds;
    return CLT_OK;
}

static clt_status measure(clt_device *dev, double *flops, double *copy) {
    bool cpu = dev->facts.type == CLT_DEVICE_CPU;
    size_t bytes = cpu ? (size_t)64 << 20 : (size_t)256 << 20;
    while (bytes > dev->facts.max_alloc || bytes > dev->facts.global_mem / 8) bytes /= 2;
    clt_buffer *x = NULL, *y = NULL;
    clt_status st = clt_buffer_create(dev, bytes, "peak", &x);
    if (st == CLT_OK) st = clt_buffer_create(dev, bytes, "peak", &y);
    if (st == CLT_OK) st = clt_buffer_fill32(x, 0, 0, bytes);
    if (st == CLT_OK) st = clt_buffer_fill32(y, 0, 0, bytes);
    if (st == CLT_OK) st = copy_rate(dev, x, y, copy);
    *flops = 0;
    /* 16 floats are one, two or four registers; 12 chains fill wide machines, 6 do not spill on narrow ones.
     */
    if (st == CLT_OK && cpu) st = fma_rate(dev, "float16", 16, 12, x, flops);
    if (st == CLT_OK && cpu) st = fma_rate(dev, "float16", 16, 6, x, flops);
    if (st == CLT_OK && !cpu) st = fma_rate(dev, "float", 1, 8, x, flops);
    clt_buffer_destroy(x);
    clt_buffer_destroy(y);
    return st;
}

/* --- matrix units --- */

/* A kernel that does nothing but products of 16-bit numbers. */
typedef struct {
    const char *file, *kernel, *options;
    double each; /* FLOP of a work-item in one round */
} matrix_kernel;

/* NULL: there is none for this device. */
static const matrix_kernel *matrix_kernel_of(const clt_device *dev) {
    static const matrix_kernel
        /* 4 products of 64 x 128 x 16 by 128 items */
        wgmma = {"peak/peak_matrix.cl", "peak_matrix", " -DWGMMA=1", 4 * 2.0 * 64 * 128 * 16 / 128},
        /* 8 of 16 x 8 x 16 by 32 items */
        mma = {"peak/peak_matrix.cl", "peak_matrix", " -DWGMMA=0", 8 * 2.0 * 16 * 8 * 16 / 32},
        mma_f16 = {"peak/peak_matrix.cl", "peak_matrix", " -DTURING=1", 8 * 2.0 * 16 * 8 * 16 / 32},
        pairs = {"peak/peak_bf16.cl", "peak_bf16", "", 16 * 12 * 2.0 * 32},
        tiles = {"peak/peak_amx.cl", "peak_amx", "", 16 * 4 * 2.0 * 16 * 16 * 32};
    if (dev->facts.wgmma) return &wgmma;
    if (dev->facts.mma_bf16) return &mma;
    if (dev->facts.mma_f16) return &mma_f16;
    if (dev->facts.type != CLT_DEVICE_CPU) return NULL;
    return clt_host_has("amxbf16") == 1 ? &tiles : clt_host_has("avx512bf16") == 1 ? &pairs : NULL;
}

static clt_status matrix_rate(clt_device *dev, const matrix_kernel *k, clt_buffer *out, double *flops) {
    const bool cpu = dev->facts.type == CLT_DEVICE_CPU;
    work w = {.items = cpu ? dev->facts.compute_units * 4u : dev->facts.compute_units * 8u * 256u,
              .group = cpu ? 1 : 256};
    *flops = 0;
    if (clt_kernel_try(dev, k->file, k->kernel, k->options, &w.kernel) != CLT_OK) {
        clt_debug("%s does not build on %s: the peak rate of its 16-bit products is unknown", k->file,
                  dev->facts.name);
        return CLT_OK;
    }
    return rate_of(dev, &w, out, 0.0f, 0.0f, 1000, k->each, flops);
}

static clt_status measure_matrix(clt_device *dev, double *flops) {
    clt_buffer *out;
    CLT_TRY(clt_buffer_create(dev, (uint64_t)dev->facts.compute_units * 8 * 256 * 4, "peak", &out));
    clt_status st = matrix_rate(dev, matrix_kernel_of(dev), out, flops);
    clt_buffer_destroy(out);
    return st;
}

/* --- stored rates --- */

typedef struct {
    double rate[2];
    bool exceeded; /* work was faster than rate[0], which was therefore measured on a busy device */
} peaks;

static void peaks_name(const clt_device *dev, bool matrix, char name[64]) {
    snprintf(name, 64, "%s.%u.%s", dev->id, dev->facts.compute_units, matrix ? "matrixpeak" : "peaks");
}

/* The entry is the rates and, where it holds, the word `exceeded`. Rates are written without a fraction,
 * whose comma or dot would depend on the locale of a host program. */
static bool load(const clt_device *dev, bool matrix, peaks *p) {
    char name[64], *text;
    size_t bytes;
    peaks_name(dev, matrix, name);
    *p = (peaks){0};
    if (dev->again || !clt_cache_get(dev->cache_dir, name, &text, &bytes)) return false;
    const int rates = matrix ? 1 : 2;
    const bool found = sscanf(text, "%lf %lf", &p->rate[0], &p->rate[1]) >= rates;
    p->exceeded = strstr(text, "exceeded") != NULL;
    clt_free(text);
    return found;
}

static void store(clt_device *dev, bool matrix, const peaks *p) {
    char name[64];
    peaks_name(dev, matrix, name);
    clt_str text = {0};
    clt_str_addf(&text, "%.0f", p->rate[0]);
    if (!matrix) clt_str_addf(&text, " %.0f", p->rate[1]);
    if (p->exceeded) clt_str_add(&text, " exceeded");
    clt_cache_put(dev->cache_dir, name, text.s, text.len);
    clt_str_free(&text);
}

/* Other work on the device makes a measurement smaller, never larger: the larger of two counts. */
static clt_status find(clt_device *dev, bool matrix, peaks *p) {
    peaks now = {0};
    if (load(dev, matrix, p) && !p->exceeded && !dev->peaks_again) return CLT_OK;
    clt_record_pause(dev, true); /* the measurement is not part of the work that is recorded */
    const clt_status st =
        matrix ? measure_matrix(dev, &now.rate[0]) : measure(dev, &now.rate[0], &now.rate[1]);
    clt_record_pause(dev, false);
    CLT_TRY(st);
    for (int i = 0; i < 2; i++) p->rate[i] = CLT_MAX(p->rate[i], now.rate[i]);
    p->exceeded = false;
    if (p->rate[0] > 0) store(dev, matrix, p);
    return CLT_OK;
}

clt_status clt_device_matrix_peak(clt_device *dev, double *flops) {
    peaks p = {0};
    if (matrix_kernel_of(dev)) CLT_TRY(find(dev, true, &p));
    *flops = p.rate[0];
    return CLT_OK;
}

clt_status clt_device_peak(clt_device *dev, double *fma_flops, double *copy_bytes) {
    peaks p;
    CLT_TRY(find(dev, false, &p));
    *fma_flops = p.rate[0];
    *copy_bytes = p.rate[1];
    return CLT_OK;
}

void clt_device_measure_peaks(clt_device *dev) {
    dev->peaks_again = true;
}

void clt_device_peak_exceeded(clt_device *dev, bool matrix, double flops) {
    peaks p;
    if (!load(dev, matrix, &p) || flops <= p.rate[0]) return;
    p.rate[0] = flops;
    p.exceeded = true;
    store(dev, matrix, &p);
}
