/* run_util: runs the built `cltrain` from a test program and reads what it leaves behind. */
#ifndef CLT_TEST_RUN_UTIL_H
#define CLT_TEST_RUN_UTIL_H

#include <jansson.h>

#include "runtime/base/clt_base.h"

/* A fresh folder for this program's runs; removed by ru_end. Call before the others. */
void ru_begin(const char *argv0);
void ru_end(void);
/* A path in that folder; valid until ru_end. */
const char *ru_path(const char *name);

/* `cd dir && cltrain ARGS`, standard output and error into *out (may be NULL); ends the test with the output
 * when the exit code is not 0. */
void ru_cltrain_ok(const char *dir, clt_str *out, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* metrics.jsonl of a run's folder as an array of objects. The caller owns it. */
json_t *ru_metrics(const char *folder);
/* The rows that have `key`, in order. The caller owns it. */
json_t *ru_rows_with(json_t *metrics, const char *key);

#endif
