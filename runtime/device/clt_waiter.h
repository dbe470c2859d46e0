/* clt_waiter: a thread that waits inside the driver.
 *
 * Some drivers of CPUs (Intel's) compute on the threads of the program that wait for a result, besides fewer
 * threads of their own than there are cores: while nobody waits, a core stands idle. The host cannot wait
 * there itself, because such a wait has no deadline; it looks now and then whether the work is done, and lets
 * this thread lend its core. */
#ifndef CLT_WAITER_H
#define CLT_WAITER_H

#include "runtime/device/clt_device_private.h"

/* NULL if there is no thread to be had: the driver then computes with fewer cores. */
clt_waiter *clt_waiter_create(void);
/* The thread waits for `event` next, in the place of what it was given before and has not begun with. */
void clt_waiter_give(clt_waiter *w, cl_event event);
/* Ends the thread; w may be NULL. hung: it may never return from the driver and is left alone. */
void clt_waiter_destroy(clt_waiter *w, bool hung);

#endif
