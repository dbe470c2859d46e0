/* clt_signal: requests to stop a run: SIGINT, SIGTERM, SIGUSR1, and the end of the allotted time. The first
 * request sets a flag that the run checks in every phase: it abandons the step in progress, saves the last
 * finished step, and ends. A second SIGINT ends the process at once with exit code 130. SIGPIPE is ignored,
 * so a run survives a reader of its output that exits. */
#ifndef CLT_SIGNAL_H
#define CLT_SIGNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Reasons to stop that are no signal numbers. */
enum {
    CLT_SIGNAL_TIME = 1000, /* the time of clt_signal_at is reached */
    CLT_SIGNAL_CALLER       /* the program that embeds the library requests it */
};

/* Blocks the signals and starts a thread that waits for them. Call it before other threads start, so that
 * they inherit the blocked signals. speak: print a line at SIGINT (only one of several ranks should). Later
 * calls only set speak. */
void clt_signal_install(bool speak);

/* The first request to stop the run of this context: SIGINT, SIGTERM, SIGUSR1, CLT_SIGNAL_TIME, another value
 * given to clt_context_ask_stop, or 0 if there is none. Reads requests of other processes from the shared
 * word and writes this process's request to it. Only for the thread that called clt_signal_share. */
int clt_signal_received(void);

/* Requests a stop at this time (seconds since 1970, as clt_wall); 0: never. */
void clt_signal_at(double wall);

/* Sets the word, initially 0, through which the processes of a run share a request; borrowed until the next
 * call. NULL: none. */
void clt_signal_share(_Atomic int32_t *word);

#endif
