/* clt_device: devices, buffers and kernels; everything between cltrain and OpenCL. Only this folder includes
 * CL/cl.h.
 *
 * A clt_device is one opened device: a context, one in-order queue, the kernels built for it, and the
 * accounts of its buffers. What a device can do is found by compiling and running small programs
 * (clt_device_facts).
 *
 *     clt_device *dev;
 *     CLT_TRY(clt_device_open(&params, &dev));
 *     clt_kernel *k;
 *     CLT_TRY(clt_kernel_get(dev, "cast/cast.cl", "cast_f32_bf16", "-DVEC=4", &k));
 *     CLT_TRY(clt_launch(k, 1, (size_t[]){n}, NULL, (clt_arg[]){CLT_REF(x), CLT_REF(y), CLT_U64(n)}, 5));
 *
 * Launches, fills and copies are queued in order and do not wait. A write waits while all staging blocks (8,
 * of at most 16 MiB) are in use, and on a CPU device above 16 MiB. Reads and clt_device_finish wait. A wait
 * ends at the latest at the device's deadline: then it returns CLT_AGAIN and the device counts as hung. A
 * device is used by one thread at a time; different devices may be used by different threads. */
#ifndef CLT_DEVICE_H
#define CLT_DEVICE_H

#include "runtime/base/clt_scratch.h"

typedef struct clt_device clt_device;
typedef struct clt_buffer clt_buffer;
typedef struct clt_kernel clt_kernel;

typedef enum { CLT_DEVICE_CPU, CLT_DEVICE_GPU, CLT_DEVICE_OTHER } clt_device_type;

enum { CLT_PCI_ADDRESS = 20 }; /* bytes of an address with its end */

/* What is known of a device: first what its driver reports, then what probing found. */
typedef struct {
    int platform_index, device_index;
    char platform[128], name[256], vendor[128], driver[128], version[128], c_version[128];
    clt_device_type type;
    uint64_t global_mem, max_alloc, local_mem_claimed; /* bytes */
    uint32_t compute_units, max_work_group, clock_mhz, native_float_width;
    bool says_subgroups, local_is_global;
    char pci[CLT_PCI_ADDRESS]; /* the address "0000:3b:00.0"; "": a CPU, or not known */
    const char *host_cpu; /* CPU devices: the CPU's name; devices with equal names share one CPU. Constant. */
    /* Found by probing; 0 where the answer is no. clt_facts.def says what each one means. */
    bool probed;
#define CLT_FACT(type, name) type name;
#include "runtime/device/clt_facts.def"
#undef CLT_FACT
    char exact_reason[160]; /* "" with exact, otherwise what numerics: exact lacks */
} clt_device_facts;

typedef struct {
    const char *pattern; /* part of a platform or device name or of the version text ("pocl"), "P:D" indices,
                          * or a comma list of these, whose entries the ranks of a host take in turn; NULL:
                          * $CLTRAIN_DEVICE, otherwise the fastest kind of device. In any case of letters. Of
                          * the devices that an entry matches only the fastest kind counts, and one runtime
                          * for each CPU; ranks with the same entry take them in turn. */
    int local_rank, local_size; /* among the ranks of this host, which share its devices; alone: 0 and 1 */
    const int *slots; /* [local_size] the place, among the devices of its entry, of the device that each rank
                       * takes, modulo their number; NULL: in turn */
    const char *cache_dir; /* NULL: the default cache folder */
    double timeout;        /* seconds; 0: $CLTRAIN_DEVICE_TIMEOUT, otherwise 120 */
    bool profile;          /* time every kernel */
    int threads;           /* CPU devices: compute units to use; 0: all, or this rank's equal share */
    bool helpers;          /* allow helper processes; for a caller that will rehearse */
    bool bind;             /* bind this process to the NUMA node of a device that is no CPU (clt_bind_near) */
    bool cpu;              /* only CPU devices count, and $CLTRAIN_DEVICE does not */
    bool need_exact;       /* refuse a device that numerics: exact cannot use (CLT_NO_DEVICE) */
    bool reprobe;          /* probe and measure again instead of using what is stored */
} clt_device_params;
clt_device_params clt_device_params_default(void);

/* All devices of all platforms. With `probe` each is opened and probed (from the cache, if it has been
 * probed before); one that fails to open has `probed` false. CLT_NO_DEVICE if there is none; the message says
 * which package to install and names driver libraries that are present but not registered. The caller frees
 * *list with clt_free. */
clt_status clt_device_list(bool probe, clt_device_facts **list, int *count);

/* Checks that each of `local_size` ranks of this host finds a device for this pattern; opens none.
 * CLT_NO_DEVICE, with a list of the devices, if one does not. */
clt_status clt_device_check_pattern(const char *pattern, int local_size);

/* The types of the devices that `local_size` ranks of this host would take for this pattern, into
 * out[local_size]; opens none. CLT_NO_DEVICE as above. */
clt_status clt_device_types(const char *pattern, int local_size, clt_device_type *out);

/* A line for each driver that is installed but not registered, with the command that registers it; NULL if
 * there is none. The caller frees it. */
char *clt_device_unregistered(void);

/* Opens the device that p selects and probes it. CLT_NO_DEVICE: none matches, or need_exact is not met;
 * CLT_AGAIN: it hangs. */
clt_status clt_device_open(const clt_device_params *p, clt_device **out);
/* Waits for queued work and releases the device and its kernels; NULL is allowed. Buffers that still exist
 * lose their memory and may only be destroyed; a warning names one of them and how many more there are. */
void clt_device_close(clt_device *dev);
const clt_device_facts *clt_device_get_facts(const clt_device *dev);
/* 32 hex digits that identify platform, device and driver: part of every cache key. */
const char *clt_device_id(const clt_device *dev);

/* Waits until all queued work is done. */
clt_status clt_device_finish(clt_device *dev);
/* Queues a marker and waits for it, at most until the deadline: true if it fails or hangs, as on devices that
 * fail every command with CL_OUT_OF_RESOURCES after a kernel wrote outside its buffers. A device that was
 * removed (CL_DEVICE_NOT_AVAILABLE) is not broken. Prints nothing. */
bool clt_device_is_broken(clt_device *dev);
/* Hands queued work to the device without waiting. */
clt_status clt_device_flush(clt_device *dev);

/* --- buffers --- */

/* `name` (cut to 63 bytes) is copied, for the memory table and messages. Contents are undefined. CLT_FAIL for
 * 0 bytes. CLT_NO_MEMORY, also for bytes > max_alloc; the message names the buffer, its size, what is in use
 * and what the device has. */
clt_status clt_buffer_create(clt_device *dev, size_t bytes, const char *name, clt_buffer **out);
/* A buffer in `host` memory (CL_MEM_USE_HOST_PTR), which must be page aligned and outlive the buffer. The
 * caller keeps it. */
clt_status clt_buffer_wrap(clt_device *dev, void *host, size_t bytes, const char *name, clt_buffer **out);
/* A buffer in host memory that the driver has pinned, so that copies between it and the device are fast
 * (clt_buffer_send and clt_buffer_fetch with the address that clt_buffer_host gives). It takes no device
 * memory if the driver registers memory of the program's; a driver that does not gives its own. Contents are
 * undefined. The host reads, writes and fills it in the functions below, after a wait for everything that is
 * queued. Kernels, copies and maps of it are CLT_FAIL. CLT_NO_MEMORY, with a message, if the driver gives
 * none. */
clt_status clt_buffer_create_pinned(clt_device *dev, size_t bytes, const char *name, clt_buffer **out);
/* A buffer in a file (clt_scratch.h), which must outlive it; it begins with zeros. The host reads, writes and
 * fills it in the functions below; the device uses what the host moves elsewhere. Errors of clt_scratch_grow.
 */
clt_status clt_buffer_create_in_file(clt_device *dev, clt_scratch *file, size_t bytes, const char *name,
                                     clt_buffer **out);
/* The file of such a buffer and where the buffer begins in it; NULL: it is in memory. */
clt_scratch *clt_buffer_file(const clt_buffer *b, uint64_t *offset);
/* Whether kernels can use it: neither pinned nor in a file. */
bool clt_buffer_is_on_device(const clt_buffer *b);
void clt_buffer_destroy(clt_buffer *b); /* NULL is allowed */
size_t clt_buffer_bytes(const clt_buffer *b);
clt_device *clt_buffer_device(const clt_buffer *b); /* NULL after the device was closed */
/* Offsets and sizes are in bytes; a range outside the buffer is CLT_FAIL. `src` may be reused on return. read
 * waits. */
clt_status clt_buffer_write(clt_buffer *b, size_t offset, const void *src, size_t bytes);
clt_status clt_buffer_read(clt_buffer *b, size_t offset, void *dst, size_t bytes);
/* A read in two parts: begin queues it (at most 16 MiB, after everything queued before), end waits for it and
 * copies the bytes to dst. In between it holds one of the device's 8 staging blocks: hold at most 6. The
 * buffer must exist until end. */
typedef struct {
    clt_buffer *buffer;
    size_t bytes;
    int block;   /* -1: no read is queued */
    double done; /* after end: when the host saw that the read was complete, by clt_now: in end, or earlier
                  * while it waited for something else, queued launches or chose queues */
} clt_later;
clt_status clt_buffer_read_begin(clt_buffer *b, size_t offset, size_t bytes, clt_later *out);
clt_status clt_buffer_read_end(clt_later *l, void *dst);
clt_status clt_buffer_fill32(clt_buffer *b, size_t offset, uint32_t word, size_t bytes); /* multiples of 4 */
/* Buffers of two devices, or overlapping ranges of one buffer, are CLT_FAIL. */
clt_status clt_buffer_copy(clt_buffer *dst, size_t dst_offset, clt_buffer *src, size_t src_offset,
                           size_t bytes);
/* Where a pinned buffer, or one of a device that works in place (clt_device_works_in_place), lies in the
 * host's memory. The host may read and write there while nothing is queued that uses the same elements. */
clt_status clt_buffer_host(clt_buffer *b, void **ptr);
/* A host pointer to a range, valid until unmap; waits. It may be read, and with `write` also written. */
clt_status clt_buffer_map(clt_buffer *b, bool write, size_t offset, size_t bytes, void **ptr);
clt_status clt_buffer_unmap(clt_buffer *b, void *ptr);

/* A place in a buffer: `off` counts elements of the tensor's type. buf NULL: an absent optional tensor. */
typedef struct {
    clt_buffer *buf;
    uint64_t off;
} clt_ref;
static inline clt_ref clt_ref_none(void) {
    return (clt_ref){NULL, 0};
}
static inline clt_ref clt_ref_at(clt_ref r, uint64_t elements) {
    return (clt_ref){r.buf, r.off + elements};
}
clt_status clt_ref_read_f32(clt_ref r, float *dst, size_t count);
clt_status clt_ref_write_f32(clt_ref r, const float *src, size_t count);

/* --- kernels --- */

/* A kernel of a file under clkernels/ ("gemm/gemm_cpu.cl"), built with the common options plus `options`. A
 * program is built once for each (file, options); it is kept in memory and, if the driver has no cache of its
 * own, in the cache folder. A failed build is CLT_FAIL; the message names a file with the log. Owned by the
 * device. */
clt_status clt_kernel_get(clt_device *dev, const char *file, const char *name, const char *options,
                          clt_kernel **out);
/* The same from a text that is no file under clkernels/ (tests). `what` names it in messages. */
clt_status clt_kernel_from_text(clt_device *dev, const char *what, const char *text, const char *name,
                                const char *options, clt_kernel **out);
/* Like clt_kernel_get, but a build that fails prints nothing. */
clt_status clt_kernel_try(clt_device *dev, const char *file, const char *name, const char *options,
                          clt_kernel **out);
size_t clt_kernel_max_work_group(const clt_kernel *k);

typedef struct {
    enum { CLT_ARG_BUF, CLT_ARG_I32, CLT_ARG_U32, CLT_ARG_U64, CLT_ARG_F32 } kind;
    union {
        clt_buffer *buf;
        int32_t i32;
        uint32_t u32;
        uint64_t u64;
        float f32;
    } v;
} clt_arg;
#define CLT_BUF(b) ((clt_arg){CLT_ARG_BUF, {.buf = (b)}})
#define CLT_I32(x) ((clt_arg){CLT_ARG_I32, {.i32 = (int32_t)(x)}})
#define CLT_U32(x) ((clt_arg){CLT_ARG_U32, {.u32 = (uint32_t)(x)}})
#define CLT_U64(x) ((clt_arg){CLT_ARG_U64, {.u64 = (uint64_t)(x)}})
#define CLT_F32(x) ((clt_arg){CLT_ARG_F32, {.f32 = (x)}})
/* Two arguments: __global T *p, ulong p_off (elements). A NULL buffer is passed as a null pointer. */
#define CLT_REF(r) CLT_BUF((r).buf), CLT_U64((r).off)

/* Queues a launch in 1 to 3 dimensions. local[d] must divide global[d]; NULL: the driver chooses. `count`
 * must be the kernel's number of arguments, else CLT_FAIL. Any size of 0: nothing is launched. */
clt_status clt_launch(clt_kernel *k, int dims, const size_t *global, const size_t *local, const clt_arg *args,
                      int count);
/* A launch in two dimensions of a kernel that knows its row by get_global_id(1) alone; local[1]
 * must be 1. NVIDIA's devices accept 65,535 work-groups along the second dimension, so more rows become
 * several launches. */
enum { CLT_LAUNCH_MOST_ROWS = 65535 };
clt_status clt_launch_rows(clt_kernel *k, const size_t global[2], const size_t *local, const clt_arg *args,
                           int count);

/* --- rehearsing --- */

/* For cltrain's own programs, first in main. true: this process is a helper, *code is its exit code. The call
 * lets the library use what belongs to the process: child processes (helpers), stderr while a driver compiles
 * what may fail, and a handler at exit (clt_quiet.h). A program that embeds the library does not call it, and
 * the library then uses none of these; README.md lists what else happens to a process. */
bool clt_device_helper_main(int argc, char **argv, int *code);
/* A rehearsal goes through work without doing it: launches do nothing, clt_buffer_read gives zeros,
 * clt_buffer_read_begin queues nothing (its end is CLT_FAIL), and the kernels that are requested are
 * collected (writes, fills and copies are done). A kernel from a rehearsal has to be got again before it is
 * launched. Then helper processes build the programs that are not in the cache (clt_helpers.h), and
 * clt_kernel_get returns what they built.
 *
 *     if (clt_device_rehearse(dev)) {
 *         ... what a step does ...
 *         clt_device_rehearsed(dev);
 *     }
 *
 * rehearse returns false and changes nothing the second time, and where there are no helpers
 * (CLTRAIN_BUILD_HELPERS=0, one core, a driver that caches programs itself). Functions may fail in
 * a rehearsal; the caller ignores it, because the work itself will report it. Until clt_device_rehearsed,
 * clt_error on this thread prints nothing (clt_error_quiet). */
bool clt_device_rehearse(clt_device *dev);
void clt_device_rehearsed(clt_device *dev);
bool clt_device_rehearses(const clt_device *dev);

/* The text of a file under clkernels/ with its #includes expanded; NULL if there is no such file. Borrowed,
 * valid until the process ends. */
const char *clt_kernel_text(const char *file);
/* Whether the device can do what a kernel file needs, as the file's own probe says: the kernel
 * `probe(__global const uint *in, __global uint *out)`, built with -DPROBE=1, runs as one work-group (of its
 * reqd_work_group_size, or 64) on in[i] = i and has to give out[i] = in[i]. An unknown file is a no. A build
 * or launch that fails is a no, without a message; so is the quirk dies_of_inline_asm, because on CPUs all of
 * these probes use inline assembly. The answer is cached for device, driver and text, except
 * for a no because memory or resources ran out. */
bool clt_device_probe_file(clt_device *dev, const char *file);
/* All files that are built in. */
int clt_kernel_file_count(void);
const char *clt_kernel_file_name(int i);
/* The options of every program: "-cl-std=CL1.2 ...". */
const char *clt_kernel_common_options(void);

/* --- caches, counters, timing --- */

/* The cache folder; NULL if caching is off. */
const char *clt_device_cache_dir(clt_device *dev);

typedef struct {
    /* Device memory in buffers now, and the most so far, without wrapped and pinned ones; pinned memory. */
    uint64_t bytes, peak_bytes, pinned_bytes;
    uint64_t buffers_created, programs_built, programs_loaded, launches;
    uint64_t sent, fetched; /* bytes of clt_buffer_send, of clt_buffer_fetch (clt_mark.h) */
    double build_seconds;
    uint64_t steady_breaches; /* builds and buffer creations while steady */
    uint64_t shortages;       /* failures because memory or resources ran out, or the device or its compiler
                               * is not available: the next try may succeed */
} clt_device_counters;
void clt_device_get_counters(const clt_device *dev, clt_device_counters *out);

/* Whether a wait exceeded the deadline. From then on every wait returns CLT_AGAIN at once and nothing of the
 * device is released. The caller must queue nothing more. */
bool clt_device_is_hung(const clt_device *dev);

/* Helper processes end. While steady, a build or the creation of a buffer counts as a breach; with
 * CLTRAIN_ASSERT_STEADY=1 it fails. A run is steady after its first step. */
void clt_device_set_steady(clt_device *dev, bool steady);
bool clt_device_is_steady(const clt_device *dev);

typedef struct {
    char name[96]; /* kernel name */
    uint64_t launches;
    double seconds;
} clt_kernel_time;
/* Waits; gives device time by kernel since the last reset, largest first. Unless params.profile or
 * $CLTRAIN_PROFILE is set, seconds are 0. The caller frees *rows. */
clt_status clt_device_profile(clt_device *dev, clt_kernel_time **rows, int *count);
void clt_device_profile_reset(clt_device *dev);
/* Waits; prints that table (clt_info). */
void clt_device_print_profile(clt_device *dev);

/* When a command was queued and when the device ran it, in seconds on clt_now's clock. The clocks' offset is
 * the smallest difference seen between the host's time after queueing a command and the device's time of
 * queueing it; starts are right to about ten microseconds. */
typedef struct {
    char name[96];  /* kernel name; "send", "fetch", "copy" or "fill" with the buffer's name */
    uint64_t bytes; /* that a copy or fill moves; 0: it is a kernel */
    int queue;      /* the clt_queue that it was put into */
    int64_t tag;
    double queued, start, end;
} clt_command_time;
/* Keeps every launch, every copy of clt_buffer_send, _fetch and _copy and every fill from here on, until
 * clt_device_trace_take waits for the device and returns them; those of one queue are in their order (the
 * caller frees *rows). Without profiling as above there are no rows. */
void clt_device_trace_start(clt_device *dev);
clt_status clt_device_trace_take(clt_device *dev, clt_command_time **rows, int *count);
/* The tag of what is queued from here on; 0 at the start. */
void clt_device_trace_tag(clt_device *dev, int64_t tag);

/* The existing buffers grouped by name, largest first. The caller frees *rows. */
typedef struct {
    char name[64];
    uint64_t bytes;
    int buffers;
} clt_memory_row;
clt_status clt_device_memory_table(clt_device *dev, clt_memory_row **rows, int *count);

/* The device's peak rates of fp32 fma (FLOP/s) and of copying (bytes/s, read plus write): measured once by
 * small kernels and cached. */
clt_status clt_device_peak(clt_device *dev, double *fma_flops, double *copy_bytes);
/* The same of the matrix units, or of a CPU's products of pairs, with 16-bit operands and fp32 sums (FLOP/s).
 * 0 where clkernels/peak/ has no kernel for them (it has some for the facts mma_f16, mma_bf16 and wgmma, and
 * for CPUs with AVX512-BF16), or where it does not build. */
clt_status clt_device_matrix_peak(clt_device *dev, double *flops);
/* From now on clt_device_peak and clt_device_matrix_peak measure at each call, and the larger of the measured
 * and the stored rate counts. */
void clt_device_measure_peaks(clt_device *dev);
/* Reports that work was done at `flops`. If that exceeds the stored peak of fma (or of matrix units), the
 * peak was measured on a busy device: `flops` replaces it, and the next request measures again. */
void clt_device_peak_exceeded(clt_device *dev, bool matrix, double flops);

#endif
