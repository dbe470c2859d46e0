/* clt_quiet: stderr while a driver compiles.
 *
 * Some drivers write their compiler's errors and warnings to stderr besides the build log. Where the program
 * only tries whether something builds (probes, variants of kernels, short declarations), or a build succeeds,
 * they would look like errors of the run. Stderr belongs to the process, so it is replaced only in a process
 * that is cltrain's own: main says so by clt_device_helper_main. In a program that embeds the library nothing
 * is replaced, and the driver's text appears. Messages of clt_log go to the real stderr at any time, from any
 * thread.
 *
 * A compiler may also end the process: LLVM calls exit when a disk is full. The reason is then the last line
 * that was caught, and it is printed. */
#ifndef CLT_QUIET_H
#define CLT_QUIET_H

/* Allows this process to replace stderr from now on: messages of clt_log get a stream of their own
 * (clt_log_keep_stderr), and a handler at exit names the driver that ended the process, or prints what
 * another thread wrote before it ended the process. Later calls have no effect. */
void clt_quiet_allow(void);

/* Between begin and end, what is written to stderr by other means than clt_log is dropped, in all threads.
 * The thread that called begin must call end; a thread's pairs must not nest, those of several threads may
 * overlap. device: its name, for the message if the driver ends the process; must stay valid until end.
 * Without clt_quiet_allow they do nothing. If stderr cannot be replaced, it stays as it is. */
void clt_quiet_begin(const char *device);
void clt_quiet_end(void);

#endif
