/* clt_tensor_map: descriptions of tensors for the copy engine of NVIDIA's newer GPUs (cp.async.bulk.tensor).
 * One instruction moves a box of a tensor of up to 5 dimensions between global and local memory, clips what
 * lies outside (+0 is read, nothing is written) and swizzles local memory as the matrix units need it.
 *
 * OpenCL cannot make such a map. cuTensorMapEncodeTiled of NVIDIA's libcuda.so.1, which every driver of
 * NVIDIA installs, can: it is loaded at run time and gets the buffer's address as a kernel sees it
 * (clkernels/probe/address.cl). Where the library is missing, clt_tensor_map_available is false, and kernels
 * that need maps (`tensor_map` in a variant table) are not used.
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

/* To be called when maps will be needed: a thread opens the driver's context that makes them (0.1 s) while
 * the caller continues. Does nothing without the fact wgmma, since no other kernel needs maps. */
void clt_tensor_map_begin(clt_device *dev);
/* Whether a tensor is aligned as a map needs it (base, strides, box). Unused places of p are zero. */
bool clt_tensor_map_fits(const clt_tensor_map_params *p);
/* The place of the map with these parameters, made at the first call. The first call on a device creates a
 * buffer and waits for the device; the first call for a tensor's buffer waits too; other calls at most queue
 * a write, which is done before any later launch. The place stays valid for the next 1000 calls, more than
 * one launch needs, and until the tensor's buffer is destroyed. CLT_FAIL if clt_tensor_map_available or
 * clt_tensor_map_fits is false, or the driver refuses. */
clt_status clt_tensor_map_get(clt_device *dev, const clt_tensor_map_params *p, clt_ref *out);

#endif
