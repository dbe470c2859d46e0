/* clt_mark: the queues of a device, and marks in them, for work that overlaps with computation.
 *
 * A device has up to three in-order queues. Launches, fills and copies go to the queue that is in use,
 * CLT_QUEUE_COMPUTE unless clt_device_use chose another one; reads and writes of host memory, too. Work in
 * different queues runs side by side, in any order, except as marks demand:
 *
 *     clt_mark *made, *sent;
 *     CLT_TRY(clt_device_mark(dev, &made));          // behind what the compute queue has so far
 *     CLT_TRY(clt_device_use(dev, CLT_QUEUE_OUT));
 *     CLT_TRY(clt_device_after(dev, made));          // what follows in this queue waits for it
 *     CLT_TRY(clt_buffer_copy(window, 0, gradients, 0, bytes));
 *     CLT_TRY(clt_device_mark(dev, &sent));
 *     CLT_TRY(clt_device_use(dev, CLT_QUEUE_COMPUTE));
 *     ... clt_mark_reached(sent, &there) ...
 *
 * A device that shares the host's memory (CPU devices) has one queue, which serves for all: its cores do the
 * copies, too. As everything of a device, queues and marks are for one thread at a time. */
#ifndef CLT_MARK_H
#define CLT_MARK_H

#include "runtime/device/clt_device.h"

/* What a queue is for: kernels of the model; copies from the device; copies to it, and what is computed with
 * them. */
typedef enum { CLT_QUEUE_COMPUTE, CLT_QUEUE_OUT, CLT_QUEUE_IN, CLT_QUEUES } clt_queue;

/* Whether kernels can read host memory in place (clt_buffer_wrap) as fast as their own. False with
 * CLTRAIN_QUEUES=3, by which tests treat a CPU device like one with memory of its own. */
bool clt_device_shares_host(const clt_device *dev);

/* *in_place: whether the device shares the host's memory and also keeps its buffers where the host can use
 * them (clt_buffer_host). Tried with a buffer, so it is for the start of a run. */
clt_status clt_device_works_in_place(clt_device *dev, bool *in_place);

/* The queue for everything that is queued from here on. Queues are created at their first use. */
clt_status clt_device_use(clt_device *dev, clt_queue queue);

/* The queue in use. */
clt_queue clt_device_queue(const clt_device *dev);

/* A place in a queue. */
typedef struct clt_mark clt_mark;
/* Marks the place behind everything that is in the current queue, and hands it to the device (flush). The
 * caller releases the mark. *out is NULL if the device has one queue and is known to have done everything in
 * it: that is a mark that is reached. */
clt_status clt_device_mark(clt_device *dev, clt_mark **out);
/* What is queued in the current queue from here on waits for the mark, which may be of any queue. The mark
 * may be released after the call. NULL: nothing to wait for. */
clt_status clt_device_after(clt_device *dev, clt_mark *m);
/* The queue for everything from here on, as clt_device_use; what follows in it waits for what the queue in
 * use has so far. */
clt_status clt_device_hand_over(clt_device *dev, clt_queue next);
/* *reached: whether the device has come to the mark; does not wait. If it has, what was done before it is
 * visible to the host, in memory that buffers wrap, too. An error if the device failed at it. NULL: reached.
 */
clt_status clt_mark_reached(clt_mark *m, bool *reached);
/* Waits for the mark, at most until the device's deadline (CLT_AGAIN). */
clt_status clt_mark_wait(clt_device *dev, clt_mark *m);
void clt_mark_release(clt_mark *m); /* NULL is allowed */

/* Queue a copy from a buffer to host memory, or the other way, in the queue that is in use. The host memory
 * must stay, and not be touched, until a mark behind the copy is reached. Copies of memory that the driver
 * does not know (clt_buffer_create_pinned, clt_buffer_wrap) are right, but slower, and may block the host. */
clt_status clt_buffer_send(clt_buffer *src, size_t offset, void *host, size_t bytes);
clt_status clt_buffer_fetch(clt_buffer *dst, size_t offset, const void *host, size_t bytes);

/* `idle` is called again and again while the host waits for the device, so that other work can go on: NULL
 * ends it. It must return soon, must not wait for the device, and may queue work; the queue in use is
 * restored after it. It is not called within itself. */
typedef void (*clt_idle)(void *ctx);
void clt_device_set_idle(clt_device *dev, clt_idle idle, void *ctx);
/* Keeps `idle` from being called (pause true), for code that would not bear it, or allows it again. Returns
 * whether it was kept before, which the caller passes at the end. */
bool clt_device_pause_idle(clt_device *dev, bool pause);

#endif
