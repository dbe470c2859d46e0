/* Kernels: looked up or created, and launched with their arguments checked. */
#include "runtime/device/clt_device_private.h"

#include <string.h>

#include "runtime/device/clt_helpers.h"

/* --- kernels --- */

static clt_kernel *find_kernel(const clt_device *dev, clt_hash128 key) {
    for (int i = 0; i < dev->kernels_n; i++)
        if (dev->kernels[i]->key.hi == key.hi && dev->kernels[i]->key.lo == key.lo) return dev->kernels[i];
    return NULL;
}

static clt_kernel *add_kernel(clt_device *dev, const char *name, clt_hash128 key) {
    clt_kernel *k = clt_calloc(1, sizeof *k);
    *k = (clt_kernel){.key = key, .dev = dev, .max_group = CLT_MAX(dev->facts.max_work_group, 1u)};
    snprintf(k->name, sizeof k->name, "%s", name);
    if (dev->kernels_n == dev->kernels_cap) {
        dev->kernels_cap = dev->kernels_cap ? 2 * dev->kernels_cap : 64;
        dev->kernels = clt_realloc(dev->kernels, (size_t)dev->kernels_cap * sizeof *dev->kernels);
    }
    dev->kernels[dev->kernels_n++] = k;
    return k;
}

/* A device that is treated as a smaller one refuses what that one would refuse. */
static bool has_local_memory(const clt_device *dev, cl_kernel kernel) {
    cl_ulong bytes = 0;
    if (clt_env_long(CLT_ENV_LOCAL_MEM, 0) <= 0) return true;
    clGetKernelWorkGroupInfo(kernel, dev->device, CL_KERNEL_LOCAL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    return bytes <= dev->facts.local_mem;
}

/* *k: NULL, or a kernel that has only been rehearsed. */
static clt_status create_kernel(clt_device *dev, cl_program program, const char *what, const char *name,
                                clt_hash128 key, bool quiet, clt_kernel **k) {
    cl_int e;
    cl_kernel kernel = clCreateKernel(program, name, &e);
    clt_cl_count(dev, e);
    if (e != CL_SUCCESS && quiet) return CLT_FAIL;
    if (e != CL_SUCCESS)
        return clt_error(CLT_FAIL, "%s has no kernel '%s' on %s: %s", what, name, dev->facts.name,
                         clt_cl_name(e));
    if (!has_local_memory(dev, kernel)) {
        clReleaseKernel(kernel);
        return quiet
                   ? CLT_FAIL
                   : clt_error(CLT_FAIL, "%s: kernel %s needs more than the %llu bytes of CLTRAIN_LOCAL_MEM",
                               what, name, (unsigned long long)dev->facts.local_mem);
    }
    if (!*k) *k = add_kernel(dev, name, key);
    (*k)->kernel = kernel;
    clGetKernelInfo(kernel, CL_KERNEL_NUM_ARGS, sizeof(*k)->args, &(*k)->args, NULL);
    clGetKernelWorkGroupInfo(kernel, dev->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof(*k)->max_group,
                             &(*k)->max_group, NULL);
    return CLT_OK;
}

static clt_status kernel_of(clt_device *dev, const char *what, const char *source, const char *name,
                            const char *options, bool quiet, clt_kernel **out) {
    char *opts = clt_program_options(dev, options);
    const clt_program_text t = {what, source, opts, clt_program_key(dev, source, opts)};
    char *text =
        clt_format("%016llx%016llx %s", (unsigned long long)t.key.hi, (unsigned long long)t.key.lo, name);
    clt_hash128 key = clt_hash(text, strlen(text));
    clt_free(text);
    clt_status st = CLT_OK;
    clt_kernel *k = find_kernel(dev, key);
    if (dev->rehearses && !k) {
        if (dev->helpers && !clt_program_is_known(dev, t.key))
            clt_helpers_add(dev->helpers, &t, dev->facts.inline_ptx);
        k = add_kernel(dev, name, key);
    } else if (!dev->rehearses && (!k || !k->kernel)) {
        cl_program program;
        st = clt_program_get(dev, &t, quiet, &program);
        if (st == CLT_OK) st = create_kernel(dev, program, what, name, key, quiet, &k);
    }
    *out = k;
    clt_free(opts);
    return st;
}

/* A kernel that was requested before: found without hashing and without allocating. */
static clt_kernel *known(const clt_device *dev, const char *file, const char *name, const char *options) {
    for (int i = 0; i < dev->kernels_n; i++) {
        clt_kernel *k = dev->kernels[i];
        if (k->file && (k->kernel || dev->rehearses) && strcmp(k->name, name) == 0 &&
            strcmp(k->file, file) == 0 && strcmp(k->options, options) == 0)
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
    const char *folder = text ? NULL : clt_env(CLT_ENV_KERNEL_PATH);
    if (folder)
        return clt_error(
            CLT_FAIL,
            "kernel file %s does not exist in CLTRAIN_KERNEL_PATH=%s, which must hold all of clkernels/",
            file, folder);
    if (!text) return clt_error(CLT_FAIL, "kernel file %s does not exist", file);
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
        if (dev->kernels[i]->kernel) clReleaseKernel(dev->kernels[i]->kernel);
        clt_free(dev->kernels[i]->file);
        clt_free(dev->kernels[i]->options);
        clt_free(dev->kernels[i]);
    }
    for (int i = 0; i < dev->programs_n; i++)
        if (dev->programs[i].program) clReleaseProgram(dev->programs[i].program);
    clt_free(dev->kernels);
    clt_free(dev->programs);
}

/* --- launching --- */

cl_int clt_kernel_set_arg(cl_kernel k, cl_uint i, const clt_arg *a) {
    switch (a->kind) {
    case CLT_ARG_BUF:
        if (a->v.buf && (a->v.buf->pinned || a->v.buf->file))
            return CL_INVALID_MEM_OBJECT; /* it is mapped, or there is none */
        return clSetKernelArg(k, i, sizeof(cl_mem), a->v.buf ? &a->v.buf->mem : NULL);
    case CLT_ARG_I32:
        return clSetKernelArg(k, i, sizeof(cl_int), &a->v.i32);
    case CLT_ARG_U32:
        return clSetKernelArg(k, i, sizeof(cl_uint), &a->v.u32);
    case CLT_ARG_U64:
        return clSetKernelArg(k, i, sizeof(cl_ulong), &a->v.u64);
    case CLT_ARG_F32:
        return clSetKernelArg(k, i, sizeof(cl_float), &a->v.f32);
    }
    return CL_INVALID_ARG_VALUE;
}

/* Under the quirk compiles_at_launch, the first launch of a work-group size is made under a lock: one process
 * of the host compiles it, and the others then find it in the driver's cache. -1: no lock. */
static int first_launch_lock(clt_kernel *k, int dims, const size_t *local) {
    size_t size = 1;
    if (!k->dev->launch_turns || !k->dev->cache_dir) return -1;
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
    if (!k->kernel)
        return clt_error(CLT_FAIL, "kernel %s was kept from a rehearsal; get it again before launching it",
                         k->name);
    if (count < 0 || (cl_uint)count != k->args)
        return clt_error(CLT_FAIL, "kernel %s takes %u arguments, %d were given", k->name, k->args, count);
    for (int d = 0; d < dims; d++)
        if (global[d] == 0) return CLT_OK;
    for (int i = 0; i < count; i++) {
        cl_int e = clt_kernel_set_arg(k->kernel, (cl_uint)i, &args[i]);
        clt_cl_count(dev, e);
        if (e != CL_SUCCESS)
            return clt_error(CLT_FAIL, "kernel %s does not accept argument %d on %s: %s", k->name, i,
                             dev->facts.name, clt_cl_name(e));
    }
    cl_event event;
    int lock = first_launch_lock(k, dims, local);
    cl_int e = clEnqueueNDRangeKernel(clt_queue_next(dev), k->kernel, (cl_uint)dims, c->first, global, local,
                                      0, NULL, dev->profile ? &event : NULL);
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
    clt_reads_notice(dev); /* a driver makes the host wait where too much is queued */
    if (dev->profile) clt_profile_add(dev, k, event);
    return st;
}

static clt_status launch(const clt_launch_call *c) {
    const clt_device *dev = c->kernel->dev;
    if (dev->rehearses) return CLT_OK;
    const clt_status st = dev->recorder ? clt_record_launch(c) : clt_launch_now(c);
    if (st == CLT_OK && dev->sequence) clt_sequence_note(dev->sequence, c);
    return st;
}

clt_status clt_launch(clt_kernel *k, int dims, const size_t *global, const size_t *local, const clt_arg *args,
                      int count) {
    return launch(&(clt_launch_call){k, dims, global, local, args, count, NULL});
}

clt_status clt_launch_rows(clt_kernel *k, const size_t global[2], const size_t *local, const clt_arg *args,
                           int count) {
    const size_t most = CLT_LAUNCH_MOST_ROWS, rows = global[1];
    for (size_t row = 0; row < rows; row += most) {
        const size_t part[2] = {global[0], CLT_MIN(rows - row, most)}, first[2] = {0, row};
        CLT_TRY(launch(&(clt_launch_call){k, 2, part, local, args, count, row ? first : NULL}));
    }
    return CLT_OK;
}
