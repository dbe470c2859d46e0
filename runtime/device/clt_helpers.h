/* clt_helpers: processes that build programs ahead of time.
 *
 * Drivers compile one program at a time in a process, whatever the number of threads (NVIDIA's does so for
 * its front end and for its assembler). So the program that trains starts itself again a few times in a mode
 * in which it does nothing but open the same device and build what it is told over a socket. What a helper
 * made is a binary; whoever asks for the program gets it from there.
 *
 *     int main(int argc, char **argv) {
 *         int code;
 *         if (clt_device_helper_main(argc, argv, &code)) return code;
 *
 * Nothing depends on them: a helper that cannot start, dies, does not answer in time, or cannot build a
 * program, leaves it to the process that asked, with that one's messages. */
#ifndef CLT_HELPERS_H
#define CLT_HELPERS_H

#include "runtime/device/clt_device_private.h"

/* Which device helpers shall open, and how many there may be. */
typedef struct {
    int platform, device;  /* their numbers, as enumerated */
    const char *id;        /* clt_device_id: another driver or device ends the helper */
    const char *cache_dir; /* NULL: none */
    double timeout;        /* seconds for one program */
    int most;
} clt_helpers_params;

/* NULL where there can be none: `most` is below 1, or main does not call clt_device_helper_main. Starts none
 * yet. */
clt_helpers *clt_helpers_create(const clt_helpers_params *p);
/* Starts them before it is known what there is to build: opening the device may take them a second. */
void clt_helpers_start(clt_helpers *h);
/* Another program to build, unless it is there already; the text is copied. Nothing is built before
 * clt_helpers_go; then those come first that take long, so that none of them is begun last: programs of two
 * passes, the first of each file, longer source, longer options, which turn on more of it. */
void clt_helpers_add(clt_helpers *h, const clt_program_text *t, bool inline_ptx);
/* Builds what was added; helpers that find nothing more to do end. Returns the number of programs. */
int clt_helpers_go(clt_helpers *h);
/* True if a helper has built this program, or is about to: waits for it then, no longer than a program may
 * take. *data: malloc'ed, NULL if the driver keeps it. False: the caller has to build it, and no helper will;
 * so it is with one whose turn has not come. h may be NULL. */
bool clt_helpers_take(clt_helpers *h, clt_hash128 key, char **data, size_t *bytes);
/* Ends them all; what was not built is left. h may be NULL. */
void clt_helpers_destroy(clt_helpers *h);

#endif
