/* clt_jsonl: reads JSONL files, one JSON object per line, with messages that begin with FILE:LINE. A file is
 * read from its beginning to its end in pieces; memory is bounded by the longest line, which has a limit.
 * Reading lines and parsing them are separate, so that one thread can read and others parse. A bad line does
 * not end the reading: after CLT_BAD_DATA the next call continues with the next line. A reader is used by one
 * thread at a time; clt_jsonl_parse and clt_jsonl_get_str by any number. */
#ifndef CLT_JSONL_H
#define CLT_JSONL_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

enum {
    CLT_JSONL_MAX_LINE = 64 << 20, /* default limit of a line, in bytes */
    CLT_JSONL_MAX_DEPTH = 64       /* deepest nesting of objects and lists */
};

typedef struct clt_jsonl clt_jsonl;

typedef struct {
    const char *path; /* of the file; borrowed from the reader */
    int64_t number;   /* from 1; lines that hold only white space count, but are not returned */
    uint64_t offset;  /* of the line's first byte in the file */
    const char *text; /* without the line end, not terminated; NULL: the end of the file */
    size_t bytes;
} clt_jsonl_line;

/* Opens `path` (clt_io.h). max_line: limit of a line in bytes, 0: CLT_JSONL_MAX_LINE. CLT_IO, CLT_BAD_CONFIG.
 * What is appended to the file after this call is not read. */
clt_status clt_jsonl_open(const char *path, size_t max_line, clt_jsonl **out);
void clt_jsonl_close(clt_jsonl *r); /* NULL is allowed */

/* The next line with contents; line->text is borrowed and valid until the next call, NULL at the end of the
 * file. CLT_BAD_DATA: the line exceeds the limit (line->number and line->offset are set, the next call
 * continues after it); CLT_IO; CLT_NO_MEMORY. */
clt_status clt_jsonl_next_line(clt_jsonl *r, clt_jsonl_line *line);
/* Parses a line as one object, which the caller owns (json_decref). CLT_BAD_DATA: it is no such JSON in
 * UTF-8, nests deeper than CLT_JSONL_MAX_DEPTH, or has a duplicate key; CLT_NO_MEMORY. Strings may contain
 * NUL characters. A byte order mark before line 1 is skipped. Of the line it uses path, number, text and
 * bytes. */
clt_status clt_jsonl_parse(const clt_jsonl_line *line, json_t **out);
/* Both. *out is NULL at the end of the file and after a failure; `line` is set in any case. */
clt_status clt_jsonl_next(clt_jsonl *r, clt_jsonl_line *line, json_t **out);

/* The string at `key` of the object of a line, borrowed from o; `bytes` may be NULL. CLT_BAD_DATA: the key is
 * missing (the message lists the keys that the object has) or its value is no string. */
clt_status clt_jsonl_get_str(const clt_jsonl_line *line, json_t *o, const char *key, const char **text,
                             size_t *bytes);

/* Bytes of the file, and of the lines returned so far, for progress. */
uint64_t clt_jsonl_size(const clt_jsonl *r);
uint64_t clt_jsonl_position(const clt_jsonl *r);

#endif
