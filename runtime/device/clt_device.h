/* clt_device: everything between cltrain and OpenCL. This folder is the only place that includes CL/cl.h.
 *
 * A clt_device is one opened device: a context, one in-order queue, the kernels built for it, its buffers'
 * accounts. What a device can do is probed by compiling and running (clt_device_facts), not believed.
 *
 *     clt_device *dev;
 *     CLT_TRY(clt_device_open(&params, &dev));
 *     clt_kernel *k;
 *     CLT_TRY(clt_kernel_get(dev, "cast/cast.cl", "cast_f32_bf16", "-DVEC=4", &k));
 *     CLT_TRY(clt_launch(k, 1, (size_t[]){n}, NULL, (clt_arg[]){CLT_REF(x), CLT_REF(y), CLT_U64(n)}, 5));
 *
 * Launches, writes and copies are queued in order and do not wait; reads and clt_device_finish wait, always
 * with the device's deadline (CLT_AGAIN "device is hung", never an endless wait). A device is used by one
 * thread at a time. */
#ifndef CLT_DEVICE_H
#define CLT_DEVICE_H

#include "runtime/base/clt_base.h"

typedef struct clt_device clt_device;
typedef struct clt_buffer clt_buffer;
typedef struct clt_kernel clt_kernel;

typedef enum { CLT_DEVICE_CPU, CLT_DEVICE_GPU, CLT_DEVICE_OTHER } clt_device_type;

/* What is known of a device. The first part is what the driver says; the second part was probed by running.
 */
typedef struct {
    int platform_index, device_index;
    char platform[128], name[256], vendor[128], driver[128], version[128], c_version[128];
    clt_device_type type;
    uint64_t global_mem, max_alloc, local_mem_claimed;
    uint32_t compute_units, max_work_group, clock_mhz, native_float_width;
    bool says_subgroups, local_is_global;
    const char
        *host_cpu; /* CPU devices: the CPU's name, so that two runtimes on one CPU count as one device */
    /* Found by probing; 0 where the answer is no. clt_facts.def says what each one means. */
    bool probed;
#define CLT_FACT(type, name) type name;
#include "runtime/device/clt_facts.def"
#undef CLT_FACT
    char exact_reason[160]; /* "" with exact, otherwise what numerics: exact lacks */
} clt_device_facts;

typedef struct {
    const char *pattern; /* part of a platform or device name or of the version text ("pocl"), "P:D" indices,
                          * or a comma list of these with one entry per node-local rank, used in turn; NULL:
                          * $CLTRAIN_DEVICE, else the fastest kind there */
    int local_rank, local_size; /* ranks of this host, to spread devices; 0 and 1 for one process */
    const char *cache_dir;      /* NULL: the default cache folder */
    double timeout;             /* seconds; 0: $CLTRAIN_DEVICE_TIMEOUT, else 120 */
    bool profile;               /* time every kernel */
    int threads;                /* CPU devices: use only this many compute units (a sub-device); 0: all */
    bool helpers;               /* a rehearsal will come: processes may build kernels beside this one */
    bool need_exact;            /* refuse a device that fails the probes of numerics: exact (CLT_NO_DEVICE) */
    bool reprobe;               /* probe and measure again instead of using what is stored */
} clt_device_params;
clt_device_params clt_device_params_default(void);

/* All devices of all platforms; platforms without devices are skipped. With `probe`, each is opened and
 * probed (cached). No platform or no device: CLT_NO_DEVICE, with advice (which package; a driver library
 * that is present but not registered is named). The caller frees *list with clt_free. */
clt_status clt_device_list(bool probe, clt_device_facts **list, int *count);

/* Whether every one of `local_size` ranks of this host would find a device for this pattern, without opening
 * one: CLT_NO_DEVICE, with what there is, if not. */
clt_status clt_device_check_pattern(const char *pattern, int local_size);

/* Lines that name the drivers which are on this machine but not registered, each with the command that
 * registers it; NULL if there are none. The caller frees it. */
char *clt_device_unregistered(void);

clt_status clt_device_open(const clt_device_params *p, clt_device **out);
void clt_device_close(clt_device *dev); /* NULL is allowed; releases kernels, warns about living buffers */
const clt_device_facts *clt_device_get_facts(const clt_device *dev);
/* 32 hex digits naming platform, device and driver: part of every cache key. */
const char *clt_device_id(const clt_device *dev);

/* Waits until all queued work is done. */
clt_status clt_device_finish(clt_device *dev);
/* Whether the device is there and answers no more, as some do with "out of resources" once a kernel broke
 * them; one that is away (removed, or taken by somebody) is not. Nothing is printed. */
bool clt_device_is_broken(clt_device *dev);
/* Hands queued work to the device without waiting. */
clt_status clt_device_flush(clt_device *dev);

/* --- buffers --- */

/* `name` is kept for the memory table and messages. Contents are undefined. CLT_NO_MEMORY names the buffer,
 * its size, what is in use and what the device has. bytes > max_alloc is CLT_NO_MEMORY too. */
clt_status clt_buffer_create(clt_device *dev, size_t bytes, const char *name, clt_buffer **out);
/* The buffer is `host` memory (page aligned, stays the caller's): CL_MEM_USE_HOST_PTR. */
clt_status clt_buffer_wrap(clt_device *dev, void *host, size_t bytes, const char *name, clt_buffer **out);
void clt_buffer_destroy(clt_buffer *b); /* NULL is allowed */
size_t clt_buffer_bytes(const clt_buffer *b);
clt_device *clt_buffer_device(const clt_buffer *b); /* NULL once it was closed */
/* Offsets and sizes in bytes. write and fill do not wait for the device, but `src` may be reused on return.
 */
clt_status clt_buffer_write(clt_buffer *b, size_t offset, const void *src, size_t bytes);
clt_status clt_buffer_read(clt_buffer *b, size_t offset, void *dst, size_t bytes);
/* A read that arrives while the caller goes on: begin queues it (at most 16 MiB, behind everything queued so
 * far), end waits for it and copies it out. Between the two it holds one of the few staging blocks: end each
 * soon. */
typedef struct {
    clt_buffer *buffer;
    size_t bytes;
    int block; /* -1: nothing under way */
} clt_later;
clt_status clt_buffer_read_begin(clt_buffer *b, size_t offset, size_t bytes, clt_later *out);
clt_status clt_buffer_read_end(clt_later *l, void *dst);
clt_status clt_buffer_fill32(clt_buffer *b, size_t offset, uint32_t word, size_t bytes); /* multiples of 4 */
clt_status clt_buffer_copy(clt_buffer *dst, size_t dst_offset, clt_buffer *src, size_t src_offset,
                           size_t bytes);
/* Host pointer to a range, valid until unmap; waits. write: the host will write it. */
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

/* A kernel of a file under clkernels/ ("gemm/gemm_cpu.cl"), built with the project's common options plus
 * `options`. Programs are built once per (file, options), kept in memory and, where that helps, in the binary
 * cache on disk; a build failure writes the log to a file and names it (CLT_FAIL). Owned by the device. */
clt_status clt_kernel_get(clt_device *dev, const char *file, const char *name, const char *options,
                          clt_kernel **out);
/* Same from a source text that is not under clkernels/ (probes, tests). `what` names it in messages. */
clt_status clt_kernel_from_text(clt_device *dev, const char *what, const char *text, const char *name,
                                const char *options, clt_kernel **out);
/* Like clt_kernel_get, but a failing build is no message and returns CLT_FAIL quietly. */
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

/* Queues a launch. `local` NULL lets the driver choose; otherwise it divides `global`. */
clt_status clt_launch(clt_kernel *k, int dims, const size_t *global, const size_t *local, const clt_arg *args,
                      int count);
/* A launch in two dimensions, of a kernel that knows its row by get_global_id(1) alone; a work-group is in
 * one row. NVIDIA's devices take 65,535 work-groups along the second dimension: more rows are several
 * launches. */
enum { CLT_LAUNCH_MOST_ROWS = 65535 };
clt_status clt_launch_rows(clt_kernel *k, const size_t global[2], const size_t *local, const clt_arg *args,
                           int count);

/* --- rehearsing --- */

/* A rehearsal goes through work without doing it: launches do nothing, reads give zeros, and kernels that are
 * asked for are noted down (writes, fills and copies are done). After it helper processes build what is not
 * in the cache (clt_helpers.h), and whoever asks for a kernel in earnest gets what they made.
 *
 *     if (clt_device_rehearse(dev)) {
 *         ... what a step does ...
 *         clt_device_rehearsed(dev);
 *     }
 *
 * rehearse says false, and changes nothing, the second time, and where there are no helpers
 * (CLTRAIN_BUILD_HELPERS=0, one core, drivers that keep their programs in parts that only a launch makes). A
 * failure in between is no failure of the work, which goes on and says itself what it cannot do: between the
 * two, clt_error on this thread prints nothing (clt_error_quiet). */
/* For cltrain's own programs, first in main: true, with the exit code, if this process was started as a
 * helper. It gives the library what a host program keeps for itself: child processes (helpers), stderr while
 * a driver compiles what may fail, and a handler at exit (clt_quiet.h). A program that embeds the library
 * does not call it, and has none of these; README.md lists what else happens to a process. */
bool clt_device_helper_main(int argc, char **argv, int *code);
bool clt_device_rehearse(clt_device *dev);
void clt_device_rehearsed(clt_device *dev);
bool clt_device_rehearses(const clt_device *dev);

/* The text of a file under clkernels/ with its #includes expanded, or NULL if there is none. Borrowed. */
const char *clt_kernel_text(const char *file);
/* Whether the device can do what a kernel file needs, by the file's own word: its kernel `probe(__global
 * const uint *in, __global uint *out)`, built with -DPROBE=1, runs as one work-group (of its
 * reqd_work_group_size, or 64) and must give out[i] = in[i]. Nothing is printed when it does not build or
 * run. The answer is kept in the cache folder under device, driver and text; a no for want of memory or
 * resources is not kept. */
bool clt_device_probe_file(clt_device *dev, const char *file);
/* All embedded files, for tests and offline gates. */
int clt_kernel_file_count(void);
const char *clt_kernel_file_name(int i);
/* Options that every program is built with, for offline gates: "-cl-std=CL1.2 ...". */
const char *clt_kernel_common_options(void);

/* --- caches, counters, timing --- */

/* Folder of this device's caches, made on demand; NULL when caching is off. */
const char *clt_device_cache_dir(clt_device *dev);

typedef struct {
    uint64_t bytes, peak_bytes; /* device memory in buffers now, and the most so far */
    uint64_t buffers_created, programs_built, programs_loaded, launches;
    double build_seconds;
    uint64_t steady_breaches; /* builds and buffer creations while steady */
    uint64_t shortages; /* failures for want of memory or resources, or because the device or its compiler is
                         * away: they need not come again */
} clt_device_counters;
void clt_device_get_counters(const clt_device *dev, clt_device_counters *out);

/* Whether a wait ran into the deadline: the device, and what it holds, is then left alone. */
bool clt_device_is_hung(const clt_device *dev);

/* From now on a build or a buffer creation is counted as a breach (and with CLTRAIN_ASSERT_STEADY=1 it is an
 * error): nothing allocates or compiles after the first step. */
void clt_device_set_steady(clt_device *dev, bool steady);
bool clt_device_is_steady(const clt_device *dev);

typedef struct {
    char name[96]; /* kernel name */
    uint64_t launches;
    double seconds;
} clt_kernel_time;
/* Device time by kernel since the last reset, largest first; only with params.profile. Caller frees. */
clt_status clt_device_profile(clt_device *dev, clt_kernel_time **rows, int *count);
void clt_device_profile_reset(clt_device *dev);

/* A launch in time, in seconds on clt_now's clock: when it was queued and when the device ran it. The
 * device's clock is laid over the host's where the distance between the two is smallest, so starts are right
 * to some ten microseconds. */
typedef struct {
    char name[96]; /* kernel name */
    double queued, start, end;
} clt_launch_time;
/* From here on every launch is kept, until clt_device_trace_take waits for the device and hands them over in
 * the order in which they were queued (the caller frees *rows); only with params.profile. */
void clt_device_trace_start(clt_device *dev);
clt_status clt_device_trace_take(clt_device *dev, clt_launch_time **rows, int *count);

/* Living buffers grouped by name, largest first: "who holds the memory". Caller frees. */
typedef struct {
    char name[64];
    uint64_t bytes;
    int buffers;
} clt_memory_row;
clt_status clt_device_memory_table(clt_device *dev, clt_memory_row **rows, int *count);

/* The device's peak rate of fp32 fma (FLOP/s) and of copying (bytes/s, read plus write), measured once by
 * small kernels and cached; for MFU and clbench. */
clt_status clt_device_peak(clt_device *dev, double *fma_flops, double *copy_bytes);
/* The same of the matrix units with bf16 operands and fp32 sums (FLOP/s); 0 where nobody here knows how
 * to drive them, or the kernel does not build; known are NVIDIA's (facts mma_bf16, wgmma). */
clt_status clt_device_matrix_peak(clt_device *dev, double *flops);
/* From now on both measure, and keep the larger of that and what is stored. */
void clt_device_measure_peaks(clt_device *dev);
/* Work of some length was done faster than the peak of fma (or of matrix units) that is stored, which
 * therefore was measured on a busy device: it becomes what was reached, and is measured anew when it is next
 * asked for. */
void clt_device_peak_exceeded(clt_device *dev, bool matrix, double flops);

#endif
