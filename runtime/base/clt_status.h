/* clt_status: how functions of cltrain report failures.
 *
 * A function that can fail returns clt_status. The function that detects a failure prints one message
 * (clt_error: what, where, what to do) and returns the status; callers only forward it (CLT_TRY). On failure
 * outputs must not be read, and hold nothing that the caller has to free, unless a function says otherwise.
 * Where a header lists the statuses of a function, any function below it may add its own. The status decides
 * the program's exit code. */
#ifndef CLT_STATUS_H
#define CLT_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

typedef enum {
    CLT_OK = 0,
    CLT_FAIL,      /* exit 1: a failure that no other value describes */
    CLT_USAGE,     /* exit 2: invalid command line */
    CLT_BAD_DATA,  /* exit 65: damaged or unusable data, shard or checkpoint */
    CLT_NO_DEVICE, /* exit 69: no suitable device */
    CLT_IO,        /* exit 74: a file operation failed */
    CLT_AGAIN, /* exit 75: rerun to resume (stopped after a save, or a device or a rank does not respond) */
    CLT_BAD_CONFIG,  /* exit 78: the configuration is invalid or unsupported */
    CLT_NO_MEMORY,   /* exit 1: not enough host or device memory */
    CLT_INTERRUPTED, /* exit 130: stopped by SIGINT, nothing was saved */
    CLT_TERMINATED,  /* exit 143: stopped by SIGTERM, nothing was saved */
    CLT_STOPPED /* exit 75: returned early because of a request to stop; the only failure without a message */
} clt_status;

/* The exit code of a program that ends with this status; 1 for values outside the enum. */
int clt_status_exit_code(clt_status st);

/* Short English name ("bad data"), a constant; "unknown status" for values outside the enum. */
const char *clt_status_name(clt_status st);

/* Logs the message at level error (printf format, no newline) in the calling thread's context, keeps its
 * first 2047 bytes for clt_last_error, and returns st. */
clt_status clt_error(clt_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
clt_status clt_verror(clt_status st, const char *fmt, va_list ap);

/* The text of this thread's last clt_error, without "error: "; "" if this thread had none. Borrowed, valid
 * until the thread's next clt_error. */
const char *clt_last_error(void);

/* Between clt_error_quiet(true) and clt_error_quiet(false), clt_error on this thread prints nothing and only
 * keeps its text for clt_last_error. For callers that try something and print their own message. Pairs may
 * nest. */
void clt_error_quiet(bool on);

/* Returns from the calling function, which returns clt_status, if `call` is not CLT_OK. */
#define CLT_TRY(call)                                                                                        \
    do {                                                                                                     \
        clt_status clt_try_ = (call);                                                                        \
        if (clt_try_ != CLT_OK) return clt_try_;                                                             \
    } while (0)

#endif
