/* The maps of a device: one buffer with SLOTS places, found by a hash of their parameters. */
#include "runtime/device/clt_tensor_map.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "runtime/base/clt_thread.h"
#include "runtime/device/clt_device_private.h"
#include "runtime/device/clt_record.h"

/* --- the driver's library --- */

/* Functions and values as in NVIDIA's driver API (cuda.h), of which only these few are needed. */
typedef int encode_fn(void *map, int type, uint32_t dims, void *address, const uint64_t *size,
                      const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                      int interleave, int swizzle, int l2_promotion, int outside);
enum { CU_UINT8 = 0, CU_UINT16_BF16 = 9, CU_F16 = 6, CU_F32 = 7, L2_256_BYTES = 3 };

static struct {
    int (*init)(unsigned);
    int (*device_by_bus)(int *, const char *);
    int (*retain)(void **, int);
    int (*release)(int);
    int (*push)(void *);
    int (*pop)(void **);
    encode_fn *encode;
    bool ready;
} cu;

static void load(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct {
        void **to;
        const char *name;
    } symbol[] = {{(void **)&cu.init, "cuInit"},
                  {(void **)&cu.device_by_bus, "cuDeviceGetByPCIBusId"},
                  {(void **)&cu.retain, "cuDevicePrimaryCtxRetain"},
                  {(void **)&cu.release, "cuDevicePrimaryCtxRelease_v2"},
                  {(void **)&cu.push, "cuCtxPushCurrent_v2"},
                  {(void **)&cu.pop, "cuCtxPopCurrent_v2"},
                  {(void **)&cu.encode, "cuTensorMapEncodeTiled"}};
    if (!lib) return;
    for (size_t i = 0; i < CLT_COUNT_OF(symbol); i++)
        if (!(*symbol[i].to = dlsym(lib, symbol[i].name))) return;
    cu.ready = cu.init(0) == 0;
}

/* --- maps of a device --- */

enum { SLOTS = 4096, BUCKETS = 4096, MAP_BYTES = 128, STAYS = 1000 };
_Static_assert(STAYS < SLOTS, "one slot can always be reused");

typedef struct {
    clt_tensor_map_params p;
    uint64_t asked; /* clt_tensor_maps.asked at the last call that returned it */
    int next;       /* in its bucket; -1: end */
    bool used;
} entry;

struct clt_tensor_maps {
    clt_buffer *maps, *where;
    int cuda_device;
    void *cuda_context;
    pthread_t opener; /* opens the context */
    bool opening;
    int next_slot;
    uint64_t asked; /* calls that returned a map */
    int bucket[BUCKETS];
    entry slot[SLOTS];
};

/* NVIDIA's number of an OpenCL device, by its place on the bus (cl_nv_device_attribute_query). */
static int cuda_device_of(const clt_device *dev) {
    enum { BUS = 0x4008, SLOT = 0x4009, DOMAIN = 0x400a };
    cl_uint bus = 0, slot = 0, domain = 0;
    char id[32];
    int device = 0;
    if (clGetDeviceInfo(dev->root, BUS, sizeof bus, &bus, NULL) != CL_SUCCESS ||
        clGetDeviceInfo(dev->root, SLOT, sizeof slot, &slot, NULL) != CL_SUCCESS)
        return 0;
    clGetDeviceInfo(dev->root, DOMAIN, sizeof domain, &domain, NULL);
    snprintf(id, sizeof id, "%04x:%02x:%02x.0", domain, bus, slot);
    return cu.device_by_bus(&device, id) == 0 ? device : 0;
}

bool clt_tensor_map_available(clt_device *dev) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!dev->facts.inline_ptx) return false;
    pthread_once(&once, load);
    return cu.ready;
}

static int element_bytes(clt_map_type t) {
    return t == CLT_MAP_F32 ? 4 : t == CLT_MAP_U8 ? 1 : 2;
}

bool clt_tensor_map_fits(const clt_tensor_map_params *p) {
    const uint64_t bytes = (uint64_t)element_bytes(p->type);
    if (!p->ref.buf || p->ref.off * bytes % 16 || p->dims < 1 || p->dims > CLT_MAP_DIMS) return false;
    if (p->box[0] * bytes % 16 || (p->swizzle && p->box[0] * bytes > (uint64_t)p->swizzle)) return false;
    for (int d = 0; d < p->dims; d++) {
        if (p->size[d] < 1 || p->size[d] > UINT32_MAX || p->box[d] < 1 || p->box[d] > 256) return false;
        if (d > 0 && (p->stride[d] * bytes % 16 || p->stride[d] * bytes >= 1ull << 40)) return false;
    }
    return true;
}

static int bucket_of(const clt_tensor_map_params *p) {
    uint64_t h = (uint64_t)(uintptr_t)p->ref.buf >> 4;
    const uint64_t word[] = {p->ref.off, p->size[0], p->size[1], p->stride[1], p->box[0], p->box[1]};
    for (size_t i = 0; i < CLT_COUNT_OF(word); i++) h = (h ^ word[i]) * 0x9e3779b97f4a7c15ull;
    return (int)(h >> 32) & (BUCKETS - 1);
}

static bool equal(const clt_tensor_map_params *a, const clt_tensor_map_params *b) {
    if (a->ref.buf != b->ref.buf || a->ref.off != b->ref.off || a->type != b->type || a->dims != b->dims ||
        a->swizzle != b->swizzle)
        return false;
    for (int d = 0; d < a->dims; d++)
        if (a->size[d] != b->size[d] || a->box[d] != b->box[d] || (d && a->stride[d] != b->stride[d]))
            return false;
    return true;
}

static void drop(struct clt_tensor_maps *t, int slot) {
    int *at = &t->bucket[bucket_of(&t->slot[slot].p)];
    while (*at != slot) at = &t->slot[*at].next;
    *at = t->slot[slot].next;
    t->slot[slot].used = false;
}

void clt_tensor_map_forget(clt_device *dev, const clt_buffer *b) {
    struct clt_tensor_maps *t = dev->tensor_maps;
    for (int i = 0; t && i < SLOTS; i++)
        if (t->slot[i].used && t->slot[i].p.ref.buf == b) drop(t, i);
}

/* A slot for a new map: slots are reused in turn, except those that were returned by the last STAYS calls,
 * which the launch that is being prepared may use. */
static int take_slot(struct clt_tensor_maps *t) {
    int slot = t->next_slot;
    while (t->slot[slot].used && t->asked - t->slot[slot].asked < STAYS) slot = (slot + 1) % SLOTS;
    t->next_slot = (slot + 1) % SLOTS;
    return slot;
}

/* Waits until the context is open, or has failed to open. */
static void await_context(struct clt_tensor_maps *t) {
    if (t->opening) pthread_join(t->opener, NULL);
    t->opening = false;
}

void clt_tensor_map_free(clt_device *dev) {
    struct clt_tensor_maps *t = dev->tensor_maps;
    if (!t) return;
    dev->tensor_maps = NULL;
    if (dev->hung &&
        t->opening) { /* the thread may never return from the driver; what it uses is not freed */
        pthread_detach(t->opener);
        return;
    }
    await_context(t);
    clt_buffer_destroy(t->maps);
    clt_buffer_destroy(t->where);
    if (t->cuda_context) cu.release(t->cuda_device);
    clt_free(t);
}

static void *open_context(void *p) {
    struct clt_tensor_maps *t = p;
    if (cu.retain(&t->cuda_context, t->cuda_device) != 0) t->cuda_context = NULL;
    return NULL;
}

static void begin(clt_device *dev) {
    if (dev->tensor_maps || !clt_tensor_map_available(dev)) return;
    struct clt_tensor_maps *t = clt_calloc(1, sizeof *t);
    for (int i = 0; i < BUCKETS; i++) t->bucket[i] = -1;
    dev->tensor_maps = t;
    t->cuda_device = cuda_device_of(dev);
    t->opening = clt_thread_start(&t->opener, open_context, t) == 0;
    if (!t->opening) open_context(t);
}

void clt_tensor_map_begin(clt_device *dev) {
    if (dev->facts.wgmma) begin(dev);
}

static clt_status open_maps(clt_device *dev) {
    if (dev->tensor_maps && dev->tensor_maps->maps) return CLT_OK;
    begin(dev);
    struct clt_tensor_maps *t = dev->tensor_maps;
    if (!t)
        return clt_error(CLT_FAIL, "tensor maps are not possible on %s: they need NVIDIA's libcuda.so.1",
                         dev->facts.name);
    clt_status st = clt_buffer_create(dev, sizeof(uint64_t), "tensor maps", &t->where);
    if (st == CLT_OK) st = clt_buffer_create(dev, (size_t)SLOTS * MAP_BYTES, "tensor maps", &t->maps);
    await_context(t);
    if (st == CLT_OK && !t->cuda_context) {
        dev->counters.shortages++; /* the context needs memory, which other processes may be using */
        st = clt_error(CLT_FAIL, "tensor maps are not possible on %s: the driver's context does not open",
                       dev->facts.name);
    }
    if (st != CLT_OK) clt_tensor_map_free(dev);
    return st;
}

/* --- making one --- */

static clt_status address_kernel(clt_device *dev, clt_kernel **k) {
    return clt_kernel_get(dev, "probe/address.cl", "address", "", k);
}

/* The address at which a kernel sees the buffer; buffers do not move. A record has no use for it: elsewhere
 * the buffer has another one. */
static clt_status find_address(clt_device *dev, clt_buffer *b) {
    static const size_t one = 1;
    clt_kernel *k;
    if (b->address) return CLT_OK;
    CLT_TRY(address_kernel(dev, &k));
    clt_record_pause(dev, true);
    const clt_arg args[] = {CLT_BUF(b), CLT_BUF(dev->tensor_maps->where)};
    const clt_status st = clt_launch(k, 1, &one, &one, args, 2);
    clt_record_pause(dev, false);
    CLT_TRY(st);
    return clt_buffer_read(dev->tensor_maps->where, 0, &b->address, sizeof b->address);
}

static clt_status encode(clt_device *dev, const clt_tensor_map_params *p, uint64_t map[MAP_BYTES / 8]) {
    static const int type[] = {CU_UINT16_BF16, CU_F16, CU_F32, CU_UINT8};
    const uint64_t bytes = (uint64_t)element_bytes(p->type);
    const int swizzle = p->swizzle == 128 ? 3 : p->swizzle == 64 ? 2 : p->swizzle == 32 ? 1 : 0;
    uint64_t stride[CLT_MAP_DIMS] = {0};
    uint32_t each[CLT_MAP_DIMS] = {1, 1, 1, 1, 1};
    void *old;
    for (int d = 1; d < p->dims; d++) stride[d - 1] = p->stride[d] * bytes;
    cu.push(dev->tensor_maps->cuda_context);
    const int e = cu.encode(map, type[p->type], (uint32_t)p->dims,
                            (void *)(uintptr_t)(p->ref.buf->address + p->ref.off * bytes), p->size, stride,
                            p->box, each, 0, swizzle, L2_256_BYTES, 0);
    cu.pop(&old);
    if (e == 0) return CLT_OK;
    return clt_error(
        CLT_FAIL, "the driver refuses a tensor map of '%s' (error %d): %d dimensions, %llu x %llu",
        p->ref.buf->name, e, p->dims, (unsigned long long)p->size[0], (unsigned long long)p->size[1]);
}

clt_status clt_tensor_map_get(clt_device *dev, const clt_tensor_map_params *p, clt_ref *out) {
    clt_kernel *k;
    *out = clt_ref_none();
    if (dev->rehearses) return address_kernel(dev, &k);
    CLT_TRY(open_maps(dev));
    struct clt_tensor_maps *t = dev->tensor_maps;
    const int bucket = bucket_of(p);
    int slot = t->bucket[bucket];
    while (slot >= 0 && !equal(&t->slot[slot].p, p)) slot = t->slot[slot].next;
    if (slot < 0) {
        uint64_t map[MAP_BYTES / 8] __attribute__((aligned(64)));
        if (!clt_tensor_map_fits(p))
            return clt_error(CLT_FAIL, "a tensor of '%s' is not aligned as tensor maps need it",
                             p->ref.buf ? p->ref.buf->name : "");
        CLT_TRY(find_address(dev, p->ref.buf));
        CLT_TRY(encode(dev, p, map));
        slot = take_slot(t);
        if (t->slot[slot].used) drop(t, slot);
        CLT_TRY(clt_buffer_write(t->maps, (size_t)slot * MAP_BYTES, map, MAP_BYTES));
        t->slot[slot] = (entry){.p = *p, .next = t->bucket[bucket], .used = true};
        t->bucket[bucket] = slot;
    }
    t->slot[slot].asked = ++t->asked;
    *out = (clt_ref){t->maps, (uint64_t)slot * (MAP_BYTES / 8)};
    return CLT_OK;
}
