/* clt_launch: what a rank and the `cltrain launch` that started it tell each other through a small folder:
 * the rank's process number, so that signals reach it directly (mpirun passes them late or not at all), and
 * its exit code, which mpirun does not always keep. Without such a folder the functions do nothing. */
#ifndef CLT_LAUNCH_H
#define CLT_LAUNCH_H

#include "../runtime/base/clt_base.h"

/* This process is `rank`: leaves its number in the folder. */
void clt_launch_register(int rank);
/* This process is about to end with `code`. */
void clt_launch_report(int code);

#endif
