/* variant_util: a device whose cache is a folder of its own, for the tests of variant tables and verdicts. */
#ifndef VARIANT_UTIL_H
#define VARIANT_UTIL_H

#include "runtime/ops/clt_ops_state.h"
#include "test/test_util.h"

extern clt_device *vu_dev; /* between vu_open and vu_close */

/* Set-up and tear-down of a group of tests. */
int vu_open(void **state);
int vu_close(void **state);

clt_ops *vu_ops(bool skip_check); /* on vu_dev; the caller destroys it */
/* Fails the test if the last error message does not contain `what`. */
void vu_assert_says(const char *what);
/* Writes a kernel file into the cache folder; clt_kernel_text finds it with CLTRAIN_KERNEL_PATH set to that
 * folder. */
void vu_put_kernel(const char *name, const char *text);
/* The head of a kernel file's probe (clt_device_probe_file), before its body; "#endif" must end it. */
#define VU_PROBE "#ifdef PROBE\n__kernel void probe(__global const uint *in, __global uint *out) "

#endif
