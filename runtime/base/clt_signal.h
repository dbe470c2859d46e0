/* clt_signal: what SIGINT, SIGTERM and SIGUSR1 mean for a run, and the end of the time that it was given. The
 * first of them only sets a flag that the run looks at in every phase: it gives up what it is doing, saves
 * the last finished step, and ends. A second SIGINT ends the process at once with 130. A pipe that
 * nobody reads any more (SIGPIPE) ends no run. */
#ifndef CLT_SIGNAL_H
#define CLT_SIGNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What is no signal. */
enum {
    CLT_SIGNAL_TIME = 1000, /* the time set by clt_signal_at has come */
    CLT_SIGNAL_CALLER       /* the program that embeds the library asks */
};

/* Starts a thread that takes the signals. Call it before other threads start: all of them must have these
 * signals blocked, as they do when their creator has. speak: SIGINT is answered with a line (of several ranks
 * one does). Calls after the first one only set speak. */
void clt_signal_install(bool speak);

/* What asked the run of this context first to stop: SIGINT, SIGTERM, SIGUSR1 (the program, or
 * clt_context_ask_stop), CLT_SIGNAL_TIME, or 0. What other processes
 * say through the shared word counts, and is told to them. Only for the thread that called
 * clt_signal_share. */
int clt_signal_received(void);

/* Asks to stop at this time (seconds since 1970, as clt_wall); 0: never. */
void clt_signal_at(double wall);

/* A word that processes share, 0 at first; borrowed until the next call. NULL: none. */
void clt_signal_share(_Atomic int32_t *word);

#endif
