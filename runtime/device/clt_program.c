/* Programs: built once for each (source, options), by this process or a helper, or loaded from the cache. */
#include "runtime/device/clt_device_private.h"

#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_device_test.h"
#include "runtime/device/clt_helpers.h"
#include "runtime/device/clt_ptx.h"
#include "runtime/device/clt_quiet.h"

const char *clt_kernel_common_options(void) {
    return CLT_LANGUAGE_OPTION " " CLT_ROUNDING_OPTION;
}

/* --- building --- */

void clt_device_compile_fast(clt_device *dev, bool fast) {
    dev->compiles_fast = fast;
}

char *clt_program_options(const clt_device *dev, const char *options) {
    return clt_format(
        "%s%s%s%s%s", CLT_LANGUAGE_OPTION, dev->facts.correct_rounding_option ? " " CLT_ROUNDING_OPTION : "",
        dev->compiles_fast ? " -cl-opt-disable" : "", options && *options ? " " : "", options ? options : "");
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

/* The message of a failed build; log, options and source go to a file that it names. */
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

clt_hash128 clt_program_key(const clt_device *dev, const char *source, const char *options) {
    clt_hash_state *h = clt_hash_begin();
    uint32_t format = CLT_CACHE_FORMAT;
    clt_hash_add(h, &format, sizeof format);
    clt_hash_add(h, dev->id, sizeof dev->id);
    clt_hash_add(h, options, strlen(options) + 1);
    clt_hash_add(h, source, strlen(source) + 1);
    return clt_hash_end(h);
}

static void binary_name(clt_hash128 key, char name[48]) {
    char hex[33];
    clt_hash_hex(key, hex);
    snprintf(name, 48, "%s.bin", hex);
}

/* A program from its binary, or NULL. NVIDIA's binary is assembler text, which has the options in it. */
static cl_program from_binary(clt_device *dev, const char *data, size_t bytes, const char *options) {
    const unsigned char *binary = (const unsigned char *)data;
    cl_int e, status = CL_SUCCESS;
    cl_program p = clCreateProgramWithBinary(dev->context, 1, &dev->device, &bytes, &binary, &status, &e);
    if (e != CL_SUCCESS) return NULL;
    if (status == CL_SUCCESS &&
        clBuildProgram(p, 1, &dev->device, dev->facts.inline_ptx ? "" : options, NULL, NULL) == CL_SUCCESS) {
        return p;
    }
    clReleaseProgram(p);
    return NULL;
}

/* A program from the binary cache, or NULL. */
static cl_program load_binary(clt_device *dev, clt_hash128 key, const char *options) {
    char *data, name[48];
    size_t bytes;
    binary_name(key, name);
    if (!clt_cache_get(dev->cache_dir, name, &data, &bytes)) return NULL;
    cl_program p = from_binary(dev, data, bytes, options);
    clt_free(data);
    if (p) dev->counters.programs_loaded++;
    if (!p) {
        clt_debug("the driver refuses cache entry %s; the program is built again", name);
        clt_cache_drop(dev->cache_dir, name);
    }
    return p;
}

/* The program's binary with a terminating zero, malloc'ed, or NULL. */
static unsigned char *binary_of(cl_program p, size_t *bytes) {
    *bytes = 0;
    if (clGetProgramInfo(p, CL_PROGRAM_BINARY_SIZES, sizeof *bytes, bytes, NULL) != CL_SUCCESS || *bytes == 0)
        return NULL;
    unsigned char *binary = clt_try_calloc(*bytes + 1, 1);
    if (binary && clGetProgramInfo(p, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL) == CL_SUCCESS)
        return binary;
    clt_free(binary);
    return NULL;
}

/* A program of NVIDIA is loaded from its assembler text directly after the build. Later starts load it so:
 * the code that is checked now and the code that is used then are assembled from the same text. */
static bool reload(clt_device *dev, const char *data, size_t bytes, cl_program *p) {
    cl_program again = from_binary(dev, data, bytes, "");
    if (!again) {
        clt_debug("the driver refuses its own assembler text: this program is built again at every start");
        return false;
    }
    clReleaseProgram(*p);
    *p = again;
    return true;
}

/* What from_binary takes, malloc'ed: *ptx if it is set, which is then NULL, otherwise the driver's binary.
 * NULL if the driver does not return one. */
static char *take_binary(const clt_device *dev, cl_program p, char **ptx, size_t *bytes) {
    char *data = *ptx ? *ptx : (char *)binary_of(p, bytes);
    *ptx = NULL;
    if (data && dev->facts.inline_ptx) *bytes = strlen(data);
    return data;
}

/* The driver's build, whose failure is a message unless `quiet`. That has the driver's log; what the driver
 * writes to stderr besides, also of a build that succeeds ("1 warning generated."), is for debugging. */
static cl_int run_build(clt_device *dev, cl_program p, const char *options, bool quiet) {
    const bool hide = quiet || clt_log_get_level() < CLT_LOG_DEBUG;
    if (hide) clt_quiet_begin(dev->facts.name);
    const cl_int e = clBuildProgram(p, 1, &dev->device, options, NULL, NULL);
    if (hide) clt_quiet_end();
    return e;
}

/* The second pass (clt_ptx.h): *p, built from a marked source, is replaced by the program of its rewritten
 * PTX, unless the options leave all marks out. *text gets that PTX, for the message of a failure. */
static cl_int second_pass(clt_device *dev, cl_program *p, bool quiet, char **text) {
    const char *why = "the driver does not return the program's binary";
    size_t bytes;
    unsigned char *first = binary_of(*p, &bytes);
    if (first && clt_ptx_is_whole((const char *)first)) {
        clt_free(first);
        return CL_SUCCESS;
    }
    *text = first ? clt_ptx_rewrite((const char *)first, &why) : NULL;
    clt_free(first);
    if (!*text) {
        if (!quiet) clt_warn("the second pass over PTX is not possible: %s", why);
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
    return run_build(dev, second, "", quiet);
}

cl_int clt_build_passes(clt_device *dev, cl_program *p, const char *source, const char *options, bool quiet,
                        char **text) {
    cl_int e = run_build(dev, *p, options, quiet);
    if (e == CL_SUCCESS && dev->facts.inline_ptx && clt_ptx_is_marked(source))
        e = second_pass(dev, p, quiet, text);
    return e;
}

/* For the quirk slow_declarations: defines the guard of clang's opencl-c.h, which PoCL's own headers test
 * too, so that the driver does not read its declarations, and puts a short list of ours before the source.
 * False: the program needs more than that, and is built without this. */
static bool build_declared(clt_device *dev, const char *source, const char *options, cl_program *out) {
    const char *text[] = {clt_kernel_text("include/clt_builtins.clh"), source};
    cl_int e;
    if (!text[0]) return false;
    cl_program p = clCreateProgramWithSource(dev->context, 2, text, NULL, &e);
    if (e != CL_SUCCESS) return false;
    char *more = clt_format("%s -D_OPENCL_H_", options);
    e = run_build(dev, p, more, true);
    clt_free(more);
    if (e == CL_SUCCESS) {
        *out = p;
        return true;
    }
    char *log = build_log(dev, p);
    clt_str errors = {0};
    first_errors(&errors, log);
    clt_debug("a program does not build with the short declarations (include/clt_builtins.clh):%s",
              errors.s ? errors.s : " the driver does not say why");
    clt_str_free(&errors);
    clt_free(log);
    clReleaseProgram(p);
    return false;
}

/* One attempt to build; *text: the rewritten PTX of a second pass. */
static cl_int build_once(clt_device *dev, const char *source, const char *options, bool quiet, cl_program *p,
                         char **text) {
    if (dev->declares && build_declared(dev, source, options, p)) return CL_SUCCESS;
    cl_int e;
    *p = clCreateProgramWithSource(dev->context, 1, &source, NULL, &e);
    if (e != CL_SUCCESS) return e;
    e = clt_build_passes(dev, p, source, options, quiet, text);
    if (e == CL_SUCCESS && dev->declares) {
        clt_debug("this driver or this program needs more than the short declarations");
        dev->declares = false;
    }
    return e;
}

/* Builds with messages and counters. *ptx: the rewritten PTX of a second pass, for the caller to free. */
static clt_status build_source(clt_device *dev, const char *what, const char *source, const char *options,
                               clt_hash128 key, bool quiet, cl_program *out, char **ptx) {
    double start = clt_now();
    clt_progress(false, "compiling kernels for this device: %s (%llu programs, %.1f s so far)", what,
                 (unsigned long long)dev->counters.programs_built, dev->counters.build_seconds);
    cl_program p = NULL;
    cl_int e = build_once(dev, source, options, quiet, &p, ptx);
    if (!p) return clt_cl_error(dev, e, what);
    double took = clt_now() - start;
    dev->counters.build_seconds += took;
    dev->counters.programs_built++;
    clt_status st = CLT_OK;
    if (e == CL_SUCCESS) {
        clt_debug("built %s [%s] in %.3f s", what, options, took);
        *out = p;
    } else {
        clt_cl_count(dev, e);
        st = quiet ? CLT_FAIL : build_failed(dev, p, what, *ptx ? *ptx : source, options, key, e);
        clReleaseProgram(p);
    }
    return st;
}

/* Builds, and stores the binary in the cache if the driver has none. binary (may be NULL): the caller frees
 * *binary. */
static clt_status build_and_keep(clt_device *dev, const clt_program_text *t, bool quiet, cl_program *out,
                                 char **binary, size_t *bytes) {
    char name[48], *ptx = NULL, *data = NULL;
    size_t n = 0;
    clt_status st = build_source(dev, t->what, t->source, t->options, t->key, quiet, out, &ptx);
    const bool second_pass = ptx != NULL;
    if (st == CLT_OK && !clt_has_quirk(dev, CLT_QUIRK_KEEPS_PROGRAMS))
        data = take_binary(dev, *out, &ptx, &n);
    if (data && dev->facts.inline_ptx && !second_pass && !reload(dev, data, n, out)) {
        clt_free(data);
        data = NULL;
    }
    binary_name(t->key, name);
    if (data) clt_cache_put(dev->cache_dir, name, data, n);
    if (binary) {
        *binary = data;
        *bytes = n;
    } else {
        clt_free(data);
    }
    clt_free(ptx);
    return st;
}

/* The program from a helper, or NULL. */
static cl_program from_helper(clt_device *dev, const clt_program_text *t) {
    char *data = NULL;
    size_t bytes = 0;
    const double start = clt_now();
    if (!clt_helpers_take(dev->helpers, t->key, &data, &bytes)) return NULL;
    clt_debug("waited %.3f s for a helper to build %s", clt_now() - start, t->what);
    cl_program p = data ? from_binary(dev, data, bytes, t->options) : NULL;
    if (p) dev->counters.programs_loaded++;
    if (data && !p) clt_debug("the driver refuses what a helper built from %s; it is built again", t->what);
    clt_free(data);
    return p;
}

/* One process of a host builds; the others wait and find the program in a cache. */
static clt_status build(clt_device *dev, const clt_program_text *t, bool quiet, cl_program *out) {
    const bool own = dev->cache_dir && !clt_has_quirk(dev, CLT_QUIRK_KEEPS_PROGRAMS);
    if (own && (*out = load_binary(dev, t->key, t->options)) != NULL) return CLT_OK;
    CLT_TRY(clt_steady_check(dev, "building program", t->what));
    if ((*out = from_helper(dev, t)) != NULL) return CLT_OK;
    int lock = dev->cache_dir ? clt_cache_lock(dev->cache_dir, t->key, dev->timeout) : -1;
    clt_status st = CLT_OK;
    if (!own || lock < 0 || (*out = load_binary(dev, t->key, t->options)) == NULL)
        st = build_and_keep(dev, t, quiet, out, NULL, NULL);
    clt_cache_unlock(lock);
    return st;
}

clt_status clt_program_binary(clt_device *dev, const clt_program_text *t, char **data, size_t *bytes) {
    char name[48];
    cl_program p = NULL;
    binary_name(t->key, name);
    int lock = dev->cache_dir ? clt_cache_lock(dev->cache_dir, t->key, dev->timeout) : -1;
    clt_status st = CLT_OK;
    *data = NULL;
    if (clt_has_quirk(dev, CLT_QUIRK_KEEPS_PROGRAMS) || !clt_cache_get(dev->cache_dir, name, data, bytes))
        st = build_and_keep(dev, t, true, &p, data, bytes);
    clt_cache_unlock(lock);
    if (p) clReleaseProgram(p);
    return st;
}

bool clt_program_is_known(const clt_device *dev, clt_hash128 key) {
    for (int i = 0; i < dev->programs_n; i++)
        if (dev->programs[i].key.hi == key.hi && dev->programs[i].key.lo == key.lo) return true;
    if (!dev->cache_dir || clt_has_quirk(dev, CLT_QUIRK_KEEPS_PROGRAMS)) return false;
    char name[48];
    binary_name(key, name);
    char *path = clt_path_join(dev->cache_dir, name);
    const bool there = clt_io_is_file(path);
    clt_free(path);
    return there;
}

clt_status clt_program_get(clt_device *dev, const clt_program_text *t, bool quiet, cl_program *out) {
    for (int i = 0; i < dev->programs_n; i++) {
        const clt_program *p = &dev->programs[i];
        if (p->key.hi != t->key.hi || p->key.lo != t->key.lo) continue;
        if (!p->program && quiet) return CLT_FAIL;
        if (!p->program) continue; /* failed before without a message: build again for the message */
        *out = p->program;
        return CLT_OK;
    }
    cl_program program = NULL;
    const uint64_t shortages = dev->counters.shortages;
    clt_status st = build(dev, t, quiet, &program);
    if (st != CLT_OK && (!quiet || dev->counters.shortages > shortages)) return st;
    if (dev->programs_n == dev->programs_cap) {
        dev->programs_cap = dev->programs_cap ? 2 * dev->programs_cap : 32;
        dev->programs = clt_realloc(dev->programs, (size_t)dev->programs_cap * sizeof *dev->programs);
    }
    dev->programs[dev->programs_n++] = (clt_program){t->key, program};
    *out = program;
    return st;
}
