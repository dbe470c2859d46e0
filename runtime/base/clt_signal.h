/* clt_signal: what SIGINT, SIGTERM and SIGUSR1 mean for a run. The first one only sets a flag that the run
 * looks at in every phase: it finishes what it is doing, saves, and ends. A second SIGINT ends the process at
 * once with 130. */
#ifndef CLT_SIGNAL_H
#define CLT_SIGNAL_H

/* Installs the handlers. Threads started later should block these signals (clt_parallel_for does). */
void clt_signal_install(void);

/* The first signal that asked the run to stop: SIGINT, SIGTERM, SIGUSR1, or 0. */
int clt_signal_received(void);

#endif
