/* clt_end: how this library ends its process. A rank that cannot return to its caller, because it would wait
 * for other ranks or for MPI forever, ends its process here; nothing else in this folder calls exit, _exit or
 * abort. Not for other folders.
 *
 * clt_end_process and the timer of clt_end_after end the process with _exit: atexit handlers and destructors
 * do not run, stdio buffers are not flushed, and devices are not waited for. Before that, each writes the
 * exit code for cltrain launch (clt_launch.h). */
#ifndef CLT_END_H
#define CLT_END_H

/* Ends the process with exit code `code`. */
void clt_end_process(int code) __attribute__((noreturn));

/* For a call that has no deadline of its own, such as MPI_Finalize. Starts the process's one timer: if
 * clt_end_cancel is not called within `seconds` (rounded up to whole seconds; at least 1, at most 1e6), the
 * process prints `text` to stderr and ends with `code`. `text` ends with a newline and must stay valid until
 * clt_end_cancel; NULL: nothing is printed. A second call replaces the timer. Uses alarm and SIGALRM. */
void clt_end_after(double seconds, int code, const char *text);
/* Stops the timer, if there is one, and resets SIGALRM to its default action. */
void clt_end_cancel(void);

#endif
