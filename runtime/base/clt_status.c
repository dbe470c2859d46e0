#include "runtime/base/clt_base.h"

#include <stdio.h>

static _Thread_local char last_error[2048];
static _Thread_local int quiet;

static const struct {
    const char *name;
    int code;
} status_info[] = {
    [CLT_OK] = {"ok", 0},
    [CLT_FAIL] = {"failure", 1},
    [CLT_USAGE] = {"usage", 2},
    [CLT_BAD_DATA] = {"bad data", 65},
    [CLT_NO_DEVICE] = {"no device", 69},
    [CLT_IO] = {"input/output", 74},
    [CLT_AGAIN] = {"run again", 75},
    [CLT_BAD_CONFIG] = {"configuration", 78},
    [CLT_NO_MEMORY] = {"out of memory", 1},
    [CLT_INTERRUPTED] = {"interrupted", 130},
    [CLT_TERMINATED] = {"terminated", 143},
    [CLT_STOPPED] = {"asked to stop", 75},
};

int clt_status_exit_code(clt_status st) {
    return (size_t)st < CLT_COUNT_OF(status_info) ? status_info[st].code : 1;
}

const char *clt_status_name(clt_status st) {
    return (size_t)st < CLT_COUNT_OF(status_info) ? status_info[st].name : "unknown status";
}

clt_status clt_verror(clt_status st, const char *fmt, va_list ap) {
    vsnprintf(last_error, sizeof last_error, fmt, ap);
    if (!quiet) clt_log(CLT_LOG_ERROR, "%s", last_error);
    return st;
}

clt_status clt_error(clt_status st, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    clt_verror(st, fmt, ap);
    va_end(ap);
    return st;
}

void clt_error_quiet(bool on) {
    quiet += on ? 1 : -1;
}

const char *clt_last_error(void) {
    return last_error;
}
