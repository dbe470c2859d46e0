/* clt_launch: a process as one of several ranks, before it joins a group and after it left it: what the
 * launcher's environment says, messages that are printed once and not by every rank, and the exit code for
 * the `cltrain launch` that started it. The two talk through files in a folder, CLTRAIN_LAUNCH_DIR. A rank
 * writes its process number there, so that signals reach it directly (mpirun passes them late or not at all),
 * and its exit code, which mpirun may lose. Without that folder nothing is written. */
#ifndef CLT_LAUNCH_H
#define CLT_LAUNCH_H

#include "runtime/base/clt_base.h"

/* At the start of the program: holds messages if there are several ranks (clt_log_hold). */
void clt_launch_begin(void);
/* Writes this process's number and host name: from here on it can be sent signals. */
void clt_launch_register(void);
/* Writes the exit code of this process, which is about to end. */
void clt_launch_report(int code);
/* The file that clt_launch_report writes, for signal handlers; false without cltrain launch. */
bool clt_launch_exit_path(char path[512]);
/* At the end of the program: prints the messages that are still held, reports `code` and returns it. */
int clt_launch_end(int code);

/* Whether this host has no process with this number, or only one that has ended and was not waited for. */
bool clt_process_gone(long pid);

#endif
