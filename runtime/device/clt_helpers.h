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
 * Nothing depends on them: if a helper cannot start, dies, does not answer in time, or cannot build a
 * program, the process itself builds it, with its own messages.
 *
 * Helpers are for programs that own their process (clt_device_helper_main). Starting them beside other
 * threads is safe: posix_spawn runs no code of this program in the child before exec, the child has no signal
 * blocked and gets the environment of the start of main, and all descriptors of runtime/device are
 * close-on-exec; the child closes what drivers left open. Each helper has a thread here, with all signals
 * blocked, that waits for it (waitpid on its pid): a program that reaps all its children, or ignores SIGCHLD,
 * must not use helpers. */
#ifndef CLT_HELPERS_H
#define CLT_HELPERS_H

#include "runtime/device/clt_device_private.h"

/* The device that helpers open, and how many helpers there may be. */
typedef struct {
    int platform, device;  /* indices in the enumeration */
    const char *id;        /* clt_device_id; a helper that finds another one there ends */
    const char *cache_dir; /* NULL: none */
    double timeout;        /* seconds for one program */
    int most;
} clt_helpers_params;

/* Starts no helper yet. NULL if there can be none: `most` is below 1, or main did not call
 * clt_device_helper_main. */
clt_helpers *clt_helpers_create(const clt_helpers_params *p);
/* Starts helpers before the programs are known: opening the device may take a second. */
void clt_helpers_start(clt_helpers *h);
/* Adds a program to build, unless it was added before; the text is copied. Nothing is built before
 * clt_helpers_go. Then the slowest come first, so that none of them is begun last: programs of two passes,
 * the first of each file, longer source, longer options. */
void clt_helpers_add(clt_helpers *h, const clt_program_text *t, bool inline_ptx);
/* Starts building. A helper ends when nothing is left to build. Returns the number of programs. */
int clt_helpers_go(clt_helpers *h);
/* True if a helper has built this program, or is building it: then it waits, at most as long as a program may
 * take. *data: the binary, malloc'ed; NULL if the driver caches it. False: the caller has to build the
 * program, and no helper will. That includes programs that no helper has begun with. h may be NULL. */
bool clt_helpers_take(clt_helpers *h, clt_hash128 key, char **data, size_t *bytes);
/* Ends all helpers; programs that are not built yet are dropped. h may be NULL. */
void clt_helpers_destroy(clt_helpers *h);

#endif
