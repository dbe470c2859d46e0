/* At which address does a kernel see a buffer?
 *
 * Asked      For each buffer that NVIDIA's copy engine reads through a tensor map
 *            (runtime/device/clt_tensor_map.c): the function of the driver that makes a map takes an address,
 *            and OpenCL 1.2 has no call that gives one.
 * Input      p, the buffer. Launch: one work-item.
 * Right      *out is the address of p's first byte. It cannot be checked here; a wrong address would show in
 *            the check of every kernel that uses tensor maps.
 * Sets       no fact: the answer belongs to one buffer */
#pragma OPENCL FP_CONTRACT OFF

__kernel void address(__global const uchar *p, __global ulong *out) {
    *out = (ulong)p;
}
