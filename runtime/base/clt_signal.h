/* clt_signal: requests to stop a run: SIGINT, SIGTERM, SIGUSR1, the end of the allotted time, and the program
 * that embeds the library. A request sets a flag in a context (clt_context.h). The run of that context checks
 * the flag in every phase: it abandons the step in progress, saves the last finished step, and ends. Signals
 * set the flag of the process's context only. */
#ifndef CLT_SIGNAL_H
#define CLT_SIGNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Reasons to stop that are not signals. */
enum {
    CLT_SIGNAL_TIME = 1000, /* the time of clt_signal_at is reached */
    CLT_SIGNAL_CALLER       /* the program that embeds the library requests it */
};

/* Blocks SIGINT, SIGTERM and SIGUSR1 and starts a thread that waits for them. A second SIGINT ends the
 * process at once with exit code 130. SIGPIPE is ignored, so a run survives a reader of its output that
 * exits. Must be called before other threads start, so that they inherit the blocked signals. text: what
 * SIGINT prints on stderr, a constant; NULL: nothing (only one of several ranks should print). Calls after
 * the first one only set it. If no thread can be created, the signals keep their default action. */
void clt_signal_install(const char *text);

/* The first request to stop the run of the calling thread's context: SIGINT, SIGTERM, SIGUSR1,
 * CLT_SIGNAL_TIME or the value given to clt_context_ask_stop; 0: no request. It also takes over a request
 * from the word of clt_signal_share and writes its own request there. In a context with such a word only the
 * thread that called clt_signal_share may call it. */
int clt_signal_received(void);

/* Requests that the run of the calling thread's context stop at this time (seconds since 1970, as clt_wall),
 * instead of any time set before; 0: never. */
void clt_signal_at(double wall);

/* Sets the word of shared memory, initially 0, through which the processes of a run share a request to stop,
 * for the calling thread's context. Borrowed until the next call. NULL: requests are not shared. */
void clt_signal_share(_Atomic int32_t *word);

#endif
