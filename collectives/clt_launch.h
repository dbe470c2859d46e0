/* clt_launch: what a process that is one of several ranks does before it joins a group and after it has left
 * it: it holds messages, so that they are printed once and not by every rank, and it reports to the `cltrain
 * launch` that started it. The report goes through files in the folder that CLTRAIN_LAUNCH_DIR names. A rank
 * writes its process number there, so that cltrain launch can send it signals directly (mpirun passes them
 * late or not at all), and its exit code, which mpirun may lose. If the variable is not set, nothing is
 * written. Failures to write are ignored. Ranks here are those of the launcher's environment
 * (clt_launch_detect in clt_group.h). */
#ifndef CLT_LAUNCH_H
#define CLT_LAUNCH_H

#include "runtime/base/clt_base.h"

/* At the start of the program: if the launcher started several ranks, sets the rank of messages
 * (clt_log_set_rank) and holds messages (clt_log_hold). Binds the process (clt_bind_rank), which must not
 * have threads yet. */
void clt_launch_begin(void);
/* Writes this process's number and host name. From then on cltrain launch may send it signals, so the
 * handlers must be installed before. clt_group_create calls it. */
void clt_launch_register(void);
/* Writes `code`, the exit code of this process, which is about to end. */
void clt_launch_report(int code);
/* The path of the file that clt_launch_report writes. For code that prepares a signal handler, which must not
 * call clt_launch_report; this function is not safe in a handler either. false: CLTRAIN_LAUNCH_DIR is not
 * set, and path is unchanged. */
bool clt_launch_exit_path(char path[512]);
/* At the end of the program: prints the messages that are still held, reports `code` and returns it. With the
 * exit code of CLT_USAGE held messages are dropped, because all ranks have the same command line, and ranks
 * other than 0 first wait (at most 20 s) until rank 0 has printed. */
int clt_launch_end(int code);

/* Whether process `pid` of this host has ended: there is no such process, or it is a zombie. `pid` is a
 * number of this process's namespace (a container has its own). */
bool clt_process_gone(long pid);

#endif
