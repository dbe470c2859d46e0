/* The devices of all platforms, what their drivers report, and advice where there is none. */
#include "runtime/device/clt_device_private.h"

#include <pthread.h>
#include <string.h>

#include "runtime/base/clt_host.h"
#include "runtime/base/clt_io.h"
#include "runtime/device/clt_pci_address.h"

enum { MAX_PLATFORMS = 32, MAX_DEVICES = 64 };

static void device_text(cl_device_id d, cl_device_info what, char *out, size_t cap) {
    char text[1024] = "";
    if (clGetDeviceInfo(d, what, sizeof text, text, NULL) != CL_SUCCESS) text[0] = 0;
    text[sizeof text - 1] = 0;
    size_t lead = strspn(text, " ");
    snprintf(out, cap, "%.*s", (int)cap - 1, text + lead);
    for (size_t n = strlen(out); n > 0 && out[n - 1] == ' ';) out[--n] = 0;
}

static void platform_text(cl_platform_id p, cl_platform_info what, char *out, size_t cap) {
    char text[1024] = "";
    if (clGetPlatformInfo(p, what, sizeof text, text, NULL) != CL_SUCCESS) text[0] = 0;
    text[sizeof text - 1] = 0;
    snprintf(out, cap, "%.*s", (int)cap - 1, text);
}

static uint64_t device_number(cl_device_id d, cl_device_info what, size_t size) {
    union {
        cl_uint u;
        cl_ulong l;
    } v = {.l = 0};
    if (clGetDeviceInfo(d, what, size, &v, NULL) != CL_SUCCESS) return 0;
    return size == sizeof v.u ? v.u : v.l;
}
#define NUMBER(d, what, type) ((uint64_t)device_number(d, what, sizeof(type)))

/* "model name" of the host's CPU: two OpenCL runtimes on one host drive the same CPU. */
static char host_cpu_name[128] = "CPU";

static void read_host_cpu(void) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *s = strchr(line, ':');
        if (s) snprintf(host_cpu_name, sizeof host_cpu_name, "%.*s", (int)strcspn(s + 2, "\n"), s + 2);
        break;
    }
    if (f) fclose(f);
}

static const char *host_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_host_cpu);
    return host_cpu_name;
}

static bool has_word(const char *list, const char *word) {
    for (const char *s = list; (s = strstr(s, word)) != NULL; s += strlen(word))
        if ((s == list || s[-1] == ' ') && (s[strlen(word)] == ' ' || s[strlen(word)] == 0)) return true;
    return false;
}

static clt_device_type device_type(cl_device_id d) {
    const char *wanted = clt_env(CLT_ENV_DEVICE_TYPE);
    if (wanted && strcmp(wanted, "cpu") == 0) return CLT_DEVICE_CPU;
    if (wanted && strcmp(wanted, "gpu") == 0) return CLT_DEVICE_GPU;
    const uint64_t type = NUMBER(d, CL_DEVICE_TYPE, cl_device_type);
    if (type & CL_DEVICE_TYPE_GPU) return CLT_DEVICE_GPU;
    return type & CL_DEVICE_TYPE_CPU ? CLT_DEVICE_CPU : CLT_DEVICE_OTHER;
}

static void read_facts(clt_found *f) {
    clt_device_facts *x = &f->facts;
    cl_device_id d = f->device;
    platform_text(f->platform, CL_PLATFORM_NAME, x->platform, sizeof x->platform);
    device_text(d, CL_DEVICE_NAME, x->name, sizeof x->name);
    device_text(d, CL_DEVICE_VENDOR, x->vendor, sizeof x->vendor);
    device_text(d, CL_DRIVER_VERSION, x->driver, sizeof x->driver);
    device_text(d, CL_DEVICE_VERSION, x->version, sizeof x->version);
    device_text(d, CL_DEVICE_OPENCL_C_VERSION, x->c_version, sizeof x->c_version);
    x->type = device_type(d);
    if (x->type == CLT_DEVICE_CPU)
        x->host_cpu = host_cpu();
    else
        clt_pci_address_read(d, x->pci);
    x->global_mem = NUMBER(d, CL_DEVICE_GLOBAL_MEM_SIZE, cl_ulong);
    x->max_alloc = NUMBER(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE, cl_ulong);
    if (x->type == CLT_DEVICE_CPU) { /* not every driver knows the limits of a container */
        const uint64_t host = clt_host_memory();
        x->global_mem = CLT_MIN(x->global_mem, host);
        x->max_alloc = CLT_MIN(x->max_alloc, x->global_mem);
    }
    x->local_mem_claimed = NUMBER(d, CL_DEVICE_LOCAL_MEM_SIZE, cl_ulong);
    x->compute_units = (uint32_t)NUMBER(d, CL_DEVICE_MAX_COMPUTE_UNITS, cl_uint);
    x->max_work_group = (uint32_t)NUMBER(d, CL_DEVICE_MAX_WORK_GROUP_SIZE, size_t);
    x->clock_mhz = (uint32_t)NUMBER(d, CL_DEVICE_MAX_CLOCK_FREQUENCY, cl_uint);
    x->native_float_width = (uint32_t)NUMBER(d, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, cl_uint);
    x->local_is_global = NUMBER(d, CL_DEVICE_LOCAL_MEM_TYPE, cl_uint) == CL_GLOBAL;
    f->unified = NUMBER(d, CL_DEVICE_HOST_UNIFIED_MEMORY, cl_uint) != 0;
    char ext[8192] = "";
    if (clGetDeviceInfo(d, CL_DEVICE_EXTENSIONS, sizeof ext - 1, ext, NULL) != CL_SUCCESS) ext[0] = 0;
    x->says_subgroups = has_word(ext, "cl_khr_subgroups") || has_word(ext, "cl_intel_subgroups");
}

static void make_id(clt_found *f) {
    char version[256];
    platform_text(f->platform, CL_PLATFORM_VERSION, version, sizeof version);
    const clt_device_facts *x = &f->facts;
    char *text = clt_format("%d\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n", CLT_CACHE_FORMAT, x->platform, version,
                            x->vendor, x->name, x->driver, x->version, x->host_cpu ? x->host_cpu : "");
    clt_hash_hex(clt_hash(text, strlen(text)), f->id);
    clt_free(text);
}

/* --- advice --- */

/* Where drivers are installed: the dynamic linker's usual folders, then those of vendors. */
static const char *const driver_dirs[] = {"/usr/lib/x86_64-linux-gnu",
                                          "/usr/lib/aarch64-linux-gnu",
                                          "/usr/lib64",
                                          "/usr/lib",
                                          "/usr/local/lib",
                                          "/usr/local/nvidia/lib64",
                                          "/usr/local/nvidia/lib",
                                          "/usr/local/cuda/compat",
                                          "/opt/rocm/lib",
                                          "/opt/rocm/opencl/lib",
                                          "/opt/intel/oneapi/compiler/latest/lib",
                                          "/usr/lib/x86_64-linux-gnu/intel-opencl",
                                          "/usr/lib/wsl/lib"};

/* The path of the library if it is in one of the folders of a colon list, malloc'ed; otherwise NULL. It is
 * not loaded: a driver that is not registered may not work. */
static char *find_in(const char *list, const char *lib) {
    for (const char *s = list; s && *s;) {
        size_t n = strcspn(s, ":");
        char *path = clt_format("%.*s/%s", (int)n, s, lib);
        if (n > 0 && clt_io_is_file(path)) return path;
        clt_free(path);
        s += n + (s[n] == ':');
    }
    return NULL;
}

static char *find_driver(const char *lib) {
    char *path = find_in(clt_env(CLT_ENV_LD_LIBRARY_PATH), lib);
    for (size_t i = 0; i < CLT_COUNT_OF(driver_dirs) && !path; i++) path = find_in(driver_dirs[i], lib);
    return path;
}

/* Whether an .icd file in `dir` names the library. */
static bool is_registered(const char *dir, const char *lib) {
    clt_strv names = {0};
    bool found = false;
    if (clt_io_is_dir(dir)) clt_io_list(dir, &names);
    for (size_t i = 0; i < names.n && !found; i++) {
        char *path = clt_path_join(dir, names.v[i]), *text = NULL;
        if (strstr(names.v[i], ".icd") && clt_io_is_file(path) &&
            clt_io_read_all(path, 4096, &text, NULL) == CLT_OK)
            found = strstr(text, lib) != NULL;
        clt_free(text);
        clt_free(path);
    }
    clt_strv_free(&names);
    return found;
}

char *clt_device_unregistered(void) {
    const char *vendors = clt_env(CLT_ENV_OCL_ICD_VENDORS), *dir = vendors ? vendors : "/etc/OpenCL/vendors";
    cl_platform_id platform[MAX_PLATFORMS];
    cl_uint np = 0;
    if (clGetPlatformIDs(MAX_PLATFORMS, platform, &np) != CL_SUCCESS) np = 0;
    clt_str b = {0};
    for (int i = 0; i < clt_known_drivers_count; i++) {
        const clt_known_driver *d = &clt_known_drivers[i];
        bool registered = is_registered(dir, d->library);
        for (cl_uint p = 0; p < CLT_MIN(np, (cl_uint)MAX_PLATFORMS); p++) {
            char name[128];
            platform_text(platform[p], CL_PLATFORM_NAME, name, sizeof name);
            registered |= strstr(name, d->platform) != NULL;
        }
        char *path = registered ? NULL : find_driver(d->library);
        if (path)
            clt_str_addf(&b,
                         "\n  the driver %s is present but not registered; to register it: echo %s > %s/%s",
                         path, path, dir, d->icd);
        clt_free(path);
    }
    return b.s;
}

static clt_status no_device(const char *found) {
    const char *vendors = clt_env(CLT_ENV_OCL_ICD_VENDORS);
    char *present = clt_device_unregistered();
    clt_status st = clt_error(CLT_NO_DEVICE,
                              "%s (drivers are registered in %s)%s\n  to get a driver for CPUs: apt install "
                              "pocl-opencl-icd; for a GPU install its vendor's OpenCL driver; then run "
                              "`cltrain devices`",
                              found, vendors ? vendors : "/etc/OpenCL/vendors", present ? present : "");
    clt_free(present);
    return st;
}

/* --- enumeration --- */

static clt_status find_all(clt_found **out, int *count) {
    cl_uint np = 0;
    cl_platform_id platform[MAX_PLATFORMS];
    if (clGetPlatformIDs(MAX_PLATFORMS, platform, &np) != CL_SUCCESS || np == 0)
        return no_device("no OpenCL platform was found");
    np = CLT_MIN(np, (cl_uint)MAX_PLATFORMS);
    clt_found *list = NULL;
    int n = 0;
    for (cl_uint p = 0; p < np; p++) {
        cl_device_id device[MAX_DEVICES];
        cl_uint nd = 0;
        if (clGetDeviceIDs(platform[p], CL_DEVICE_TYPE_ALL, MAX_DEVICES, device, &nd) != CL_SUCCESS) continue;
        nd = CLT_MIN(nd, (cl_uint)MAX_DEVICES);
        list = clt_realloc(list, (size_t)(n + (int)nd + 1) * sizeof *list);
        for (cl_uint d = 0; d < nd; d++) {
            cl_bool ok = CL_FALSE, compiler = CL_FALSE;
            clGetDeviceInfo(device[d], CL_DEVICE_AVAILABLE, sizeof ok, &ok, NULL);
            clGetDeviceInfo(device[d], CL_DEVICE_COMPILER_AVAILABLE, sizeof compiler, &compiler, NULL);
            if (!ok || !compiler) continue;
            clt_found *f = &list[n++];
            *f = (clt_found){.platform = platform[p], .device = device[d]};
            f->facts.platform_index = (int)p;
            f->facts.device_index = (int)d;
            read_facts(f);
            make_id(f);
        }
    }
    if (n == 0) {
        clt_free(list);
        return no_device("no OpenCL platform has a usable device");
    }
    *out = list;
    *count = n;
    return CLT_OK;
}

/* Drivers start at the first enumeration, and PoCL does not survive two threads that make it start. */
clt_status clt_platform_find(clt_found **out, int *count) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    const clt_status st = find_all(out, count);
    pthread_mutex_unlock(&lock);
    return st;
}
