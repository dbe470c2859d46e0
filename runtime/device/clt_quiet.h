/* clt_quiet: stderr while a driver compiles what may fail.
 *
 * Some drivers write their compiler's errors to stderr besides the build log. Where the program only tries
 * whether something builds (probes, variants of kernels) they would look like errors of the run. Stderr
 * belongs to the process, so it is replaced only in a process that is cltrain's own: main says so by
 * clt_device_helper_main. In a program that embeds the library nothing is replaced, and the driver's text
 * appears.
 *
 * A compiler may also end the process: LLVM calls exit when a disk is full. The reason is then the last line
 * that was caught, and it is printed. */
#ifndef CLT_QUIET_H
#define CLT_QUIET_H

/* Allows this process to replace stderr from now on, and installs a handler at exit that prints what would be
 * lost if the process exits between begin and end. Later calls have no effect. */
void clt_quiet_allow(void);

/* Between begin and end, what any thread of the process writes to stderr is dropped. The thread that called
 * begin must call end; pairs must not nest. A second thread waits in begin until the first has called end.
 * device: its name, for the message if the driver ends the process; must stay valid until end. Without
 * clt_quiet_allow they do nothing. If stderr cannot be replaced, it stays as it is. */
void clt_quiet_begin(const char *device);
void clt_quiet_end(void);

#endif
