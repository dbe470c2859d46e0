/* clt_device_test: what tests do to a device that no user would. */
#ifndef CLT_DEVICE_TEST_H
#define CLT_DEVICE_TEST_H

#include "runtime/device/clt_device.h"

/* closed: what is queued from now on does not start, as if the device had stopped answering. Open again: the
 * queue runs on, and the device no longer counts as hung. */
clt_status clt_device_gate(clt_device *dev, bool closed);

#endif
