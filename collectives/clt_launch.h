/* clt_launch: a process as one of several ranks, before it joins a group and after it left: what the
 * launcher's environment says, messages that come once and not from every rank, and what a rank tells the
 * `cltrain launch` that started it. They talk through a small folder: the rank leaves its process number
 * there, so that signals reach it directly (mpirun passes them late or not at all), and its exit code, which
 * mpirun does not always keep. Without such a folder the functions leave nothing. */
#ifndef CLT_LAUNCH_H
#define CLT_LAUNCH_H

#include "runtime/base/clt_base.h"

/* At the start of the program: with several ranks, messages are held (clt_log_hold). */
void clt_launch_begin(void);
/* Leaves this process's number and host name: from here on it can be sent signals. */
void clt_launch_register(void);
/* This process is about to end with `code`. */
void clt_launch_report(int code);
/* Where clt_launch_report leaves it, for handlers of signals; false without cltrain launch. */
bool clt_launch_exit_path(char path[512]);
/* At the end of the program: prints what is still held, reports, returns `code`. */
int clt_launch_end(int code);

/* Whether no process has this number on this host any more, or one that has ended and is not waited for. */
bool clt_process_gone(long pid);

#endif
