#include "runtime/train/run/clt_trace.h"

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

typedef struct {
    char name[64];
    double start, end;
} span;

struct clt_trace {
    char *path;
    span *spans;
    int n, cap;
};

enum { HOST = 1, DEVICE = 2 }; /* rows */

clt_trace *clt_trace_create(const char *path, clt_device *dev) {
    clt_trace *t = clt_calloc(1, sizeof *t);
    t->path = clt_strdup(path);
    clt_device_trace_start(dev);
    return t;
}

void clt_trace_destroy(clt_trace *t) {
    if (!t) return;
    clt_free(t->spans);
    clt_free(t->path);
    clt_free(t);
}

void clt_trace_span(clt_trace *t, double start, double end, const char *fmt, ...) {
    if (!t) return;
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->spans = clt_realloc(t->spans, (size_t)t->cap * sizeof *t->spans);
    }
    span *s = &t->spans[t->n++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->name, sizeof s->name, fmt, ap);
    va_end(ap);
    s->start = start;
    s->end = end;
}

static void name_row(clt_str *b, int row, const char *name) {
    clt_str_addf(b, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":", row);
    clt_json_escape(b, name);
    clt_str_add(b, "}}");
}

static void event(clt_str *b, int row, const char *name, double zero, double start, double end) {
    clt_str_add(b, ",\n{\"ph\":\"X\",\"name\":");
    clt_json_escape(b, name);
    clt_str_addf(b, ",\"pid\":1,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f", row, (start - zero) * 1e6,
                 (end - start) * 1e6);
}

static clt_status write_file(const clt_trace *t, const char *device, const clt_launch_time *k, int n) {
    clt_str b = {0};
    double zero = t->n ? t->spans[0].start : n ? k[0].queued : 0;
    clt_str_add(&b, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    name_row(&b, HOST, "host");
    clt_str_add(&b, ",\n");
    name_row(&b, DEVICE, device);
    for (int i = 0; i < t->n; i++) {
        event(&b, HOST, t->spans[i].name, zero, t->spans[i].start, t->spans[i].end);
        clt_str_add(&b, "}");
    }
    for (int i = 0; i < n; i++) {
        event(&b, DEVICE, k[i].name, zero, k[i].start, k[i].end);
        clt_str_addf(&b, ",\"args\":{\"queued_us\":%.3f}}", (k[i].queued - zero) * 1e6);
    }
    clt_str_add(&b, "\n]}\n");
    clt_status st = clt_io_write_atomic(t->path, b.s, b.len);
    clt_str_free(&b);
    return st;
}

clt_status clt_trace_finish(clt_trace *t, clt_device *dev) {
    clt_launch_time *k = NULL;
    int n = 0;
    double busy = 0, all = 0;
    clt_status st = clt_device_trace_take(dev, &k, &n);
    if (st == CLT_OK) st = write_file(t, clt_device_get_facts(dev)->name, k, n);
    for (int i = 0; i < n; i++) busy += k[i].end - k[i].start;
    if (n) all = k[n - 1].end - k[0].start;
    if (st == CLT_OK)
        clt_info("trace: %s: %d launches, kernels %.3f ms of %.3f ms (%.1f %%)", t->path, n, busy * 1e3,
                 all * 1e3, all > 0 ? 100 * busy / all : 0.0);
    clt_free(k);
    clt_trace_destroy(t);
    return st;
}
