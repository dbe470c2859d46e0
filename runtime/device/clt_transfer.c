/* Moves bytes between the host and a device, through staging blocks. A write leaves its data in a block and
 * returns. A device with memory of its own gets pinned blocks only: from other host memory a driver copies in
 * pieces and waits for the queue meanwhile, without a deadline. */
#include "runtime/device/clt_device_private.h"

#include <string.h>
#include <sys/mman.h>

#include "runtime/base/clt_thread.h"

/* Bytes of the largest block, which is also the most that is moved at once, and of the smallest. */
enum { BLOCK = 16 << 20, SMALLEST_BLOCK = 64 << 10 };

/* Bytes of host memory that a thread touches, fills or copies at once. */
enum { SLICE = 2 << 20, PAGE = 4096 };

/* --- pinned memory --- */

cl_int clt_side_open(clt_device *dev) {
    cl_int e = CL_SUCCESS;
    if (!dev->side) dev->side = clCreateCommandQueue(dev->context, dev->device, 0, &e);
    return e;
}

static void touch_slice(void *ctx, size_t i) {
    const clt_registered *r = ctx;
    const size_t end = CLT_MIN((i + 1) * SLICE, r->bytes);
    for (size_t at = i * SLICE; at < end; at += PAGE) ((volatile char *)r->host)[at] = 0;
}

/* The pages are touched by all cores, because the driver would touch them with one, and are large where the
 * system has such. A child process does not get them: after a fork, the system would copy what is pinned. */
cl_int clt_registered_get(clt_device *dev, size_t bytes, clt_registered *out) {
    cl_int e;
    *out = (clt_registered){.bytes = bytes};
    out->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (out->host == MAP_FAILED) return CL_OUT_OF_HOST_MEMORY;
    madvise(out->host, bytes, MADV_DONTFORK);
    madvise(out->host, bytes, MADV_HUGEPAGE);
    clt_parallel_for(CLT_CEIL_DIV(bytes, (size_t)SLICE), 0, touch_slice, out);
    out->mem = clCreateBuffer(dev->context, CL_MEM_USE_HOST_PTR | CL_MEM_READ_WRITE, bytes, out->host, &e);
    if (e != CL_SUCCESS) munmap(out->host, bytes);
    return e;
}

void clt_registered_free(clt_registered *r) {
    clReleaseMemObject(r->mem);
    munmap(r->host, r->bytes);
}

/* The driver's own pinned memory, which is a mapped buffer. */
cl_int clt_pinned_get(clt_device *dev, size_t bytes, cl_mem *mem, void **host) {
    cl_int e = clt_side_open(dev);
    if (e != CL_SUCCESS) return e;
    *mem = clCreateBuffer(dev->context, CL_MEM_ALLOC_HOST_PTR | CL_MEM_READ_WRITE, bytes, NULL, &e);
    if (e != CL_SUCCESS) return e;
    cl_event event;
    *host = clEnqueueMapBuffer(dev->side, *mem, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, NULL,
                               &event, &e);
    if (e == CL_SUCCESS) e = clFlush(dev->side);
    if (e == CL_SUCCESS) e = clt_event_quiet(dev, event);
    if (e != CL_SUCCESS) clReleaseMemObject(*mem);
    return e;
}

void clt_pinned_free(clt_device *dev, cl_mem mem, void *host) {
    clEnqueueUnmapMemObject(dev->side, mem, host, 0, NULL, NULL);
    clReleaseMemObject(mem);
}

/* --- staging blocks --- */

static void block_poll(clt_staging *s) {
    cl_int status = CL_QUEUED;
    if (!s->event || s->held) return;
    clGetEventInfo(s->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    if (status > CL_COMPLETE) return;
    clReleaseEvent(s->event);
    s->event = NULL;
}

static void block_free(clt_device *dev, clt_staging *s) {
    if (s->pinned)
        clt_pinned_free(dev, s->pinned, s->mem);
    else
        clt_free(s->mem);
    *s = (clt_staging){0};
}

/* The block is held meanwhile: the device is waited for, and who works in that time (clt_device_idle) may
 * need a block, too. */
static clt_status block_grow(clt_device *dev, clt_staging *s, size_t bytes) {
    size_t cap = SMALLEST_BLOCK;
    while (cap < bytes) cap *= 2;
    block_free(dev, s);
    if (dev->facts.type != CLT_DEVICE_CPU) {
        cl_mem pinned;
        void *mem;
        s->held = true;
        cl_int e = clt_pinned_get(dev, cap, &pinned, &mem);
        s->held = false;
        if (e == CL_SUCCESS) {
            *s = (clt_staging){.mem = mem, .cap = cap, .pinned = pinned};
            return CLT_OK;
        }
        if (dev->hung) return clt_hung_error(dev, "getting pinned memory");
        clt_debug("no pinned memory on %s: %s", dev->facts.name, clt_cl_name(e));
    }
    char *mem = clt_try_aligned_alloc(cap);
    if (!mem) return clt_no_memory("a block for transfers to the device", cap);
    *s = (clt_staging){.mem = mem, .cap = cap};
    return CLT_OK;
}

/* A free block of at least `bytes`: the smallest that fits; if none fits, the largest free one is enlarged;
 * if none is free, the oldest transfer is waited for. Once the blocks have the sizes that a step needs,
 * nothing is allocated. */
static clt_status block_get(clt_device *dev, size_t bytes, clt_staging **out) {
    clt_staging *best = NULL, *any = NULL, *busy = NULL; /* busy: the one that was used longest ago */
    for (size_t i = 0; i < CLT_COUNT_OF(dev->staging); i++) {
        clt_staging *s = &dev->staging[i];
        block_poll(s);
        if (!s->held && s->event && (!busy || s->taken < busy->taken)) busy = s;
        if (s->held || s->event) continue;
        if (!any || s->cap > any->cap) any = s;
        if (s->cap >= bytes && (!best || s->cap < best->cap)) best = s;
    }
    if (!any && !busy)
        return clt_error(CLT_FAIL, "all %zu staging blocks of %s hold reads: end one first",
                         CLT_COUNT_OF(dev->staging), dev->facts.name);
    if (!any) {
        cl_event e = busy->event;
        busy->event = NULL;
        busy->held = true; /* who works while the host waits takes another one */
        any = busy;
        const clt_status st = clt_event_wait(dev, e, "waiting for a staging block");
        busy->held = false;
        CLT_TRY(st);
    }
    if (!best) best = any;
    if (best->cap < bytes) CLT_TRY(block_grow(dev, best, bytes));
    best->taken = ++dev->taken;
    *out = best;
    return CLT_OK;
}

void clt_transfer_free(clt_device *dev) {
    for (size_t i = 0; i < CLT_COUNT_OF(dev->staging); i++) {
        if (dev->staging[i].event) clReleaseEvent(dev->staging[i].event);
        block_free(dev, &dev->staging[i]);
    }
    if (dev->side) clReleaseCommandQueue(dev->side);
}

/* --- copies between host memory --- */

enum { COPY_THREADS = 4 };

typedef struct {
    char *dst;
    const char *src;
    size_t bytes;
} host_copy;

static void copy_slice(void *ctx, size_t i) {
    const host_copy *c = ctx;
    const size_t at = i * SLICE;
    memcpy(c->dst + at, c->src + at, CLT_MIN(c->bytes - at, (size_t)SLICE));
}

/* One thread cannot use a machine's memory bandwidth. */
static void copy_large(void *dst, const void *src, size_t bytes) {
    host_copy c = {dst, src, bytes};
    clt_parallel_for(CLT_CEIL_DIV(bytes, (size_t)SLICE), CLT_MIN(clt_cpu_count(), COPY_THREADS), copy_slice,
                     &c);
}

/* --- writing and reading --- */

clt_status clt_pinned_wait(clt_device *dev) {
    return dev->finished == dev->queued ? CLT_OK : clt_device_finish(dev);
}

typedef struct {
    uint32_t *at, word;
    size_t words;
} host_fill;

static void fill_slice(void *ctx, size_t i) {
    enum { WORDS = SLICE / sizeof(uint32_t) };
    const host_fill *f = ctx;
    const size_t end = CLT_MIN((i + 1) * WORDS, f->words);
    for (size_t at = i * WORDS; at < end; at++) f->at[at] = f->word;
}

/* By all cores: the state of a large model, which is cleared at the start, exceeds 100 GB. */
clt_status clt_buffer_fill_pinned(clt_buffer *b, size_t offset, uint32_t word, size_t bytes) {
    host_fill f = {(uint32_t *)(void *)((char *)b->host + offset), word, bytes / sizeof word};
    CLT_TRY(clt_pinned_wait(b->dev));
    clt_parallel_for(CLT_CEIL_DIV(bytes, (size_t)SLICE), 0, fill_slice, &f);
    return CLT_OK;
}

clt_status clt_buffer_write(clt_buffer *b, size_t offset, const void *src, size_t bytes) {
    CLT_TRY(clt_buffer_check(b, offset, bytes, "writing"));
    clt_device *dev = b->dev;
    cl_event e;
    if (b->pinned) {
        CLT_TRY(clt_pinned_wait(dev));
        copy_large((char *)b->host + offset, src, bytes);
        return CLT_OK;
    }
    if (b->file) return clt_scratch_write(b->file, b->file_offset + offset, src, bytes);
    if (bytes > BLOCK && dev->facts.type == CLT_DEVICE_CPU) { /* saves a copy */
        CLT_CL(dev,
               clEnqueueWriteBuffer(clt_queue_next(dev), b->mem, CL_FALSE, offset, bytes, src, 0, NULL, &e),
               b->name);
        return clt_event_wait(dev, e, b->name);
    }
    for (size_t at = 0; at < bytes;) {
        size_t n = CLT_MIN(bytes - at, (size_t)BLOCK);
        clt_staging *s;
        CLT_TRY(block_get(dev, n, &s));
        memcpy(s->mem, (const char *)src + at, n);
        cl_int status = clEnqueueWriteBuffer(clt_queue_next(dev), b->mem, CL_FALSE, offset + at, n, s->mem, 0,
                                             NULL, &s->event);
        CLT_CL(dev, status, b->name);
        at += n;
        if (bytes > BLOCK) CLT_TRY(clt_device_flush(dev)); /* moves while the next part is copied */
    }
    return CLT_OK;
}

/* Uses two blocks: one is filled while the other is copied to dst. */
static clt_status read_staged(clt_buffer *b, size_t offset, char *dst, size_t bytes) {
    clt_device *dev = b->dev;
    clt_staging *slot[2] = {NULL, NULL};
    size_t size[2] = {0, 0}, queued = 0, done = 0;
    clt_status st = CLT_OK;
    for (unsigned turn = 0; done < bytes && st == CLT_OK; turn ^= 1) {
        clt_staging *s = slot[turn];
        if (s) { /* queued two turns ago */
            cl_event e = s->event;
            s->event = NULL;
            st = clt_event_wait(dev, e, b->name);
            if (st == CLT_OK) memcpy(dst + done, s->mem, size[turn]);
            s->held = false;
            slot[turn] = NULL;
            done += size[turn];
        }
        if (st != CLT_OK || queued == bytes) continue;
        size[turn] = CLT_MIN(bytes - queued, (size_t)BLOCK);
        st = block_get(dev, size[turn], &s);
        if (st != CLT_OK) continue;
        cl_int e = clEnqueueReadBuffer(clt_queue_next(dev), b->mem, CL_FALSE, offset + queued, size[turn],
                                       s->mem, 0, NULL, &s->event);
        if (e != CL_SUCCESS) {
            st = clt_cl_error(dev, e, b->name);
            continue;
        }
        s->held = true;
        slot[turn] = s;
        queued += size[turn];
        st = clt_device_flush(dev);
    }
    for (int i = 0; i < 2; i++)
        if (slot[i]) slot[i]->held = false;
    return st;
}

void clt_reads_notice(clt_device *dev) {
    for (size_t i = 0; i < CLT_COUNT_OF(dev->staging); i++) {
        clt_staging *s = &dev->staging[i];
        cl_int status;
        if (!s->held || !s->event || s->done > 0) continue;
        const cl_int e =
            clGetEventInfo(s->event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
        if (e == CL_SUCCESS && status == CL_COMPLETE) s->done = clt_now();
    }
}

clt_status clt_buffer_read_begin(clt_buffer *b, size_t offset, size_t bytes, clt_later *out) {
    clt_device *dev = b->dev;
    clt_staging *s;
    *out = (clt_later){.block = -1};
    CLT_TRY(clt_buffer_check_on_device(b, offset, bytes, "reading"));
    if (bytes > BLOCK)
        return clt_error(CLT_FAIL, "reading %zu bytes of '%s' at once: at most %d are allowed", bytes,
                         b->name, BLOCK);
    if (dev->rehearses) return CLT_OK;
    CLT_TRY(block_get(dev, bytes, &s));
    CLT_CL(
        dev,
        clEnqueueReadBuffer(clt_queue_next(dev), b->mem, CL_FALSE, offset, bytes, s->mem, 0, NULL, &s->event),
        b->name);
    s->held = true;
    s->done = 0;
    *out = (clt_later){.buffer = b, .bytes = bytes, .block = (int)(s - dev->staging)};
    return clt_device_flush(dev);
}

clt_status clt_buffer_read_end(clt_later *l, void *dst) {
    if (l->block < 0) return clt_error(CLT_FAIL, "clt_buffer_read_end without a queued read");
    clt_device *dev = l->buffer->dev;
    clt_staging *s = &dev->staging[l->block];
    cl_event e = s->event;
    s->event = NULL;
    l->block = -1;
    clt_status st = clt_event_wait(dev, e, l->buffer->name);
    if (st == CLT_OK) memcpy(dst, s->mem, l->bytes);
    s->held = false;
    l->done = s->done > 0 ? s->done : clt_now();
    return st;
}

/* A CPU device computes in host memory: mapping moves nothing. */
static clt_status read_mapped(clt_buffer *b, size_t offset, void *dst, size_t bytes) {
    void *at;
    CLT_TRY(clt_buffer_map(b, false, offset, bytes, &at));
    copy_large(dst, at, bytes);
    return clt_buffer_unmap(b, at);
}

clt_status clt_buffer_read(clt_buffer *b, size_t offset, void *dst, size_t bytes) {
    CLT_TRY(clt_buffer_check(b, offset, bytes, "reading"));
    if (bytes == 0) return CLT_OK;
    if (b->dev->rehearses) {
        memset(dst, 0, bytes);
        return CLT_OK;
    }
    if (b->pinned) {
        CLT_TRY(clt_pinned_wait(b->dev));
        copy_large(dst, (const char *)b->host + offset, bytes);
        return CLT_OK;
    }
    if (b->file) return clt_scratch_read(b->file, b->file_offset + offset, dst, bytes);
    if (b->dev->facts.type != CLT_DEVICE_CPU) return read_staged(b, offset, dst, bytes);
    if (bytes > BLOCK) return read_mapped(b, offset, dst, bytes);
    cl_event e;
    CLT_CL(b->dev,
           clEnqueueReadBuffer(clt_queue_next(b->dev), b->mem, CL_FALSE, offset, bytes, dst, 0, NULL, &e),
           b->name);
    return clt_event_wait(b->dev, e, b->name);
}

clt_status clt_ref_read_f32(clt_ref r, float *dst, size_t count) {
    return clt_buffer_read(r.buf, r.off * sizeof *dst, dst, count * sizeof *dst);
}

clt_status clt_ref_write_f32(clt_ref r, const float *src, size_t count) {
    return clt_buffer_write(r.buf, r.off * sizeof *src, src, count * sizeof *src);
}
