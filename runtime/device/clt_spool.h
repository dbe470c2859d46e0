/* clt_spool: copies between a device's buffers and a file (clt_scratch.h), through pinned memory, for what is
 * too large for the host's memory.
 *
 * The pinned memory is cut into slots, which copies in both directions take as they are free. A copy to the
 * device returns when the file was read and the rest is queued; a copy from the device when it is queued: the
 * file is written later, while the host does something else with the spool, or waits in it. So a caller that
 * should go on at once needs slots for all that leaves before the device has made it.
 *
 *     CLT_TRY(clt_device_hand_over(dev, CLT_QUEUE_OUT));
 *     CLT_TRY(clt_spool_send(s, gradients, 0, offset, bytes));
 *     ... clt_device_mark, as behind clt_buffer_send: then the buffer may change ...
 *     CLT_TRY(clt_device_use(dev, CLT_QUEUE_IN));
 *     CLT_TRY(clt_spool_fetch(s, place, 0, offset, bytes));
 *
 * A copy to the device has what was sent to the same bytes before. Others see it in the file after
 * clt_spool_flush. Waiting calls the device's function for idle time (clt_device_set_idle). Errors are those
 * of the file and of the device. A spool is used by the thread of its device, as its file is. */
#ifndef CLT_SPOOL_H
#define CLT_SPOOL_H

#include "runtime/base/clt_scratch.h"
#include "runtime/device/clt_device.h"

typedef struct clt_spool clt_spool;

/* The pinned memory of a spool with room for `bytes` bytes between the device and the file: two slots of
 * CLT_SCRATCH_MOST bytes at least. */
uint64_t clt_spool_pinned(uint64_t bytes);
/* pinned: of clt_spool_pinned. `file` is borrowed and grows by a block. Errors of clt_buffer_create_pinned
 * and of the file. */
clt_status clt_spool_create(clt_device *dev, clt_scratch *file, uint64_t pinned, clt_spool **out);
/* Waits for transfers of the file; what was sent may be lost. NULL is allowed. */
void clt_spool_destroy(clt_spool *s);
clt_scratch *clt_spool_file(const clt_spool *s); /* borrowed */

/* Bytes [offset, offset + bytes) of the file to dst, from byte `at` on, in the queue in use. */
clt_status clt_spool_fetch(clt_spool *s, clt_buffer *dst, size_t at, uint64_t offset, size_t bytes);
/* The other way. offset is a multiple of CLT_SCRATCH_BLOCK; if `bytes` is not one, the rest of the last block
 * takes any value. */
clt_status clt_spool_send(clt_spool *s, clt_buffer *src, size_t at, uint64_t offset, size_t bytes);
/* Waits until everything that was sent is on its way into the file: whatever begins to read it from here on
 * finds it there. */
clt_status clt_spool_flush(clt_spool *s);

/* Seconds that the host has waited in fetch and send so far. */
double clt_spool_waited(const clt_spool *s);

#endif
