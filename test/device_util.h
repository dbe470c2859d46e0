/* device_util: what the tests of runtime/device share. */
#ifndef DEVICE_UTIL_H
#define DEVICE_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/device/clt_device.h"

/* Opens a device; fails the test if it cannot be opened. */
clt_device *du_open(clt_device_params p);
/* Fails the test unless the last message has `part` in it. */
void du_assert_says(const char *part);
/* Writes folder/name, with the folders that it needs. */
void du_put_text(const char *folder, const char *name, const char *text);
/* Skips the test under Oclgrind: a simulator runs the queue inside the host's own calls, is far too slow to
 * be timed, and needs no registered driver. */
void du_skip_on_simulator(void);
/* A descriptor of the file of a scratch in this folder, which has no name: it bypasses the scratch. */
int du_scratch_file(const char *folder);

#endif
