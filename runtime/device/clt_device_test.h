/* clt_device_test: for tests: makes a device look hung. */
#ifndef CLT_DEVICE_TEST_H
#define CLT_DEVICE_TEST_H

#include "runtime/device/clt_device.h"

/* closed: commands that are queued from now on do not start, as on a device that hangs. Open again: the queue
 * continues, and the device no longer counts as hung. */
clt_status clt_device_gate(clt_device *dev, bool closed);

#endif
