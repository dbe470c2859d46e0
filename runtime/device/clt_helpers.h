/* clt_helpers: processes that build programs ahead of time.
 *
 * Drivers compile one program at a time in a process, whatever the number of threads (NVIDIA's in its front
 * end and in its assembler). So the program starts itself again several times, in a mode in which it only
 * opens the same device and builds what it receives over a socket. A helper returns the binary.
 *
 *     int main(int argc, char **argv) {
 *         int code;
 *         if (clt_device_helper_main(argc, argv, &code)) return code;
 *
 * Results do not depend on helpers: if a helper cannot start, dies, does not answer in time, or cannot build
 * a program, the process itself builds the program, with its own messages.
 *
 * Helpers are for programs that own their process (clt_device_helper_main). Starting them beside other
 * threads is safe: posix_spawn runs no code of this program in the child before exec, the child has no signal
 * blocked and gets the environment of the start of main, and all descriptors of runtime/device are
 * close-on-exec; the child closes what drivers left open. Each helper has a thread in this process, with all
 * signals blocked, that waits for it (waitpid on its pid): a program that reaps all its children, or ignores
 * SIGCHLD, must not use helpers. The functions below are called by the thread that uses the device. */
#ifndef CLT_HELPERS_H
#define CLT_HELPERS_H

#include "runtime/device/clt_device_private.h"

/* The device that helpers open, and how many helpers there may be. */
typedef struct {
    int platform, device;  /* indices in the enumeration */
    const char *id;        /* clt_device_id; a helper that finds another device there ends. Copied */
    const char *cache_dir; /* NULL: no cache. Copied */
    double timeout;        /* seconds for opening the device, and for one program; below 1 counts as 1 */
    int most;              /* helpers; above 16 counts as 16 */
} clt_helpers_params;

/* Creates the pool; starts no helper. NULL, without a message: there can be no helpers, because `most` is
 * below 1 or main did not call clt_device_helper_main. */
clt_helpers *clt_helpers_create(const clt_helpers_params *p);
/* Optional: starts all helpers before the programs are known, since opening the device may take a second. */
void clt_helpers_start(clt_helpers *h);
/* Adds a program to build; the text is copied. Has no effect if the program (t->key) was added before, or
 * after clt_helpers_go. inline_ptx: that fact of the device. Programs that probably take longest are built
 * first: those of two passes, the first of each file, those with a longer source, those with longer options.
 */
void clt_helpers_add(clt_helpers *h, const clt_program_text *t, bool inline_ptx);
/* Starts building, with at most one helper less than there are programs unless more were started before;
 * nothing is built before this call. A helper ends when nothing is left to build. Returns the number of
 * programs. */
int clt_helpers_go(clt_helpers *h);
/* Takes the result of a program from the helpers. If a helper is building it at this moment, waits for it, at
 * most 2 * timeout + 2 seconds. true: it is built. *data is then the binary, *bytes long, which the caller
 * frees with clt_free; NULL if the driver keeps it in its own cache. false: the caller must build the
 * program: no helper had begun it (and none will), the helper failed, or the result was taken before. h may
 * be NULL: false. */
bool clt_helpers_take(clt_helpers *h, clt_hash128 key, char **data, size_t *bytes);
/* Kills all helpers, waits until they have ended and frees the pool; programs that were not taken are
 * dropped. h may be NULL. */
void clt_helpers_destroy(clt_helpers *h);

#endif
