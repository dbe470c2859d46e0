/* The peak rates of a device: measured once, stored, and measured again after work that was faster. */
#include "test/device_util.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_device_private.h"

static char folder[64]; /* files of this run */

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_peak.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

/* These functions replace the driver's: launches in groups larger than this fail; 0: the driver's own limit.
 */
static size_t group_limit;

cl_int clGetKernelWorkGroupInfo(cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, size_t size,
                                void *value, size_t *needed) {
    static cl_int (*next)(cl_kernel, cl_device_id, cl_kernel_work_group_info, size_t, void *, size_t *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clGetKernelWorkGroupInfo");
    const cl_int e = next(k, d, what, size, value, needed);
    if (e == CL_SUCCESS && group_limit && what == CL_KERNEL_WORK_GROUP_SIZE && value)
        memcpy(value, &group_limit, sizeof group_limit);
    return e;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint waits, const cl_event *wait,
                              cl_event *event) {
    static cl_int (*next)(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *,
                          const size_t *, cl_uint, const cl_event *, cl_event *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clEnqueueNDRangeKernel");
    if (group_limit && local && *local > group_limit) return CL_INVALID_WORK_GROUP_SIZE;
    return next(q, k, dims, offset, global, local, waits, wait, event);
}

/* A GPU may allow small groups only, of a size that divides no power of two. */
static void peak_is_measured_in_groups_that_fit(void **state) {
    (void)state;
    du_skip_on_simulator();
    clt_device_params p = clt_device_params_default();
    char *dir = clt_path_join(folder, "groups");
    p.cache_dir = dir;
    setenv("CLTRAIN_DEVICE_TYPE", "gpu", 1);
    clt_device *d = du_open(p);
    double flops = 0, copy = 0;
    group_limit = 96;
    const clt_status st = clt_device_peak(d, &flops, &copy);
    group_limit = 0;
    unsetenv("CLTRAIN_DEVICE_TYPE");
    clt_device_close(d);
    clt_free(dir);
    assert_int_equal(st, CLT_OK);
    assert_true(flops > 0 && copy > 0);
}

static void peak_is_measured_once(void **state) {
    (void)state;
    du_skip_on_simulator();
    clt_device_params p = clt_device_params_default();
    p.cache_dir = folder;
    clt_device *d = du_open(p);
    double flops = 0, copy = 0, flops2 = 0, copy2 = 0;
    assert_int_equal(clt_device_peak(d, &flops, &copy), CLT_OK);
    print_message("peak: %.1f GFLOP/s, %.1f GB/s\n", 1e-9 * flops, 1e-9 * copy);
    assert_true(flops > 1e9 && copy > 1e8);
    clt_device_close(d);
    d = du_open(p);
    assert_int_equal(clt_device_peak(d, &flops2, &copy2), CLT_OK);
    clt_device_counters c;
    clt_device_get_counters(d, &c);
    assert_int_equal(c.launches, 0); /* the rates come from the cache */
    assert_true(flops2 > 0.999 * flops && flops2 < 1.001 * flops && copy2 > 0.999 * copy &&
                copy2 < 1.001 * copy);
    /* Work was faster: the next start measures, and the larger figure stays. */
    clt_device_peak_exceeded(d, false, 0.5 * flops);
    clt_device_peak_exceeded(d, false, 1e3 * flops);
    clt_device_close(d);
    for (int start = 0; start < 2; start++) {
        d = du_open(p);
        assert_int_equal(clt_device_peak(d, &flops2, &copy2), CLT_OK);
        clt_device_get_counters(d, &c);
        assert_true(start == 0 ? c.launches > 0 : c.launches == 0);
        assert_true(flops2 > 0.999e3 * flops && flops2 < 1.001e3 * flops && copy2 > 0.999 * copy);
        if (start == 1) clt_device_measure_peaks(d);
        if (start == 1) assert_int_equal(clt_device_peak(d, &flops2, &copy2), CLT_OK);
        clt_device_get_counters(d, &c);
        assert_true(c.launches > 0 && flops2 > 0.999e3 * flops);
        clt_device_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peak_is_measured_once),
        cmocka_unit_test(peak_is_measured_in_groups_that_fit),
    };
    return cmocka_run_group_tests_name("device peak", tests, set_up, tear_down);
}
