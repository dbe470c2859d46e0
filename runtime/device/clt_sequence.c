#include "runtime/device/clt_sequence.h"

#include <string.h>

#include "runtime/device/clt_device_private.h"

/* A launch with a kernel object of its own, which keeps its arguments. */
typedef struct {
    clt_kernel *of;
    cl_kernel kernel;
    int dims;
    size_t global[3], local[3], first[3];
    bool has_local, has_first;
} noted;

struct clt_sequence {
    clt_device *dev;
    noted *launch;
    int n, cap;
    bool whole;         /* every launch could be noted */
    uint64_t destroyed; /* buffers of the device that had been destroyed at the end */
};

clt_status clt_sequence_begin(clt_device *dev) {
    if (dev->sequence) return clt_error(CLT_FAIL, "a sequence of launches is being noted already");
    dev->sequence = clt_calloc(1, sizeof *dev->sequence);
    dev->sequence->dev = dev;
    dev->sequence->whole = !dev->recorder && !dev->rehearses;
    return CLT_OK;
}

/* A second object of the kernel, with the call's arguments; NULL: the driver refused it. */
static cl_kernel second_object(const clt_launch_call *c) {
    cl_program program;
    cl_int e = clGetKernelInfo(c->kernel->kernel, CL_KERNEL_PROGRAM, sizeof program, &program, NULL);
    cl_kernel k = e == CL_SUCCESS ? clCreateKernel(program, c->kernel->name, &e) : NULL;
    if (e != CL_SUCCESS) return NULL;
    for (int i = 0; i < c->count && e == CL_SUCCESS; i++) e = clt_kernel_set_arg(k, (cl_uint)i, &c->args[i]);
    if (e == CL_SUCCESS) return k;
    clReleaseKernel(k);
    return NULL;
}

void clt_sequence_note(clt_sequence *s, const clt_launch_call *c) {
    noted l = {.of = c->kernel, .dims = c->dims, .has_local = c->local, .has_first = c->first};
    for (int d = 0; d < c->dims; d++) {
        if (c->global[d] == 0) return;
        l.global[d] = c->global[d];
        if (c->local) l.local[d] = c->local[d];
        if (c->first) l.first[d] = c->first[d];
    }
    if (s->whole) s->whole = (l.kernel = second_object(c)) != NULL;
    if (!s->whole) return;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->launch = clt_realloc(s->launch, (size_t)s->cap * sizeof *s->launch);
    }
    s->launch[s->n++] = l;
}

clt_status clt_sequence_end(clt_device *dev, clt_sequence **out) {
    clt_sequence *s = dev->sequence;
    dev->sequence = NULL;
    s->destroyed = dev->buffers_destroyed;
    *out = s->whole ? s : NULL;
    if (!s->whole) clt_sequence_free(s);
    return CLT_OK;
}

bool clt_sequence_is_current(const clt_sequence *s) {
    return s->destroyed == s->dev->buffers_destroyed;
}

clt_status clt_sequence_run(clt_sequence *s) {
    clt_device *dev = s->dev;
    for (int i = 0; i < s->n; i++) {
        const noted *l = &s->launch[i];
        cl_event event;
        const cl_int e = clEnqueueNDRangeKernel(
            clt_queue_next(dev), l->kernel, (cl_uint)l->dims, l->has_first ? l->first : NULL, l->global,
            l->has_local ? l->local : NULL, 0, NULL, dev->profile ? &event : NULL);
        if (e != CL_SUCCESS) return clt_cl_error(dev, e, l->of->name);
        l->of->launches++;
        dev->counters.launches++;
        if (dev->profile) clt_profile_add(dev, l->of, event);
    }
    return CLT_OK;
}

void clt_sequence_free(clt_sequence *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) clReleaseKernel(s->launch[i].kernel);
    clt_free(s->launch);
    clt_free(s);
}
