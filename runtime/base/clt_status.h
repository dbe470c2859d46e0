/* clt_status: how functions of cltrain report failures.
 *
 * A function that can fail returns clt_status. The function that detects a failure prints one message
 * (clt_error: what, where, what to do) and returns the status; callers only forward it (CLT_TRY). Outputs are
 * written only on success. The status decides the program's exit code. */
#ifndef CLT_STATUS_H
#define CLT_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

typedef enum {
    CLT_OK = 0,
    CLT_FAIL,        /* exit 1: a failure that no other value describes */
    CLT_USAGE,       /* exit 2: invalid command line */
    CLT_BAD_DATA,    /* exit 65: damaged or unusable data, shard or checkpoint */
    CLT_NO_DEVICE,   /* exit 69: no suitable device */
    CLT_IO,          /* exit 74: a file operation failed */
    CLT_AGAIN,       /* exit 75: rerun to resume (stopped after a save, or ended because of a hang) */
    CLT_BAD_CONFIG,  /* exit 78: the configuration is invalid or unsupported */
    CLT_NO_MEMORY,   /* exit 1: not enough host or device memory */
    CLT_INTERRUPTED, /* exit 130: stopped by SIGINT without a save */
    CLT_TERMINATED,  /* exit 143: stopped by SIGTERM without a save */
    CLT_STOPPED /* exit 75: returned early because of a request to stop; the only status without a message */
} clt_status;

/* The exit code of a program that ends with this status. */
int clt_status_exit_code(clt_status st);

/* Short English name ("bad data"). Never NULL. */
const char *clt_status_name(clt_status st);

/* Logs "error: ..." (printf format, no newline) and returns st. */
clt_status clt_error(clt_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
clt_status clt_verror(clt_status st, const char *fmt, va_list ap);

/* The text of this thread's last clt_error, "" if there was none. Valid until the next clt_error. */
const char *clt_last_error(void);

/* Between clt_error_quiet(true) and clt_error_quiet(false), clt_error on this thread prints nothing and only
 * keeps its text for clt_last_error. For callers that try something and print their own message. Pairs may
 * nest. */
void clt_error_quiet(bool on);

/* Forwards a failure to the caller. */
#define CLT_TRY(call)                                                                                        \
    do {                                                                                                     \
        clt_status clt_try_ = (call);                                                                        \
        if (clt_try_ != CLT_OK) return clt_try_;                                                             \
    } while (0)

#endif
