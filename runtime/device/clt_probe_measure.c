/* Questions with more than one launch: the largest local array, and the rate of pinned copies. */
#include <string.h>

#include "runtime/device/clt_probe.h"

enum { COPY_BYTES = 32 << 20, LOCAL_TOP = 256 << 10 };

/* --- local memory --- */

/* Whether probe/local_mem.cl with an array of `bytes` gives the right sums. */
static bool local_holds(clt_device *dev, const char *text, size_t bytes) {
    char options[64];
    const uint32_t words = (uint32_t)(bytes / 4);
    uint32_t in[64], out[64];
    for (uint32_t i = 0; i < 64; i++) in[i] = i;
    snprintf(options, sizeof options, CLT_LANGUAGE_OPTION " -DWORDS=%u", words);
    cl_program p = clt_probe_build(dev, text, options);
    const bool ran = p && clt_probe_run(dev, p, in, sizeof in, out, sizeof out, 64, 64);
    if (p) clReleaseProgram(p);
    if (!ran) return false;
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t sum = 0;
        for (uint32_t j = 63 - i; j < words; j += 64) sum += j;
        if (out[i] != sum) return false;
    }
    return true;
}

/* Whether an array of this size works. Drivers may report one that is too large as a shortage of resources:
 * it counts as the device's answer if it comes twice and a small array still works. */
static bool local_works(clt_device *dev, const char *text, size_t bytes) {
    const uint64_t before = dev->counters.shortages;
    for (int i = 0; i < 2; i++) {
        const uint64_t now = dev->counters.shortages;
        if (local_holds(dev, text, bytes)) {
            dev->counters.shortages = before;
            return true;
        }
        if (dev->counters.shortages == now) return false;
    }
    if (local_holds(dev, text, 1024)) dev->counters.shortages = before;
    return false;
}

/* The driver's claim holds for arrays that are arguments; an array declared in a kernel may have to be
 * smaller or may be far larger. A CPU's local memory is plain memory: no more than the claim is tried. Sizes
 * are in KiB. */
double clt_probe_local_mem(clt_device *dev, const clt_probe_row *row, const char *text) {
    (void)row;
    const uint64_t claim = CLT_MIN(dev->facts.local_mem_claimed, (uint64_t)LOCAL_TOP) >> 10;
    const bool claim_works = claim > 0 && local_works(dev, text, claim << 10);
    if (claim_works && (dev->facts.local_is_global || dev->facts.type == CLT_DEVICE_CPU))
        return (double)(claim << 10);
    uint64_t good = claim_works ? claim : 0, bad = claim_works ? (LOCAL_TOP >> 10) + 1 : claim;
    /* What GPUs have, less what their drivers keep: a hit is two programs instead of eight. */
    static const uint64_t usual[] = {227, 163, 99, 64};
    for (size_t i = 0; claim_works && good == claim && i < CLT_COUNT_OF(usual); i++) {
        if (usual[i] <= good || usual[i] >= bad) continue;
        if (!local_works(dev, text, usual[i] << 10)) {
            bad = usual[i];
            continue;
        }
        good = usual[i];
        if (good + 1 < bad && !local_works(dev, text, (good + 1) << 10)) bad = good + 1;
    }
    while (bad > good + 1) {
        const uint64_t mid = (good + bad) / 2;
        if (local_works(dev, text, mid << 10))
            good = mid;
        else
            bad = mid;
    }
    return (double)(good << 10);
}

/* --- pinned copy --- */

/* The best of three copies from pinned, mapped host memory, in GB/s; 0 if the driver refuses anything. */
static double copy_speed(clt_device *dev, cl_mem pinned, cl_mem target) {
    cl_int e;
    cl_event event;
    double best = 0;
    void *p = clEnqueueMapBuffer(clt_queue_next(dev), pinned, CL_FALSE, CL_MAP_WRITE, 0, COPY_BYTES, 0, NULL,
                                 &event, &e);
    if (e != CL_SUCCESS || clt_event_quiet(dev, event) != CL_SUCCESS) return 0;
    memset(p, 1, COPY_BYTES);
    for (int i = 0; i < 4; i++) { /* the first one allocates */
        const double start = clt_now();
        if (clEnqueueWriteBuffer(clt_queue_next(dev), target, CL_FALSE, 0, COPY_BYTES, p, 0, NULL, &event) !=
                CL_SUCCESS ||
            clt_event_quiet(dev, event) != CL_SUCCESS)
            break;
        const double rate = 1e-9 * COPY_BYTES / (clt_now() - start);
        if (i > 0) best = CLT_MAX(best, rate);
    }
    clEnqueueUnmapMemObject(clt_queue_next(dev), pinned, p, 0, NULL, NULL);
    return best;
}

double clt_probe_copy(clt_device *dev, const clt_probe_row *row, const char *text) {
    (void)row, (void)text;
    cl_int e1, e2;
    if (dev->facts.max_alloc < COPY_BYTES || dev->facts.global_mem < 8ull * COPY_BYTES) return 0;
    cl_mem pinned = clCreateBuffer(dev->context, CL_MEM_ALLOC_HOST_PTR, COPY_BYTES, NULL, &e1);
    cl_mem target = clCreateBuffer(dev->context, CL_MEM_READ_WRITE, COPY_BYTES, NULL, &e2);
    const double rate = e1 == CL_SUCCESS && e2 == CL_SUCCESS ? copy_speed(dev, pinned, target) : 0;
    if (e1 == CL_SUCCESS) clReleaseMemObject(pinned);
    if (e2 == CL_SUCCESS) clReleaseMemObject(target);
    return rate;
}
