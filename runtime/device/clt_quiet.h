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

/* From now on stderr may be replaced, and a handler at exit prints what would be lost. Calls after the first
 * one change nothing. */
void clt_quiet_allow(void);

/* Between begin and end, what the process writes to stderr is dropped. One thread at a time: another one
 * waits in begin. device: for the message if the driver ends the process; borrowed. Without clt_quiet_allow:
 * nothing. */
void clt_quiet_begin(const char *device);
void clt_quiet_end(void);

#endif
