#include "runtime/data/clt_jsonl.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

static const size_t most_piece = (size_t)1 << 20;

struct clt_jsonl {
    clt_file *file;
    char *path;
    uint64_t size, read;    /* bytes of the file; how many of them were read into buf */
    size_t max_line, piece; /* limit of a line; how much is read at once */
    int64_t number;         /* of the last line that was begun */
    bool skipping;          /* the rest of a line that is too long */
    char *buf;
    size_t begin, scanned, end, cap; /* buf[begin, end) is not returned yet; no '\n' before buf[scanned] */
};

clt_status clt_jsonl_open(const char *path, size_t max_line, clt_jsonl **out) {
    clt_jsonl *r = clt_calloc(1, sizeof *r);
    r->path = clt_strdup(path);
    r->max_line = max_line ? max_line : CLT_JSONL_MAX_LINE;
    r->piece = CLT_MIN(r->max_line, most_piece - 1) + 1;
    clt_status st = clt_file_open(path, CLT_IO_READ, &r->file);
    if (st == CLT_OK) st = clt_file_size(r->file, &r->size);
    if (st == CLT_OK)
        *out = r;
    else
        clt_jsonl_close(r);
    return st;
}

void clt_jsonl_close(clt_jsonl *r) {
    if (!r) return;
    clt_file_close(r->file);
    clt_free(r->path);
    clt_free(r->buf);
    clt_free(r);
}

uint64_t clt_jsonl_size(const clt_jsonl *r) {
    return r->size;
}
uint64_t clt_jsonl_position(const clt_jsonl *r) {
    return r->read - (r->end - r->begin);
}

/* --- lines --- */

/* Reads the next piece of the file behind what is in the buffer. */
static clt_status fill(clt_jsonl *r) {
    if (r->begin > 0) memmove(r->buf, r->buf + r->begin, r->end - r->begin);
    r->scanned -= r->begin;
    r->end -= r->begin;
    r->begin = 0;
    if (r->end + r->piece > r->cap) {
        size_t cap = CLT_MAX(2 * r->cap, r->end + r->piece);
        char *buf = clt_try_realloc(r->buf, cap);
        if (!buf) return clt_no_memory("a line of a JSONL file", cap);
        r->buf = buf;
        r->cap = cap;
    }
    size_t n = (size_t)CLT_MIN(r->size - r->read, (uint64_t)r->piece);
    CLT_TRY(clt_file_pread(r->file, r->buf + r->end, n, r->read));
    r->read += n;
    r->end += n;
    return CLT_OK;
}

/* Finds the end of the line at buf[begin]: *length without the line end, *whole with it. A line that is too
 * long is found as far as the limit, and skipping is set. */
static clt_status find_line(clt_jsonl *r, size_t *length, size_t *whole) {
    for (;;) {
        char *end = r->scanned < r->end ? memchr(r->buf + r->scanned, '\n', r->end - r->scanned) : NULL;
        r->scanned = end ? (size_t)(end - r->buf) : r->end;
        *length = r->scanned - r->begin;
        *whole = *length + (end != NULL);
        if (end || *length > r->max_line || r->read == r->size) {
            r->skipping = !end && r->read < r->size;
            return CLT_OK;
        }
        CLT_TRY(fill(r));
    }
}

static void take(clt_jsonl *r, size_t bytes) {
    r->begin += bytes;
    r->scanned = r->begin;
}

/* What is left of a line that is too long. */
static clt_status skip_rest(clt_jsonl *r) {
    size_t length, whole;
    while (r->skipping) {
        CLT_TRY(find_line(r, &length, &whole));
        take(r, whole);
    }
    return CLT_OK;
}

static bool is_blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r') return false;
    return true;
}

clt_status clt_jsonl_next_line(clt_jsonl *r, clt_jsonl_line *line) {
    size_t length, whole;
    CLT_TRY(skip_rest(r));
    for (;;) {
        *line = (clt_jsonl_line){.path = r->path, .number = r->number, .offset = clt_jsonl_position(r)};
        if (line->offset == r->size) return CLT_OK;
        line->number = ++r->number;
        CLT_TRY(find_line(r, &length, &whole));
        const char *text = r->buf + r->begin;
        take(r, whole);
        if (length > r->max_line)
            return clt_error(CLT_BAD_DATA, "%s:%lld: the line has more than %zu bytes, the limit of a line",
                             r->path, (long long)r->number, r->max_line);
        if (is_blank(text, length)) continue;
        line->text = text;
        line->bytes = length;
        return CLT_OK;
    }
}

/* --- objects --- */

/* Bytes of the UTF-8 byte order mark that some editors put before a file. */
static size_t mark_bytes(const clt_jsonl_line *line) {
    static const char mark[] = "\xef\xbb\xbf";
    const size_t n = sizeof mark - 1;
    return line->number == 1 && line->bytes >= n && memcmp(line->text, mark, n) == 0 ? n : 0;
}

clt_status clt_jsonl_parse(const clt_jsonl_line *line, json_t **out) {
    char *what = clt_format("%s:%lld", line->path, (long long)line->number);
    json_t *o;
    const size_t mark = mark_bytes(line);
    clt_status st = clt_json_parse_line(line->text + mark, line->bytes - mark, CLT_JSONL_MAX_DEPTH, what, &o);
    if (st == CLT_OK && json_is_object(o)) {
        *out = o;
    } else if (st == CLT_OK) {
        json_decref(o);
        st = clt_error(CLT_BAD_DATA,
                       "%s: the line is a list; every line must be one JSON object (jq -c '.[]' FILE makes "
                       "such lines of a list)",
                       what);
    }
    clt_free(what);
    return st;
}

clt_status clt_jsonl_next(clt_jsonl *r, clt_jsonl_line *line, json_t **out) {
    *out = NULL;
    CLT_TRY(clt_jsonl_next_line(r, line));
    return line->text ? clt_jsonl_parse(line, out) : CLT_OK;
}

/* The first keys of an object, for messages; the text is shortened if it is long. */
static char *key_list(json_t *o) {
    enum { MOST = 8, LENGTH = 40 };
    clt_str b = {0};
    const char *key;
    json_t *value;
    size_t n = 0;
    clt_str_add(&b, "");
    json_object_foreach(o, key, value) {
        if (n++ == MOST) {
            clt_str_add(&b, ", ...");
            break;
        }
        clt_str_addf(&b, "%s'%.*s'", b.len ? ", " : "", LENGTH, key);
    }
    return b.s;
}

clt_status clt_jsonl_get_str(const clt_jsonl_line *line, json_t *o, const char *key, const char **text,
                             size_t *bytes) {
    json_t *v = json_object_get(o, key);
    if (!v) {
        char *keys = key_list(o);
        clt_error(CLT_BAD_DATA, "%s:%lld: field '%s' is missing; the line has %s", line->path,
                  (long long)line->number, key, *keys ? keys : "no fields");
        clt_free(keys);
        return CLT_BAD_DATA;
    }
    if (!json_is_string(v))
        return clt_error(CLT_BAD_DATA, "%s:%lld: field '%s' must be a string", line->path,
                         (long long)line->number, key);
    *text = json_string_value(v);
    if (bytes) *bytes = json_string_length(v);
    return CLT_OK;
}
