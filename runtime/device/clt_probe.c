#include "clt_device_private.h"
clt_status clt_probe(clt_device *dev) {
    dev->facts.correct_rounding_option = true;
    dev->facts.local_mem = dev->facts.local_mem_claimed;
    dev->facts.exact = true;
    return CLT_OK;
}
clt_status clt_device_peak(clt_device *dev, double *fma_flops, double *copy_bytes) {
    (void)dev;
    *fma_flops = *copy_bytes = 0;
    return CLT_OK;
}
