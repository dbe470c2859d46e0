#include "runtime/ops/clt_tune.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_cache.h"
#include "runtime/device/clt_mark.h"
#include "runtime/device/clt_record.h"
#include "runtime/ops/clt_ops_state.h"

#define HEAD "op,shape,variant,seconds,error,key,device,driver"

struct clt_tune {
    clt_tuned *line;
    int lines;
    double spent; /* seconds of measuring so far */
    bool announced, changed;
};

/* --- the file --- */

static char *csv_path(clt_ops *ops) {
    const char *dir = clt_device_cache_dir(ops->dev);
    return dir ? clt_format("%s/tune.csv", dir) : NULL;
}

static bool take(char *dst, size_t size, const char *word) {
    const bool fits = word && strlen(word) < size;
    if (fits) memcpy(dst, word, strlen(word) + 1);
    return fits;
}

/* An incomplete line counts as absent. */
static bool parse_line(char *text, clt_tuned *t) {
    char *field[8] = {0};
    int n = 0;
    for (char *rest = text; rest && n < 8;) field[n++] = strsep(&rest, ",");
    return n == 8 && take(t->op, sizeof t->op, field[0]) && take(t->shape, sizeof t->shape, field[1]) &&
           take(t->variant, sizeof t->variant, field[2]) && clt_parse_f64(field[3], &t->seconds) &&
           clt_parse_f64(field[4], &t->error) && take(t->key, sizeof t->key, field[5]) &&
           take(t->device, sizeof t->device, field[6]) && take(t->driver, sizeof t->driver, field[7]);
}

static bool same_place(const clt_tuned *a, const clt_tuned *b) {
    return !strcmp(a->op, b->op) && !strcmp(a->shape, b->shape) && !strcmp(a->device, b->device) &&
           !strcmp(a->driver, b->driver);
}

/* An empty line of this device and driver; commas in their names become spaces. */
static void name_device(const clt_ops *ops, clt_tuned *t) {
    const clt_device_facts *f = clt_device_get_facts(ops->dev);
    *t = (clt_tuned){0};
    snprintf(t->device, sizeof t->device, "%.*s", (int)sizeof t->device - 1, f->name);
    snprintf(t->driver, sizeof t->driver, "%.*s", (int)sizeof t->driver - 1, f->driver);
    for (char *s = t->device; *s; s++) *s = *s == ',' ? ' ' : *s;
    for (char *s = t->driver; *s; s++) *s = *s == ',' ? ' ' : *s;
}

static bool is_known(const clt_tuned *t) {
    return !strcmp(t->key, CLT_TUNE_KNOWN);
}

static void put(struct clt_tune *u, const clt_tuned *t) {
    for (int i = 0; i < u->lines; i++)
        if (same_place(&u->line[i], t) && is_known(&u->line[i]) == is_known(t)) {
            u->line[i] = *t;
            return;
        }
    u->line = clt_realloc(u->line, (size_t)(u->lines + 1) * sizeof *u->line);
    u->line[u->lines++] = *t;
}

void clt_tuned_add(clt_str *b, const clt_tuned *t, const char *key) {
    clt_str_addf(b, "%s,%s,%s,%.6g,%.3g,%s,%s,%s\n", t->op, t->shape, t->variant, t->seconds, t->error, key,
                 t->device, t->driver);
}

int clt_tune_add_known(clt_ops *ops, const char *text) {
    clt_tuned here;
    int lines = 0;
    name_device(ops, &here);
    char *copy = clt_strdup(text);
    for (char *rest = copy; rest;) {
        clt_tuned t = {0};
        char *line = strsep(&rest, "\n");
        if (*line == '#' || !parse_line(line, &t) || !is_known(&t)) continue;
        lines++;
        if (ops->tune && !strcmp(t.device, here.device)) put(ops->tune, &t);
    }
    clt_free(copy);
    return lines;
}

static void read_lines(clt_ops *ops, struct clt_tune *u) {
    char *path = csv_path(ops), *text = NULL;
    if (path && clt_ops_cached_text(path, 1 << 20, &text, NULL))
        for (char *rest = text; rest;) {
            clt_tuned t = {0};
            char *line = strsep(&rest, "\n");
            if (parse_line(line, &t)) put(u, &t);
        }
    clt_free(text);
    clt_free(path);
}

/* Keeps lines that another process wrote in the meantime; the lock excludes concurrent writers. */
static bool write_lines(clt_ops *ops) {
    const double at_most = 10; /* a few milliseconds of work of each process */
    struct clt_tune all = {0}, *u = ops->tune;
    char *path = csv_path(ops);
    clt_str b = {0};
    if (!path) return false;
    const int lock = clt_cache_lock(clt_device_cache_dir(ops->dev), clt_hash(HEAD, strlen(HEAD)), at_most);
    read_lines(ops, &all);
    for (int i = 0; i < u->lines; i++) put(&all, &u->line[i]);
    clt_str_add(&b, HEAD "\n");
    for (int i = 0; i < all.lines; i++) {
        if (all.line[i].seconds > 0 && !is_known(&all.line[i]))
            clt_tuned_add(&b, &all.line[i], all.line[i].key);
    }
    const bool kept = clt_io_write_atomic(path, b.s, b.len) == CLT_OK;
    if (!kept) clt_warn("measured kernel choices could not be saved; the next run measures them again");
    clt_cache_unlock(lock);
    clt_str_free(&b);
    clt_free(all.line);
    clt_free(path);
    return kept;
}

bool clt_ops_keep_tuned(clt_ops *ops) {
    if (!ops->tune || !ops->tune->changed) return true;
    ops->tune->changed = false;
    if (ops->disabled.n) return true; /* a choice among fewer rows does not hold for later runs */
    return write_lines(ops);
}

void clt_tune_open(clt_ops *ops) {
    if (ops->params.tune == CLT_TUNE_OFF) return;
    ops->tune = clt_calloc(1, sizeof *ops->tune);
    if (ops->params.tune_again) return;
    const char *known = clt_kernel_text("tuned.csv");
    if (known) clt_tune_add_known(ops, known);
    read_lines(ops, ops->tune);
}

void clt_tune_close(clt_ops *ops) {
    if (!ops->tune) return;
    clt_ops_keep_tuned(ops);
    clt_free(ops->tune->line);
    clt_free(ops->tune);
    ops->tune = NULL;
}

const clt_tuned *clt_ops_tuned(const clt_ops *ops, int *n) {
    *n = ops->tune ? ops->tune->lines : 0;
    return ops->tune ? ops->tune->line : NULL;
}

/* --- measuring --- */

/* Seconds per call: the best of a few blocks. A row much slower than `best` is dropped after one call. */
static clt_status time_row(clt_ops *ops, const clt_tune_question *q, const clt_variant *v, void *tensors,
                           double best, double *seconds) {
    enum { BLOCKS = 3, MOST = 50 };
    const double block = 0.02;
    int calls = 1;
    for (int b = 0; b <= BLOCKS; b++) {
        CLT_TRY(clt_device_finish(ops->dev));
        const double start = clt_now();
        for (int i = 0; i < calls; i++) CLT_TRY(q->kind->run(ops, v, tensors));
        CLT_TRY(clt_device_finish(ops->dev));
        const double took = (clt_now() - start) / calls;
        *seconds = b == 0 ? took : CLT_MIN(*seconds, took);
        if (b == 0 && best > 0 && took > 4 * best) break;
        if (b == 0) calls = (int)CLT_MAX(1, CLT_MIN(block / took, MOST));
    }
    return CLT_OK;
}

/* One row: its error at this shape, its time and, if that is less than `best`, its check, because checks of
 * slow rows take longer than everything else. A row that cannot take part, or is wrong, has no time. */
static clt_status measure_row(clt_ops *ops, const clt_tune_question *q, const char *id, void *tensors,
                              double best, clt_tuned *t) {
    const clt_variant *v = NULL;
    clt_variant_question unchecked = q->variant;
    unchecked.check = NULL;
    t->seconds = 0;
    CLT_TRY(clt_variant_pick_row(ops, &unchecked, id, &v));
    if (!v || v->verdict < 0) return CLT_OK;
    const clt_status st = q->kind->error(ops, v, tensors, &t->error); /* compiles, too */
    if (clt_variant_says_nothing(st)) return st;
    if (st != CLT_OK) return CLT_OK; /* the row printed the reason */
    if (!(t->error <= (ops->params.numerics == CLT_EXACT ? 0 : 1))) {
        clt_warn("kernel variant %s=%s is not used at %s: its error is %.3g of the bound", q->variant.op, id,
                 q->shape, t->error);
        return CLT_OK;
    }
    take(t->variant, sizeof t->variant, id);
    clt_variant_key(ops, v, t->key);
    CLT_TRY(time_row(ops, q, v, tensors, best, &t->seconds));
    if (best > 0 && t->seconds >= best) return CLT_OK;
    CLT_TRY(clt_variant_pick_row(ops, &q->variant, id, &v));
    if (!v) t->seconds = 0;
    return CLT_OK;
}

static bool takes_part(const clt_ops *ops, const clt_tune_question *q, const clt_variant *v) {
    return (!q->kind->worth || q->kind->worth(ops, v)) &&
           (!q->variant.takes || q->variant.takes(v, q->variant.call));
}

/* Gives no result if time runs out before all rows are measured. */
static clt_status measure_rows(clt_ops *ops, const clt_tune_question *q, void *tensors, clt_tuned *best) {
    int n;
    const clt_variant *row = clt_ops_variants(ops, q->variant.op, &n);
    const double end = clt_now() + ops->params.tune_seconds - ops->tune->spent;
    for (int i = 0; i < n; i++) {
        clt_tuned t = *best;
        if (!takes_part(ops, q, &row[i])) continue;
        if (clt_ops_stops(ops)) return CLT_STOPPED;
        if (clt_now() >= end) {
            best->seconds = 0;
            break;
        }
        CLT_TRY(measure_row(ops, q, row[i].id, tensors, best->seconds, &t));
        if (t.seconds > 0) clt_debug("tune %s %s: %s %.3g s", q->variant.op, q->shape, t.variant, t.seconds);
        if (t.seconds > 0 && (best->seconds == 0 || t.seconds < best->seconds)) *best = t;
    }
    return CLT_OK;
}

static void describe(const clt_ops *ops, const clt_tune_question *q, clt_tuned *t) {
    name_device(ops, t);
    take(t->op, sizeof t->op, q->variant.op);
    snprintf(t->shape, sizeof t->shape, "%s %s", q->shape,
             ops->params.numerics == CLT_EXACT ? "exact" : "fast");
}

static clt_status measure(clt_ops *ops, const clt_tune_question *q) {
    struct clt_tune *u = ops->tune;
    clt_tuned best;
    void *tensors = NULL;
    const double start = clt_now();
    describe(ops, q, &best);
    if (!u->announced)
        clt_info("tuning: timing kernel variants at this model's shapes, for at most %.0f s (cltrain.tune)",
                 ops->params.tune_seconds);
    u->announced = true;
    const bool paused = clt_device_pause_idle(ops->dev, true); /* nothing else runs beside a measurement */
    clt_record_pause(ops->dev, true);
    clt_error_quiet(true);
    clt_status st = q->kind->make(ops, q->variant.call, &tensors);
    clt_error_quiet(false);
    const bool made = st == CLT_OK;
    if (made) st = measure_rows(ops, q, tensors, &best);
    if (made) q->kind->drop(tensors);
    clt_record_pause(ops->dev, false);
    clt_device_pause_idle(ops->dev, paused);
    u->spent += clt_now() - start;
    if (!made && st == CLT_FAIL) st = CLT_OK;
    if (st == CLT_NO_MEMORY) { /* the run's memory is planned without these tensors and may leave no room */
        clt_warn("tuning: %s %s is not measured: the device's memory is used up", q->variant.op, q->shape);
        best.seconds = 0;
        st = CLT_OK;
    }
    CLT_TRY(st);
    put(u, &best); /* also without a row, so that this run does not measure the shape again */
    u->changed |= best.seconds > 0;
    return CLT_OK;
}

/* --- asking --- */

/* The measured line of this device and driver or, if `known`, the checked-in one of this device. */
static clt_tuned *find(const struct clt_tune *u, const clt_tuned *like, bool known) {
    for (int i = 0; i < u->lines; i++) {
        clt_tuned *t = &u->line[i];
        if (is_known(t) != known || strcmp(t->op, like->op) != 0 || strcmp(t->shape, like->shape) != 0)
            continue;
        if (known || same_place(t, like)) return t;
    }
    return NULL;
}

/* The line's row, if its key is current. */
static clt_status use(clt_ops *ops, const clt_tune_question *q, clt_tuned *t, const clt_variant **out) {
    if (t->today < 0) return CLT_OK;
    CLT_TRY(clt_variant_pick_row(ops, &q->variant, t->variant, out));
    if (!*out || t->today > 0 || is_known(t)) return CLT_OK;
    char key[33];
    clt_variant_key(ops, *out, key);
    t->today = strcmp(key, t->key) == 0 ? 1 : -1;
    if (t->today < 0) *out = NULL;
    return CLT_OK;
}

bool clt_ops_tunes(const clt_ops *ops, const char *op) {
    return ops->tune && (ops->tune->lines > 0 || ops->params.tune == CLT_TUNE_FILL) &&
           !clt_variant_forced(ops, op);
}

/* Whether more than one row takes part. */
static bool is_a_choice(clt_ops *ops, const clt_tune_question *q) {
    int n, rows = 0;
    const clt_variant *row = clt_ops_variants(ops, q->variant.op, &n);
    for (int i = 0; i < n; i++) rows += takes_part(ops, q, &row[i]);
    return rows > 1;
}

clt_status clt_tune_pick(clt_ops *ops, const clt_tune_question *q, const clt_variant **out) {
    struct clt_tune *u = ops->tune;
    const bool fill = ops->params.tune == CLT_TUNE_FILL;
    clt_tuned like;
    *out = NULL;
    if (!clt_ops_tunes(ops, q->variant.op)) return CLT_OK;
    describe(ops, q, &like);
    clt_tuned *t = find(u, &like, false), *known = find(u, &like, true);
    if (t && t->seconds > 0) CLT_TRY(use(ops, q, t, out));
    if (!*out && known) CLT_TRY(use(ops, q, known, out));
    if (*out || !fill || (t && t->seconds == 0) || clt_device_is_steady(ops->dev) ||
        clt_variant_is_rehearsed(ops) || !is_a_choice(ops, q))
        return CLT_OK;
    if (u->spent >= ops->params.tune_seconds) {
        put(u, &like);
        return CLT_OK;
    }
    CLT_TRY(measure(ops, q));
    t = find(u, &like, false);
    return t && t->seconds > 0 ? use(ops, q, t, out) : CLT_OK;
}
