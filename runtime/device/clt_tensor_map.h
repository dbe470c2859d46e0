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
 * use of a map it must execute fence.proxy.tensormap::generic.acquire.gpu on it. */
#ifndef CLT_TENSOR_MAP_H
#define CLT_TENSOR_MAP_H

#include "runtime/device/clt_device.h"

typedef enum { CLT_MAP_BF16, CLT_MAP_F16, CLT_MAP_F32, CLT_MAP_U8 } clt_map_type;
enum { CLT_MAP_DIMS = 5 };

typedef struct {
    clt_ref ref; /* first element of the tensor; off counts elements of `type`, a multiple of 16 bytes */
    clt_map_type type;
    int dims;                      /* 1 ... 5; in dimension 0 elements are adjacent */
    uint64_t size[CLT_MAP_DIMS];   /* elements in each dimension, 1 ... 2^32 - 1 */
    uint64_t stride[CLT_MAP_DIMS]; /* elements from one index to the next in each dimension, a multiple of 16
                                    * bytes, below 2^40 bytes; stride[0] is ignored: it is 1 */
    uint32_t box[CLT_MAP_DIMS]; /* elements moved at once in each dimension, 1 ... 256; box[0] is a multiple
                                 * of 16 bytes and, with a swizzle, at most `swizzle` bytes */
    int swizzle;                /* 128, 64 or 32 bytes; 0: none */
} clt_tensor_map_params;

/* Whether the device has inline PTX and NVIDIA's library is loaded and starts. clt_tensor_map_get can still
 * fail, if the driver's context does not open. */
bool clt_tensor_map_available(clt_device *dev);

/* Optional, to save time: starts a thread that opens the driver's context that makes maps (0.1 s) while the
 * caller continues. Does nothing if the device lacks the fact wgmma, since no other kernel needs maps, or if
 * maps are not available. */
void clt_tensor_map_begin(clt_device *dev);
/* Whether p keeps the limits named at its members. False, too, if p->ref is absent. */
bool clt_tensor_map_fits(const clt_tensor_map_params *p);
/* *out: the place of the map with these parameters, off counting ulongs. The map is made at the first call
 * with them and found later. The first call on a device creates two buffers and waits for the driver's
 * context; the first call with each tensor buffer waits for the device; other calls at most queue a write,
 * which is done before any later launch. The place stays valid for the next 1000 calls, more than one launch
 * needs, and at most until the tensor's buffer is destroyed. In a rehearsal *out is absent. CLT_FAIL if
 * clt_tensor_map_available or clt_tensor_map_fits is false, or the driver refuses; also the errors of
 * creating, writing and reading buffers. On failure *out is absent. */
clt_status clt_tensor_map_get(clt_device *dev, const clt_tensor_map_params *p, clt_ref *out);

#endif
