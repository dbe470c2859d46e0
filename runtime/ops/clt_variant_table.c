/* Variant tables: reading the .vt files and deciding which rows can run on a device. */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "runtime/base/clt_host.h"
#include "runtime/base/clt_io.h"
#include "runtime/device/clt_tensor_map.h"
#include "runtime/ops/clt_ops_state.h"

/* --- libraries --- */

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

char *clt_variant_library_version(const char *name) {
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

/* --- requirements --- */

/* Whether a word of `requires` names a missing kernel file. */
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
    /* Machine code of a kernel must not even be probed where the host, whose processor CPU devices are, lacks
     * it: the process would end. */
    if (!strncmp(word, "cpu=", 4)) return f->type == CLT_DEVICE_CPU ? clt_host_has(word + 4) : 0;
    if (!strcmp(word, "subgroups")) return f->subgroups;
    if (!strcmp(word, "block_reads")) return f->block_reads;
    if (!strcmp(word, "half")) return f->half_arithmetic;
    if (!strcmp(word, "ptx")) return f->inline_ptx;
    if (!strcmp(word, "mma_f16")) return f->mma_f16;
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
    if (!strncmp(word, "vector_bits>=", 13) && clt_parse_i64(word + 13, &n)) return f->vector_bits >= n;
    if (!strncmp(word, "work_group>=", 12) && clt_parse_i64(word + 12, &n)) return f->max_work_group >= n;
    return -1;
}

clt_status clt_variant_find_lacking(const clt_ops *ops, const clt_variant *v, clt_str *lacking) {
    *lacking = (clt_str){0};
    if (!strcmp(v->requires, "-")) return CLT_OK;
    char *copy = clt_strdup(v->requires), *at = NULL;
    clt_status st = CLT_OK;
    for (char *w = strtok_r(copy, ",", &at); w && st == CLT_OK; w = strtok_r(NULL, ",", &at)) {
        if (names_no_file(w)) {
            st = clt_error(CLT_FAIL, "%s.vt: variant %s requires '%s', but that kernel file does not exist",
                           v->op, v->id, w);
            break;
        }
        /* a probe runs only if all words before it hold: they exclude compilers that the probe may crash */
        if (lacking->len && !strncmp(w, "probe=", 6)) continue;
        const int holds = requirement_holds(ops, w);
        if (holds < 0)
            st = clt_error(CLT_FAIL,
                           "%s.vt: variant %s has the unknown requirement '%s' "
                           "(docs/how-to-add-a-kernel.md lists them)",
                           v->op, v->id, w);
        else if (!holds)
            clt_str_addf(lacking, " %s", w);
    }
    clt_free(copy);
    if (st != CLT_OK) clt_str_free(lacking);
    return st;
}

static clt_status look_at_row(clt_ops *ops, clt_variant *v) {
    clt_str lacking;
    CLT_TRY(clt_variant_find_lacking(ops, v, &lacking));
    v->disabled = clt_variant_is_disabled(ops, v);
    v->usable = lacking.len == 0 && !v->disabled;
    clt_str_free(&lacking);
    return CLT_OK;
}

char *clt_variant_why_not(const clt_ops *ops, const clt_variant *v) {
    clt_str lacking;
    if (v->usable) return NULL;
    if (clt_variant_find_lacking(ops, v, &lacking) == CLT_OK && lacking.len) return lacking.s;
    clt_str_free(&lacking);
    return clt_strdup(" not_disabled");
}

/* --- reading --- */

static clt_status take(const char *op, int line, const char *what, const char *word, char *dst, size_t size) {
    if (strlen(word) >= size) return clt_error(CLT_FAIL, "%s.vt line %d: %s is too long", op, line, what);
    memcpy(dst, word, strlen(word) + 1);
    return CLT_OK;
}

void clt_variant_required(const clt_variant *v, const char *name, char value[96]) {
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
        return clt_error(CLT_FAIL, "%s.vt line %d: expected id, file, body, requires, params; found %d words",
                         op, line, n);
    *v = (clt_variant){0};
    CLT_TRY(take(op, line, "the name", op, v->op, sizeof v->op));
    CLT_TRY(take(op, line, "id", field[0], v->id, sizeof v->id));
    CLT_TRY(take(op, line, "file", field[1], v->file, sizeof v->file));
    CLT_TRY(take(op, line, "body", field[2], v->body, sizeof v->body));
    CLT_TRY(take(op, line, "requires", field[3], v->requires, sizeof v->requires));
    CLT_TRY(take(op, line, "params", field[4], v->params, sizeof v->params));
    clt_variant_required(v, "uses=", v->uses);
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

/* The rows of a table in its order; requirements are not evaluated here. */
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
                st = clt_error(CLT_FAIL, "%s.vt line %d: variant %s occurs twice", t->op, line, v->id);
        if (st == CLT_OK) t->rows++;
    }
    clt_free(copy);
    return st;
}

static clt_status parse_table(clt_ops *ops, const char *text, clt_variant_table *t) {
    CLT_TRY(parse_rows(text, t));
    for (int i = 0; i < t->rows; i++) CLT_TRY(look_at_row(ops, &t->row[i]));
    sort_usable_first(t);
    return CLT_OK;
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
    clt_variant_read_disabled(ops);
    for (int i = 0; i < clt_kernel_file_count(); i++) {
        const char *file = clt_kernel_file_name(i);
        const size_t n = table_name(file);
        if (!n) continue;
        const char *text = clt_kernel_text(file);
        const char *folder = clt_env(CLT_ENV_KERNEL_PATH);
        if (!text && folder)
            return clt_error(
                CLT_USAGE,
                "CLTRAIN_KERNEL_PATH=%s: %s does not exist; name a copy of the whole folder clkernels/",
                folder, file);
        if (!text) return clt_error(CLT_FAIL, "%s: the table cannot be read", file);
        char *op = clt_strndup(clt_path_base(file), n);
        clt_status st = clt_variant_add_table(ops, op, text);
        clt_free(op);
        CLT_TRY(st);
        /* This check reads all kernels' texts. For the built-in tables a test does it. */
        if (folder) CLT_TRY(clt_variant_params_are_read(&ops->table[ops->tables - 1]));
    }
    CLT_TRY(clt_variant_look_at_disabled(ops));
    return apply_forced(ops);
}

void clt_variant_free_tables(clt_ops *ops) {
    for (int i = 0; i < ops->tables; i++) clt_free(ops->table[i].row);
    clt_free(ops->table);
    for (int i = 0; i < ops->specials; i++) clt_free(ops->special[i]);
    clt_free(ops->special);
    clt_variant_free_disabled(ops);
    ops->table = NULL;
    ops->special = NULL;
    ops->tables = ops->specials = 0;
}
