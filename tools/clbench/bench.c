/* The frame of a benchmark: options, device, timing, table and JSON. */
#include "tools/clbench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_philox.h"
#include "runtime/base/clt_thread.h"
#include "runtime/ops/ref/clt_ref.h"
#include "runtime/ops/clt_variant.h"

const char *const bench_anchor_names[BENCH_ANCHORS] = {"openblas", "clblast", "gemm", "copy"};

/* --- start --- */

static clt_status find_peaks(bench *b) {
    CLT_TRY(clt_device_peak(b->dev, &b->peak_flops, &b->peak_bytes));
    return b->type == CLT_F32 || !b->fast ? CLT_OK : clt_device_matrix_peak(b->dev, &b->peak_matrix);
}

static clt_status open_device(bench *b) {
    clt_device_params p = clt_device_params_default();
    p.pattern = b->device;
    p.threads = (int)b->threads;
    p.need_exact = !b->fast;
    p.profile = b->kernel_only;
    CLT_TRY(clt_device_open(&p, &b->dev));
    clt_ops_params o = clt_ops_params_default();
    o.numerics = b->fast ? CLT_FAST : CLT_EXACT;
    CLT_TRY(clt_ops_create(b->dev, &o, &b->ops));
    clt_device_measure_peaks(b->dev);
    return find_peaks(b);
}

static void print_head(const bench *b) {
    const clt_device_facts *f = clt_device_get_facts(b->dev);
    printf("device   %s (%s, driver %s), %u units\n", f->name, f->platform, f->driver, f->compute_units);
    printf("peak     %.1f GFLOP/s fp32 fma, %.1f GB/s copy (read plus write)\n", b->peak_flops * 1e-9,
           b->peak_bytes * 1e-9);
    if (b->peak_matrix > 0)
        printf("matrix   %.1f GFLOP/s in products of 16-bit numbers, the peak of such rows\n",
               b->peak_matrix * 1e-9);
    printf("numerics %s\n\n", b->fast ? "fast" : "exact");
    printf("%-22s %-28s %-16s %11s %9s %9s %6s", "op", "shape", "variant", "time", "GFLOP/s", "GB/s", "peak");
    if (b->nominal > 0 || b->nominal_bytes > 0) printf(" %7s", "nominal");
    for (size_t i = 0; i < b->anchors.n; i++) printf(" %13s", b->anchors.v[i]);
    printf("%s\n", b->check ? "  check" : "");
}

static int take_anchors(bench *b, const clt_command *c) {
    for (size_t i = 0; i < b->anchors.n; i++)
        if (strcmp(b->anchors.v[i], "openblas") != 0 && strcmp(b->anchors.v[i], "clblast") != 0)
            return clt_options_fail(c, "--anchor must be openblas or clblast, not '%s'", b->anchors.v[i]);
    return -1;
}

/* Refuses invalid values of the parsed options; -1: all are valid. */
static int look_at_options(bench *b, const clt_command *c) {
    char types[CLT_DTYPE_NAMES];
    if (strcmp(b->numerics, "exact") != 0 && strcmp(b->numerics, "fast") != 0)
        return clt_options_fail(c, "--numerics must be exact or fast, not '%s'", b->numerics);
    if (!clt_dtype_find(b->type_name, &b->type))
        return clt_options_fail(c, "--type must be one of %s, not '%s'",
                                clt_dtype_names(CLT_DTYPE_PLAIN, types), b->type_name);
    if (b->threads < 0) return clt_options_fail(c, "--threads must be above 0");
    if (!(b->seconds > 0)) return clt_options_fail(c, "--seconds must be above 0");
    if (!(b->nominal >= 0 && b->nominal_bytes >= 0))
        return clt_options_fail(c, "--nominal and --nominal-bandwidth must be above 0");
    return take_anchors(b, c);
}

enum { MOST_OPTIONS = 21 };

/* The common options and those of the benchmark; returns their number. suites, types: help texts. */
static size_t list_options(bench *b, const bench_about *about, const char *suites, const char *types,
                           clt_option out[MOST_OPTIONS]) {
    const clt_option common[] = {
        {"suite", 's', CLT_OPT_STR, &b->suite, "NAME", suites},
        {"device", 'd', CLT_OPT_STR, &b->device, "PATTERN", "part of a platform or device name, or P:D"},
        CLT_DISABLE_ROW_OPTION,
        {"check", 'c', CLT_OPT_FLAG, &b->check, NULL, "compare every row with the oracle"},
        {"json", 'j', CLT_OPT_STR, &b->json, "FILE", "write the rows as JSON"},
        {"seconds", 't', CLT_OPT_FLOAT, &b->seconds, "S", "time to spend measuring a row (default 0.5)"},
        {"threads", 0, CLT_OPT_INT, &b->threads, "N", "CPU devices: use only N compute units"},
        {"numerics", 0, CLT_OPT_STR, &b->numerics, "MODE", "exact (default) or fast"},
        {"type", 0, CLT_OPT_STR, &b->type_name, "TYPE", types},
        {"only", 0, CLT_OPT_STR, &b->only, "TEXT", "only rows whose operation or shape contains this"},
        {"nominal", 0, CLT_OPT_FLOAT, &b->nominal, "TFLOPS",
         "the vendor's peak for this type; rates are also printed as fractions of it"},
        {"nominal-bandwidth", 0, CLT_OPT_FLOAT, &b->nominal_bytes, "GBPS",
         "the same for rows that are counted in GB/s"},
        {"cpu-time", 0, CLT_OPT_FLAG, &b->cpu_time, NULL,
         "count processor time of all threads instead of wall time: ratios are valid on a busy machine (with "
         "--threads 1)"},
    };
    const clt_option anchors[] = {
        {"kernel-only", 0, CLT_OPT_FLAG, &b->kernel_only, NULL,
         "count only the main kernel, without the one that packs its panels"},
        {"anchor", 'a', CLT_OPT_LIST, &b->anchors, "NAME", "also measure another library: openblas, clblast"},
    };
    size_t n = CLT_COUNT_OF(common);
    memcpy(out, common, sizeof common);
    for (size_t i = 0; i < about->n_more; i++) out[n++] = about->more[i];
    for (size_t i = 0; about->anchors && i < CLT_COUNT_OF(anchors); i++) out[n++] = anchors[i];
    return n;
}

int bench_start(bench *b, const bench_about *about, int argc, char **argv) {
    const char *suite = b->suite;
    char types[CLT_DTYPE_NAMES];
    clt_option options[MOST_OPTIONS];
    *b = (bench){.suite = suite, .seconds = 0.5, .numerics = "exact", .type_name = "fp32"};
    char *suite_help = clt_format("what to measure: %s (default %s)", about->suites, suite);
    char *type_help = clt_format("of the tensors, where the operation supports several: %s (default fp32)",
                                 clt_dtype_names(CLT_DTYPE_PLAIN, types));
    char *full = clt_format("clbench %s", about->name);
    const clt_command command = {full,           "[options]",
                                 about->summary, about->examples,
                                 options,        list_options(b, about, suite_help, type_help, options),
                                 false};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n) code = clt_options_fail(&command, "unexpected argument '%s'", rest.v[0]);
    if (code < 0) code = look_at_options(b, &command);
    if (code < 0 && about->check) code = about->check(&command);
    clt_strv_free(&rest);
    clt_free(suite_help);
    clt_free(type_help);
    clt_free(full);
    if (code >= 0) return code;
    b->fast = !strcmp(b->numerics, "fast");
    clt_status st = clt_options_look_at_file("--json", b->json);
    if (st == CLT_OK) st = open_device(b);
    if (st != CLT_OK) return bench_end(b, st);
    return -1;
}

/* --- results --- */

/* NaN with --cpu-time, because the peak is per wall time, and if units may be used whose rate is unknown. */
static double peak_fraction(const bench *b, const bench_row *r) {
    if (b->cpu_time || r->integers) return NAN;
    const bool gpu = clt_device_get_facts(b->dev)->type == CLT_DEVICE_GPU;
    const bool pairs = b->peak_matrix > 0 && r->type == CLT_BF16; /* fp16 has no unit of its own on CPUs */
    if ((gpu || pairs) && r->flops > 0 && r->type != CLT_F32 && b->fast)
        return b->peak_matrix > 0 ? r->flops / r->seconds / b->peak_matrix : NAN;
    return r->flops > 0 ? r->flops / r->seconds / b->peak_flops : r->bytes / r->seconds / b->peak_bytes;
}

/* NaN if the vendor's figure is not given. */
static double nominal_fraction(const bench *b, const bench_row *r) {
    if (r->flops > 0) return b->nominal > 0 ? r->flops / r->seconds / (b->nominal * 1e12) : NAN;
    return b->nominal_bytes > 0 ? r->bytes / r->seconds / (b->nominal_bytes * 1e9) : NAN;
}

/* A product's rate above the peak shows that the device was busy when the peak was measured. A copy's rate
 * can exceed it: caches are faster than memory. */
static void look_at_peaks(bench *b, const bench_row *r) {
    if (!(r->flops > 0 && peak_fraction(b, r) > 1)) return;
    clt_error_quiet(true); /* without memory the old peaks stay */
    if (find_peaks(b) == CLT_OK)
        printf("peak     measured again: %.1f GFLOP/s fp32 fma\n", b->peak_flops * 1e-9);
    clt_error_quiet(false);
}

static void print_rate(double rate) {
    if (rate > 0)
        printf(" %9.1f", rate * 1e-9);
    else
        printf(" %9s", "-");
}

static void print_share(int width, double share) {
    if (isnan(share))
        printf(" %*s", width, "-");
    else
        printf(" %*.3f", width, share);
}

bool bench_wants(const bench *b, const char *op, const char *shape) {
    return !b->only || strstr(op, b->only) || strstr(shape, b->only);
}

void bench_add(bench *b, const bench_row *row) {
    if (b->n_rows == 0) print_head(b);
    look_at_peaks(b, row);
    b->rows = clt_realloc(b->rows, (b->n_rows + 1) * sizeof *b->rows);
    b->rows[b->n_rows++] = *row;
    printf("%-22s %-28s %-16s %8.3f ms", row->op, row->shape, row->variant, row->seconds * 1e3);
    print_rate(row->flops / row->seconds);
    print_rate(row->bytes / row->seconds);
    print_share(6, peak_fraction(b, row));
    if (b->nominal > 0 || b->nominal_bytes > 0) print_share(7, nominal_fraction(b, row));
    for (size_t i = 0; i < b->anchors.n; i++)
        for (int a = 0; a < BENCH_ANCHORS; a++) {
            if (strcmp(b->anchors.v[i], bench_anchor_names[a]) != 0) continue;
            if (row->anchor_seconds[a] > 0)
                printf("  %9.3f x ", row->anchor_seconds[a] / row->seconds);
            else
                printf(" %13s", "-");
        }
    if (row->checked) printf("  %s (max error %.3g)", row->ok ? "ok" : "WRONG", row->max_error);
    printf("\n");
    fflush(stdout);
}

static void share_json(clt_str *out, const char *key, double share) {
    if (isnan(share))
        clt_str_addf(out, ", \"%s\": null", key);
    else
        clt_str_addf(out, ", \"%s\": %.4f", key, share);
}

static void row_json(const bench *b, const bench_row *r, clt_str *out) {
    clt_str_add(out, "{\"op\": ");
    clt_json_escape(out, r->op);
    clt_str_add(out, ", \"shape\": ");
    clt_json_escape(out, r->shape);
    clt_str_add(out, ", \"dtype\": ");
    clt_json_escape(out, clt_dtype_name(r->type));
    clt_str_add(out, ", \"variant\": ");
    clt_json_escape(out, r->variant);
    clt_str_addf(out, ", \"seconds\": %.9g, \"tflops\": ", r->seconds);
    if (r->flops > 0)
        clt_str_addf(out, "%.6g", r->flops / r->seconds * 1e-12);
    else
        clt_str_add(out, "null");
    if (r->bytes > 0)
        clt_str_addf(out, ", \"gbps\": %.6g", r->bytes / r->seconds * 1e-9);
    else
        clt_str_add(out, ", \"gbps\": null");
    share_json(out, "peak_fraction", peak_fraction(b, r));
    share_json(out, "nominal_fraction", nominal_fraction(b, r));
    if (r->checked && isfinite(r->max_error))
        clt_str_addf(out, ", \"max_error\": %.9g, \"ok\": %s", r->max_error, r->ok ? "true" : "false");
    else
        clt_str_addf(out, ", \"max_error\": null, \"ok\": %s", r->checked ? "false" : "null");
    for (int a = 0; a < BENCH_ANCHORS; a++)
        if (r->anchor_seconds[a] > 0)
            clt_str_addf(out, ", \"%s_seconds\": %.9g", bench_anchor_names[a], r->anchor_seconds[a]);
    clt_str_add(out, ", \"device\": ");
    clt_json_escape(out, clt_device_get_facts(b->dev)->name);
    clt_str_add(out, ", \"driver\": ");
    clt_json_escape(out, clt_device_get_facts(b->dev)->driver);
    clt_str_add(out, "}");
}

static clt_status write_json(const bench *b) {
    clt_str out = {0};
    clt_str_add(&out, "[");
    for (size_t i = 0; i < b->n_rows; i++) {
        clt_str_add(&out, i ? ",\n " : "\n ");
        row_json(b, &b->rows[i], &out);
    }
    clt_str_add(&out, "\n]\n");
    const clt_status st = clt_io_write_atomic(b->json, out.s, out.len);
    clt_str_free(&out);
    return st;
}

int bench_end(bench *b, clt_status st) {
    if (st == CLT_OK && b->n_rows == 0)
        st = clt_error(CLT_USAGE, "clbench: no row of suite '%s' has '%s' in its operation or shape",
                       b->suite, b->only ? b->only : "");
    if (st == CLT_OK && b->json) st = write_json(b);
    size_t wrong = 0;
    for (size_t i = 0; i < b->n_rows; i++) wrong += b->rows[i].checked && !b->rows[i].ok;
    if (st == CLT_OK && wrong)
        st = clt_error(CLT_FAIL, "clbench: %zu of %zu rows differ from the oracle", wrong, b->n_rows);
    clt_ops_destroy(b->ops);
    clt_device_close(b->dev);
    clt_strv_free(&b->anchors);
    clt_free(b->rows);
    return clt_status_exit_code(st);
}

void bench_variant(bench *b, const char *op, char *out, size_t size) {
    int n;
    const clt_variant *row = clt_ops_variants(b->ops, op, &n);
    const char *id = clt_variant_forced(b->ops, op);
    for (int i = 0; i < n && !id; i++)
        if (row[i].verdict > 0) id = row[i].id;
    for (int i = 0; i < n && !id; i++)
        if (row[i].verdict == 0) id = row[i].id; /* chosen by shape, checked elsewhere */
    snprintf(out, size, "%s", id ? id : "?");
}

/* --- timing --- */

static double clock_seconds(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

clt_status bench_block(bench *b, bench_call call, void *ctx, int calls, double *seconds) {
    const clockid_t id = b->cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    CLT_TRY(clt_device_finish(b->dev));
    const double start = clock_seconds(id);
    for (int i = 0; i < calls; i++) CLT_TRY(call(ctx));
    const double waits = clock_seconds(CLOCK_THREAD_CPUTIME_ID);
    CLT_TRY(clt_device_finish(b->dev));
    /* this thread only checks whether the device is done */
    const double idle = b->cpu_time ? clock_seconds(CLOCK_THREAD_CPUTIME_ID) - waits : 0;
    *seconds = (clock_seconds(id) - start - idle) / calls;
    return CLT_OK;
}

clt_status bench_calibrate(bench *b, bench_call call, void *ctx, int *calls) {
    double first, once;
    CLT_TRY(bench_block(b, call, ctx, 1, &first));
    CLT_TRY(bench_block(b, call, ctx, 1, &once));
    const double wanted = CLT_MIN(b->seconds / 8, 0.05);
    *calls = (int)CLT_MAX(1, CLT_MIN(wanted / once, 1000));
    if (clt_device_get_facts(b->dev)->type != CLT_DEVICE_GPU) return CLT_OK;
    for (const double start = clt_now(); clt_now() - start < b->seconds;)
        CLT_TRY(bench_block(b, call, ctx, *calls, &once));
    return CLT_OK;
}

clt_status bench_kernel_time(bench *b, bench_call call, void *ctx, int calls, double *seconds) {
    clt_kernel_time *rows;
    int n;
    CLT_TRY(clt_device_finish(b->dev));
    clt_device_profile_reset(b->dev);
    for (int i = 0; i < calls; i++) CLT_TRY(call(ctx));
    CLT_TRY(clt_device_profile(b->dev, &rows, &n));
    *seconds = n > 0 ? rows[0].seconds / calls : 0;
    clt_free(rows);
    return n > 0 ? CLT_OK : clt_error(CLT_FAIL, "clbench: the driver reports no kernel times");
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

clt_status bench_time(bench *b, bench_call call, void *ctx, double *seconds) {
    enum { MOST = 200 };
    double v[MOST];
    int calls, n = 0;
    CLT_TRY(bench_calibrate(b, call, ctx, &calls));
    const double start = clt_now();
    do {
        CLT_TRY(bench_block(b, call, ctx, calls, &v[n]));
        n++;
    } while (n < MOST && (n < 3 || clt_now() - start < b->seconds));
    *seconds = bench_median(v, n);
    return CLT_OK;
}

/* --- data --- */

clt_status bench_tensor(bench *b, uint64_t n, uint64_t seed, const char *name, clt_ref *out, float **host) {
    return bench_tensor_as(b, CLT_F32, n, seed, name, out, host);
}

typedef struct {
    clt_dtype type;
    uint64_t n;
    uint32_t key[2];
    float *x;
    unsigned char *stored; /* x as `type` */
} numbers;
enum { NUMBERS = 1 << 16 };

static void make_numbers(void *ctx, size_t block) {
    const numbers *all = ctx;
    const uint64_t first = block * (uint64_t)NUMBERS, end = CLT_MIN(first + NUMBERS, all->n);
    for (uint64_t i = first; i < end; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0};
        uint32_t word[4];
        clt_philox4x32(counter, all->key, word);
        for (uint64_t j = 0; j < 4 && i + j < end; j++) all->x[i + j] = (float)(int32_t)word[j] * 0x1p-31f;
    }
    clt_ref_round(all->type, all->x + first, end - first);
    clt_ref_narrow(all->type, all->x + first, end - first, all->stored + first * clt_dtype_bytes(all->type));
}

clt_status bench_tensor_as(bench *b, clt_dtype type, uint64_t n, uint64_t seed, const char *name,
                           clt_ref *out, float **host) {
    const uint64_t bytes = CLT_ROUND_UP(n * clt_dtype_bytes(type), 4);
    numbers all = {type, n, {(uint32_t)seed, 0x636c62}, clt_malloc(n * sizeof(float)), clt_malloc(bytes)};
    clt_parallel_for(CLT_CEIL_DIV(n, (uint64_t)NUMBERS), 0, make_numbers, &all);
    *out = clt_ref_none();
    clt_status st = clt_buffer_create(b->dev, bytes, name, &out->buf);
    if (st == CLT_OK) st = clt_buffer_write(out->buf, 0, all.stored, bytes);
    clt_free(all.stored);
    if (st == CLT_OK && host)
        *host = all.x;
    else
        clt_free(all.x);
    return st;
}

void bench_free(clt_ref r) {
    clt_buffer_destroy(r.buf);
}

double bench_difference(const float *got, const float *want, size_t n, bool *same) {
    double most = 0;
    *same = true;
    for (size_t i = 0; i < n; i++) {
        if (isnan(got[i]) && isnan(want[i])) continue;
        const double d = fabs((double)got[i] - (double)want[i]);
        if (memcmp(&got[i], &want[i], sizeof(float)) != 0) *same = false;
        if (!(d <= most)) most = isnan(d) ? INFINITY : d;
    }
    return most;
}
