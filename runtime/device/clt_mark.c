#include "runtime/device/clt_mark.h"

#include "runtime/device/clt_device_private.h"

struct clt_mark {
    clt_device *dev;
    cl_event event;
    uint64_t queued; /* commands before it */
};

bool clt_device_shares_host(const clt_device *dev) {
    return dev->facts.type == CLT_DEVICE_CPU && clt_env_long(CLT_ENV_QUEUES, 1) == 1;
}

/* What the host writes is read by the device, and the other way round. */
static clt_status try_in_place(clt_buffer *b, bool *in_place) {
    enum { WORDS = 16 };
    const uint32_t by_device = 0x5a5aa5a5;
    uint32_t got[WORDS];
    void *host;
    CLT_TRY(clt_buffer_host(b, &host));
    uint32_t *word = host;
    for (uint32_t i = 0; i < WORDS; i++) word[i] = i;
    CLT_TRY(clt_buffer_read(b, 0, got, sizeof got));
    for (uint32_t i = 0; i < WORDS; i++) *in_place = *in_place && got[i] == i;
    CLT_TRY(clt_buffer_fill32(b, 0, by_device, sizeof got));
    CLT_TRY(clt_device_finish(b->dev));
    for (int i = 0; i < WORDS; i++) *in_place = *in_place && word[i] == by_device;
    return CLT_OK;
}

clt_status clt_device_works_in_place(clt_device *dev, bool *in_place) {
    clt_buffer *b;
    *in_place = clt_device_shares_host(dev);
    if (!*in_place) return CLT_OK;
    CLT_TRY(clt_buffer_create(dev, 4096, "probe of host access", &b));
    const clt_status st = try_in_place(b, in_place);
    clt_buffer_destroy(b);
    return st;
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
    *out = NULL;
    if (clt_device_shares_host(dev) && dev->completed == dev->queued) return CLT_OK;
    CLT_CL(dev, clEnqueueMarkerWithWaitList(dev->queue, 0, NULL, &e), "marking a place in a queue");
    *out = clt_malloc(sizeof **out);
    **out = (clt_mark){dev, e, dev->queued};
    return clt_device_flush(dev);
}

clt_status clt_device_after(clt_device *dev, clt_mark *m) {
    if (!m) return CLT_OK;
    CLT_CL(dev, clEnqueueBarrierWithWaitList(clt_queue_next(dev), 1, &m->event, NULL), "waiting for a mark");
    return CLT_OK;
}

clt_status clt_mark_reached(clt_mark *m, bool *reached) {
    cl_int status = CL_QUEUED;
    *reached = true;
    if (!m) return CLT_OK;
    cl_int code = clGetEventInfo(m->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    *reached = code == CL_SUCCESS && status == CL_COMPLETE;
    /* Only waiting is a point of synchronisation for the host's memory; for a complete event it is free. */
    if (*reached) code = clWaitForEvents(1, &m->event);
    if (*reached && code == CL_SUCCESS) m->dev->completed = CLT_MAX(m->dev->completed, m->queued);
    if (code == CL_SUCCESS && status < 0) code = status;
    return code == CL_SUCCESS
               ? CLT_OK
               : clt_error(CLT_FAIL, "work that overlaps with computation failed: %s", clt_cl_name(code));
}

clt_status clt_mark_wait(clt_device *dev, clt_mark *m) {
    if (!m) return CLT_OK;
    CLT_CL(dev, clRetainEvent(m->event), "waiting for a mark");
    return clt_event_wait(dev, m->event, "waiting for a mark");
}

void clt_mark_release(clt_mark *m) {
    if (m) clReleaseEvent(m->event);
    clt_free(m);
}

clt_status clt_buffer_send(clt_buffer *src, size_t offset, void *host, size_t bytes) {
    CLT_TRY(clt_buffer_check_on_device(src, offset, bytes, "reading"));
    if (bytes == 0) return CLT_OK;
    cl_event event = NULL;
    CLT_CL(src->dev,
           clEnqueueReadBuffer(clt_queue_next(src->dev), src->mem, CL_FALSE, offset, bytes, host, 0, NULL,
                               clt_trace_event(src->dev, &event)),
           src->name);
    clt_trace_add(src, event, "send", bytes);
    return CLT_OK;
}

clt_status clt_buffer_fetch(clt_buffer *dst, size_t offset, const void *host, size_t bytes) {
    CLT_TRY(clt_buffer_check_on_device(dst, offset, bytes, "writing"));
    if (bytes == 0) return CLT_OK;
    cl_event event = NULL;
    CLT_CL(dst->dev,
           clEnqueueWriteBuffer(clt_queue_next(dst->dev), dst->mem, CL_FALSE, offset, bytes, host, 0, NULL,
                                clt_trace_event(dst->dev, &event)),
           dst->name);
    clt_trace_add(dst, event, "fetch", bytes);
    return CLT_OK;
}

void clt_device_set_idle(clt_device *dev, clt_idle idle, void *ctx) {
    dev->idle = idle;
    dev->idle_ctx = ctx;
}

bool clt_device_pause_idle(clt_device *dev, bool pause) {
    const bool before = dev->idles;
    dev->idles = pause;
    return before;
}

void clt_device_idle(clt_device *dev) {
    cl_command_queue used = dev->queue;
    if (!dev->idle || dev->idles || dev->rehearses) return;
    dev->idles = true;
    dev->idle(dev->idle_ctx);
    dev->idles = false;
    dev->queue = used;
}
