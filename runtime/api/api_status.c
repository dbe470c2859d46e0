/* Statuses, messages and versions of the public library. */
#include <stdarg.h>
#include <stdio.h>

#include "runtime/api/api.h"

static _Thread_local char message[2048];

static const struct {
    cltrain_status value;
    const char *name;
} names[] = {{CLTRAIN_OK, "ok"},
             {CLTRAIN_FAILED, "failure"},
             {CLTRAIN_BAD_ARGUMENT, "bad argument"},
             {CLTRAIN_BAD_DATA, "bad data"},
             {CLTRAIN_NO_DEVICE, "no device"},
             {CLTRAIN_NO_MEMORY, "out of memory"},
             {CLTRAIN_IO, "input/output"},
             {CLTRAIN_STOPPED, "stopped"},
             {CLTRAIN_BAD_CONFIG, "configuration"}};

const char *cltrain_status_name(cltrain_status status) {
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        if (names[i].value == status) return names[i].name;
    return "unknown status";
}

const char *cltrain_error_message(void) {
    return message;
}

unsigned cltrain_version_number(void) {
    return CLTRAIN_VERSION_NUMBER;
}

const char *cltrain_version_string(void) {
    return clt_version();
}

static cltrain_status public_status(clt_status st) {
    switch (st) {
    case CLT_OK:
        return CLTRAIN_OK;
    case CLT_USAGE:
        return CLTRAIN_BAD_ARGUMENT;
    case CLT_BAD_DATA:
        return CLTRAIN_BAD_DATA;
    case CLT_NO_DEVICE:
        return CLTRAIN_NO_DEVICE;
    case CLT_IO:
        return CLTRAIN_IO;
    case CLT_BAD_CONFIG:
        return CLTRAIN_BAD_CONFIG;
    case CLT_NO_MEMORY:
        return CLTRAIN_NO_MEMORY;
    case CLT_AGAIN:
    case CLT_INTERRUPTED:
    case CLT_TERMINATED:
    case CLT_STOPPED:
        return CLTRAIN_STOPPED;
    case CLT_FAIL:
        break;
    }
    return CLTRAIN_FAILED;
}

cltrain_status api_status(clt_status st) {
    const cltrain_status status = public_status(st);
    if (status == CLTRAIN_STOPPED)
        snprintf(message, sizeof message, "the run stopped before max_duration%s",
                 st == CLT_AGAIN ? "; open a run with the same configuration to resume" : " without saving");
    else if (status != CLTRAIN_OK)
        snprintf(message, sizeof message, "%s", clt_last_error());
    return status;
}

cltrain_status api_no_memory(void) {
    snprintf(message, sizeof message, "out of host memory; free memory or use a larger machine");
    return CLTRAIN_NO_MEMORY;
}

cltrain_status api_prepared(void) {
    clt_error_quiet(true); /* the run has no context yet whose log it could go to */
    const clt_status st = clt_memory_check();
    clt_error_quiet(false);
    return st == CLT_OK ? CLTRAIN_OK : api_no_memory();
}

cltrain_status api_misuse(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return CLTRAIN_BAD_ARGUMENT;
}
