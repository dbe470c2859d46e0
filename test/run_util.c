#include "test/run_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"

static char *program, *base;
static clt_strv paths;

void ru_begin(const char *argv0) {
    /* BUILD/test/train/X -> BUILD/cltrain */
    char *self = realpath(argv0, NULL), *slash = NULL;
    for (int up = 0; self && up < 3; up++)
        if ((slash = strrchr(self, '/'))) *slash = 0;
    program = clt_path_join(self ? self : "build", "cltrain");
    free(self);
    base = clt_strdup("/tmp/clt_test_run_XXXXXX");
    if (!mkdtemp(base)) fail_msg("cannot make a folder %s", base);
}

void ru_end(void) {
    clt_io_remove_tree(base);
    clt_strv_free(&paths);
    clt_free(base);
    clt_free(program);
}

const char *ru_path(const char *name) {
    char *p = clt_path_join(base, name);
    clt_strv_add_owned(&paths, p);
    return p;
}

static int run(const char *dir, clt_str *out, const char *fmt, va_list ap) {
    char args[2048], piece[4096];
    vsnprintf(args, sizeof args, fmt, ap);
    /* Whole runs are not searched for leaks: the search itself can crash while a driver's threads end. */
    char *command =
        clt_format("cd '%s' && ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0 exec '%s' %s 2>&1",
                   dir, program, args);
    FILE *f = popen(command, "r");
    clt_free(command);
    assert_non_null(f);
    out->len = 0;
    clt_str_addn(out, "", 0);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) clt_str_addn(out, piece, n);
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ru_cltrain_ok(const char *dir, clt_str *out, const char *fmt, ...) {
    clt_str own = {0}, *text = out ? out : &own;
    va_list ap;
    va_start(ap, fmt);
    int code = run(dir, text, fmt, ap);
    va_end(ap);
    if (code != 0) fail_msg("cltrain %s: exit %d\n%s", fmt, code, text->s);
    clt_str_free(&own);
}

json_t *ru_metrics(const char *folder) {
    char *path = clt_path_join(folder, "metrics.jsonl");
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s is not there", path);
    json_t *all = json_array();
    json_error_t e;
    for (json_t *j; (j = json_loadf(f, JSON_DISABLE_EOF_CHECK, &e));) json_array_append_new(all, j);
    if (!feof(f)) fail_msg("%s: object %zu: %s", path, json_array_size(all) + 1, e.text);
    fclose(f);
    clt_free(path);
    return all;
}

json_t *ru_rows_with(json_t *metrics, const char *key) {
    json_t *rows = json_array(), *row;
    size_t i;
    json_array_foreach(metrics, i, row) {
        if (json_object_get(row, key)) json_array_append(rows, row);
    }
    return rows;
}
