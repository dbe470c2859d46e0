/* clt_tensor_map: descriptions of tensors for the copy engine of NVIDIA's newer GPUs (cp.async.bulk.tensor),
 * which moves a box of a tensor of up to 5 dimensions between global and local memory by one instruction,
 * clips what lies outside (+0 is read, nothing is written) and swizzles local memory as the matrix units want
 * it.
 *
 * OpenCL has no way to make such a map; the function that does is cuTensorMapEncodeTiled of NVIDIA's
 * libcuda.so.1, which every driver brings. It is loaded at run time and given the buffer's address as a
 * kernel of ours reports it. Where it is missing clt_tensor_map_available says so, and kernels that need maps
 * (`tensor_map` in a variant table) are not used.
 *
 * Maps lie in one buffer of the device. A kernel takes (__global const ulong *maps, ulong map_off), the
 * clt_ref of clt_tensor_map_get passed by CLT_REF, and uses the address of maps[map_off]; before its first
 * use of a map it executes fence.proxy.tensormap::generic.acquire.gpu on it. */
#ifndef CLT_TENSOR_MAP_H
#define CLT_TENSOR_MAP_H

#include "runtime/device/clt_device.h"

typedef enum { CLT_MAP_BF16, CLT_MAP_F16, CLT_MAP_F32 } clt_map_type;
enum { CLT_MAP_DIMS = 5 };

typedef struct {
    clt_ref ref; /* element 0 of the tensor; off counts elements of `type`; 16 byte aligned */
    clt_map_type type;
    int dims;                      /* 1..5; dimension 0 is contiguous */
    uint64_t size[CLT_MAP_DIMS];   /* elements */
    uint64_t stride[CLT_MAP_DIMS]; /* elements between neighbours; [0] is not read; multiples of 16 bytes */
    uint32_t box[CLT_MAP_DIMS]; /* elements moved at once, 1..256; box[0] is at most `swizzle` bytes long */
    int swizzle;                /* bytes: 128, 64, 32, or 0 for none */
} clt_tensor_map_params;

/* Whether maps can be made for this device here. */
bool clt_tensor_map_available(clt_device *dev);

/* Maps will be needed: begins, beside the caller's work, with the driver's context that makes them (a tenth
 * of a second). Does nothing where there is no wgmma: no other kernel needs maps. */
void clt_tensor_map_begin(clt_device *dev);
/* Whether a tensor is aligned as a map needs it (base, strides, box). Unused places of p are zero. */
bool clt_tensor_map_fits(const clt_tensor_map_params *p);
/* The map of these parameters: the same place each time. The first call waits for the device and makes a
 * buffer, and so does the first one for each tensor buffer (wait only); every other call at most queues a
 * write, which is done before any later launch. The place stays valid until maps were asked for 1000 times
 * more, which is more than one launch uses; a buffer that is destroyed takes its maps with it. CLT_FAIL with
 * a message where clt_tensor_map_available or clt_tensor_map_fits is false, or the driver refuses. */
clt_status clt_tensor_map_get(clt_device *dev, const clt_tensor_map_params *p, clt_ref *out);

#endif
