/* What URING=0 builds instead of clt_aio_uring.c. */
#include <errno.h>

#include "runtime/base/clt_aio_internal.h"

int clt_aio_uring_create(clt_aio_engine **out) {
    (void)out;
    return ENOSYS;
}
