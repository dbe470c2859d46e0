/* Waiting with a deadline, per-kernel times, the steady state. */
#include "runtime/device/clt_device_private.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/device/clt_device_test.h"
#include "runtime/device/clt_helpers.h"
#include "runtime/device/clt_waiter.h"

clt_status clt_hung_error(clt_device *dev, const char *what) {
    return clt_error(
        CLT_AGAIN,
        "device %s did not respond for %g s (%s): it hangs or is far too slow; run again, or raise "
        "CLTRAIN_DEVICE_TIMEOUT",
        dev->facts.name, dev->timeout, what);
}

cl_int clt_flush_queues(clt_device *dev) {
    cl_int e = CL_SUCCESS;
    for (int q = 0; q < CLT_QUEUES && e == CL_SUCCESS; q++)
        if (dev->queues[q]) e = clFlush(dev->queues[q]);
    return e;
}

#define SHORT_WAIT 20e-6 /* seconds: shorter waits poll without sleeping and without the waiter */
#define SHORT_WAIT_GPU                                                                                       \
    2e-3 /* the same on a GPU, which leaves the cores idle: a sleep is at least 50 us long */

static double short_wait(const clt_device *dev) {
    return dev->facts.type == CLT_DEVICE_GPU ? SHORT_WAIT_GPU : SHORT_WAIT;
}

/* Sleeps a small part of the time that was waited: the wait ends at most about 1 % late, and the CPU's cores
 * are free for a driver that computes on them. */
static void back_off(const clt_device *dev, double waited) {
    if (waited < short_wait(dev))
        sched_yield();
    else
        clt_sleep(CLT_MIN(waited / 128 + 2e-6, 0.5e-3));
}

cl_int clt_event_quiet(clt_device *dev, cl_event event) {
    /* Of the time between two polls at most this counts: the process may have been stopped (Ctrl-Z). */
    static const double at_most = 1;
    cl_int status = CL_QUEUED, e = dev->hung ? CL_DEVICE_NOT_AVAILABLE : clt_flush_queues(dev);
    double looked = clt_now(), waited = 0;
    bool lent = !dev->waiter;
    while (e == CL_SUCCESS) {
        e = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
        if (e != CL_SUCCESS || status <= CL_COMPLETE) break;
        double now = clt_now();
        waited += CLT_MIN(now - looked, at_most);
        looked = now;
        if (waited > dev->timeout) {
            dev->hung = true;
            e = CL_DEVICE_NOT_AVAILABLE;
            break;
        }
        if (!lent && waited > short_wait(dev)) {
            clt_waiter_give(dev->waiter, event);
            lent = true;
        }
        clt_reads_notice(dev);
        clt_device_idle(dev);
        back_off(dev, waited);
    }
    /* Polling "complete" is no synchronisation point; waiting for a complete event is one, and costs nothing.
     */
    if (e == CL_SUCCESS && status == CL_COMPLETE) e = clWaitForEvents(1, &event);
    clReleaseEvent(event);
    return e != CL_SUCCESS ? e : status;
}

clt_status clt_event_wait(clt_device *dev, cl_event event, const char *what) {
    cl_int e = clt_event_quiet(dev, event);
    if (dev->hung) return clt_hung_error(dev, what);
    CLT_CL(dev, e, what);
    return CLT_OK;
}

clt_status clt_device_flush(clt_device *dev) {
    CLT_CL(dev, clFlush(dev->queue), "handing over queued work");
    return CLT_OK;
}

clt_status clt_device_finish(clt_device *dev) {
    const uint64_t queued = dev->queued;
    for (int q = 0; q < CLT_QUEUES; q++) {
        cl_event e;
        if (!dev->queues[q]) continue;
        CLT_CL(dev, clEnqueueMarkerWithWaitList(dev->queues[q], 0, NULL, &e), "waiting for queued work");
        CLT_TRY(clt_event_wait(dev, e, "waiting for queued work"));
    }
    dev->completed = CLT_MAX(dev->completed, queued);
    dev->finished = queued;
    return CLT_OK;
}

bool clt_device_is_broken(clt_device *dev) {
    cl_event event;
    cl_int e = clEnqueueMarkerWithWaitList(dev->queue, 0, NULL, &event);
    if (e == CL_SUCCESS) e = clt_event_quiet(dev, event);
    return dev->hung || (e != CL_SUCCESS && e != CL_DEVICE_NOT_AVAILABLE);
}

clt_status clt_device_gate(clt_device *dev, bool closed) {
    cl_int e = CL_SUCCESS;
    if (closed && !dev->gate) {
        dev->gate = clCreateUserEvent(dev->context, &e);
        CLT_CL(dev, e, "creating a user event");
        CLT_CL(dev, clEnqueueBarrierWithWaitList(clt_queue_next(dev), 1, &dev->gate, NULL),
               "closing the gate");
    } else if (!closed && dev->gate) {
        e = clSetUserEventStatus(dev->gate, CL_COMPLETE);
        clReleaseEvent(dev->gate);
        dev->gate = NULL;
        dev->hung = false;
        CLT_CL(dev, e, "opening the gate");
    }
    return CLT_OK;
}

/* --- steady state --- */

clt_status clt_steady_check(clt_device *dev, const char *what, const char *name) {
    if (!dev->steady) return CLT_OK;
    dev->counters.steady_breaches++;
    if (dev->assert_steady)
        return clt_error(CLT_FAIL, "%s '%s' after the first step (CLTRAIN_ASSERT_STEADY=1)", what, name);
    clt_debug("%s '%s' after the first step", what, name);
    return CLT_OK;
}

bool clt_device_is_hung(const clt_device *dev) {
    return dev->hung;
}

void clt_device_set_steady(clt_device *dev, bool steady) {
    dev->steady = steady;
    if (!steady) return;
    clt_helpers_destroy(dev->helpers);
    dev->helpers = NULL;
}

bool clt_device_is_steady(const clt_device *dev) {
    return dev->steady;
}

void clt_device_get_counters(const clt_device *dev, clt_device_counters *out) {
    *out = dev->counters;
}

/* --- times by kernel --- */

/* Keeps a command. It was queued before the host read its clock, so the distance between the clocks is at
 * most the host's time less the device's: the smallest such difference is the best bound. */
static void trace_add(clt_device *dev, const clt_timed *t, cl_ulong from, cl_ulong to) {
    cl_ulong queued = 0;
    clGetEventProfilingInfo(t->event, CL_PROFILING_COMMAND_QUEUED, sizeof queued, &queued, NULL);
    if (dev->trace_n == dev->trace_cap) {
        dev->trace_cap = dev->trace_cap ? 2 * dev->trace_cap : 4096;
        dev->trace = clt_realloc(dev->trace, (size_t)dev->trace_cap * sizeof *dev->trace);
    }
    clt_command_time *l = &dev->trace[dev->trace_n];
    *l = (clt_command_time){.bytes = t->bytes,
                            .queue = t->queue,
                            .tag = t->tag,
                            .queued = 1e-9 * (double)queued,
                            .start = 1e-9 * (double)from,
                            .end = 1e-9 * (double)to};
    snprintf(l->name, sizeof l->name, "%s", t->kernel ? t->kernel->name : t->copy);
    double shift = t->host - l->queued;
    if (dev->trace_n == 0 || shift < dev->trace_shift) dev->trace_shift = shift;
    dev->trace_n++;
}

/* Reads the times of the events that are complete, and releases them. */
static void collect(clt_device *dev) {
    int kept = 0;
    for (int i = 0; i < dev->timed_n; i++) {
        clt_timed t = dev->timed[i];
        cl_int status = CL_QUEUED;
        cl_ulong from = 0, to = 0;
        if (clGetEventInfo(t.event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL) ==
                CL_SUCCESS &&
            status > CL_COMPLETE) {
            dev->timed[kept++] = t;
            continue;
        }
        clGetEventProfilingInfo(t.event, CL_PROFILING_COMMAND_START, sizeof from, &from, NULL);
        clGetEventProfilingInfo(t.event, CL_PROFILING_COMMAND_END, sizeof to, &to, NULL);
        if (t.kernel && to > from) t.kernel->seconds += 1e-9 * (double)(to - from);
        if (dev->tracing) trace_add(dev, &t, from, to);
        clReleaseEvent(t.event);
    }
    dev->timed_n = kept;
}

/* Keeps an event of the queue in use until it is complete. */
static clt_timed *keep(clt_device *dev, cl_event event) {
    if (dev->timed_n == dev->timed_cap) {
        if (dev->timed_cap) collect(dev);
        if (2 * dev->timed_n >= dev->timed_cap) {
            dev->timed_cap = dev->timed_cap ? 2 * dev->timed_cap : 4096;
            dev->timed = clt_realloc(dev->timed, (size_t)dev->timed_cap * sizeof *dev->timed);
        }
    }
    clt_timed *t = &dev->timed[dev->timed_n++];
    *t =
        (clt_timed){.queue = clt_device_queue(dev), .tag = dev->trace_tag, .event = event, .host = clt_now()};
    return t;
}

void clt_profile_add(clt_device *dev, clt_kernel *k, cl_event event) {
    keep(dev, event)->kernel = k;
}

void clt_trace_add(const clt_buffer *b, cl_event event, const char *what, size_t bytes) {
    if (!event) return;
    clt_timed *t = keep(b->dev, event);
    t->bytes = bytes;
    snprintf(t->copy, sizeof t->copy, "%s %s", what, b->name);
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const clt_kernel_time *)a)->seconds, y = ((const clt_kernel_time *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

clt_status clt_device_profile(clt_device *dev, clt_kernel_time **rows, int *count) {
    CLT_TRY(clt_device_finish(dev));
    collect(dev);
    clt_kernel_time *t = clt_calloc((size_t)dev->kernels_n + 1, sizeof *t);
    int n = 0;
    for (int i = 0; i < dev->kernels_n; i++) {
        const clt_kernel *k = dev->kernels[i];
        if (!k->launches) continue;
        int at = 0;
        while (at < n && strcmp(t[at].name, k->name) != 0) at++;
        if (at == n) snprintf(t[n++].name, sizeof t[0].name, "%s", k->name);
        t[at].launches += k->launches;
        t[at].seconds += k->seconds;
    }
    qsort(t, (size_t)n, sizeof *t, by_seconds);
    *rows = t;
    *count = n;
    return CLT_OK;
}

void clt_device_print_profile(clt_device *dev) {
    clt_kernel_time *rows = NULL;
    int n = 0;
    double all = 0;
    if (clt_device_profile(dev, &rows, &n) != CLT_OK) return;
    for (int i = 0; i < n; i++) all += rows[i].seconds;
    clt_info("device time by kernel (%.3f s):", all);
    for (int i = 0; i < n; i++)
        clt_info("  %5.1f %%  %9.3f ms  %6llu x  %s", 100 * rows[i].seconds / all, rows[i].seconds * 1e3,
                 (unsigned long long)rows[i].launches, rows[i].name);
    clt_free(rows);
}

void clt_device_profile_reset(clt_device *dev) {
    if (clt_device_finish(dev) == CLT_OK) collect(dev);
    for (int i = 0; i < dev->kernels_n; i++) {
        dev->kernels[i]->launches = 0;
        dev->kernels[i]->seconds = 0;
    }
}

void clt_device_trace_start(clt_device *dev) {
    if (clt_device_finish(dev) == CLT_OK) collect(dev);
    dev->tracing = dev->profile;
    dev->trace_n = 0;
}

void clt_device_trace_tag(clt_device *dev, int64_t tag) {
    dev->trace_tag = tag;
}

clt_status clt_device_trace_take(clt_device *dev, clt_command_time **rows, int *count) {
    CLT_TRY(clt_device_finish(dev));
    collect(dev);
    for (int i = 0; i < dev->trace_n; i++) {
        dev->trace[i].queued += dev->trace_shift;
        dev->trace[i].start += dev->trace_shift;
        dev->trace[i].end += dev->trace_shift;
    }
    *rows = dev->trace;
    *count = dev->trace_n;
    dev->trace = NULL;
    dev->trace_n = dev->trace_cap = 0;
    dev->tracing = false;
    return CLT_OK;
}

void clt_queue_free(clt_device *dev) {
    clt_free(dev->trace);
    for (int i = 0; i < dev->timed_n; i++) clReleaseEvent(dev->timed[i].event);
    clt_free(dev->timed);
}
