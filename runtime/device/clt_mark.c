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

enum { SIGNAL_BYTES = 8192 };

/* Mapped for good: copies to it do not block. queue: a new one, so that the map waits for nothing. */
static cl_int create_signal(clt_device *dev, cl_command_queue queue) {
    cl_int e;
    dev->signal.buffer = clCreateBuffer(dev->context, CL_MEM_READ_WRITE, SIGNAL_BYTES, NULL, &e);
    if (e != CL_SUCCESS) return e;
    dev->signal.pinned =
        clCreateBuffer(dev->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, SIGNAL_BYTES, NULL, &e);
    if (e != CL_SUCCESS) return e;
    dev->signal.host = clEnqueueMapBuffer(queue, dev->signal.pinned, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                          SIGNAL_BYTES, 0, NULL, NULL, &e);
    return e;
}

void clt_marks_free(clt_device *dev) {
    for (int q = 0; q < CLT_QUEUES; q++)
        if (dev->last[q]) clReleaseEvent(dev->last[q]);
    if (dev->signal.pinned) clReleaseMemObject(dev->signal.pinned);
    if (dev->signal.buffer) clReleaseMemObject(dev->signal.buffer);
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
    if (queue != CLT_QUEUE_COMPUTE && !dev->signal.host)
        CLT_CL(dev, create_signal(dev, dev->queues[queue]), "the memory for marks in queues of copies");
    dev->queue = dev->queues[queue];
    clt_reads_notice(dev);
    return CLT_OK;
}

clt_queue clt_device_queue(const clt_device *dev) {
    int q = CLT_QUEUE_COMPUTE;
    while (q + 1 < CLT_QUEUES && dev->queues[q] != dev->queue) q++;
    return (clt_queue)q;
}

void clt_queue_note(clt_device *dev, cl_event event) {
    int q = CLT_QUEUE_COMPUTE;
    if (dev->queue == dev->queues[q]) return;
    while (dev->queues[q] != dev->queue) q++;
    if (dev->last[q]) clReleaseEvent(dev->last[q]);
    dev->last[q] = event;
    if (event) clRetainEvent(event);
}

static cl_event last_copy(const clt_device *dev) {
    for (int q = CLT_QUEUE_COMPUTE + 1; q < CLT_QUEUES; q++)
        if (dev->queues[q] == dev->queue) return dev->last[q];
    return NULL;
}

/* An event behind everything in a queue of copies: that of its last command if this is a copy from or to host
 * memory, otherwise of such a copy that moves nothing of use. NVIDIA's driver reports markers, and kernels,
 * of one queue as complete only when the device has also come to the kernels that were put into other queues
 * before them, which can be the rest of a pass; copies it reports at once. */
static cl_int mark_copies(clt_device *dev, cl_event *out) {
    cl_event e = last_copy(dev);
    cl_int code = CL_SUCCESS;
    if (!e) {
        code = clEnqueueReadBuffer(dev->queue, dev->signal.buffer, CL_FALSE, 0, SIGNAL_BYTES,
                                   dev->signal.host, 0, NULL, &e);
        if (code != CL_SUCCESS) return code;
        clt_queue_note(dev, e);
        *out = e;
        return code;
    }
    *out = e;
    return clRetainEvent(e);
}

clt_status clt_device_mark(clt_device *dev, clt_mark **out) {
    cl_event e;
    *out = NULL;
    if (clt_device_shares_host(dev) && dev->completed == dev->queued) return CLT_OK;
    const cl_int code = dev->queue == dev->queues[CLT_QUEUE_COMPUTE]
                            ? clEnqueueMarkerWithWaitList(dev->queue, 0, NULL, &e)
                            : mark_copies(dev, &e);
    CLT_CL(dev, code, "marking a place in a queue");
    *out = clt_malloc(sizeof **out);
    **out = (clt_mark){dev, e, dev->queued};
    return clt_device_flush(dev);
}

clt_status clt_device_after(clt_device *dev, clt_mark *m) {
    if (!m) return CLT_OK;
    CLT_CL(dev, clEnqueueBarrierWithWaitList(clt_queue_next(dev), 1, &m->event, NULL), "waiting for a mark");
    return CLT_OK;
}

clt_status clt_device_hand_over(clt_device *dev, clt_queue next) {
    clt_mark *mark;
    CLT_TRY(clt_device_mark(dev, &mark));
    clt_status st = clt_device_use(dev, next);
    if (st == CLT_OK) st = clt_device_after(dev, mark);
    clt_mark_release(mark);
    return st;
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

/* Where a copy puts its event: beside the compute queue marks take it. */
static cl_event *copy_event(const clt_device *dev, cl_event *event) {
    return dev->queue == dev->queues[CLT_QUEUE_COMPUTE] ? clt_trace_event(dev, event) : event;
}

static void copy_queued(const clt_buffer *b, cl_event event, const char *what, size_t bytes) {
    if (!event) return;
    clt_queue_note(b->dev, event);
    if (b->dev->tracing)
        clt_trace_add(b, event, what, bytes);
    else
        clReleaseEvent(event);
}

clt_status clt_buffer_send(clt_buffer *src, size_t offset, void *host, size_t bytes) {
    CLT_TRY(clt_buffer_check_on_device(src, offset, bytes, "reading"));
    if (bytes == 0) return CLT_OK;
    cl_event event = NULL;
    CLT_CL(src->dev,
           clEnqueueReadBuffer(clt_queue_next(src->dev), src->mem, CL_FALSE, offset, bytes, host, 0, NULL,
                               copy_event(src->dev, &event)),
           src->name);
    copy_queued(src, event, "send", bytes);
    src->dev->counters.sent += bytes;
    return CLT_OK;
}

clt_status clt_buffer_fetch(clt_buffer *dst, size_t offset, const void *host, size_t bytes) {
    CLT_TRY(clt_buffer_check_on_device(dst, offset, bytes, "writing"));
    if (bytes == 0) return CLT_OK;
    cl_event event = NULL;
    CLT_CL(dst->dev,
           clEnqueueWriteBuffer(clt_queue_next(dst->dev), dst->mem, CL_FALSE, offset, bytes, host, 0, NULL,
                                copy_event(dst->dev, &event)),
           dst->name);
    copy_queued(dst, event, "fetch", bytes);
    dst->dev->counters.fetched += bytes;
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
