/* Loaded before the OpenCL loader (LD_PRELOAD): from launch $HANG_AT of rank $HANG_RANK on, its queue waits
 * for a user event that is never set, like a hung device. Then the file $HANG_MARK appears.
 * With $HANG_FAILS every launch from that one on fails instead.
 * With $HANG_EVENTS the file of the last events cannot be opened, as on a file system that hangs. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Declared here, because only runtime/device includes OpenCL's headers. */
typedef int cl_int;
typedef unsigned cl_uint;
typedef void *cl_command_queue, *cl_context, *cl_kernel, *cl_event;
enum { CL_OUT_OF_RESOURCES = -5, CL_QUEUE_CONTEXT = 0x1090 };
cl_int clGetCommandQueueInfo(cl_command_queue, cl_uint, size_t, void *, size_t *);
cl_event clCreateUserEvent(cl_context, cl_int *);
cl_int clEnqueueBarrierWithWaitList(cl_command_queue, cl_uint, const cl_event *, cl_event *);

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static void hang(cl_command_queue queue) {
    cl_context context;
    cl_int e;
    clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    cl_event never = clCreateUserEvent(context, &e);
    if (e == 0) e = clEnqueueBarrierWithWaitList(queue, 1, &never, NULL);
    if (e != 0) abort();
    int mark = open(getenv("HANG_MARK"), O_CREAT | O_WRONLY, 0600);
    if (mark >= 0) close(mark);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint waits, const cl_event *wait,
                              cl_event *event) {
    static cl_int (*next)(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *,
                          const size_t *, cl_uint, const cl_event *, cl_event *);
    static long launches;
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "clEnqueueNDRangeKernel");
    const long rank = number(getenv("PMI_RANK") ? "PMI_RANK" : "OMPI_COMM_WORLD_RANK");
    const long left = number("HANG_AT") - ++launches;
    if (getenv("HANG_FAILS") && left <= 0 && rank == number("HANG_RANK")) return CL_OUT_OF_RESOURCES;
    if (left == 0 && rank == number("HANG_RANK")) hang(queue);
    return next(queue, kernel, dims, offset, global, local, waits, wait, event);
}

FILE *fopen(const char *path, const char *mode) {
    static FILE *(*next)(const char *, const char *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "fopen");
    while (getenv("HANG_EVENTS") && strstr(path, "/events-")) pause();
    return next(path, mode);
}
