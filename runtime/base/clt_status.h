/* clt_status: how every function of cltrain says that it failed.
 *
 * A function that can fail returns clt_status. The function that first decides that something is wrong
 * prints one message (clt_error: what, where, what to do) and returns the status; callers only forward it
 * (CLT_TRY). Outputs are written only on success. The value also decides the program's exit code. */
#ifndef CLT_STATUS_H
#define CLT_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

typedef enum {
    CLT_OK = 0,
    CLT_FAIL,        /* exit 1:  something failed that no other value names */
    CLT_USAGE,       /* exit 2:  wrong command line */
    CLT_BAD_DATA,    /* exit 65: damaged or unusable data, shard or checkpoint */
    CLT_NO_DEVICE,   /* exit 69: no device that can do this */
    CLT_IO,          /* exit 74: the file system refused */
    CLT_AGAIN,       /* exit 75: run me again (stopped, what is done is saved; or a hang was ended) */
    CLT_BAD_CONFIG,  /* exit 78: the configuration is wrong or asks for what cannot be done */
    CLT_NO_MEMORY,   /* exit 1:  host or device memory is not enough */
    CLT_INTERRUPTED, /* exit 130: stopped by SIGINT without a save */
    CLT_TERMINATED,  /* exit 143: stopped by SIGTERM without a save */
    CLT_STOPPED      /* exit 75: left early because a signal asks for it; the one status without a message */
} clt_status;

/* The exit code of a program that ends with this status. */
int clt_status_exit_code(clt_status st);

/* Short English name ("bad data"). Never NULL. */
const char *clt_status_name(clt_status st);

/* Prints "error: ..." through the log (printf format, no newline) and returns st. */
clt_status clt_error(clt_status st, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
clt_status clt_verror(clt_status st, const char *fmt, va_list ap);

/* The text of this thread's last clt_error, "" if none. Valid until the next one. For tests and reports. */
const char *clt_last_error(void);

/* Between clt_error_quiet(true) and (false), which nest, clt_error on this thread keeps its text for
 * clt_last_error and prints nothing: for callers that try something and say themselves what a failure means.
 */
void clt_error_quiet(bool on);

/* Forward a failure to the caller. */
#define CLT_TRY(call)                                                                                        \
    do {                                                                                                     \
        clt_status clt_try_ = (call);                                                                        \
        if (clt_try_ != CLT_OK) return clt_try_;                                                             \
    } while (0)

#endif
