/* Recording of launches. */
#include "runtime/device/clt_record.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/device/clt_device_private.h"

enum { MAX_BUFFERS = 32 };

struct clt_recorder {
    char *dir;
    clt_file *index;
    bool skip_large;
    int paused;
    uint64_t launches, large, bytes;
};

/* A distinct buffer of one launch. */
typedef struct {
    clt_buffer *buf;
    char before[33], after[33];
} touched;

/* --- writing --- */

/* Writes DIR/<hash><suffix> unless it exists; hex gets the hash. */
static clt_status keep(clt_recorder *r, const void *data, size_t bytes, const char *suffix, char hex[33]) {
    clt_hash_hex(clt_hash(data, bytes), hex);
    char *name = clt_format("%s%s", hex, suffix), *path = clt_path_join(r->dir, name);
    clt_status st = CLT_OK;
    if (!clt_io_is_file(path)) {
        clt_file *f = NULL;
        st = clt_file_open(path, CLT_IO_CREATE, &f);
        if (st == CLT_OK) st = clt_file_pwrite(f, data, bytes, 0);
        clt_status closed = clt_file_close(f);
        if (st == CLT_OK) st = closed;
        if (st != CLT_OK) clt_io_try_unlink(path); /* the next recording would take it for complete */
        r->bytes += bytes;
    }
    clt_free(path);
    clt_free(name);
    return st;
}

static clt_status keep_buffers(clt_recorder *r, touched *t, int n, bool after) {
    for (int i = 0; i < n; i++) {
        size_t bytes = clt_buffer_bytes(t[i].buf);
        void *data = clt_try_malloc(bytes);
        if (!data) return clt_no_memory("the record of a buffer", bytes);
        clt_status st = clt_buffer_read(t[i].buf, 0, data, bytes);
        if (st == CLT_OK) st = keep(r, data, bytes, ".bin", after ? t[i].after : t[i].before);
        clt_free(data);
        CLT_TRY(st);
    }
    return CLT_OK;
}

static void add_sizes(clt_str *s, const char *key, int dims, const size_t *size) {
    clt_str_addf(s, ",\"%s\":", key);
    for (int d = 0; d < dims && size; d++) clt_str_addf(s, "%c%zu", d ? ',' : '[', size[d]);
    clt_str_add(s, size ? "]" : "null");
}

static void add_arg(clt_str *s, const clt_arg *a, const touched *t) {
    uint32_t bits;
    int at = 0;
    switch (a->kind) {
    case CLT_ARG_BUF:
        while (a->v.buf && t[at].buf != a->v.buf) at++;
        if (a->v.buf)
            clt_str_addf(s, "{\"buffer\":%d}", at);
        else
            clt_str_add(s, "{\"buffer\":null}");
        break;
    case CLT_ARG_I32:
        clt_str_addf(s, "{\"i32\":%d}", a->v.i32);
        break;
    case CLT_ARG_U32:
        clt_str_addf(s, "{\"u32\":%u}", a->v.u32);
        break;
    case CLT_ARG_U64:
        clt_str_addf(s, "{\"u64\":%llu}", (unsigned long long)a->v.u64);
        break;
    case CLT_ARG_F32:
        memcpy(&bits, &a->v.f32, 4);
        clt_str_addf(s, "{\"f32\":%u}", bits);
        break;
    }
}

static clt_status write_line(clt_recorder *r, const clt_launch_call *c, const touched *t, int n) {
    char source[33];
    const char *text = clt_kernel_text(c->kernel->file);
    CLT_TRY(keep(r, text, strlen(text), ".cl", source));
    char *options =
        clt_format("%s%s%s", clt_kernel_common_options(), *c->kernel->options ? " " : "", c->kernel->options);
    clt_str s = {0};
    clt_str_addf(&s, "{\"launch\":%llu,\"file\":\"%s\",\"kernel\":\"%s\",\"source\":\"%s.cl\",\"options\":",
                 (unsigned long long)r->launches++, c->kernel->file, c->kernel->name, source);
    clt_json_escape(&s, options);
    add_sizes(&s, "global", c->dims, c->global);
    add_sizes(&s, "local", c->dims, c->local);
    clt_str_add(&s, ",\"buffers\":[");
    for (int i = 0; i < n; i++) {
        clt_str_add(&s, i ? ",{\"name\":" : "{\"name\":");
        clt_json_escape(&s, t[i].buf->name);
        clt_str_addf(&s, ",\"number\":%llu,\"bytes\":%zu,\"before\":\"%s.bin\",\"after\":\"%s.bin\"}",
                     (unsigned long long)t[i].buf->number, t[i].buf->bytes, t[i].before, t[i].after);
    }
    clt_str_add(&s, "],\"args\":[");
    for (int i = 0; i < c->count; i++) {
        if (i) clt_str_add(&s, ",");
        add_arg(&s, &c->args[i], t);
    }
    clt_str_add(&s, "]}\n");
    clt_status st = clt_file_append(r->index, s.s, s.len);
    clt_str_free(&s);
    clt_free(options);
    return st;
}

/* --- one launch --- */

/* The distinct buffers of a launch, and their bytes in all. Returns their number; -1: more than MAX_BUFFERS.
 */
static int distinct(const clt_launch_call *c, touched *t, uint64_t *bytes) {
    int n = 0;
    *bytes = 0;
    for (int i = 0; i < c->count; i++) {
        int at = 0;
        if (c->args[i].kind != CLT_ARG_BUF || !c->args[i].v.buf) continue;
        while (at < n && t[at].buf != c->args[i].v.buf) at++;
        if (at < n) continue;
        if (n == MAX_BUFFERS) return -1;
        t[n++] = (touched){.buf = c->args[i].v.buf};
        *bytes += clt_buffer_bytes(c->args[i].v.buf);
    }
    return n;
}

static bool empty(const clt_launch_call *c) {
    for (int d = 0; d < c->dims; d++)
        if (c->global[d] == 0) return true;
    return false;
}

clt_status clt_record_launch(const clt_launch_call *c) {
    clt_recorder *r = c->kernel->dev->recorder;
    touched t[MAX_BUFFERS];
    uint64_t bytes;
    /* Later parts of a launch in rows are run, not recorded: a record has no first row. */
    if (r->paused || !c->kernel->file || empty(c) || c->first) return clt_launch_now(c);
    int n = distinct(c, t, &bytes);
    if (n < 0 || bytes > CLT_RECORD_BYTES) {
        char have[32], most[32];
        r->large++;
        if (r->skip_large) return clt_launch_now(c);
        return clt_error(
            CLT_USAGE,
            "kernel %s has %s of buffers, and launches are recorded with at most %s; record a tiny "
            "model (small d_model, vocab_size, max_seq_len and microbatch)",
            c->kernel->name, clt_human_bytes((double)bytes, have),
            clt_human_bytes((double)CLT_RECORD_BYTES, most));
    }
    CLT_TRY(keep_buffers(r, t, n, false));
    CLT_TRY(clt_launch_now(c));
    CLT_TRY(keep_buffers(r, t, n, true));
    return write_line(r, c, t, n);
}

/* --- on and off --- */

clt_status clt_record_start(clt_device *dev, const char *dir, bool skip_large) {
    if (dev->recorder)
        return clt_error(CLT_USAGE, "launches of this device are already recorded to %s", dev->recorder->dir);
    CLT_TRY(clt_io_mkdirs(dir));
    clt_recorder *r = clt_calloc(1, sizeof *r);
    char *path = clt_path_join(dir, "launches.jsonl");
    clt_status st = clt_file_open(path, CLT_IO_APPEND, &r->index);
    clt_free(path);
    if (st != CLT_OK) {
        clt_free(r);
        return st;
    }
    r->dir = clt_strdup(dir);
    r->skip_large = skip_large;
    clt_str s = {0};
    clt_str_addf(&s, "{\"cltrain_record\":1,\"version\":\"%s\",\"device\":", clt_version());
    clt_json_escape(&s, dev->facts.name);
    clt_str_add(&s, ",\"driver\":");
    clt_json_escape(&s, dev->facts.driver);
    clt_str_add(&s, "}\n");
    st = clt_file_append(r->index, s.s, s.len);
    clt_str_free(&s);
    dev->recorder = r;
    return st;
}

clt_status clt_record_stop(clt_device *dev) {
    clt_recorder *r = dev->recorder;
    if (!r) return CLT_OK;
    dev->recorder = NULL;
    char size[32], skipped[64] = "";
    if (r->large)
        snprintf(skipped, sizeof skipped, ", skipped %llu too large ones", (unsigned long long)r->large);
    clt_info("recorded %llu launches to %s (%s)%s", (unsigned long long)r->launches, r->dir,
             clt_human_bytes((double)r->bytes, size), skipped);
    clt_status st = clt_file_close(r->index);
    clt_free(r->dir);
    clt_free(r);
    return st;
}

void clt_record_pause(clt_device *dev, bool pause) {
    if (dev->recorder) dev->recorder->paused += pause ? 1 : -1;
}
