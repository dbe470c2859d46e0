#include "runtime/device/clt_mark.h"

#include "runtime/device/clt_device_private.h"

/* An event of OpenCL; the struct is never defined. */
static cl_event event_of(clt_mark *m) {
    return (cl_event)(void *)m;
}

bool clt_device_shares_host(const clt_device *dev) {
    return dev->facts.type == CLT_DEVICE_CPU && clt_env_long(CLT_ENV_QUEUES, 1) == 1;
}

static clt_status create(clt_device *dev, cl_command_queue *out) {
    cl_int e;
    *out = clCreateCommandQueue(dev->context, dev->device, dev->profile ? CL_QUEUE_PROFILING_ENABLE : 0, &e);
    CLT_CL(dev, e, "creating a queue");
    return CLT_OK;
}

clt_status clt_device_use(clt_device *dev, clt_queue queue) {
    if (clt_device_shares_host(dev)) queue = CLT_QUEUE_COMPUTE;
    if (!dev->queues[queue]) CLT_TRY(create(dev, &dev->queues[queue]));
    dev->queue = dev->queues[queue];
    return CLT_OK;
}

clt_status clt_device_mark(clt_device *dev, clt_mark **out) {
    cl_event e;
    CLT_CL(dev, clEnqueueMarkerWithWaitList(dev->queue, 0, NULL, &e), "marking a place in a queue");
    *out = (clt_mark *)(void *)e;
    return clt_device_flush(dev);
}

clt_status clt_device_after(clt_device *dev, clt_mark *m) {
    const cl_event e = event_of(m);
    if (!m) return CLT_OK;
    CLT_CL(dev, clEnqueueBarrierWithWaitList(dev->queue, 1, &e, NULL), "waiting for a mark");
    return CLT_OK;
}

clt_status clt_mark_reached(clt_mark *m, bool *reached) {
    cl_event e = event_of(m);
    cl_int status = CL_QUEUED;
    cl_int code = clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    *reached = code == CL_SUCCESS && status == CL_COMPLETE;
    /* Only waiting is a point of synchronisation for the host's memory; for a complete event it is free. */
    if (*reached) code = clWaitForEvents(1, &e);
    if (code == CL_SUCCESS && status < 0) code = status;
    return code == CL_SUCCESS
               ? CLT_OK
               : clt_error(CLT_FAIL, "work that overlaps with computation failed: %s", clt_cl_name(code));
}

clt_status clt_mark_wait(clt_device *dev, clt_mark *m) {
    const cl_event e = event_of(m);
    CLT_CL(dev, clRetainEvent(e), "waiting for a mark");
    return clt_event_wait(dev, e, "waiting for a mark");
}

void clt_mark_release(clt_mark *m) {
    if (m) clReleaseEvent(event_of(m));
}

clt_status clt_buffer_send(clt_buffer *src, size_t offset, void *host, size_t bytes) {
    CLT_TRY(clt_buffer_check(src, offset, bytes, "reading"));
    if (bytes == 0) return CLT_OK;
    CLT_CL(src->dev,
           clEnqueueReadBuffer(src->dev->queue, src->mem, CL_FALSE, offset, bytes, host, 0, NULL, NULL),
           src->name);
    return CLT_OK;
}

clt_status clt_buffer_fetch(clt_buffer *dst, size_t offset, const void *host, size_t bytes) {
    CLT_TRY(clt_buffer_check(dst, offset, bytes, "writing"));
    if (bytes == 0) return CLT_OK;
    CLT_CL(dst->dev,
           clEnqueueWriteBuffer(dst->dev->queue, dst->mem, CL_FALSE, offset, bytes, host, 0, NULL, NULL),
           dst->name);
    return CLT_OK;
}

void clt_device_set_idle(clt_device *dev, clt_idle idle, void *ctx) {
    dev->idle = idle;
    dev->idle_ctx = ctx;
}

void clt_device_idle(clt_device *dev) {
    cl_command_queue used = dev->queue;
    if (!dev->idle || dev->idles || dev->rehearses) return;
    dev->idles = true;
    dev->idle(dev->idle_ctx);
    dev->idles = false;
    dev->queue = used;
}
