/* Programs and kernels: built once per (source, options), launched with arguments checked. */
#include "clt_device_private.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "clt_ptx.h"

#define LANGUAGE "-cl-std=CL1.2"
#define ROUNDING "-cl-fp32-correctly-rounded-divide-sqrt"

const char *clt_kernel_common_options(void) {
    return LANGUAGE " " ROUNDING;
}

/* --- building
 * ------------------------------------------------------------------------------------------------- */

static char *full_options(const clt_device *dev, const char *options) {
    return clt_format("%s%s%s%s", LANGUAGE, dev->facts.correct_rounding_option ? " " ROUNDING : "",
                      options && *options ? " " : "", options ? options : "");
}

static char *build_log(const clt_device *dev, cl_program p) {
    size_t n = 0;
    clGetProgramBuildInfo(p, dev->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &n);
    char *log = clt_calloc(n + 1, 1);
    if (n) clGetProgramBuildInfo(p, dev->device, CL_PROGRAM_BUILD_LOG, n, log, NULL);
    return log;
}

/* The first lines of a build log that say "error", indented. */
static void first_errors(clt_str *out, const char *log) {
    int shown = 0;
    for (const char *s = log; *s && shown < 3;) {
        size_t n = strcspn(s, "\n");
        char *line = clt_strndup(s, n);
        if (strstr(line, "error") || strstr(line, "rror:")) {
            clt_str_addf(out, "\n  %s", line);
            shown++;
        }
        clt_free(line);
        s += n + (s[n] == '\n');
    }
}

/* The message of a failed build; source, options and log go to a file. */
static clt_status build_failed(clt_device *dev, cl_program p, const char *what, const char *source,
                               const char *options, clt_hash128 key, cl_int e) {
    const char *tmp = clt_env(CLT_ENV_TMPDIR);
    char hex[33], *log = build_log(dev, p);
    clt_hash_hex(key, hex);
    char *path = clt_format("%s/cltrain-build-%.12s.log",
                            dev->cache_dir ? dev->cache_dir
                            : tmp          ? tmp
                                           : "/tmp",
                            hex);
    clt_str text = {0}, lines = {0};
    clt_str_addf(&text, "%s on %s / %s, driver %s\noptions: %s\n\n%s\n\n---- source ----\n%s", what,
                 dev->facts.platform, dev->facts.name, dev->facts.driver, options, log, source);
    first_errors(&lines, log);
    bool saved = clt_cache_write_file(path, text.s, text.len);
    clt_status st =
        clt_error(CLT_FAIL, "%s does not build on %s: %s%s%s%s", what, dev->facts.name, clt_cl_name(e),
                  saved ? "; log and source: " : "", saved ? path : "", lines.s ? lines.s : "");
    clt_str_free(&text);
    clt_str_free(&lines);
    clt_free(path);
    clt_free(log);
    return st;
}

static clt_hash128 key_of(const clt_device *dev, const char *source, const char *options) {
    clt_hash_state *h = clt_hash_begin();
    uint32_t format = CLT_CACHE_FORMAT;
    clt_hash_add(h, &format, sizeof format);
    clt_hash_add(h, dev->id, sizeof dev->id);
    clt_hash_add(h, options, strlen(options) + 1);
    clt_hash_add(h, source, strlen(source) + 1);
    return clt_hash_end(h);
}

/* A program from the binary cache, or NULL. */
static cl_program load_binary(clt_device *dev, const char *name, const char *options) {
    char *data;
    size_t bytes;
    if (!clt_cache_get(dev->cache_dir, name, &data, &bytes)) return NULL;
    const unsigned char *binary = (const unsigned char *)data;
    cl_int e, status = CL_SUCCESS;
    cl_program p = clCreateProgramWithBinary(dev->context, 1, &dev->device, &bytes, &binary, &status, &e);
    clt_free(data);
    if (e == CL_SUCCESS && status == CL_SUCCESS &&
        clBuildProgram(p, 1, &dev->device, options, NULL, NULL) == CL_SUCCESS) {
        dev->counters.programs_loaded++;
        return p;
    }
    clt_debug("cache entry %s does not load and is built again", name);
    clt_cache_drop(dev->cache_dir, name);
    if (e == CL_SUCCESS) clReleaseProgram(p);
    return NULL;
}

/* The program's binary for the device with a terminating zero, or NULL. */
static unsigned char *binary_of(cl_program p, size_t *bytes) {
    *bytes = 0;
    if (clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof *bytes, bytes, NULL) != CL_SUCCESS || *bytes == 0)
        return NULL;
    unsigned char *binary = clt_calloc(*bytes + 1, 1);
    if (clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == CL_SUCCESS) return binary;
    clt_free(binary);
    return NULL;
}

static void save_binary(clt_device *dev, const char *name, cl_program p) {
    size_t bytes;
    unsigned char *binary = binary_of(p, &bytes);
    if (binary) clt_cache_put(dev->cache_dir, name, binary, bytes);
    clt_free(binary);
}

/* Some drivers write their compiler's complaints to stderr past the build log, where they would look like
 * errors of this program. */
cl_int clt_build_quietly(clt_device *dev, cl_program p, const char *options) {
    fflush(stderr);
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int saved = null >= 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0) : -1;
    if (saved >= 0) dup2(null, STDERR_FILENO);
    cl_int e = clBuildProgram(p, 1, &dev->device, options, NULL, NULL);
    if (saved >= 0) {
        dup2(saved, STDERR_FILENO);
        close(saved);
    }
    if (null >= 0) close(null);
    return e;
}

/* The second pass (clt_ptx.h): *p, built from a marked source, becomes the program of its rewritten PTX.
 * *text gets that PTX, for the message of a failure. */
static cl_int second_pass(clt_device *dev, cl_program *p, bool quiet, char **text) {
    const char *why = "the driver does not hand out the program";
    size_t bytes;
    unsigned char *first = binary_of(*p, &bytes);
    *text = first ? clt_ptx_rewrite((const char *)first, &why) : NULL;
    clt_free(first);
    if (!*text) {
        if (!quiet) clt_warn("instructions for the assembler alone cannot be built: %s", why);
        return CL_BUILD_PROGRAM_FAILURE;
    }
    cl_int e, status = CL_SUCCESS;
    bytes = strlen(*text);
    const unsigned char *binary = (const unsigned char *)*text;
    cl_program second =
        clCreateProgramWithBinary(dev->context, 1, &dev->device, &bytes, &binary, &status, &e);
    if (e != CL_SUCCESS) return e;
    clReleaseProgram(*p);
    *p = second;
    if (status != CL_SUCCESS) return status;
    return quiet ? clt_build_quietly(dev, second, "")
                 : clBuildProgram(second, 1, &dev->device, "", NULL, NULL);
}

cl_int clt_build_passes(clt_device *dev, cl_program *p, const char *source, const char *options, bool quiet,
                        char **text) {
    cl_int e = quiet ? clt_build_quietly(dev, *p, options)
                     : clBuildProgram(*p, 1, &dev->device, options, NULL, NULL);
    if (e == CL_SUCCESS && dev->facts.inline_ptx && clt_ptx_is_marked(source))
        e = second_pass(dev, p, quiet, text);
    return e;
}

/* PoCL reads 0.9 MB of declarations with every program, also only to find it in its cache: 15 programs of a
 * warm start took it a quarter of a second. This tells it that they were read (the guard of clang's
 * opencl-c.h, which PoCL's own headers ask for too) and puts a short list of our own before the source.
 * False: the program needs more, and is built as everywhere. */
static bool build_declared(clt_device *dev, const char *source, const char *options, bool quiet,
                           cl_program *out) {
    const char *text[] = {clt_kernel_text("include/clt_builtins.clh"), source};
    cl_int e;
    if (!text[0]) return false;
    cl_program p = clCreateProgramWithSource(dev->context, 2, text, NULL, &e);
    if (e != CL_SUCCESS) return false;
    char *more = clt_format("%s -D_OPENCL_H_", options);
    e = quiet ? clt_build_quietly(dev, p, more) : clBuildProgram(p, 1, &dev->device, more, NULL, NULL);
    clt_free(more);
    if (e == CL_SUCCESS)
        *out = p;
    else
        clReleaseProgram(p);
    return e == CL_SUCCESS;
}

/* One try to build; *text: the rewritten PTX of a second pass. */
static cl_int build_once(clt_device *dev, const char *source, const char *options, bool quiet, cl_program *p,
                         char **text) {
    if (dev->declares && build_declared(dev, source, options, quiet, p)) return CL_SUCCESS;
    cl_int e;
    *p = clCreateProgramWithSource(dev->context, 1, &source, NULL, &e);
    if (e != CL_SUCCESS) return e;
    e = clt_build_passes(dev, p, source, options, quiet, text);
    if (e == CL_SUCCESS && dev->declares) {
        clt_debug("the short declarations do not serve this driver, or this program");
        dev->declares = false;
    }
    return e;
}

static clt_status build_source(clt_device *dev, const char *what, const char *source, const char *options,
                               clt_hash128 key, bool quiet, cl_program *out) {
    char *ptx = NULL;
    double start = clt_now();
    clt_progress(false, "compiling kernels for this device: %s (%llu programs, %.1f s so far)", what,
                 (unsigned long long)dev->counters.programs_built, dev->counters.build_seconds);
    cl_program p = NULL;
    cl_int e = build_once(dev, source, options, quiet, &p, &ptx);
    if (!p) return clt_cl_error(dev, e, what);
    double took = clt_now() - start;
    dev->counters.build_seconds += took;
    dev->counters.programs_built++;
    clt_status st = CLT_OK;
    if (e == CL_SUCCESS) {
        clt_debug("built %s [%s] in %.3f s", what, options, took);
        *out = p;
    } else {
        st = quiet ? CLT_FAIL : build_failed(dev, p, what, ptx ? ptx : source, options, key, e);
        clReleaseProgram(p);
    }
    clt_free(ptx);
    return st;
}

/* Of the processes of a host one builds; the others then find it in a cache. */
static clt_status build(clt_device *dev, const char *what, const char *source, const char *options,
                        clt_hash128 key, bool quiet, cl_program *out) {
    char hex[33], name[48];
    clt_hash_hex(key, hex);
    snprintf(name, sizeof name, "%s.bin", hex);
    bool own = dev->cache_dir && !dev->driver_caches;
    if (own && (*out = load_binary(dev, name, options)) != NULL) return CLT_OK;
    CLT_TRY(clt_steady_check(dev, "building program", what));
    int lock = dev->cache_dir ? clt_cache_lock(dev->cache_dir, key, dev->timeout) : -1;
    clt_status st = CLT_OK;
    if (!own || lock < 0 || (*out = load_binary(dev, name, options)) == NULL) {
        st = build_source(dev, what, source, options, key, quiet, out);
        if (st == CLT_OK && own) save_binary(dev, name, *out);
    }
    clt_cache_unlock(lock);
    return st;
}

static clt_status program_get(clt_device *dev, const char *what, const char *source, const char *options,
                              clt_hash128 key, bool quiet, cl_program *out) {
    for (int i = 0; i < dev->programs_n; i++) {
        const clt_program *p = &dev->programs[i];
        if (p->key.hi != key.hi || p->key.lo != key.lo) continue;
        if (!p->program && quiet) return CLT_FAIL;
        if (!p->program) continue; /* failed quietly before: build again for the message */
        *out = p->program;
        return CLT_OK;
    }
    cl_program program = NULL;
    clt_status st = build(dev, what, source, options, key, quiet, &program);
    if (st != CLT_OK && !quiet) return st;
    if (dev->programs_n == dev->programs_cap) {
        dev->programs_cap = dev->programs_cap ? 2 * dev->programs_cap : 32;
        dev->programs = clt_realloc(dev->programs, (size_t)dev->programs_cap * sizeof *dev->programs);
    }
    dev->programs[dev->programs_n++] = (clt_program){key, program};
    *out = program;
    return st;
}

/* --- kernels
 * -------------------------------------------------------------------------------------------------- */

static clt_status create_kernel(clt_device *dev, cl_program program, const char *what, const char *name,
                                clt_hash128 key, bool quiet, clt_kernel **out) {
    cl_int e;
    cl_kernel kernel = clCreateKernel(program, name, &e);
    if (e != CL_SUCCESS && quiet) return CLT_FAIL;
    if (e != CL_SUCCESS)
        return clt_error(CLT_FAIL, "%s has no kernel '%s' on %s: %s", what, name, dev->facts.name,
                         clt_cl_name(e));
    clt_kernel *k = clt_calloc(1, sizeof *k);
    *k = (clt_kernel){.key = key, .dev = dev, .kernel = kernel};
    snprintf(k->name, sizeof k->name, "%s", name);
    clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof k->args, &k->args, NULL);
    clGetKernelWorkGroupInfo(kernel, dev->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof k->max_group,
                             &k->max_group, NULL);
    if (dev->kernels_n == dev->kernels_cap) {
        dev->kernels_cap = dev->kernels_cap ? 2 * dev->kernels_cap : 64;
        dev->kernels = clt_realloc(dev->kernels, (size_t)dev->kernels_cap * sizeof *dev->kernels);
    }
    dev->kernels[dev->kernels_n++] = k;
    dev->counters.kernels_created++;
    *out = k;
    return CLT_OK;
}

static clt_status kernel_of(clt_device *dev, const char *what, const char *source, const char *name,
                            const char *options, bool quiet, clt_kernel **out) {
    char *opts = full_options(dev, options);
    clt_hash128 pkey = key_of(dev, source, opts);
    char *text =
        clt_format("%016llx%016llx %s", (unsigned long long)pkey.hi, (unsigned long long)pkey.lo, name);
    clt_hash128 key = clt_hash(text, strlen(text));
    clt_free(text);
    clt_status st = CLT_FAIL;
    for (int i = 0; i < dev->kernels_n; i++)
        if (dev->kernels[i]->key.hi == key.hi && dev->kernels[i]->key.lo == key.lo) {
            *out = dev->kernels[i];
            st = CLT_OK;
        }
    if (st != CLT_OK) {
        cl_program program;
        st = program_get(dev, what, source, opts, pkey, quiet, &program);
        if (st == CLT_OK) st = create_kernel(dev, program, what, name, key, quiet, out);
    }
    clt_free(opts);
    return st;
}

/* A kernel that was asked for before: found without hashing and without allocating. */
static clt_kernel *known(const clt_device *dev, const char *file, const char *name, const char *options) {
    for (int i = 0; i < dev->kernels_n; i++) {
        clt_kernel *k = dev->kernels[i];
        if (k->file && strcmp(k->name, name) == 0 && strcmp(k->file, file) == 0 &&
            strcmp(k->options, options) == 0)
            return k;
    }
    return NULL;
}

static clt_status from_file(clt_device *dev, const char *file, const char *name, const char *options,
                            bool quiet, clt_kernel **out) {
    if (!options) options = "";
    clt_kernel *k = known(dev, file, name, options);
    if (k) {
        *out = k;
        return CLT_OK;
    }
    const char *text = clt_kernel_text(file);
    if (!text && quiet) return CLT_FAIL;
    if (!text) return clt_error(CLT_FAIL, "there is no kernel file %s", file);
    CLT_TRY(kernel_of(dev, file, text, name, options, quiet, &k));
    if (!k->file) {
        k->file = clt_strdup(file);
        k->options = clt_strdup(options);
    }
    *out = k;
    return CLT_OK;
}

clt_status clt_kernel_get(clt_device *dev, const char *file, const char *name, const char *options,
                          clt_kernel **out) {
    return from_file(dev, file, name, options, false, out);
}

clt_status clt_kernel_try(clt_device *dev, const char *file, const char *name, const char *options,
                          clt_kernel **out) {
    return from_file(dev, file, name, options, true, out);
}

clt_status clt_kernel_from_text(clt_device *dev, const char *what, const char *text, const char *name,
                                const char *options, clt_kernel **out) {
    char *source = clt_source_expand(what, text);
    clt_status st = kernel_of(dev, what, source, name, options, false, out);
    clt_free(source);
    return st;
}

size_t clt_kernel_max_work_group(const clt_kernel *k) {
    return k->max_group;
}

void clt_kernels_free(clt_device *dev) {
    for (int i = 0; i < dev->kernels_n; i++) {
        clReleaseKernel(dev->kernels[i]->kernel);
        clt_free(dev->kernels[i]->file);
        clt_free(dev->kernels[i]->options);
        clt_free(dev->kernels[i]);
    }
    for (int i = 0; i < dev->programs_n; i++)
        if (dev->programs[i].program) clReleaseProgram(dev->programs[i].program);
    clt_free(dev->kernels);
    clt_free(dev->programs);
}

/* --- launching
 * ------------------------------------------------------------------------------------------------ */

static cl_int set_arg(clt_kernel *k, cl_uint i, const clt_arg *a) {
    switch (a->kind) {
    case CLT_ARG_BUF:
        return clSetKernelArg(k->kernel, i, sizeof(cl_mem), a->v.buf ? &a->v.buf->mem : NULL);
    case CLT_ARG_I32:
        return clSetKernelArg(k->kernel, i, sizeof(cl_int), &a->v.i32);
    case CLT_ARG_U32:
        return clSetKernelArg(k->kernel, i, sizeof(cl_uint), &a->v.u32);
    case CLT_ARG_U64:
        return clSetKernelArg(k->kernel, i, sizeof(cl_ulong), &a->v.u64);
    case CLT_ARG_F32:
        return clSetKernelArg(k->kernel, i, sizeof(cl_float), &a->v.f32);
    case CLT_ARG_LOCAL:
        return clSetKernelArg(k->kernel, i, a->v.local, NULL);
    }
    return CL_INVALID_ARG_VALUE;
}

/* Where code is made at the first launch of a work-group size, one process of the host makes it and the
 * others wait until it is in the driver's cache. -1: nothing to wait for. */
static int first_launch_lock(clt_kernel *k, int dims, const size_t *local) {
    size_t size = 1;
    if (!k->dev->lazy_compile || !k->dev->cache_dir) return -1;
    for (int d = 0; d < dims && local; d++) size = size * 65537 + local[d];
    for (size_t i = 0; i < CLT_COUNT_OF(k->warm); i++) {
        if (k->warm[i] == size) return -1;
        if (k->warm[i]) continue;
        k->warm[i] = size;
        return clt_cache_lock(k->dev->cache_dir, k->key, k->dev->timeout);
    }
    return -1;
}

clt_status clt_launch_now(const clt_launch_call *c) {
    clt_kernel *k = c->kernel;
    clt_device *dev = k->dev;
    int dims = c->dims, count = c->count;
    const size_t *global = c->global, *local = c->local;
    const clt_arg *args = c->args;
    if (count < 0 || (cl_uint)count != k->args)
        return clt_error(CLT_FAIL, "kernel %s takes %u arguments, %d were given", k->name, k->args, count);
    for (int d = 0; d < dims; d++)
        if (global[d] == 0) return CLT_OK;
    for (int i = 0; i < count; i++) {
        cl_int e = set_arg(k, (cl_uint)i, &args[i]);
        if (e != CL_SUCCESS)
            return clt_error(CLT_FAIL, "argument %d of kernel %s is refused on %s: %s", i, k->name,
                             dev->facts.name, clt_cl_name(e));
    }
    cl_event event;
    int lock = first_launch_lock(k, dims, local);
    cl_int e = clEnqueueNDRangeKernel(dev->queue, k->kernel, (cl_uint)dims, NULL, global, local, 0, NULL,
                                      dev->profile ? &event : NULL);
    clt_status st = e == CL_SUCCESS && lock >= 0 ? clt_device_finish(dev) : CLT_OK;
    clt_cache_unlock(lock);
    if (e != CL_SUCCESS) {
        char what[160];
        size_t l[3] = {0, 0, 0};
        for (int d = 0; d < dims && local; d++) l[d] = local[d];
        snprintf(what, sizeof what, "launching kernel %s (work-group %zu x %zu x %zu, at most %zu)", k->name,
                 l[0], l[1], l[2], k->max_group);
        return clt_cl_error(dev, e, what);
    }
    k->launches++;
    dev->counters.launches++;
    if (dev->profile) clt_profile_add(dev, k, event);
    return st;
}

clt_status clt_launch(clt_kernel *k, int dims, const size_t *global, const size_t *local, const clt_arg *args,
                      int count) {
    clt_launch_call c = {k, dims, global, local, args, count};
    return k->dev->recorder ? clt_record_launch(&c) : clt_launch_now(&c);
}
