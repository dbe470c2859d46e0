/* Variant tables: reading, filtering by the device's facts, forcing, and the verdicts of the checks. */
#include "runtime/ops/clt_variant.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/device/clt_record.h"
#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_ops_state.h"
#include "runtime/ops/ref/clt_ref.h"

/* Goes into every verdict's key; raise it when a check or an oracle changes its meaning. */
#define VERDICT_FORMAT "verdict 3"

/* --- requirements --- */

static void *open_library(const char *name) {
    static const char *const ending[] = {".so.1", ".so"};
    void *h = NULL;
    for (size_t i = 0; i < CLT_COUNT_OF(ending) && !h; i++) {
        char *file = clt_format("lib%s%s", name, ending[i]);
        h = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
        clt_free(file);
    }
    return h;
}

static bool has_library(const char *name) {
    void *h = open_library(name);
    if (h) dlclose(h);
    return h != NULL;
}

/* What tells a library from another version of it, which few can be asked for: its file. */
static char *library_version(const char *name) {
    void *h = open_library(name);
    struct link_map *map;
    struct stat s;
    char *path = h && dlinfo(h, RTLD_DI_LINKMAP, &map) == 0 ? realpath(map->l_name, NULL) : NULL;
    char *version = path && stat(path, &s) == 0 ? clt_format("%s %lld %lld.%09ld", path, (long long)s.st_size,
                                                             (long long)s.st_mtim.tv_sec, s.st_mtim.tv_nsec)
                                                : clt_strdup("");
    clt_free(path);
    if (h) dlclose(h);
    return version;
}

/* Whether a word of `requires` names a kernel file that is not there. */
static bool names_no_file(const char *word) {
    const char *file = !strncmp(word, "probe=", 6) ? word + 6 : !strncmp(word, "uses=", 5) ? word + 5 : NULL;
    return file && !clt_kernel_text(file);
}

/* One word of `requires`: 1 holds, 0 does not, -1 unknown word. */
static int requirement_holds(const clt_ops *ops, const char *word) {
    const clt_device_facts *f = clt_device_get_facts(ops->dev);
    int64_t n = 0;
    if (!strcmp(word, "type=cpu")) return f->type == CLT_DEVICE_CPU;
    if (!strcmp(word, "type=gpu")) return f->type == CLT_DEVICE_GPU;
    if (!strcmp(word, "subgroups")) return f->subgroups;
    if (!strcmp(word, "block_reads")) return f->block_reads;
    if (!strcmp(word, "half")) return f->half_arithmetic;
    if (!strcmp(word, "ptx")) return f->inline_ptx;
    if (!strcmp(word, "mma_bf16")) return f->mma_bf16;
    if (!strcmp(word, "wgmma")) return f->wgmma;
    if (!strcmp(word, "mfma")) return f->tile16_wave == 64;
    if (!strcmp(word, "wmma")) return f->tile16_wave == 32;
    if (!strcmp(word, "tensor_map")) return clt_tensor_map_available(ops->dev);
    if (!strcmp(word, "numerics=fast")) return ops->params.numerics == CLT_FAST;
    if (!strncmp(word, "vendor=", 7)) return strcasestr(f->vendor, word + 7) != NULL;
    if (!strncmp(word, "probe=", 6)) return clt_device_probe_file(ops->dev, word + 6);
    if (!strncmp(word, "lib=", 4)) return has_library(word + 4);
    if (!strncmp(word, "uses=", 5)) return 1;
    if (!strncmp(word, "local_mem>=", 11) && clt_parse_i64(word + 11, &n)) return f->local_mem >= (uint64_t)n;
    if (!strncmp(word, "work_group>=", 12) && clt_parse_i64(word + 12, &n)) return f->max_work_group >= n;
    return -1;
}

/* The words of `requires` that do not hold here, as " a b"; to free. None: the row is usable. */
static clt_status find_lacking(const clt_ops *ops, const clt_variant *v, clt_str *lacking) {
    *lacking = (clt_str){0};
    if (!strcmp(v->requires, "-")) return CLT_OK;
    char *copy = clt_strdup(v->requires), *at = NULL;
    clt_status st = CLT_OK;
    for (char *w = strtok_r(copy, ",", &at); w && st == CLT_OK; w = strtok_r(NULL, ",", &at)) {
        if (names_no_file(w)) {
            st = clt_error(CLT_FAIL, "%s.vt: variant %s requires '%s', and there is no such kernel file",
                           v->op, v->id, w);
            break;
        }
        /* a probe is run only where all words before it hold: they keep it from compilers that it may end */
        if (lacking->len && !strncmp(w, "probe=", 6)) continue;
        const int holds = requirement_holds(ops, w);
        if (holds < 0)
            st = clt_error(CLT_FAIL,
                           "%s.vt: variant %s has the unknown requirement '%s' "
                           "(docs/how-to-add-a-kernel.md lists what there is)",
                           v->op, v->id, w);
        else if (!holds)
            clt_str_addf(lacking, " %s", w);
    }
    clt_free(copy);
    if (st != CLT_OK) clt_str_free(lacking);
    return st;
}

static clt_status row_is_usable(const clt_ops *ops, const clt_variant *v, bool *usable) {
    clt_str lacking;
    CLT_TRY(find_lacking(ops, v, &lacking));
    *usable = lacking.len == 0;
    clt_str_free(&lacking);
    return CLT_OK;
}

/* --- reading --- */

static clt_status take(const char *op, int line, const char *what, const char *word, char *dst, size_t size) {
    if (strlen(word) >= size) return clt_error(CLT_FAIL, "%s.vt line %d: %s is too long", op, line, what);
    memcpy(dst, word, strlen(word) + 1);
    return CLT_OK;
}

/* What stands behind `name` (its "=" included) among the words of `requires`; "" without it, or if it is too
 * long. */
static void required(const clt_variant *v, const char *name, char value[96]) {
    const size_t n = strlen(name);
    *value = 0;
    for (const char *w = v->requires; w; w = strchr(w, ',')) {
        w += *w == ',';
        const size_t len = strcspn(w, ",");
        if (len > n && len - n < 96 && !strncmp(w, name, n))
            snprintf(value, 96, "%.*s", (int)(len - n), w + n);
    }
}

static clt_status parse_row(const char *op, int line, char *text, clt_variant *v) {
    char *field[5] = {0}, *at = NULL;
    int n = 0;
    for (char *w = strtok_r(text, " \t\r", &at); w; w = strtok_r(NULL, " \t\r", &at), n++)
        if (n < 5) field[n] = w;
    if (n != 5)
        return clt_error(CLT_FAIL, "%s.vt line %d: needs id, file, body, requires, params; has %d words", op,
                         line, n);
    *v = (clt_variant){0};
    CLT_TRY(take(op, line, "the name", op, v->op, sizeof v->op));
    CLT_TRY(take(op, line, "id", field[0], v->id, sizeof v->id));
    CLT_TRY(take(op, line, "file", field[1], v->file, sizeof v->file));
    CLT_TRY(take(op, line, "body", field[2], v->body, sizeof v->body));
    CLT_TRY(take(op, line, "requires", field[3], v->requires, sizeof v->requires));
    CLT_TRY(take(op, line, "params", field[4], v->params, sizeof v->params));
    required(v, "uses=", v->uses);
    return clt_variant_make_options(v, line);
}

/* Usable rows first, the order of the file kept within both halves. */
static void sort_usable_first(clt_variant_table *t) {
    clt_variant *sorted = clt_calloc((size_t)CLT_MAX(t->rows, 1), sizeof *sorted);
    for (int i = 0; i < t->rows; i++)
        if (t->row[i].usable) sorted[t->usable++] = t->row[i];
    for (int i = 0, n = t->usable; i < t->rows; i++)
        if (!t->row[i].usable) sorted[n++] = t->row[i];
    clt_free(t->row);
    t->row = sorted;
}

/* The rows of a table, in its order; what holds on a device is not asked yet. */
static clt_status parse_rows(const char *text, clt_variant_table *t) {
    char *copy = clt_strdup(text), *rest = copy;
    clt_status st = CLT_OK;
    for (int line = 1; st == CLT_OK && rest; line++) {
        char *row = strsep(&rest, "\n");
        row[strcspn(row, "#")] = 0;
        if (row[strspn(row, " \t\r")] == 0) continue;
        t->row = clt_realloc(t->row, (size_t)(t->rows + 1) * sizeof *t->row);
        clt_variant *v = &t->row[t->rows];
        st = parse_row(t->op, line, row, v);
        for (int i = 0; st == CLT_OK && i < t->rows; i++)
            if (!strcmp(t->row[i].id, v->id))
                st = clt_error(CLT_FAIL, "%s.vt line %d: variant %s is there twice", t->op, line, v->id);
        if (st == CLT_OK) t->rows++;
    }
    clt_free(copy);
    return st;
}

static clt_status parse_table(const clt_ops *ops, const char *text, clt_variant_table *t) {
    CLT_TRY(parse_rows(text, t));
    for (int i = 0; i < t->rows; i++) CLT_TRY(row_is_usable(ops, &t->row[i], &t->row[i].usable));
    sort_usable_first(t);
    return CLT_OK;
}

static clt_variant_table *find_table(const clt_ops *ops, const char *op) {
    for (int i = 0; i < ops->tables; i++)
        if (!strcmp(ops->table[i].op, op)) return &ops->table[i];
    return NULL;
}

/* CLTRAIN_VARIANT=op=id[,op=id...] */
static clt_status apply_forced(clt_ops *ops) {
    const char *forced = clt_env(CLT_ENV_VARIANT);
    if (!forced) return CLT_OK;
    char *copy = clt_strdup(forced), *at = NULL;
    clt_status st = CLT_OK;
    for (char *w = strtok_r(copy, ",", &at); w && st == CLT_OK; w = strtok_r(NULL, ",", &at)) {
        char *eq = strchr(w, '=');
        if (!eq) {
            st = clt_error(CLT_USAGE, "CLTRAIN_VARIANT: '%s' is not op=id", w);
        } else {
            *eq = 0;
            st = clt_variant_force(ops, w, eq + 1);
        }
    }
    clt_free(copy);
    return st;
}

clt_status clt_variant_add_table(clt_ops *ops, const char *op, const char *text) {
    ops->table = clt_realloc(ops->table, (size_t)(ops->tables + 1) * sizeof *ops->table);
    clt_variant_table *t = &ops->table[ops->tables++];
    *t = (clt_variant_table){.forced = -1};
    CLT_TRY(take(op, 0, "the name", op, t->op, sizeof t->op));
    return parse_table(ops, text, t);
}

/* Length of the operation's name if this kernel file is a table, else 0. */
static size_t table_name(const char *file) {
    const char *base = clt_path_base(file);
    const size_t n = strlen(base);
    return n > 3 && !strcmp(base + n - 3, ".vt") ? n - 3 : 0;
}

int clt_variant_rows(const char *op, clt_variant **rows) {
    clt_variant_table t = {0};
    snprintf(t.op, sizeof t.op, "%s", op);
    for (int i = 0; i < clt_kernel_file_count(); i++) {
        const char *file = clt_kernel_file_name(i);
        const size_t n = table_name(file);
        if (!n || n != strlen(op) || strncmp(clt_path_base(file), op, n)) continue;
        const char *text = clt_kernel_text(file);
        if (text && parse_rows(text, &t) != CLT_OK) t.rows = 0;
    }
    *rows = t.row;
    return t.rows;
}

clt_status clt_variant_load_tables(clt_ops *ops) {
    for (int i = 0; i < clt_kernel_file_count(); i++) {
        const char *file = clt_kernel_file_name(i);
        const size_t n = table_name(file);
        if (!n) continue;
        const char *text = clt_kernel_text(file);
        const char *folder = clt_env(CLT_ENV_KERNEL_PATH);
        if (!text && folder)
            return clt_error(
                CLT_USAGE,
                "CLTRAIN_KERNEL_PATH=%s: there is no %s; it names a folder with the whole of clkernels/",
                folder, file);
        if (!text) return clt_error(CLT_FAIL, "%s: the table cannot be read", file);
        char *op = clt_strndup(clt_path_base(file), n);
        clt_status st = clt_variant_add_table(ops, op, text);
        clt_free(op);
        CLT_TRY(st);
        /* It reads all kernels' texts. A test has done that for the tables that are built in. */
        if (folder) CLT_TRY(clt_variant_params_are_read(&ops->table[ops->tables - 1]));
    }
    return apply_forced(ops);
}

void clt_variant_free_tables(clt_ops *ops) {
    for (int i = 0; i < ops->tables; i++) clt_free(ops->table[i].row);
    clt_free(ops->table);
    for (int i = 0; i < ops->specials; i++) clt_free(ops->special[i]);
    clt_free(ops->special);
    ops->table = NULL;
    ops->special = NULL;
    ops->tables = ops->specials = 0;
}

/* --- asking --- */

long clt_variant_param(const clt_variant *v, const char *name, long fallback) {
    size_t n = strlen(name);
    for (const char *p = v->params; p; p = strchr(p, ',')) {
        if (*p == ',') p++;
        if (!strncmp(p, name, n) && p[n] == '=') return strtol(p + n + 1, NULL, 0);
    }
    return fallback;
}

clt_variant *clt_ops_variants(clt_ops *ops, const char *op, int *n) {
    clt_variant_table *t = find_table(ops, op);
    *n = t ? t->usable : 0;
    return t ? t->row : NULL;
}

const char *clt_variant_forced(const clt_ops *ops, const char *op) {
    const clt_variant_table *t = find_table(ops, op);
    return t && t->forced >= 0 ? t->row[t->forced].id : NULL;
}

static clt_status unknown_op(const clt_ops *ops, const char *op) {
    clt_str known = {0};
    for (int i = 0; i < ops->tables; i++) clt_str_addf(&known, " %s", ops->table[i].op);
    clt_status st = clt_error(CLT_USAGE, "variant: there is no operation '%s'; operations with variants:%s",
                              op, known.s ? known.s : " none");
    clt_str_free(&known);
    return st;
}

static clt_status cannot_run(const clt_ops *ops, const clt_variant *v) {
    clt_str lacking;
    CLT_TRY(find_lacking(ops, v, &lacking));
    clt_status st =
        clt_error(CLT_USAGE, "variant %s=%s cannot run on this device: it requires %s; what does not hold:%s",
                  v->op, v->id, v->requires, lacking.s ? lacking.s : "");
    clt_str_free(&lacking);
    return st;
}

clt_status clt_variant_force(clt_ops *ops, const char *op, const char *id) {
    clt_variant_table *t = find_table(ops, op);
    if (!t) return unknown_op(ops, op);
    if (!id) {
        t->forced = -1;
        return CLT_OK;
    }
    clt_str known = {0};
    for (int i = 0; i < t->rows; i++) {
        const clt_variant *v = &t->row[i];
        if (!strcmp(v->id, id)) {
            clt_str_free(&known);
            if (!v->usable) return cannot_run(ops, v);
            t->forced = i;
            return CLT_OK;
        }
        clt_str_addf(&known, " %s%s", v->id, v->usable ? "" : " (not on this device)");
    }
    clt_status st = clt_error(CLT_USAGE, "variant: %s has no variant '%s'; it has:%s", op, id,
                              known.s ? known.s : " none");
    clt_str_free(&known);
    return st;
}

/* --- verdicts --- */

bool clt_variant_is_rehearsed(const clt_ops *ops) {
    return clt_device_rehearses(ops->dev);
}

clt_status clt_variant_fail(clt_ops *ops, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(ops->reason, sizeof ops->reason, fmt, ap);
    va_end(ap);
    /* A rehearsed check compares with nothing, and goes on to the programs of its next case. */
    return clt_variant_is_rehearsed(ops) ? CLT_OK : CLT_FAIL;
}

static bool is_nan_word(uint32_t w) {
    return (w & 0x7fffffffu) > 0x7f800000u;
}

clt_status clt_variant_compare_as(clt_ops *ops, clt_dtype type, const char *what, clt_ref got,
                                  const float *want, size_t n) {
    if (clt_variant_is_rehearsed(ops)) return CLT_OK;
    float *host = clt_malloc(CLT_MAX(n, 1) * sizeof *host);
    clt_status st = clt_ref_read_as(got, type, host, n);
    for (size_t i = 0; st == CLT_OK && i < n; i++) {
        float rounded = want[i];
        uint32_t a, b;
        clt_ref_round(type, &rounded, 1);
        memcpy(&a, &host[i], 4);
        memcpy(&b, &rounded, 4);
        if (a != b && !(is_nan_word(a) && is_nan_word(b)))
            st = clt_variant_fail(ops, "%s: element %zu of %zu is %.9g (%08x), the oracle has %.9g (%08x)",
                                  what, i, n, (double)host[i], a, (double)rounded, b);
    }
    clt_free(host);
    return st;
}

clt_status clt_variant_compare(clt_ops *ops, const char *what, clt_ref got, const float *want, size_t n) {
    return clt_variant_compare_as(ops, CLT_F32, what, got, want, n);
}

void clt_variant_key(clt_ops *ops, const clt_variant *v, char key[33]) {
    const char *text = clt_kernel_text(v->file), *used = *v->uses ? clt_kernel_text(v->uses) : NULL;
    char name[96];
    required(v, "lib=", name);
    char *library = *name ? library_version(name) : NULL;
    const char *part[] = {VERDICT_FORMAT,
                          clt_device_id(ops->dev),
                          clt_kernel_common_options(),
                          v->op,
                          v->id,
                          v->body,
                          v->options,
                          ops->params.numerics == CLT_FAST ? "fast" : "exact",
                          text ? text : "",
                          used ? used : "",
                          library ? library : ""};
    clt_hash_state *h = clt_hash_begin();
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++) clt_hash_add(h, part[i], strlen(part[i]) + 1);
    clt_hash_hex(clt_hash_end(h), key);
    clt_free(library);
}

static char *verdict_path(clt_ops *ops, const clt_variant *v) {
    const char *dir = clt_device_cache_dir(ops->dev);
    char key[33];
    if (!dir || !clt_kernel_text(v->file)) return NULL;
    clt_variant_key(ops, v, key);
    return clt_format("%s/variant-%s.txt", dir, key);
}

bool clt_ops_cached_text(const char *path, size_t most, char **text, size_t *bytes) {
    clt_io_info info;
    if (clt_io_try_stat(path, &info) != 0 || info.kind != CLT_IO_FILE) return false;
    if (info.bytes > most) clt_debug("%s is larger than it can be and counts as absent", path);
    return info.bytes <= most && clt_io_read_all(path, most, text, bytes) == CLT_OK;
}

/* The file's one line: "passed OP ID" or "failed OP ID: reason". Anything else counts as absent. */
static int load_verdict(clt_variant *v, const char *path) {
    char *data = NULL;
    size_t n = 0;
    if (!path || !clt_ops_cached_text(path, 4096, &data, &n)) return 0;
    char *head = clt_format("%s %s", v->op, v->id);
    int verdict = 0;
    if (n > 7 + strlen(head) && !strncmp(data + 7, head, strlen(head))) {
        if (!strncmp(data, "passed ", 7)) verdict = 1;
        if (!strncmp(data, "failed ", 7)) verdict = -1;
    }
    if (verdict < 0) {
        const char *reason = data + 7 + strlen(head);
        reason += strspn(reason, ": ");
        snprintf(v->reason, sizeof v->reason, "%.*s", (int)strcspn(reason, "\n"), reason);
    }
    clt_free(head);
    clt_free(data);
    return verdict;
}

static void save_verdict(const clt_variant *v, const char *path) {
    if (!path) return;
    char *line = v->verdict > 0 ? clt_format("passed %s %s\n", v->op, v->id)
                                : clt_format("failed %s %s: %s\n", v->op, v->id, v->reason);
    if (clt_io_write_atomic(path, line, strlen(line)) != CLT_OK)
        clt_warn("the verdict on kernel variant %s=%s could not be kept; it will be checked again", v->op,
                 v->id);
    clt_free(line);
}

/* Why a check failed: what it said itself (clt_variant_fail), else the first line of the error that stopped
 * it, which names the log of a failed build. */
static void keep_reason(clt_ops *ops, clt_variant *v) {
    const char *why = *ops->reason ? ops->reason : clt_last_error();
    snprintf(v->reason, sizeof v->reason, "%.*s", (int)strcspn(why, "\n"), why);
    if (!*v->reason) snprintf(v->reason, sizeof v->reason, "does not build or run");
}

static uint64_t shortages(const clt_ops *ops) {
    clt_device_counters c;
    clt_device_get_counters(ops->dev, &c);
    return c.shortages;
}

bool clt_variant_says_nothing(clt_status st) {
    return st == CLT_AGAIN || st == CLT_NO_MEMORY || st == CLT_STOPPED;
}

clt_status clt_variant_verify(clt_ops *ops, clt_variant *v, clt_variant_check check, void *ctx) {
    if (ops->params.skip_check || v->verdict > 0) return CLT_OK;
    if (v->verdict < 0) return CLT_FAIL;
    char *path = verdict_path(ops, v);
    int known = load_verdict(v, path);
    if (known) {
        v->verdict = known;
    } else if (clt_variant_is_rehearsed(ops)) {
        clt_free(path);
        if (v->rehearsed) return CLT_OK;
        v->rehearsed = true;
        return check(ops, v, ctx); /* for the sake of its programs */
    } else if (clt_ops_stops(ops)) {
        clt_free(path);
        return CLT_STOPPED; /* a first step may check kernels for minutes */
    } else {
        double start = clt_now();
        const uint64_t before = shortages(ops);
        *ops->reason = 0;
        ops->checked++;
        clt_record_pause(ops->dev, true); /* a check is no part of the work */
        clt_status st = check(ops, v, ctx);
        clt_record_pause(ops->dev, false);
        if (clt_variant_says_nothing(st)) {
            clt_free(path);
            return st;
        }
        v->verdict = st == CLT_OK ? 1 : -1;
        if (st != CLT_OK) keep_reason(ops, v);
        clt_debug("variant %s=%s %s in %.3f s", v->op, v->id, st == CLT_OK ? "passed" : "failed",
                  clt_now() - start);
        /* What ran out for a moment is a verdict for this run alone. */
        if (st == CLT_OK || shortages(ops) == before || clt_device_is_broken(ops->dev)) save_verdict(v, path);
    }
    clt_free(path);
    if (v->verdict < 0)
        clt_warn("kernel variant %s=%s is not used on %s: %s", v->op, v->id,
                 clt_device_get_facts(ops->dev)->name, v->reason);
    return v->verdict > 0 ? CLT_OK : CLT_FAIL;
}

/* Row v with `options` behind its own, kept by ops. */
static clt_status specialise(clt_ops *ops, clt_variant *v, const char *options, clt_variant **out) {
    if (!*options) {
        *out = v;
        return CLT_OK;
    }
    size_t n = strlen(v->options), more = strlen(options);
    if (n + more >= sizeof v->options)
        return clt_error(CLT_FAIL, "%s=%s: the build options '%s%s' are too long", v->op, v->id, v->options,
                         options);
    for (int i = 0; i < ops->specials; i++) {
        clt_variant *s = ops->special[i];
        if (!strcmp(s->id, v->id) && !strcmp(s->op, v->op) && !strncmp(s->options, v->options, n) &&
            !strcmp(s->options + n, options)) {
            *out = s;
            return CLT_OK;
        }
    }
    clt_variant *s = clt_malloc(sizeof *s);
    *s = *v;
    memcpy(s->options + n, options, more + 1);
    s->verdict = 0;
    s->rehearsed = false;
    ops->special = clt_realloc(ops->special, (size_t)(ops->specials + 1) * sizeof *ops->special);
    ops->special[ops->specials++] = s;
    *out = s;
    return CLT_OK;
}

clt_status clt_variant_pick(clt_ops *ops, const char *op, clt_variant_check check, void *ctx,
                            const clt_variant **out) {
    return clt_variant_pick_with(ops, op, "", check, ctx, out);
}

clt_status clt_variant_pick_with(clt_ops *ops, const char *op, const char *options, clt_variant_check check,
                                 void *ctx, const clt_variant **out) {
    return clt_variant_pick_for(ops, op, options, NULL, check, ctx, out);
}

clt_status clt_variant_pick_row(clt_ops *ops, const char *op, const char *id, const char *options,
                                clt_variant_takes takes, clt_variant_check check, const void *call,
                                const clt_variant **out) {
    clt_variant_table *t = find_table(ops, op);
    *out = NULL;
    if (!t) return unknown_op(ops, op);
    for (int i = 0; i < t->usable; i++) {
        clt_variant *v = NULL;
        if (strcmp(t->row[i].id, id) != 0) continue;
        CLT_TRY(specialise(ops, &t->row[i], options, &v));
        if (takes && !takes(v, call)) return CLT_OK;
        const clt_status st = check ? clt_variant_verify(ops, v, check, (void *)(uintptr_t)call) : CLT_OK;
        if (clt_variant_says_nothing(st)) return st;
        if (st == CLT_OK) *out = v;
    }
    return CLT_OK;
}

clt_status clt_variant_pick_for(clt_ops *ops, const char *op, const char *options, clt_variant_takes takes,
                                clt_variant_check check, const void *call, const clt_variant **out) {
    clt_variant_table *t = find_table(ops, op);
    if (!t) return unknown_op(ops, op);
    const char *reason = "none can run here";
    int first = t->forced >= 0 ? t->forced : 0, end = t->forced >= 0 ? t->forced + 1 : t->usable;
    for (int i = first; i < end; i++) {
        clt_variant *v = NULL;
        CLT_TRY(specialise(ops, &t->row[i], options, &v));
        if (takes && !takes(v, call)) {
            if (t->forced < 0) continue;
            return clt_error(CLT_FAIL,
                             "%s: the forced variant %s does not do a call of this run: its params (%s) or "
                             "its body leave it to another row",
                             op, v->id, v->params);
        }
        clt_status st = clt_variant_verify(ops, v, check, (void *)(uintptr_t)call);
        if (st == CLT_OK) {
            *out = v;
            return CLT_OK;
        }
        if (clt_variant_says_nothing(st)) return st;
        reason = v->reason;
    }
    const char *name = clt_device_get_facts(ops->dev)->name;
    if (t->forced >= 0)
        return clt_error(CLT_FAIL, "%s: the forced variant %s fails its check on %s: %s", op,
                         t->row[first].id, name, reason);
    return clt_error(
        CLT_FAIL,
        "%s: no kernel variant gives correct results on %s (last reason: %s); choose another device", op,
        name, reason);
}

/* Adds an id unless the comma list has it already. */
static void add_used(clt_str *b, const clt_variant *v) {
    size_t n = strlen(v->id);
    for (const char *s = b->s; *s; s += strcspn(s, ","), s += *s == ',')
        if (strncmp(s, v->id, n) == 0 && (s[n] == ',' || !s[n])) return;
    clt_str_addf(b, "%s%s", b->len ? "," : "", v->id);
}

int clt_variants_checked(const clt_ops *ops) {
    return ops->checked;
}

char *clt_variants_used(const clt_ops *ops) {
    clt_str b = {0};
    clt_str_add(&b, "");
    for (int t = 0; t < ops->tables; t++) {
        const clt_variant_table *table = &ops->table[t];
        clt_str ids = {0};
        clt_str_add(&ids, "");
        for (int i = 0; i < table->rows; i++)
            if (table->row[i].verdict > 0) add_used(&ids, &table->row[i]);
        for (int i = 0; i < ops->specials; i++)
            if (strcmp(ops->special[i]->op, table->op) == 0 && ops->special[i]->verdict > 0)
                add_used(&ids, ops->special[i]);
        if (ids.len) clt_str_addf(&b, "%s%s=%s", b.len ? " " : "", table->op, ids.s);
        clt_str_free(&ids);
    }
    return b.s;
}
