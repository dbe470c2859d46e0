/* clt_signal: what SIGINT, SIGTERM and SIGUSR1 mean for a run. The first one only sets a flag that the run
 * looks at in every phase: it gives up what it is doing, saves the last finished step, and ends. A second
 * SIGINT ends the process at once with 130. */
#ifndef CLT_SIGNAL_H
#define CLT_SIGNAL_H

#include <stdbool.h>

/* Starts a thread that takes the signals. Call it before other threads start: all of them must have these
 * signals blocked, as they do when their creator has. speak: SIGINT is answered with a line (of several ranks
 * one does). */
void clt_signal_install(bool speak);

/* The first signal that asked the run to stop: SIGINT, SIGTERM, SIGUSR1, or 0. */
int clt_signal_received(void);

#endif
