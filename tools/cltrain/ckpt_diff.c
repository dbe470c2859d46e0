/* cltrain ckpt diff. */
#include <math.h>
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_json.h"

typedef struct {
    uint64_t differing, first; /* elements; first: index of the first one */
    float a, b;                /* the first ones */
    double max_abs;            /* infinity when one of the two is NaN */
} difference;

static void compare(const float *a, const float *b, uint64_t first, uint64_t n, double tolerance,
                    difference *d) {
    for (uint64_t i = 0; i < n; i++) {
        if (!memcmp(&a[i], &b[i], sizeof *a)) continue;
        double x = fabs((double)a[i] - (double)b[i]);
        if (isnan(x)) x = INFINITY;
        if (x > d->max_abs) d->max_abs = x;
        if (tolerance >= 0 && x <= tolerance) continue;
        if (!d->differing++) {
            d->first = first + i;
            d->a = a[i];
            d->b = b[i];
        }
    }
}

static clt_status compare_tensors(clt_weight_source *a, int i, clt_weight_source *b, int j, uint64_t count,
                                  double tolerance, difference *out) {
    float *x = clt_try_malloc(CLT_CKPT_CHUNK * sizeof *x), *y = clt_try_malloc(CLT_CKPT_CHUNK * sizeof *y);
    difference d = {0};
    clt_status st = x && y ? CLT_OK : clt_no_memory("two chunks of tensors", 2 * CLT_CKPT_CHUNK * sizeof *x);
    for (uint64_t at = 0; at < count && st == CLT_OK; at += CLT_CKPT_CHUNK) {
        uint64_t n = CLT_MIN((uint64_t)CLT_CKPT_CHUNK, count - at);
        st = clt_weight_source_read(a, i, at, x, n);
        if (st == CLT_OK) st = clt_weight_source_read(b, j, at, y, n);
        if (st == CLT_OK) compare(x, y, at, n, tolerance, &d);
    }
    clt_free(x);
    clt_free(y);
    if (st == CLT_OK) *out = d;
    return st;
}

typedef struct {
    clt_weight_source *a, *b;
    bool json, all, weights_only;
    double tolerance; /* negative: compare bits */
    int compared, differing;
    bool more; /* a JSON row was printed */
} diff_run;

static void row(diff_run *r, const clt_ckpt_tensor *t, const char *what, const difference *d) {
    if (r->json) {
        clt_str b = {0};
        clt_str_add(&b, r->more ? ",\n{\"name\":" : "\n{\"name\":");
        clt_json_escape(&b, t->name);
        clt_str_addf(&b, ",\"role\":\"%s\",\"state\":\"%s\"", t->role, what);
        if (d) {
            clt_str_addf(&b, ",\"elements\":%llu,\"differing\":%llu,\"max_abs_diff\":",
                         (unsigned long long)t->count, (unsigned long long)d->differing);
            clt_str_addf(&b, isfinite(d->max_abs) ? "%.9g" : "null", d->max_abs); /* JSON has no infinity */
        }
        if (d && d->differing) clt_str_addf(&b, ",\"first\":%llu", (unsigned long long)d->first);
        printf("%s}", b.s);
        clt_str_free(&b);
        r->more = true;
    } else if (d && d->differing) {
        printf("%-12s %-44s %s: %llu of %llu, max abs diff %.3g, first at %llu (%.9g, %.9g)\n", t->role,
               t->name, what, (unsigned long long)d->differing, (unsigned long long)t->count, d->max_abs,
               (unsigned long long)d->first, (double)d->a, (double)d->b);
    } else {
        printf("%-12s %-44s %s\n", t->role, t->name, what);
    }
}

static clt_status diff_tensor(diff_run *r, int i) {
    clt_ckpt_tensor t, u;
    difference d;
    clt_weight_source_at(r->a, i, &t);
    if (r->weights_only && strcmp(t.role, "weight")) return CLT_OK;
    int j = clt_weight_source_find(r->b, t.role, t.name);
    r->compared++;
    if (j < 0) {
        r->differing++;
        row(r, &t, "only in the first", NULL);
        return CLT_OK;
    }
    clt_weight_source_at(r->b, j, &u);
    if (t.dims != u.dims || memcmp(t.shape, u.shape, (size_t)t.dims * sizeof *t.shape)) {
        char have[96], other[96], what[224];
        snprintf(what, sizeof what, "shapes %s and %s", ckpt_shape(&t, have), ckpt_shape(&u, other));
        r->differing++;
        row(r, &t, what, NULL);
        return CLT_OK;
    }
    CLT_TRY(compare_tensors(r->a, i, r->b, j, t.count, r->tolerance, &d));
    if (d.differing) r->differing++;
    const char *equal = d.max_abs == 0 ? "equal" : "within tolerance";
    if (d.differing || r->all) row(r, &t, d.differing ? "differs" : equal, &d);
    return CLT_OK;
}

static clt_status diff_all(diff_run *r) {
    if (r->json) printf("{\"tensors\":[");
    for (int i = 0, n = clt_weight_source_count(r->a); i < n; i++) CLT_TRY(diff_tensor(r, i));
    for (int i = 0, n = clt_weight_source_count(r->b); i < n; i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(r->b, i, &t);
        if ((r->weights_only && strcmp(t.role, "weight")) ||
            clt_weight_source_find(r->a, t.role, t.name) >= 0)
            continue;
        r->compared++;
        r->differing++;
        row(r, &t, "only in the second", NULL);
    }
    if (r->json)
        printf("],\n\"compared\":%d,\"differing\":%d}\n", r->compared, r->differing);
    else if (r->differing)
        printf("%d of %d tensors differ\n", r->differing, r->compared);
    else
        printf("%s: %d tensors\n", r->tolerance >= 0 ? "equal within the tolerance" : "bit-identical",
               r->compared);
    return CLT_OK;
}

static bool has_optimizer(const clt_weight_source *s) {
    for (int i = 0, n = clt_weight_source_count(s); i < n; i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(s, i, &t);
        if (strcmp(t.role, "weight")) return true;
    }
    return false;
}

int ckpt_diff(int argc, char **argv) {
    diff_run r = {.tolerance = -1};
    clt_option options[] = {
        {"tolerance", 't', CLT_OPT_FLOAT, &r.tolerance, "X",
         "differences up to X count as equal (default: every bit counts)"},
        {"weights-only", 'w', CLT_OPT_FLAG, &r.weights_only, NULL, "ignore the optimizer state"},
        {"all", 'a', CLT_OPT_FLAG, &r.all, NULL, "also list equal tensors"},
        {"json", 0, CLT_OPT_FLAG, &r.json, NULL, "one JSON object"}};
    clt_command c = {"cltrain ckpt diff",
                     "A B",
                     "Compares the tensors of two checkpoints, Hugging Face folders or .safetensors files. "
                     "Exit code 0: equal,\n"
                     "1: different. Only weights are compared when one of them has no optimizer state.",
                     "cltrain ckpt diff runs/a/ep0-ba100 runs/b/ep0-ba100\ncltrain ckpt diff runs/a mpt-hf/ "
                     "--tolerance 1e-6\n",
                     options,
                     CLT_COUNT_OF(options),
                     false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 2, &rest);
    if (code >= 0) return code;
    clt_status st = clt_weight_source_open(rest.v[0], &r.a);
    if (st == CLT_OK) st = clt_weight_source_open(rest.v[1], &r.b);
    if (st == CLT_OK) {
        r.weights_only |= !has_optimizer(r.a) || !has_optimizer(r.b);
        st = diff_all(&r);
    }
    clt_weight_source_close(r.a);
    clt_weight_source_close(r.b);
    clt_strv_free(&rest);
    return st != CLT_OK ? clt_status_exit_code(st) : r.differing ? 1 : 0;
}
