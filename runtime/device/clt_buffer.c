/* Device memory: create, wrap, fill, copy, map; and the memory table. */
#include "runtime/device/clt_device_private.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/device/clt_helpers.h"

static clt_status no_memory(const clt_device *dev, const char *name, size_t bytes, const char *why) {
    char want[32], used[32], total[32], most[32];
    return clt_error(
        CLT_NO_MEMORY,
        "buffer '%s' of %s does not fit on %s: %s; %s are in use, the device has %s (largest single buffer "
        "%s): use a smaller microbatch or model",
        name, clt_human_bytes((double)bytes, want), dev->facts.name, why,
        clt_human_bytes((double)dev->counters.bytes, used),
        clt_human_bytes((double)dev->facts.global_mem, total),
        clt_human_bytes((double)dev->facts.max_alloc, most));
}

/* Drivers allocate at the first use and fail only then. The buffer is used here, where the message can name
 * it. */
static cl_int touch(clt_device *dev, cl_mem mem, size_t bytes) {
#ifdef CLT_DEBUG
    cl_uint word = 0xffffffffu; /* a NaN in every type, so that undefined contents are noticed */
    size_t n = bytes - bytes % 4;
#else
    cl_uint word = 0;
    size_t n = CLT_MIN(bytes, (size_t)4);
#endif
    if (n < 4 || (dev->facts.type == CLT_DEVICE_CPU && n == 4)) return CL_SUCCESS;
    return clEnqueueFillBuffer(clt_queue_next(dev), mem, &word, sizeof word, 0, n, 0, NULL, NULL);
}

static cl_int make(clt_device *dev, void *host, size_t bytes, cl_mem *out) {
    cl_int e;
    cl_mem mem =
        clCreateBuffer(dev->context, CL_MEM_READ_WRITE | (host ? CL_MEM_USE_HOST_PTR : 0), bytes, host, &e);
    if (e == CL_SUCCESS && !host && (e = touch(dev, mem, bytes)) != CL_SUCCESS) clReleaseMemObject(mem);
    *out = mem;
    return e;
}

/* The device bytes that a buffer counts for. */
static size_t device_bytes(const clt_buffer *b) {
    return b->wrapped || b->pinned || b->file ? 0 : b->bytes;
}

/* Puts a new buffer into the device's list and accounts. */
static clt_buffer *add(clt_buffer made, const char *name) {
    clt_device *dev = made.dev;
    clt_buffer *b = clt_memdup(&made, sizeof made);
    b->next = dev->buffers;
    snprintf(b->name, sizeof b->name, "%s", name);
    if (b->next) b->next->prev = b;
    dev->buffers = b;
    b->number = ++dev->counters.buffers_created;
    dev->counters.bytes += device_bytes(b);
    dev->counters.peak_bytes = CLT_MAX(dev->counters.peak_bytes, dev->counters.bytes);
    if (b->pinned) dev->counters.pinned_bytes += b->bytes;
    return b;
}

static clt_status create(clt_device *dev, void *host, size_t bytes, const char *name, clt_buffer **out) {
    CLT_TRY(clt_steady_check(dev, "creating buffer", name));
    if (bytes == 0) return clt_error(CLT_FAIL, "buffer '%s' has no bytes", name);
    if (bytes > dev->facts.max_alloc)
        return no_memory(dev, name, bytes, "it is larger than the largest single buffer");
    if (!host && dev->counters.bytes + bytes > dev->facts.global_mem)
        return no_memory(dev, name, bytes, "not enough memory is free");
    cl_mem mem;
    cl_int e = make(dev, host, bytes, &mem);
    if (e != CL_SUCCESS && dev->helpers) { /* each helper uses some of the device's memory */
        clt_helpers_destroy(dev->helpers);
        dev->helpers = NULL;
        e = make(dev, host, bytes, &mem);
    }
    if (e != CL_SUCCESS) return no_memory(dev, name, bytes, clt_cl_name(e));
    *out = add((clt_buffer){.dev = dev, .mem = mem, .bytes = bytes, .wrapped = host != NULL, .host = host},
               name);
    return CLT_OK;
}

clt_status clt_buffer_create(clt_device *dev, size_t bytes, const char *name, clt_buffer **out) {
    return create(dev, NULL, bytes, name, out);
}

clt_status clt_buffer_wrap(clt_device *dev, void *host, size_t bytes, const char *name, clt_buffer **out) {
    if (!host) return clt_error(CLT_FAIL, "buffer '%s' wraps a null pointer", name);
    return create(dev, host, bytes, name, out);
}

clt_status clt_buffer_create_pinned(clt_device *dev, size_t bytes, const char *name, clt_buffer **out) {
    char want[32], have[32];
    clt_buffer b = {.dev = dev, .bytes = bytes, .pinned = true};
    CLT_TRY(clt_steady_check(dev, "creating buffer", name));
    if (bytes == 0) return clt_error(CLT_FAIL, "buffer '%s' has no bytes", name);
    cl_int e = clt_registered_get(dev, bytes, &b.registered);
    if (e == CL_SUCCESS) {
        b.host = b.registered.host;
    } else {
        clt_debug("%s does not register %zu bytes of memory: %s", dev->facts.name, bytes, clt_cl_name(e));
        b.registered.bytes = 0;
        e = clt_pinned_get(dev, bytes, &b.mem, &b.host);
    }
    if (dev->hung) return clt_hung_error(dev, "getting pinned memory");
    clt_cl_count(dev, e);
    if (e != CL_SUCCESS)
        return clt_error(CLT_NO_MEMORY,
                         "%s gives no pinned host memory for '%s' (%s more, %s so far): %s; use fewer ranks "
                         "on this host, or keep the state on the device (cltrain.offload: none)",
                         dev->facts.name, name, clt_human_bytes((double)bytes, want),
                         clt_human_bytes((double)dev->counters.pinned_bytes, have), clt_cl_name(e));
    *out = add(b, name);
    return CLT_OK;
}

clt_status clt_buffer_create_in_file(clt_device *dev, clt_scratch *file, size_t bytes, const char *name,
                                     clt_buffer **out) {
    uint64_t offset;
    CLT_TRY(clt_steady_check(dev, "creating buffer", name));
    if (bytes == 0) return clt_error(CLT_FAIL, "buffer '%s' has no bytes", name);
    CLT_TRY(clt_scratch_grow(file, bytes, &offset));
    *out = add((clt_buffer){.dev = dev, .bytes = bytes, .file = file, .file_offset = offset}, name);
    return CLT_OK;
}

clt_scratch *clt_buffer_file(const clt_buffer *b, uint64_t *offset) {
    *offset = b->file_offset;
    return b->file;
}

bool clt_buffer_is_on_device(const clt_buffer *b) {
    return !b->pinned && !b->file;
}

void clt_buffer_release(clt_buffer *b) {
    if (b->file) return;
    if (b->pinned) clt_pinned_wait(b->dev);
    if (b->dev->hung) return;
    if (b->registered.bytes)
        clt_registered_free(&b->registered);
    else if (b->pinned)
        clt_pinned_free(b->dev, b->mem, b->host);
    else
        clReleaseMemObject(b->mem);
}

void clt_buffer_destroy(clt_buffer *b) {
    if (!b) return;
    if (b->dev) {
        clt_tensor_map_forget(b->dev, b);
        b->dev->buffers_destroyed++;
        if (b->prev) b->prev->next = b->next;
        if (b->next) b->next->prev = b->prev;
        if (b->dev->buffers == b) b->dev->buffers = b->next;
        b->dev->counters.bytes -= device_bytes(b);
        if (b->pinned) b->dev->counters.pinned_bytes -= b->bytes;
        clt_buffer_release(b);
    }
    clt_free(b);
}

size_t clt_buffer_bytes(const clt_buffer *b) {
    return b->bytes;
}

clt_device *clt_buffer_device(const clt_buffer *b) {
    return b->dev;
}

clt_status clt_buffer_check(const clt_buffer *b, size_t offset, size_t bytes, const char *verb) {
    if (offset <= b->bytes && bytes <= b->bytes - offset) return CLT_OK;
    return clt_error(CLT_FAIL, "%s %zu bytes at %zu of buffer '%s', which has %zu bytes", verb, bytes, offset,
                     b->name, b->bytes);
}

clt_status clt_buffer_check_on_device(const clt_buffer *b, size_t offset, size_t bytes, const char *verb) {
    CLT_TRY(clt_buffer_check(b, offset, bytes, verb));
    if (clt_buffer_is_on_device(b)) return CLT_OK;
    return clt_error(CLT_FAIL, "%s buffer '%s' on the device: it is in %s; this is a bug", verb, b->name,
                     b->file ? "a file" : "the host's memory");
}

/* --- on the device --- */

clt_status clt_buffer_fill32(clt_buffer *b, size_t offset, uint32_t word, size_t bytes) {
    CLT_TRY(clt_buffer_check(b, offset, bytes, "filling"));
    if (offset % 4 || bytes % 4)
        return clt_error(CLT_FAIL, "filling %zu bytes at %zu of buffer '%s': not multiples of 4", bytes,
                         offset, b->name);
    if (bytes == 0) return CLT_OK;
    if (b->pinned) return clt_buffer_fill_pinned(b, offset, word, bytes);
    if (b->file) return clt_scratch_fill(b->file, b->file_offset + offset, word, bytes);
    cl_event event = NULL;
    CLT_CL(b->dev,
           clEnqueueFillBuffer(clt_queue_next(b->dev), b->mem, &word, 4, offset, bytes, 0, NULL,
                               clt_trace_event(b->dev, &event)),
           b->name);
    clt_trace_add(b, event, "fill", bytes);
    return CLT_OK;
}

clt_status clt_buffer_copy(clt_buffer *dst, size_t dst_offset, clt_buffer *src, size_t src_offset,
                           size_t bytes) {
    CLT_TRY(clt_buffer_check_on_device(src, src_offset, bytes, "copying"));
    CLT_TRY(clt_buffer_check_on_device(dst, dst_offset, bytes, "copying"));
    if (dst->dev != src->dev)
        return clt_error(CLT_FAIL, "copying '%s' to '%s': they are on different devices", src->name,
                         dst->name);
    if (bytes == 0) return CLT_OK;
    cl_event event = NULL;
    CLT_CL(dst->dev,
           clEnqueueCopyBuffer(clt_queue_next(dst->dev), src->mem, dst->mem, src_offset, dst_offset, bytes, 0,
                               NULL, clt_trace_event(dst->dev, &event)),
           dst->name);
    clt_trace_add(dst, event, "copy", bytes);
    return CLT_OK;
}

/* --- mapping --- */

clt_status clt_buffer_map(clt_buffer *b, bool write, size_t offset, size_t bytes, void **ptr) {
    CLT_TRY(clt_buffer_check_on_device(b, offset, bytes, "mapping"));
    cl_event event;
    cl_int e;
    void *p =
        clEnqueueMapBuffer(clt_queue_next(b->dev), b->mem, CL_FALSE, CL_MAP_READ | (write ? CL_MAP_WRITE : 0),
                           offset, bytes, 0, NULL, &event, &e);
    CLT_CL(b->dev, e, b->name);
    CLT_TRY(clt_event_wait(b->dev, event, b->name));
    *ptr = p;
    return CLT_OK;
}

clt_status clt_buffer_unmap(clt_buffer *b, void *ptr) {
    CLT_CL(b->dev, clEnqueueUnmapMemObject(clt_queue_next(b->dev), b->mem, ptr, 0, NULL, NULL), b->name);
    return CLT_OK;
}

static cl_int find_host(clt_buffer *b) {
    clt_device *dev = b->dev;
    cl_event event;
    cl_int e = clt_side_open(dev);
    if (e != CL_SUCCESS) return e;
    void *p = clEnqueueMapBuffer(dev->side, b->mem, CL_FALSE, CL_MAP_READ, 0, b->bytes, 0, NULL, &event, &e);
    if (e == CL_SUCCESS) e = clFlush(dev->side);
    if (e == CL_SUCCESS) e = clt_event_quiet(dev, event);
    if (e == CL_SUCCESS) e = clEnqueueUnmapMemObject(dev->side, b->mem, p, 0, NULL, &event);
    if (e == CL_SUCCESS) e = clFlush(dev->side);
    if (e == CL_SUCCESS) e = clt_event_quiet(dev, event);
    if (e == CL_SUCCESS) b->host = p;
    return e;
}

clt_status clt_buffer_host(clt_buffer *b, void **ptr) {
    if (b->file) return clt_buffer_check_on_device(b, 0, 0, "finding");
    if (!b->host) CLT_CL(b->dev, find_host(b), b->name);
    *ptr = b->host;
    return CLT_OK;
}

/* --- the memory table --- */

static int by_bytes(const void *a, const void *b) {
    const clt_memory_row *x = a, *y = b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : strcmp(x->name, y->name);
}

clt_status clt_device_memory_table(clt_device *dev, clt_memory_row **rows, int *count) {
    int n = 0, cap = 0;
    for (const clt_buffer *b = dev->buffers; b; b = b->next) cap++;
    clt_memory_row *t = clt_calloc((size_t)cap + 1, sizeof *t);
    for (const clt_buffer *b = dev->buffers; b; b = b->next) {
        int at = 0;
        if (b->file) continue;
        while (at < n && strcmp(t[at].name, b->name) != 0) at++;
        if (at == n) snprintf(t[n++].name, sizeof t[0].name, "%s", b->name);
        t[at].bytes += b->bytes;
        t[at].buffers++;
    }
    qsort(t, (size_t)n, sizeof *t, by_bytes);
    *rows = t;
    *count = n;
    return CLT_OK;
}
