/* clt_json: reads untrusted JSON with jansson. Size and nesting are checked before parsing, duplicate keys
 * are refused, and errors name file, line and column. */
#ifndef CLT_JSON_H
#define CLT_JSON_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

/* Parses `bytes` bytes of text; `what` names the source in messages. The caller owns *out (json_decref).
 * CLT_BAD_DATA if the text is not UTF-8 JSON, is nested deeper than max_depth, or has duplicate keys;
 * CLT_NO_MEMORY. */
clt_status clt_json_parse(const char *text, size_t bytes, int max_depth, const char *what, json_t **out);
/* The same for any JSON value, also a string alone; strings may contain 0 bytes. */
clt_status clt_json_parse_any(const char *text, size_t bytes, int max_depth, const char *what, json_t **out);
/* Reads and parses a file of at most `limit` bytes; otherwise as clt_json_parse. */
clt_status clt_json_load(const char *path, size_t limit, int max_depth, json_t **out);

/* The object or list as one line of text, to be freed with clt_free; `what` names it in messages. */
clt_status clt_json_dump(const json_t *o, const char *what, char **out);
/* UTF-8 text of any size, which may contain 0 bytes, as a JSON string, to be freed with clt_free. */
clt_status clt_json_quote(const char *text, size_t bytes, const char *what, char **out);

/* Members of an object, with their type. A missing or wrong one is CLT_BAD_DATA ("WHAT: key 'k' is missing",
 * "... must be an integer"). */
clt_status clt_json_get_i64(json_t *o, const char *key, const char *what, int64_t *out);
clt_status clt_json_get_str(json_t *o, const char *key, const char *what, const char **out); /* borrowed */
clt_status clt_json_get_obj(json_t *o, const char *key, const char *what, json_t **out);     /* borrowed */
clt_status clt_json_get_arr(json_t *o, const char *key, const char *what, json_t **out);     /* borrowed */

/* Appends s as a JSON string with quotes and escapes. */
void clt_json_escape(clt_str *b, const char *s);

/* The shortest decimal text that parses to the same double, in PyYAML's form ("0.1", "600.0", "1.0e-08"). buf
 * has at least 32 bytes; returns buf. */
const char *clt_json_real_text(double v, char *buf);

#endif
