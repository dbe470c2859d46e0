/* clt_device_test: makes a device look hung; compiles without optimization. For tests only. */
#ifndef CLT_DEVICE_TEST_H
#define CLT_DEVICE_TEST_H

#include "runtime/device/clt_device.h"

/* With closed true: commands that are queued from now on do not start, as on a device that hangs; commands
 * queued earlier are not affected. With closed false: the queue continues, and the device no longer counts as
 * hung. A call that changes nothing is CLT_OK. CLT_FAIL if the driver refuses. */
clt_status clt_device_gate(clt_device *dev, bool closed);

/* Programs that are built from now on are built with -cl-opt-disable, or as usual again. A kernel that was
 * asked for before stays as it was built. */
void clt_device_compile_fast(clt_device *dev, bool fast);

#endif
