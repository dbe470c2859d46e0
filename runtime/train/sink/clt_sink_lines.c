#include "runtime/train/sink/clt_sink_lines.h"

#include "runtime/base/clt_io.h"

struct clt_sink_lines {
    clt_file *f;
    bool torn; /* the last line may be incomplete */
};

clt_status clt_sink_make_room(const char *path) {
    char *folder = clt_path_dir(path);
    clt_status st = clt_io_mkdirs(folder);
    clt_free(folder);
    return st;
}

/* Whether the file is empty, and whether its last line has no end. */
static clt_status look_at_end(const char *path, bool *empty, bool *torn) {
    clt_file *in;
    uint64_t bytes;
    char last = '\n';
    CLT_TRY(clt_file_open(path, CLT_IO_READ, &in));
    clt_status st = clt_file_size(in, &bytes);
    if (st == CLT_OK && bytes > 0) st = clt_file_pread(in, &last, 1, bytes - 1);
    clt_file_close(in);
    *empty = st == CLT_OK && bytes == 0;
    *torn = last != '\n';
    return st;
}

clt_status clt_sink_lines_open(const char *path, clt_sink_lines **out, bool *empty) {
    bool is_empty;
    CLT_TRY(clt_sink_make_room(path));
    clt_sink_lines *l = clt_calloc(1, sizeof *l);
    clt_status st = clt_file_open(path, CLT_IO_APPEND, &l->f);
    if (st == CLT_OK) st = look_at_end(path, &is_empty, &l->torn);
    if (st == CLT_OK && l->torn) st = clt_sink_lines_append(l, "", 0);
    if (st != CLT_OK) {
        clt_sink_lines_close(l);
        return st;
    }
    if (empty) *empty = is_empty;
    *out = l;
    return CLT_OK;
}

clt_status clt_sink_lines_append(clt_sink_lines *l, const char *text, size_t bytes) {
    if (l->torn) CLT_TRY(clt_file_append(l->f, "\n", 1));
    l->torn = false;
    if (bytes == 0) return CLT_OK;
    clt_status st = clt_file_append(l->f, text, bytes);
    l->torn = st != CLT_OK;
    return st;
}

clt_status clt_sink_lines_close(clt_sink_lines *l) {
    if (!l) return CLT_OK;
    clt_status st = clt_file_close(l->f);
    clt_free(l);
    return st;
}
