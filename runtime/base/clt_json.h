/* clt_json: reads untrusted JSON with jansson. The size of a file and the nesting are checked before parsing,
 * duplicate keys are refused, and syntax errors name the source, line and column. */
#ifndef CLT_JSON_H
#define CLT_JSON_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

/* Parses `bytes` bytes of text, which must be one object or list; `what` names the source in messages. The
 * caller owns *out (json_decref). CLT_BAD_DATA if the text is not such JSON in UTF-8, nests objects and lists
 * more than max_depth deep, or has a duplicate key or a NUL character in a string; CLT_NO_MEMORY. */
clt_status clt_json_parse(const char *text, size_t bytes, int max_depth, const char *what, json_t **out);
/* Like clt_json_parse, for any JSON value, such as a string alone; strings may contain NUL characters. */
clt_status clt_json_parse_any(const char *text, size_t bytes, int max_depth, const char *what, json_t **out);
/* Like clt_json_parse, for one line of a file: `what` is FILE:LINE, and syntax errors add the column; strings
 * may contain NUL characters. */
clt_status clt_json_parse_line(const char *text, size_t bytes, int max_depth, const char *what, json_t **out);
/* Reads the file `path` (clt_io.h) and parses it like clt_json_parse. CLT_BAD_DATA also if it has more than
 * `limit` bytes; the failures of clt_io_read_all. */
clt_status clt_json_load(const char *path, size_t limit, int max_depth, json_t **out);
/* The same for files with integers that exceed 64 bits, as Python writes them: every number is a real. */
clt_status clt_json_load_reals(const char *path, size_t limit, int max_depth, json_t **out);

/* The object or list as compact JSON text on one line, to be freed with clt_free; `what` names it in
 * messages. CLT_NO_MEMORY; CLT_FAIL for any other kind of value. */
clt_status clt_json_dump(const json_t *o, const char *what, char **out);
/* `bytes` bytes of UTF-8 text, which may contain NUL characters, as a JSON string with quotes, to be freed
 * with clt_free. CLT_BAD_DATA: not UTF-8, `what` names it; CLT_NO_MEMORY. */
clt_status clt_json_quote(const char *text, size_t bytes, const char *what, char **out);

/* The value of `key` in object o, borrowed from o: an integer, a string, an object or a list. CLT_BAD_DATA if
 * the key is missing or its value has another type ("WHAT: key 'k' is missing", "... must be an integer"). */
clt_status clt_json_get_i64(json_t *o, const char *key, const char *what, int64_t *out);
clt_status clt_json_get_str(json_t *o, const char *key, const char *what, const char **out);
clt_status clt_json_get_obj(json_t *o, const char *key, const char *what, json_t **out);
clt_status clt_json_get_arr(json_t *o, const char *key, const char *what, json_t **out);

/* Appends s, which must be UTF-8 and is not checked, as a JSON string with quotes and escapes. */
void clt_json_escape(clt_str *b, const char *s);

/* Appends ,"key":v in this printf format; null if v is not finite, because JSON has no such number. */
void clt_json_add_number(clt_str *b, const char *key, double v, const char *format);

/* A finite double as decimal text with the fewest significant digits that parse to the same double, in
 * PyYAML's form ("0.1", "600.0", "1.0e-08"). buf has at least 32 bytes; returns buf. */
const char *clt_json_real_text(double v, char *buf);

#endif
