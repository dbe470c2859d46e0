/* clt_waiter: a thread that waits inside the driver, for the quirk uses_waiting_thread.
 *
 * Such a driver has fewer threads than there are cores, and also computes on a thread of the program that
 * waits for a result: while no thread waits, a core is idle. The program's own thread must not wait inside
 * the driver, because that wait has no deadline: it polls. The thread of this module waits in its place. */
#ifndef CLT_WAITER_H
#define CLT_WAITER_H

#include "runtime/device/clt_device_private.h"

/* Starts the thread. NULL, without a message, if no thread can be created: the driver then uses one core
 * less. All functions are called by the thread that uses the device. */
clt_waiter *clt_waiter_create(void);
/* Makes the thread wait for `event` next, and returns at once; the waiter holds its own reference to the
 * event. An event that was given before and that the thread does not wait for yet is dropped. w must not be
 * NULL. */
void clt_waiter_give(clt_waiter *w, cl_event event);
/* Ends the thread and frees w; w may be NULL. With hung false it waits until the thread's event is complete.
 * With hung true the thread may never return from the driver: it is detached, and w is not freed. */
void clt_waiter_destroy(clt_waiter *w, bool hung);

#endif
