/* bench_link: how fast copies between the host's memory and a device are, which bounds offloaded state
 * (clt_engine_offload.h). */
#ifndef CLBENCH_LINK_H
#define CLBENCH_LINK_H

#include "runtime/device/clt_device.h"

/* Bytes per second. */
typedef struct {
    double in, out, both; /* to the device, from it, in both directions together */
    double get;           /* getting the memory with its contents set to 0 */
} bench_link_rates;

/* Copies in pieces of `piece` bytes, `bytes` in all each time, in queues of their own: the median of several
 * times. Takes 2 * `bytes` of device memory and of pinned host memory (clt_buffer_create_pinned) meanwhile.
 * On a device that computes in the host's memory these are the rates of its copies. */
clt_status bench_link_measure(clt_device *dev, size_t piece, size_t bytes, bench_link_rates *out);

#endif
