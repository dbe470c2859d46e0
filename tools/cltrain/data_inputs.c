#include "tools/cltrain/data_inputs.h"

#include <string.h>

#include "runtime/base/clt_io.h"

enum { MAX_DEPTH = 64 };

typedef struct {
    clt_docs_kind kind;
    data_inputs *out;
} collector;

/* Files found in a folder are skipped when they are not text (a 0 byte near the beginning). */
static clt_status looks_like_text(const char *path, uint64_t size, bool *yes) {
    char head[4096];
    size_t n = (size_t)CLT_MIN(size, (uint64_t)sizeof head);
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &f));
    clt_status st = clt_file_pread(f, head, n, 0);
    clt_file_close(f);
    *yes = st == CLT_OK && !memchr(head, 0, n);
    return st;
}

/* A folder on the path to what is being collected. */
typedef struct above {
    const struct above *next;
    uint64_t id[2]; /* clt_io_info.id */
} above;

static clt_status collect(collector *c, const char *path, const above *up);

/* Collects everything in a folder; nothing if a link leads back to a folder above, whose files are collected
 * already. */
static clt_status collect_folder(collector *c, const char *path, const clt_io_info *info, const above *up) {
    clt_strv names = {0};
    above here = {up, {info->id[0], info->id[1]}};
    int depth = 0;
    bool known = here.id[0] || here.id[1], again = false;
    for (const above *a = up; a; a = a->next, depth++)
        again |= known && a->id[0] == here.id[0] && a->id[1] == here.id[1];
    clt_status st = CLT_OK;
    if (depth > MAX_DEPTH)
        st = clt_error(CLT_BAD_DATA, "%s: folders are nested more than %d deep", path, MAX_DEPTH);
    else if (!again)
        st = clt_io_list(path, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        char *child = clt_path_join(path, names.v[i]);
        st = names.v[i][0] == '.' ? CLT_OK : collect(c, child, &here);
        clt_free(child);
    }
    clt_strv_free(&names);
    return st;
}

static clt_status collect(collector *c, const char *path, const above *up) {
    clt_io_info info;
    if (up && clt_io_try_stat(path, &info) != 0) return CLT_OK; /* a loop of links inside a folder */
    if (!up) CLT_TRY(clt_io_stat(path, &info));
    if (info.kind == CLT_IO_FOLDER) return collect_folder(c, path, &info, up);
    if (info.kind != CLT_IO_FILE) {
        if (up) return CLT_OK; /* a dangling link or a device inside a folder */
        return clt_error(CLT_IO, "%s %s", path,
                         info.kind == CLT_IO_ABSENT ? "does not exist" : "is neither a file nor a folder");
    }
    bool text = true;
    if (up && c->kind == CLT_DOCS_TEXT && !data_is_jsonl(path))
        CLT_TRY(looks_like_text(path, info.bytes, &text));
    if (text) {
        clt_strv_add(&c->out->paths, path);
        c->out->bytes += info.bytes;
    } else {
        c->out->skipped = true;
    }
    return CLT_OK;
}

bool data_is_jsonl(const char *path) {
    const char *dot = strrchr(clt_path_base(path), '.');
    return dot && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0);
}

clt_status data_inputs_collect(const clt_strv *inputs, clt_docs_kind kind, bool guess, data_inputs *out) {
    collector c = {kind, out};
    for (size_t i = 0; i < inputs->n; i++) CLT_TRY(collect(&c, inputs->v[i], NULL));
    if (out->paths.n == 0) return clt_error(CLT_BAD_DATA, "no text file found in %s", inputs->v[0]);
    out->files = clt_calloc(out->paths.n, sizeof *out->files);
    for (size_t i = 0; i < out->paths.n; i++) {
        const char *path = out->paths.v[i];
        out->files[i] = (clt_docs_file){path, guess && data_is_jsonl(path) ? CLT_DOCS_JSONL : kind};
    }
    return CLT_OK;
}

void data_inputs_free(data_inputs *in) {
    clt_strv_free(&in->paths);
    clt_free(in->files);
    *in = (data_inputs){0};
}
