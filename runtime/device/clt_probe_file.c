/* The probe of a kernel file (`probe=FILE` in a variant table): a question that only its own rows need. */
#include "runtime/device/clt_probe.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS = 64 };
static const char options[] = CLT_LANGUAGE_OPTION " -DPROBE=1";

/* The work-group size that the kernel requires, or ITEMS; 0 if there is no kernel `probe`. */
static size_t group_of(clt_device *dev, cl_program p) {
    size_t size[3] = {0};
    cl_int e;
    cl_kernel k = clCreateKernel(p, "probe", &e);
    if (e != CL_SUCCESS) return 0;
    e = clGetKernelWorkGroupInfo(k, dev->device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof size, size, NULL);
    clReleaseKernel(k);
    return e == CL_SUCCESS && size[0] * size[1] * size[2] == size[0] && size[0] ? size[0] : ITEMS;
}

/* NULL if out is in, otherwise what went wrong. */
static const char *fault_of(clt_device *dev, const char *text) {
    cl_program p = clt_probe_build(dev, text, options);
    const size_t n = p ? group_of(dev, p) : 0;
    uint32_t *in = clt_calloc(CLT_MAX(n, 1), sizeof *in), *out = clt_calloc(CLT_MAX(n, 1), sizeof *out);
    for (size_t i = 0; i < n; i++) in[i] = (uint32_t)i;
    const char *fault = NULL;
    if (!p)
        fault = "it does not build";
    else if (!n)
        fault = "it has no kernel `probe`";
    else if (!clt_probe_run(dev, p, in, n * sizeof *in, out, n * sizeof *out, n, n))
        fault = "it does not run";
    else if (memcmp(in, out, n * sizeof *in))
        fault = "a word of out differs from in";
    clt_free(in);
    clt_free(out);
    if (p) clReleaseProgram(p);
    return fault;
}

/* The stored answer, 1 or 0; -1: none. */
static int stored(clt_device *dev, const char *name) {
    char *text;
    size_t bytes;
    if (dev->again || !clt_cache_get(dev->cache_dir, name, &text, &bytes)) return -1;
    const int answer = bytes == 1 && (*text == '0' || *text == '1') ? *text - '0' : -1;
    clt_free(text);
    return answer;
}

bool clt_device_probe_file(clt_device *dev, const char *file) {
    const char *text = clt_kernel_text(file);
    if (!text || clt_has_quirk(dev, CLT_QUIRK_DIES_OF_INLINE_ASM)) return false;
    clt_hash_state *h = clt_hash_begin();
    const char *part[] = {dev->id, options, text};
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++) clt_hash_add(h, part[i], strlen(part[i]) + 1);
    const clt_hash128 key = clt_hash_end(h);
    char hex[33], name[48];
    clt_hash_hex(key, hex);
    snprintf(name, sizeof name, "%s.probe", hex);
    int answer = stored(dev, name);
    if (answer >= 0) return answer;
    const int lock = dev->cache_dir ? clt_cache_lock(dev->cache_dir, key, dev->timeout) : -1;
    answer = stored(dev, name);
    if (answer < 0) {
        const uint64_t before = dev->counters.shortages;
        const char *fault = fault_of(dev, text);
        answer = !fault;
        clt_debug("the probe of %s says %s on %s%s%s", file, answer ? "yes" : "no", dev->facts.name,
                  fault ? ": " : "", fault ? fault : "");
        /* A no because something ran out for a moment holds for this run alone. */
        const bool lasts = answer || dev->counters.shortages == before || clt_device_is_broken(dev);
        if (lasts && !dev->hung) clt_cache_put(dev->cache_dir, name, answer ? "1" : "0", 1);
    }
    clt_cache_unlock(lock);
    return answer;
}
