/* clt_waiter: a thread that waits inside the driver, for the quirk uses_waiting_thread.
 *
 * Such a driver has fewer threads than there are cores, and also computes on a thread of the program that
 * waits for a result: while none waits, a core is idle. The host's thread polls instead, because a wait
 * inside the driver has no deadline; this thread waits in its place. */
#ifndef CLT_WAITER_H
#define CLT_WAITER_H

#include "runtime/device/clt_device_private.h"

/* NULL if no thread can be created: the driver then uses one core less. */
clt_waiter *clt_waiter_create(void);
/* Makes the thread wait for `event` next. An event that was given before and has not been begun with is
 * dropped. */
void clt_waiter_give(clt_waiter *w, cl_event event);
/* Ends the thread; w may be NULL. hung: the thread may never return from the driver, so it is detached. */
void clt_waiter_destroy(clt_waiter *w, bool hung);

#endif
