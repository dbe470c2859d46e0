/* clt_device_private: what the files of runtime/device share, and the only header with OpenCL's types. No
 * file outside runtime/device may include it, except its tests. */
#ifndef CLT_DEVICE_PRIVATE_H
#define CLT_DEVICE_PRIVATE_H

#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>

#include "runtime/base/clt_hash.h"
#include "runtime/device/clt_cache.h"
#include "runtime/device/clt_mark.h"
#include "runtime/device/clt_quirks.h"

/* A device that was found, before it is opened. */
typedef struct {
    cl_platform_id platform;
    cl_device_id device;
    clt_device_facts facts;
    char id[33];
    bool unified; /* shares memory with the host: an integrated GPU */
} clt_found;

typedef struct {
    clt_hash128 key;
    cl_program program; /* NULL: it does not build */
} clt_program;

/* What a program is made from. */
typedef struct {
    const char *what; /* the program's name in messages */
    const char *source, *options;
    clt_hash128 key; /* clt_program_key */
} clt_program_text;

struct clt_kernel {
    clt_hash128 key;
    clt_device *dev;
    cl_kernel kernel; /* NULL: only rehearsed so far; created at the next request */
    cl_uint args;
    char name[96];
    char *file, *options; /* arguments of clt_kernel_get; NULL for a kernel from a text */
    size_t max_group;
    size_t warm[8]; /* work-group sizes that were launched before (first_launch_lock); 0: unused */
    uint64_t launches;
    double seconds;
};

/* Pages of the program's that the driver has registered: its copies from and to them are as fast as those of
 * its own pinned memory (clt_pinned_get), but they take no device memory. NVIDIA's driver takes device memory
 * of the same size when a buffer is mapped, so these are not. */
typedef struct {
    cl_mem mem;
    void *host;
    size_t bytes; /* 0: none */
} clt_registered;

struct clt_buffer {
    clt_device *dev; /* NULL after the device was closed */
    cl_mem mem;      /* NULL: in a file, or registered */
    size_t bytes;
    bool wrapped, pinned;
    clt_registered registered; /* of a pinned buffer; without bytes: it is the driver's own pinned memory */
    clt_scratch *file;         /* where the buffer is, from file_offset on; NULL: in memory */
    uint64_t file_offset;
    void *host;       /* for clt_buffer_host; NULL: it was not called yet */
    uint64_t address; /* as a kernel sees it; 0: not known yet */
    uint64_t number;  /* among all buffers that were created on this device, from 1 */
    char name[64];
    clt_buffer *prev, *next;
};

/* A staging block: host memory that a transfer reads or writes. */
typedef struct {
    void *mem;
    size_t cap;
    cl_mem pinned;  /* the pinned buffer that mem is mapped from; NULL: ordinary memory */
    cl_event event; /* of the queued transfer; NULL: none */
    bool held;      /* the contents are still needed after the transfer, so the block must not be reused */
    double done;    /* of a block that is held: when its transfer was seen to be complete; 0: not yet */
    uint64_t taken; /* value of clt_device.taken at the last use of this block */
} clt_staging;

typedef struct {
    clt_kernel *kernel; /* NULL: a copy or a fill */
    char copy[72];      /* its name, and its bytes */
    size_t bytes;
    int queue; /* clt_queue */
    int64_t tag;
    cl_event event;
    double host; /* clt_now() after the command was queued */
} clt_timed;

typedef struct clt_recorder clt_recorder;
typedef struct clt_sequence clt_sequence;
typedef struct clt_waiter clt_waiter;
typedef struct clt_helpers clt_helpers;

struct clt_device {
    cl_platform_id platform;
    cl_device_id root, device; /* device is a sub-device of root, or root */
    cl_context context;
    cl_command_queue queue;              /* the one in use: one of queues */
    cl_command_queue queues[CLT_QUEUES]; /* NULL until the first use; the first one from the start */
    cl_event last[CLT_QUEUES]; /* the last command of each queue of copies if it is a copy from or to host
                                * memory, otherwise NULL */
    struct {
        cl_mem buffer, pinned;
        void *host;
    } signal;                   /* what clt_device_mark copies; NULL until a queue of copies is used */
    uint64_t queued, completed; /* commands that were put into queues; how many of them, from the first one
                                 * on, are known to be complete, which is counted where there is one queue */
    uint64_t finished;          /* commands, from the first one on, that clt_device_finish has waited for */
    cl_command_queue side;      /* maps pinned memory; NULL until it is needed */
    clt_device_facts facts;
    char id[33];
    char *cache_dir; /* NULL: caching is off */
    double timeout;
    bool profile, hung, steady, assert_steady, compiles_fast;
    bool again;        /* clt_device_params.reprobe */
    bool peaks_again;  /* clt_device_measure_peaks */
    unsigned quirks;   /* bit q: clt_quirk q is in effect; see clt_has_quirk */
    bool launch_turns; /* first launches are made by one process of the host at a time */
    bool rehearses;    /* between clt_device_rehearse and clt_device_rehearsed */
    bool rehearsed;    /* a rehearsal has begun; it may have ended */
    bool declares;     /* programs are built with include/clt_builtins.clh; off after a program needs more */
    clt_device_counters counters;
    clt_buffer *buffers;
    clt_program *programs;
    int programs_n, programs_cap;
    clt_kernel **kernels;
    int kernels_n, kernels_cap;
    clt_staging staging[8];
    uint64_t taken;                      /* counts the uses of all staging blocks */
    struct clt_tensor_maps *tensor_maps; /* clt_tensor_map.c; NULL until a map is needed */
    clt_timed *timed;
    int timed_n, timed_cap;
    clt_command_time *trace; /* times on the device's clock */
    int trace_n, trace_cap;
    double trace_shift; /* from the device's clock to clt_now's */
    int64_t trace_tag;
    bool tracing;
    clt_helpers *helpers;   /* NULL: this process builds everything */
    clt_waiter *waiter;     /* NULL: the driver needs no waiting thread */
    cl_event gate;          /* for tests, see clt_device_gate */
    clt_recorder *recorder; /* NULL: launches are not recorded */
    clt_sequence *sequence; /* notes launches (clt_sequence.h); NULL: none does */
    uint64_t buffers_destroyed;
    clt_idle idle; /* called while the host waits; NULL: nothing is */
    void *idle_ctx;
    bool idles; /* it runs, or is kept from running */
};

/* clt_mark.c: the last command of the queue in use, a copy from or to host memory, has this event, which the
 * caller still owns; NULL: it is another command. */
void clt_queue_note(clt_device *dev, cl_event event);
void clt_marks_free(clt_device *dev);

/* The queue in use, for a command that is put into it; markers alone take dev->queue. */
static inline cl_command_queue clt_queue_next(clt_device *dev) {
    dev->queued++;
    clt_queue_note(dev, NULL);
    return dev->queue;
}

static inline bool clt_has_quirk(const clt_device *dev, clt_quirk quirk) {
    return dev->quirks >> quirk & 1;
}

/* clt_device.c: opens the device with these indices to build programs, without a queue and without probing.
 * CLT_FAIL, without a message: there is no such device, its id differs, or no context can be created. Other
 * errors are those of clt_platform_find. timeout: seconds. */
clt_status clt_device_open_helper(int platform, int device, const char *id, const char *cache_dir,
                                  double timeout, clt_device **out);
/* clt_platform.c: all devices; the caller frees *out with clt_free. CLT_NO_DEVICE, with advice, if there is
 * none. */
clt_status clt_platform_find(clt_found **out, int *count);
/* clt_select.c: *index: the index in found[0 ... n - 1] of the device that `pattern` (clt_device_params;
 * NULL: the default) and `slots` (NULL: none) give to this rank. *sharing: how many ranks of the host get the
 * same device, this one included; *share: this rank's place among them, from 0. CLT_NO_DEVICE, with a
 * message, if none matches. */
clt_status clt_select(const clt_found *found, int n, const char *pattern, const int *slots, int local_rank,
                      int local_size, int *index, int *share, int *sharing);
/* clt_select.c: leaves only the CPU devices in the list of *n. CLT_NO_DEVICE, with advice: there are none. */
clt_status clt_select_cpus(clt_found *found, int *n);
/* clt_error.c: OpenCL's name of an error code, a constant; "unknown error" for an unknown code. */
const char *clt_cl_name(cl_int e);
/* Prints "WHAT on DEVICE failed: CL_..." for a failed call, with advice if memory ran out. Returns
 * CLT_NO_MEMORY for CL_OUT_OF_HOST_MEMORY and CL_MEM_OBJECT_ALLOCATION_FAILURE, otherwise CLT_FAIL. */
clt_status clt_cl_error(clt_device *dev, cl_int e, const char *what);
/* Adds 1 to dev->counters.shortages if e is a shortage of memory or resources. clt_cl_error calls it. */
void clt_cl_count(clt_device *dev, cl_int e);
#define CLT_CL(dev, call, what)                                                                              \
    do {                                                                                                     \
        cl_int clt_e_ = (call);                                                                              \
        if (clt_e_ != CL_SUCCESS) return clt_cl_error(dev, clt_e_, what);                                    \
    } while (0)

/* clt_queue.c */
/* Waits for `event`, at most dev->timeout seconds, and releases it in every case. CLT_AGAIN if the device
 * hangs; the status of clt_cl_error if the command failed. `what` names the command in messages. */
clt_status clt_event_wait(clt_device *dev, cl_event event, const char *what);
/* The same without a message. Returns CL_SUCCESS or OpenCL's error. After the timeout, and if the device hung
 * before, it returns CL_DEVICE_NOT_AVAILABLE with dev->hung set. */
cl_int clt_event_quiet(clt_device *dev, cl_event event);
/* Prints that the device did not respond during `what`, and returns CLT_AGAIN. */
clt_status clt_hung_error(clt_device *dev, const char *what);
/* Keeps the event of a launch of k for the profile, and releases it later: the caller must not. */
void clt_profile_add(clt_device *dev, clt_kernel *k, cl_event event);
/* For a copy or fill of buffer b in the queue in use: where the call that queues it puts its event, or NULL.
 * With an event clt_trace_add keeps it for the trace and releases it later; `what` is the first word of its
 * name. */
static inline cl_event *clt_trace_event(const clt_device *dev, cl_event *event) {
    return dev->tracing ? event : NULL;
}
void clt_trace_add(const clt_buffer *b, cl_event event, const char *what, size_t bytes);
/* Must be called before a build or an allocation: if the device is steady, counts a breach, and is CLT_FAIL
 * with CLTRAIN_ASSERT_STEADY=1. `what` and `name` are for the message. */
clt_status clt_steady_check(clt_device *dev, const char *what, const char *name);
void clt_queue_free(clt_device *dev);
/* Hands everything in all queues to the device. */
cl_int clt_flush_queues(clt_device *dev);
/* clt_mark.c: calls the function of clt_device_set_idle, if there is one and it does not run already. */
void clt_device_idle(clt_device *dev);
/* clt_transfer.c: looks whether reads that clt_buffer_read_begin has queued are complete. */
void clt_reads_notice(clt_device *dev);

/* clt_buffer.c: CLT_FAIL with the message "VERB n bytes at ..." if the range is not inside the buffer. */
clt_status clt_buffer_check(const clt_buffer *b, size_t offset, size_t bytes, const char *verb);
/* The same for what the device does itself: CLT_FAIL for a buffer that is pinned or in a file, too. */
clt_status clt_buffer_check_on_device(const clt_buffer *b, size_t offset, size_t bytes, const char *verb);
/* clt_transfer.c */
/* Makes sure that dev->side is there: a queue that does not wait for the device's work. */
cl_int clt_side_open(clt_device *dev);
/* For much memory. The caller frees what it gets, after the last copy. The contents are zeros. */
cl_int clt_registered_get(clt_device *dev, size_t bytes, clt_registered *out);
void clt_registered_free(clt_registered *r);
/* For little memory: *host is the mapped address of *mem and stays valid until clt_pinned_free. */
cl_int clt_pinned_get(clt_device *dev, size_t bytes, cl_mem *mem, void **host);
void clt_pinned_free(clt_device *dev, cl_mem mem, void *host);
/* Gives back the memory of a buffer; nothing if the device hangs. */
void clt_buffer_release(clt_buffer *b);
/* Before the host touches pinned memory, or frees it: copies from and to it may be queued, in any queue. */
clt_status clt_pinned_wait(clt_device *dev);
/* clt_buffer_fill32 of a pinned buffer, after its checks. */
clt_status clt_buffer_fill_pinned(clt_buffer *b, size_t offset, uint32_t word, size_t bytes);
void clt_transfer_free(clt_device *dev);

/* clt_tensor_map.c: drops the maps of a buffer that is destroyed; releases all maps of the device. */
void clt_tensor_map_forget(clt_device *dev, const clt_buffer *b);
void clt_tensor_map_free(clt_device *dev);

/* clt_kernel.c */
void clt_kernels_free(clt_device *dev);

/* clt_program.c */
#define CLT_LANGUAGE_OPTION "-cl-std=CL1.2"
#define CLT_ROUNDING_OPTION                                                                                  \
    "-cl-fp32-correctly-rounded-divide-sqrt" /* with the fact correct_rounding_option */
/* The common options followed by `options` (NULL: none); the caller frees it with clt_free. */
char *clt_program_options(const clt_device *dev, const char *options);
/* The hash of device, source and options (those of clt_program_options) that identifies a program. */
clt_hash128 clt_program_key(const clt_device *dev, const char *source, const char *options);
/* *out: the program, from memory, the cache or a helper, or built now; owned by the device. A build that
 * fails is CLT_FAIL; with quiet it prints nothing and, unless a shortage was the reason, later quiet calls
 * fail without building. */
clt_status clt_program_get(clt_device *dev, const clt_program_text *t, bool quiet, cl_program *out);
/* For a helper process: the program's binary, from the cache or built now; the caller frees *data with
 * clt_free. *data is NULL with CLT_OK if the driver caches programs itself or does not return a usable
 * binary. Prints no errors. */
clt_status clt_program_binary(clt_device *dev, const clt_program_text *t, char **data, size_t *bytes);
/* Whether this process has tried to build or loaded the program, or its file is in cltrain's cache. */
bool clt_program_is_known(const clt_device *dev, clt_hash128 key);
/* Builds *p, which was created from `source`. If the source is marked for the second pass (clt_ptx.h) and the
 * device has inline PTX, *p is replaced by the program of that pass (the old one is released), and *text is
 * the rewritten PTX, also if that pass fails; the caller frees it. Otherwise *text, which must be NULL, stays
 * so. Returns OpenCL's error; the caller releases *p in every case. */
cl_int clt_build_passes(clt_device *dev, cl_program *p, const char *source, const char *options, bool quiet,
                        char **text);

/* The arguments of clt_launch. */
typedef struct {
    clt_kernel *kernel;
    int dims;
    const size_t *global, *local;
    const clt_arg *args;
    int count;
    const size_t *first; /* global ids of the first work-item, one for each of dims; NULL: zeros */
} clt_launch_call;
/* Checks the number of arguments, sets them and queues the launch. */
clt_status clt_launch_now(const clt_launch_call *c);
/* An argument of a kernel object; CL_INVALID_MEM_OBJECT for a buffer that is pinned or in a file. */
cl_int clt_kernel_set_arg(cl_kernel k, cl_uint i, const clt_arg *a);
/* clt_sequence.c: notes a launch that was queued. */
void clt_sequence_note(clt_sequence *s, const clt_launch_call *c);
/* clt_record.c: launches and records the buffers before and after. dev->recorder must not be NULL. */
clt_status clt_record_launch(const clt_launch_call *c);

/* clt_source.c */
/* `text` with its `#include "..."` of files under clkernels/ expanded; the caller frees it with clt_free.
 * Relative paths start from the folder of `file`, a path under clkernels/. An include that cannot be expanded
 * becomes an #error line. */
char *clt_source_expand(const char *file, const char *text);
/* The text of the probe `file`, a path under clkernels/, with includes expanded; the caller frees it with
 * clt_free. NULL if the file does not exist. A folder that CLTRAIN_KERNEL_PATH names need not hold it: then
 * the built-in text is used, because what a device can do must not depend on a folder that holds other
 * kernels. */
char *clt_source_probe(const char *file);

#endif
