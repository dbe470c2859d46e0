/* clt_end: how this library ends its process. A rank that cannot return to its caller, because the other
 * ranks or MPI would never let it, ends here; nothing else in this folder calls exit, _exit or abort. Not for
 * other folders.
 *
 * Both ways skip atexit handlers, destructors and devices, and leave the exit code for cltrain launch. */
#ifndef CLT_END_H
#define CLT_END_H

/* Ends the process now. */
void clt_end_process(int code) __attribute__((noreturn));

/* For a call that has no deadline of its own, such as MPI_Finalize: from clt_end_after on, the process ends
 * with `code` once `seconds` have passed, unless clt_end_cancel comes first. `text` (static, or NULL) is
 * printed before. Uses SIGALRM. */
void clt_end_after(double seconds, int code, const char *text);
void clt_end_cancel(void);

#endif
