/* Opening and closing a device. */
#include "runtime/device/clt_device_private.h"

#include <errno.h>
#include <string.h>

#include "runtime/base/clt_bind.h"
#include "runtime/base/clt_io.h"
#include "runtime/device/clt_helpers.h"
#include "runtime/device/clt_probe.h"
#include "runtime/device/clt_record.h"
#include "runtime/device/clt_waiter.h"

clt_device_params clt_device_params_default(void) {
    return (clt_device_params){.local_size = 1};
}

static void CL_CALLBACK context_message(const char *text, const void *private_info, size_t cb, void *user) {
    (void)private_info, (void)cb, (void)user;
    clt_debug("driver: %s", text);
}

/* Limits the device to `count` of a CPU's compute units; ranks with different `share` get different ones. */
static void take_units(clt_device *dev, int count, int share) {
    cl_device_partition_property props[] = {CL_DEVICE_PARTITION_EQUALLY, count, 0};
    if (count <= 0 || (uint32_t)count >= dev->facts.compute_units) return;
    cl_uint n = 0, cap = dev->facts.compute_units / (uint32_t)count;
    cl_device_id *sub = clt_calloc(cap, sizeof(cl_device_id));
    if (clCreateSubDevices(dev->root, props, cap, sub, &n) == CL_SUCCESS && n > 0) {
        cl_uint mine = (cl_uint)share % n;
        for (cl_uint i = 0; i < n; i++)
            if (i != mine) clReleaseDevice(sub[i]);
        dev->device = sub[mine];
        dev->facts.compute_units = (uint32_t)count;
    } else {
        clt_debug("%s cannot be partitioned: all %u compute units are used", dev->facts.name,
                  dev->facts.compute_units);
    }
    clt_free(sub);
}

/* A process that is bound to its CPUs shares them with no other rank. A runtime that counts those CPUs
 * (Intel) may have fewer units than the host. */
static void take_threads(clt_device *dev, int wanted, int share, int sharing) {
    const int bound = clt_bind_threads();
    const int fair = sharing > 1 ? CLT_MAX((int)dev->facts.compute_units / sharing, 1) : 0;
    take_units(dev, wanted > 0 ? wanted : bound ? bound : fair, bound ? 0 : share);
}

static void open_cache(clt_device *dev, const char *dir) {
    dev->cache_dir = dir ? clt_strdup(dir) : clt_cache_default_dir();
    if (!dev->cache_dir) return;
    int e = clt_io_try_mkdirs(dev->cache_dir);
    if (e == 0) return;
    clt_debug("no cache folder %s: %s", dev->cache_dir, strerror(e));
    clt_free(dev->cache_dir);
    dev->cache_dir = NULL;
}

static void take_quirks(clt_device *dev, int local_size) {
    for (int q = 0; q < CLT_QUIRKS; q++)
        if (clt_quirk_of(&dev->facts, q)) dev->quirks |= 1u << q;
    dev->declares = clt_has_quirk(dev, CLT_QUIRK_SLOW_DECLARATIONS);
    dev->launch_turns = clt_has_quirk(dev, CLT_QUIRK_COMPILES_AT_LAUNCH) && local_size > 1;
    if (clt_has_quirk(dev, CLT_QUIRK_USES_WAITING_THREAD) && dev->facts.compute_units > 1)
        dev->waiter = clt_waiter_create();
}

static clt_status create_queue(clt_device *dev) {
    cl_int e;
    dev->context = clCreateContext(NULL, 1, &dev->device, context_message, NULL, &e);
    CLT_CL(dev, e, "creating a context");
    return clt_device_use(dev, CLT_QUEUE_COMPUTE);
}

/* How many helpers there may be. Each opens the device: on a GPU they may use a sixteenth of its memory, at
 * half a GiB each. None where the driver caches programs itself: PoCL compiles most code at the first launch,
 * which is not rehearsed. */
static int helpers_most(const clt_device *dev, int local_size, int sharing) {
    enum { MOST = 15 };
    const uint64_t of_memory = dev->facts.global_mem / 16 / (512u << 20) / (uint64_t)CLT_MAX(sharing, 1);
    const long given = clt_env_long(CLT_ENV_BUILD_HELPERS, -1);
    if (given >= 0) return (int)CLT_MIN(given, 64L);
    if (clt_has_quirk(dev, CLT_QUIRK_KEEPS_PROGRAMS)) return 0;
    const int cores = CLT_MIN(clt_bind_cpus_each(local_size) - 1, (int)MOST);
    if (dev->facts.type == CLT_DEVICE_CPU) return cores;
    return (int)CLT_MIN((uint64_t)CLT_MAX(cores, 0), of_memory);
}

/* On a GPU that was never probed there is much to build: helpers open it while this process probes. The
 * context of this process exists by then, because a driver that creates many at the same time takes a second
 * for each. */
static void create_helpers(clt_device *dev, const clt_device_params *p, int sharing) {
    const clt_helpers_params h = {.platform = dev->facts.platform_index,
                                  .device = dev->facts.device_index,
                                  .id = dev->id,
                                  .cache_dir = dev->cache_dir,
                                  .timeout = dev->timeout,
                                  .most = helpers_most(dev, p->local_size, sharing)};
    if (!p->helpers || clt_env(CLT_ENV_RECORD)) return;
    dev->helpers = clt_helpers_create(&h);
    if (dev->helpers && dev->facts.type != CLT_DEVICE_CPU && !clt_probe_is_stored(dev))
        clt_helpers_start(dev->helpers);
}

bool clt_device_rehearse(clt_device *dev) {
    if (!dev->helpers || dev->recorder || dev->rehearses || dev->rehearsed) return false;
    dev->rehearses = dev->rehearsed = true; /* helpers take one list */
    clt_error_quiet(true);
    return true;
}

void clt_device_rehearsed(clt_device *dev) {
    dev->rehearses = false;
    clt_error_quiet(false);
    const int n = dev->helpers ? clt_helpers_go(dev->helpers) : 0;
    clt_debug("%d programs are not in the cache", n);
}

bool clt_device_rehearses(const clt_device *dev) {
    return dev->rehearses;
}

static clt_device *new_device(const clt_found *f) {
    clt_device *dev = clt_calloc(1, sizeof *dev);
    dev->platform = f->platform;
    dev->root = dev->device = f->device;
    dev->facts = f->facts;
    memcpy(dev->id, f->id, sizeof dev->id);
    return dev;
}

clt_status clt_device_open_helper(int platform, int device, const char *id, const char *cache_dir,
                                  double timeout, clt_device **out) {
    clt_found *found;
    clt_device *dev = NULL;
    int n;
    CLT_TRY(clt_platform_find(&found, &n));
    for (int i = 0; i < n && !dev; i++) {
        const clt_found *f = &found[i];
        if (f->facts.platform_index == platform && f->facts.device_index == device && !strcmp(f->id, id))
            dev = new_device(f);
    }
    clt_free(found);
    if (!dev) return CLT_FAIL;
    cl_int e;
    dev->context = clCreateContext(NULL, 1, &dev->device, context_message, NULL, &e);
    dev->timeout = timeout;
    dev->cache_dir = cache_dir ? clt_strdup(cache_dir) : NULL;
    take_quirks(dev, 1);
    if (e == CL_SUCCESS) {
        *out = dev;
        return CLT_OK;
    }
    clt_device_close(dev);
    return CLT_FAIL;
}

static clt_status open_found(const clt_found *f, const clt_device_params *p, int share, int sharing,
                             clt_device **out) {
    clt_device *dev = new_device(f);
    double env = (double)clt_env_long(CLT_ENV_DEVICE_TIMEOUT, 0);
    dev->timeout = p->timeout > 0 ? p->timeout : env > 0 ? env : 120;
    dev->profile = p->profile || clt_env_long(CLT_ENV_PROFILE, 0) != 0;
    dev->assert_steady = clt_env_long(CLT_ENV_ASSERT_STEADY, 0) != 0;
    dev->again = p->reprobe;
    open_cache(dev, p->cache_dir);
    if (f->facts.type == CLT_DEVICE_CPU) take_threads(dev, p->threads, share, sharing);
    /* Before the context: it starts threads of the driver, and probing pins memory and measures copies. */
    if (p->bind) clt_bind_near(f->facts.pci, p->local_size);
    take_quirks(dev, p->local_size);
    clt_debug("opening %s", dev->facts.name);
    clt_status st = create_queue(dev);
    clt_debug("%s has a context and a queue", dev->facts.name);
    if (st == CLT_OK) create_helpers(dev, p, sharing);
    if (st == CLT_OK) st = clt_probe(dev);
    const long most = clt_env_long(CLT_ENV_LOCAL_MEM, 0);
    if (most > 0) dev->facts.local_mem = CLT_MIN(dev->facts.local_mem, (uint64_t)most);
    if (st == CLT_OK && p->need_exact && !dev->facts.exact)
        st = clt_error(CLT_NO_DEVICE,
                       "%s cannot run numerics: exact: %s; choose another --device, or set numerics: fast",
                       dev->facts.name, dev->facts.exact_reason);
    const char *record = clt_env(CLT_ENV_RECORD);
    if (st == CLT_OK && record) st = clt_record_start(dev, record, true);
    if (st != CLT_OK) {
        clt_device_close(dev);
        return st;
    }
    *out = dev;
    return CLT_OK;
}

clt_status clt_device_types(const char *pattern, int local_size, clt_device_type *out) {
    clt_found *found;
    int n, index = 0, share, sharing;
    CLT_TRY(clt_platform_find(&found, &n));
    clt_status st = CLT_OK;
    for (int r = 0; r < local_size && st == CLT_OK; r++) {
        st = clt_select(found, n, pattern, NULL, r, local_size, &index, &share, &sharing);
        if (st == CLT_OK) out[r] = found[index].facts.type;
    }
    clt_free(found);
    return st;
}

clt_status clt_device_check_pattern(const char *pattern, int local_size) {
    clt_device_type *types = clt_calloc((size_t)local_size, sizeof *types);
    const clt_status st = clt_device_types(pattern, local_size, types);
    clt_free(types);
    return st;
}

clt_status clt_device_open(const clt_device_params *p, clt_device **out) {
    const char *pattern = p->cpu && !p->pattern ? "" : p->pattern;
    clt_found *found;
    int n, index = 0, share = 0, sharing = 1;
    CLT_TRY(clt_platform_find(&found, &n));
    clt_status st = p->cpu ? clt_select_cpus(found, &n) : CLT_OK;
    if (st == CLT_OK)
        st = clt_select(found, n, pattern, p->slots, p->local_rank, p->local_size, &index, &share, &sharing);
    if (st == CLT_OK) st = open_found(&found[index], p, share, sharing, out);
    clt_free(found);
    return st;
}

clt_status clt_device_list(bool probe, clt_device_facts **list, int *count) {
    clt_found *found;
    int n;
    CLT_TRY(clt_platform_find(&found, &n));
    clt_device_facts *facts = clt_calloc((size_t)n, sizeof *facts);
    clt_device_params params = clt_device_params_default();
    for (int i = 0; i < n; i++) {
        clt_device *dev;
        facts[i] = found[i].facts;
        if (!probe || open_found(&found[i], &params, 0, 1, &dev) != CLT_OK) continue;
        facts[i] = dev->facts;
        clt_device_close(dev);
    }
    clt_free(found);
    *list = facts;
    *count = n;
    return CLT_OK;
}

static void warn_living(clt_device *dev) {
    int n = 0;
    for (clt_buffer *b = dev->buffers, *next; b; b = next) {
        next = b->next;
        if (n++ == 0)
            clt_warn("device %s is closed, but its buffer '%s' was not destroyed", dev->facts.name, b->name);
        clt_buffer_release(b);
        b->dev = NULL;
        b->prev = b->next = NULL;
    }
    if (n > 1) clt_warn("... and %d more buffers", n - 1);
}

void clt_device_close(clt_device *dev) {
    if (!dev) return;
    clt_helpers_destroy(dev->helpers);
    clt_record_stop(dev);
    clt_tensor_map_free(dev);
    warn_living(dev);
    clt_waiter_destroy(dev->waiter, dev->hung);
    /* Releasing a queue waits for it without a deadline, so nothing of a hung device is released. */
    if (!dev->hung) {
        clt_queue_free(dev);
        if (dev->queue) clt_device_finish(dev);
        clt_kernels_free(dev);
        clt_transfer_free(dev);
        clt_marks_free(dev);
        for (int q = 0; q < CLT_QUEUES; q++)
            if (dev->queues[q]) clReleaseCommandQueue(dev->queues[q]);
        if (dev->context) clReleaseContext(dev->context);
        if (dev->device != dev->root) clReleaseDevice(dev->device);
    }
    clt_free(dev->cache_dir);
    clt_free(dev);
}

const clt_device_facts *clt_device_get_facts(const clt_device *dev) {
    return &dev->facts;
}
const char *clt_device_id(const clt_device *dev) {
    return dev->id;
}
const char *clt_device_cache_dir(clt_device *dev) {
    return dev->cache_dir;
}
