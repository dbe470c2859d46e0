/* bench_link: how fast copies between the host's memory and a device are, which bounds offloaded state
 * (clt_engine_offload.h). */
#ifndef CLBENCH_LINK_H
#define CLBENCH_LINK_H

#include "runtime/device/clt_device.h"

typedef enum {
    BENCH_PINNED,     /* the driver's own memory, as offloaded state has it */
    BENCH_REGISTERED, /* the program's memory in large pages, touched by all cores, then given to the driver
                       */
    BENCH_LINK_KINDS
} bench_link_kind;

/* Bytes per second. */
typedef struct {
    double in, out, both; /* to the device, from it, in both directions together */
    double get;           /* getting the memory with its contents set to 0 */
} bench_link_rates;

/* Copies in pieces of `piece` bytes, `bytes` in all each time, in queues of their own: the median of several
 * times. Takes 2 * `bytes` of device memory and of such host memory meanwhile. On a device that computes in
 * the host's memory these are the rates of its copies. */
clt_status bench_link_measure(clt_device *dev, bench_link_kind kind, size_t piece, size_t bytes,
                              bench_link_rates *out);

#endif
