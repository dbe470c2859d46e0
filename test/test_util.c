#include "test/test_util.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/base/clt_philox.h"
#include "runtime/device/clt_device_test.h"
#include "runtime/ops/ref/clt_ref.h"

enum { MAX_DEVICES = 16, GUARD = 64, MAX_LIVING = 256 };
static const uint32_t guard_word = 0x7fa5a5a5u; /* a NaN: reading it by mistake shows in every result */

typedef struct {
    clt_device *dev;
    clt_ops *ops;
    char name[256];
} tu_dev;

typedef struct {
    clt_buffer *buf;
    size_t first, count; /* the data; all other words are guards */
} tu_living;

static struct {
    bool tiny, brief, second_cpu, interpreted, own_rows, opened, wide, fast;
    tu_dev dev[MAX_DEVICES];
    int devices;
    tu_living living[MAX_LIVING];
    int n_living;
    void *host[MAX_LIVING];
    int n_host;
    clt_device *saves; /* the CPU whose own row tu_each_variant runs, or NULL */
    int cases;         /* of that row, so far */
    int offered;       /* cases of a row, so far: tu_left_out */
    const char *row;   /* --row; NULL: all */
    int random;        /* --random; 0: none */
    uint64_t seed, drawn;
} tu;

static void usage(const char *program) {
    fprintf(stderr, "usage: %s [--tiny] [--own-rows] [--row PATTERN] [--random N [--seed S]]\n", program);
    exit(2);
}

void tu_init(int argc, char **argv) {
    const char *tiny = getenv("TEST_TINY");
    tu.tiny = tiny && *tiny;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tiny")) {
            tu.tiny = tu.interpreted = true;
        } else if (!strcmp(argv[i], "--own-rows")) {
            tu.own_rows = true;
        } else if (!strcmp(argv[i], "--row") && i + 1 < argc) {
            tu.row = argv[++i];
            print_message("[          ] only rows like '%s' (--row)\n", tu.row);
        } else if (!strcmp(argv[i], "--random") && i + 1 < argc) {
            tu.random = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
            tu.seed = strtoull(argv[++i], NULL, 10);
        } else {
            usage(argv[0]);
        }
    }
    if (tu.random)
        print_message("[          ] %d random cases (--random), --seed %llu\n", tu.random,
                      (unsigned long long)tu.seed);
}

int tu_random_cases(void) {
    return tu.random;
}

int64_t tu_draw(int64_t n) {
    return tu_random_below(tu.seed + 1000, tu.drawn++, n);
}

bool tu_one_in(int64_t n) {
    return tu_draw(n) == 0;
}

void tu_say_random(const char *what) {
    if (tu.random) fprintf(stderr, "random: %s\n", what);
}

bool tu_wants_row(const char *id) {
    return !tu.row || !fnmatch(tu.row, id, 0);
}

bool tu_tiny(void) {
    return tu.tiny;
}
bool tu_complete(void) {
    const char *complete = getenv("TEST_COMPLETE");
    return complete && *complete;
}
void tu_compile_fast(void) {
    tu.fast = !tu_complete();
    if (tu.fast)
        print_message("[          ] kernels for CPUs are not optimized (TEST_COMPLETE=1: they are)\n");
}
bool tu_brief(void) {
    return tu.tiny || tu.brief;
}
bool tu_second_cpu(void) {
    return tu.second_cpu && !tu_complete();
}

/* --- devices --- */

static void open_one(const char *pattern, const char *label) {
    clt_device_params p = clt_device_params_default();
    p.pattern = pattern;
    clt_device *dev = NULL;
    if (tu.devices == MAX_DEVICES || clt_device_open(&p, &dev) != CLT_OK) {
        fail_msg("device %s could not be opened", label);
        return;
    }
    const clt_device_facts *f = clt_device_get_facts(dev);
    if (!f->exact) {
        print_message("[ left out ] %s / %s: not exact: %s\n", f->platform, f->name, f->exact_reason);
        clt_device_close(dev);
        return;
    }
    tu_dev *d = &tu.dev[tu.devices++];
    d->dev = dev;
    snprintf(d->name, sizeof d->name, "%.60s / %.120s", f->platform, f->name);
    print_message("[  device  ] %s\n", d->name);
    const bool emulated = getenv("TEST_EMULATED") != NULL; /* a CPU that counts as a GPU (emulated.sh) */
    const bool fast = tu.fast || (emulated && !tu_complete());
    clt_device_compile_fast(dev, fast && (emulated || f->type == CLT_DEVICE_CPU));
    /* The tests compare every variant with the oracle themselves; where each launch is slow, once is enough.
     */
    clt_ops_params op = clt_ops_params_default();
    op.skip_check = tu.interpreted;
    tu_assert_ok(clt_ops_create(dev, &op, &d->ops), "clt_ops_create");
}

static void open_them(void) {
    const char *only = clt_env(CLT_ENV_DEVICE);
    if (only) {
        open_one(only, only);
    } else {
        clt_device_facts *list = NULL;
        int n = 0;
        tu_assert_ok(clt_device_list(false, &list, &n), "clt_device_list");
        for (int i = 0; i < n; i++) {
            char pattern[32];
            snprintf(pattern, sizeof pattern, "%d:%d", list[i].platform_index, list[i].device_index);
            open_one(pattern, list[i].name);
        }
        clt_free(list);
    }
}

static bool is_cpu(int device) {
    return clt_device_get_facts(tu.dev[device].dev)->type == CLT_DEVICE_CPU;
}

/* The CPU device whose rows get all cases: PoCL's, whose compiler is the fastest; otherwise the first one. */
static int main_cpu(void) {
    int first = -1;
    for (int d = tu.devices - 1; d >= 0; d--)
        if (is_cpu(d) && (first < 0 || !strstr(tu.dev[first].name, "Portable Computing Language"))) first = d;
    return first;
}

/* Puts the CPU device whose rows get all cases before the others: tests of one device take the first one. */
static void order_cpus(void) {
    const int best = main_cpu();
    if (best <= 0 || !is_cpu(0)) return;
    const tu_dev first = tu.dev[0];
    tu.dev[0] = tu.dev[best];
    tu.dev[best] = first;
}

/* Without a device every test that asks for one fails, not only the first. */
static void open_all(void) {
    const bool first = !tu.opened;
    tu.opened = true;
    if (first) {
        open_them();
        order_cpus();
    }
    if (tu.devices == 0) fail_msg("no OpenCL device with exact arithmetic: this test needs one");
}

int tu_device_count(void) {
    open_all();
    return tu.devices;
}

clt_device *tu_device(int i) {
    open_all();
    return tu.dev[i].dev;
}

clt_ops *tu_ops(int i) {
    open_all();
    return tu.dev[i].ops;
}

clt_ops *tu_fast_ops(int i) {
    clt_ops_params p = clt_ops_params_default();
    clt_ops *ops;
    p.numerics = CLT_FAST;
    p.skip_check = tu.interpreted;
    tu_assert_ok(clt_ops_create(tu_device(i), &p, &ops), "clt_ops_create");
    return ops;
}

const char *tu_device_name(int i) {
    open_all();
    return tu.dev[i].name;
}

/* With --own-rows: whether row i is one that only CPUs have or, where a table has no such rows, the first. */
static bool is_own(const clt_variant *v, int n, int i) {
    bool any = false;
    for (int k = 0; k < n; k++) any |= strstr(v[k].requires, "type=cpu") != NULL;
    return any ? strstr(v[i].requires, "type=cpu") != NULL : i == 0;
}

bool tu_spare_cpu(int device) {
    open_all();
    return is_cpu(device) && device != main_cpu() && !tu_complete();
}

/* Whether the CPU device whose rows get all cases has a row. */
static bool main_cpu_has(const char *op, const char *id) {
    int n = 0;
    const clt_variant *v = clt_ops_variants(tu_ops(main_cpu()), op, &n);
    for (int i = 0; i < n; i++)
        if (!strcmp(v[i].id, id)) return true;
    return false;
}

void tu_each_variant(const char *op, void (*run)(int device, const char *id)) {
    for (int d = 0; d < tu_device_count(); d++) {
        int n = 0;
        const clt_variant *v = clt_ops_variants(tu_ops(d), op, &n);
        assert_true(n > 0);
        tu.second_cpu = is_cpu(d) && d != main_cpu();
        for (int i = 0; i < n; i++) {
            const bool own = strstr(v[i].requires, "type=cpu") != NULL;
            if (!tu_wants_row(v[i].id) || (tu.own_rows && !is_own(v, n, i))) continue;
            if (tu_second_cpu() && !own && main_cpu_has(op, v[i].id)) continue;
            print_message("[          ]   %s=%s on %s\n", op, v[i].id, tu_device_name(d));
            tu_assert_ok(clt_variant_force(tu_ops(d), op, v[i].id), "clt_variant_force");
            tu.wide = !strcmp(v[i].body, "wide") || !strcmp(v[i].body, "ring");
            /* A row for GPUs: slow here, and most of its time goes to the compiler's optimizer. */
            const bool foreign = is_cpu(d) && i > 0 && !own && !tu_complete();
            tu.brief = tu_second_cpu() || foreign;
            clt_device_compile_fast(tu_device(d), foreign);
            tu.saves = is_cpu(d) && own && !tu.interpreted && !tu_complete() ? tu_device(d) : NULL;
            tu.cases = 0;
            tu.offered = i;
            run(d, v[i].id);
            tu.saves = NULL;
            clt_device_compile_fast(tu_device(d), false);
            tu.wide = tu.brief = false;
            tu_release();
        }
        tu.second_cpu = false;
        tu_assert_ok(clt_variant_force(tu_ops(d), op, NULL), "clt_variant_force");
    }
}

void tu_next_case(void) {
    if (tu.saves) clt_device_compile_fast(tu.saves, tu.cases++ % 3 != 0);
}

bool tu_left_out(void) {
    return (tu.interpreted || getenv("TEST_EMULATED")) && !tu_complete() && tu.offered++ % 5 != 0;
}

bool tu_only_other_tiles(const clt_variant *row, int i) {
    static const char *const size[] = {"MIN_D", "MAX_D"};
    bool found = false;
    if (!getenv("TEST_EMULATED") || tu_complete()) return false;
    for (int k = 0; k < i && !found; k++) {
        found = !strcmp(row[k].file, row[i].file) && !strcmp(row[k].body, row[i].body);
        for (int p = 0; p < 2; p++)
            found &= clt_variant_param(&row[k], size[p], 0) == clt_variant_param(&row[i], size[p], 0);
    }
    return found;
}

int tu_run_group(const char *name, const struct CMUnitTest *tests, size_t n) {
    int failed = _cmocka_run_group_tests(name, tests, n, NULL, NULL);
    for (int i = 0; i < tu.n_living; i++) clt_buffer_destroy(tu.living[i].buf);
    for (int i = 0; i < tu.n_host; i++) clt_free(tu.host[i]);
    for (int i = 0; i < tu.devices; i++) {
        clt_ops_destroy(tu.dev[i].ops);
        clt_device_close(tu.dev[i].dev);
    }
    return failed ? 1 : 0;
}

/* --- data --- */

/* Words 4 * block to 4 * block + 3. */
static void random_block(uint64_t seed, uint64_t block, uint32_t out[4]) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0x7e57u, 0};
    clt_philox4x32(counter, key, out);
}

uint32_t tu_random_word(uint64_t seed, uint64_t index) {
    uint32_t out[4];
    random_block(seed, index / 4, out);
    return out[index % 4];
}

int64_t tu_random_below(uint64_t seed, uint64_t index, int64_t n) {
    return (int64_t)(((uint64_t)tu_random_word(seed, index) * (uint64_t)n) >> 32);
}

clt_optimizer_group tu_adam_group(double lr, double beta1, double beta2, double eps, int step) {
    return (clt_optimizer_group){.lr = (float)lr,
                                 .decay = 1.0f,
                                 .step_size = (float)(lr / (1.0 - pow(beta1, step))),
                                 .bias_correction = (float)sqrt(1.0 - pow(beta2, step)),
                                 .beta1 = (float)beta1,
                                 .beta2 = (float)beta2,
                                 .one_minus_beta1 = (float)(1.0 - beta1),
                                 .one_minus_beta2 = (float)(1.0 - beta2),
                                 .eps = (float)eps};
}

float *tu_random(size_t n, uint64_t seed, float scale) {
    float *x = clt_malloc(CLT_MAX(n, 1) * sizeof *x);
    uint32_t word[4];
    for (size_t i = 0; i < n; i++) {
        if (i % 4 == 0) random_block(seed, i / 4, word);
        x[i] = ((float)(word[i % 4] >> 8) * (1.0f / 8388608.0f) - 1.0f) * scale;
    }
    return x;
}

float *tu_extreme(size_t n, uint64_t seed) {
    float *x = clt_malloc(CLT_MAX(n, 1) * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        uint32_t w = tu_random_word(seed, i), sign = w & 0x80000000u, mantissa = w & 0x7fffffu, bits = 0;
        uint32_t kind = (w >> 23) & 7u;
        if (kind == 1) bits = mantissa;                                        /* denormal */
        if (kind == 2) bits = (1u + ((w >> 26) & 15u)) << 23 | mantissa;       /* near the smallest normal */
        if (kind == 3) bits = (127u + 96u + (mantissa & 3u)) << 23 | mantissa; /* about 1e29 */
        if (kind >= 4) bits = (120u + ((w >> 26) & 15u)) << 23 | mantissa;     /* 2^-7 .. 2^8 */
        bits |= sign;                                                          /* kind 0: +0 or -0 */
        memcpy(&x[i], &bits, 4);
    }
    return x;
}

/* --- buffers --- */

bool tu_wide(void) {
    return tu.wide;
}

static uint64_t tu_offset(void) {
    return tu.wide ? 64 : TU_OFFSET;
}

static clt_ref new_buffer(int device, size_t n, uint64_t offset, const void *data) {
    assert_true(tu.n_living < MAX_LIVING);
    size_t words = n + offset + GUARD;
    clt_buffer *b = NULL;
    tu_assert_ok(clt_buffer_create(tu_device(device), words * 4, "test", &b), "clt_buffer_create");
    tu.living[tu.n_living++] = (tu_living){b, offset, n};
    tu_assert_ok(clt_buffer_fill32(b, 0, guard_word, words * 4), "clt_buffer_fill32");
    if (data && n) tu_assert_ok(clt_buffer_write(b, offset * 4, data, n * 4), "clt_buffer_write");
    return (clt_ref){b, offset};
}

clt_ref tu_upload_at(int device, const void *data, size_t n, uint64_t offset) {
    return new_buffer(device, n, offset, data);
}

clt_ref tu_upload(int device, const float *data, size_t n) {
    return new_buffer(device, n, tu_offset(), data);
}

clt_ref tu_upload_i32(int device, const int32_t *data, size_t n) {
    return new_buffer(device, n, tu_offset(), data);
}

clt_ref tu_blank(int device, size_t n) {
    return new_buffer(device, n, tu_offset(), NULL);
}

void tu_fill_nan(const clt_slab *s) {
    for (int i = 0; i < s->table->n; i++) {
        const clt_slab_entry *e = &s->table->entry[i];
        float *nans = clt_malloc(e->count * sizeof *nans);
        for (uint64_t k = 0; k < e->count; k++) nans[k] = NAN;
        tu_assert_ok(clt_slab_write(s, e->offset, nans, e->count), e->name);
        clt_free(nans);
    }
}

static void check_guards(const tu_living *l) {
    size_t words = clt_buffer_bytes(l->buf) / 4;
    uint32_t *all = clt_malloc(words * 4);
    tu_assert_ok(clt_buffer_read(l->buf, 0, all, words * 4), "clt_buffer_read");
    size_t bad = words;
    for (size_t i = 0; i < words && bad == words; i++)
        if ((i < l->first || i >= l->first + l->count) && all[i] != guard_word) bad = i;
    clt_free(all);
    if (bad < words)
        fail_msg("a kernel wrote outside its tensor: word %zd of %zu", (ssize_t)bad - (ssize_t)l->first,
                 l->count);
}

static void *download(clt_ref r, size_t n) {
    for (int i = 0; i < tu.n_living; i++)
        if (tu.living[i].buf == r.buf) check_guards(&tu.living[i]);
    float *x = clt_malloc(CLT_MAX(n, 1) * sizeof *x);
    assert_true(tu.n_host < MAX_LIVING);
    tu.host[tu.n_host++] = x;
    tu_assert_ok(clt_buffer_read(r.buf, r.off * 4, x, n * 4), "clt_buffer_read");
    return x;
}

float *tu_download(clt_ref r, size_t n) {
    return download(r, n);
}

int32_t *tu_download_i32(clt_ref r, size_t n) {
    return download(r, n);
}

static const uint16_t guard_half = 0xa5a5u;

clt_ref tu_upload_as(int device, clt_dtype type, const float *data, size_t n) {
    if (type == CLT_F32) return tu_upload(device, data, n);
    size_t words = n / 2 + 1, first = tu.wide ? 0 : 1;
    uint16_t *u = clt_malloc(words * 4);
    u[0] = u[2 * words - 2] = u[2 * words - 1] = guard_half;
    clt_ref_narrow(type, data, n, u + first);
    clt_ref r = new_buffer(device, words, tu_offset(), u);
    clt_free(u);
    return (clt_ref){r.buf, 2 * r.off + first};
}

clt_ref tu_upload_rounded(int device, clt_dtype type, float *data, size_t n) {
    clt_ref_round(type, data, n);
    return tu_upload_as(device, type, data, n);
}

float *tu_download_as(clt_ref r, clt_dtype type, size_t n) {
    if (type == CLT_F32) return tu_download(r, n);
    size_t words = n / 2 + 1, first = r.off % 2;
    const uint16_t *u = download((clt_ref){r.buf, r.off / 2}, words);
    bool kept = first == 0 || u[0] == guard_half;
    for (size_t i = first + n; i < 2 * words; i++) kept = kept && u[i] == guard_half;
    if (!kept) fail_msg("a kernel wrote outside its tensor: next to its first or last element of %zu", n);
    float *x = clt_malloc(CLT_MAX(n, 1) * sizeof *x);
    assert_true(tu.n_host < MAX_LIVING);
    tu.host[tu.n_host++] = x;
    clt_ref_widen(type, u + first, n, x);
    return x;
}

void tu_release(void) {
    while (tu.n_living > 0) {
        tu_living l = tu.living[--tu.n_living];
        check_guards(&l);
        clt_buffer_destroy(l.buf);
    }
    while (tu.n_host > 0) clt_free(tu.host[--tu.n_host]);
}

/* --- comparing --- */

static uint32_t word_of(float x) {
    uint32_t w;
    memcpy(&w, &x, 4);
    return w;
}

static bool same_word(float a, float b) {
    return word_of(a) == word_of(b) || (isnan(a) && isnan(b));
}

void tu_assert_matrix(const char *what, const float *got, const float *want, int64_t rows, int64_t cols,
                      int64_t ld) {
    int64_t bad = 0, first = -1;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            if (!same_word(got[r * ld + c], want[r * ld + c]) && bad++ == 0) first = r * ld + c;
    if (bad)
        fail_msg(
            "%s: %lld of %lld words differ, first at row %lld column %lld: got %.9g (%08x), want %.9g (%08x)",
            what, (long long)bad, (long long)(rows * cols), (long long)(first / ld), (long long)(first % ld),
            (double)got[first], word_of(got[first]), (double)want[first], word_of(want[first]));
}

void tu_assert_words(const char *what, const float *got, const float *want, size_t n) {
    tu_assert_matrix(what, got, want, 1, (int64_t)n, (int64_t)CLT_MAX(n, 1));
}

void tu_assert_i32(const char *what, const int32_t *got, const int32_t *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i]) fail_msg("%s: element %zu of %zu is %d, want %d", what, i, n, got[i], want[i]);
}

double tu_assert_close(const char *what, const float *got, const double *want, size_t n, double tolerance) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double err = fabs((double)got[i] - want[i]) / fmax(1.0, fabs(want[i]));
        if (!(err <= tolerance))
            fail_msg("%s: element %zu of %zu is %.9g, the formula gives %.12g (error %.3g, bound %.3g)", what,
                     i, n, (double)got[i], want[i], err, tolerance);
        worst = fmax(worst, err);
    }
    return worst;
}

void tu_assert_ok(clt_status st, const char *what) {
    if (st != CLT_OK) fail_msg("%s: %s: %s", what, clt_status_name(st), clt_last_error());
}

clt_model_config *tu_model(const char *text) {
    char *json = clt_strdup(text);
    clt_model_config *config = NULL;
    for (char *c = json; *c; c++)
        if (*c == '\'') *c = '"';
    tu_assert_ok(clt_model_config_parse(json, false, "model", &config), text);
    clt_free(json);
    return config;
}

double tu_largest(const float *x, size_t n) {
    double m = 0;
    for (size_t i = 0; i < n; i++) m = fmax(m, fabs((double)x[i]));
    return m;
}

double tu_relative(const float *got, const float *want, size_t n) {
    double d = 0;
    for (size_t i = 0; i < n; i++) d = fmax(d, fabs((double)got[i] - (double)want[i]));
    return d / fmax(tu_largest(want, n), 1e-30);
}
