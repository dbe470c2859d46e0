/* What CURL=0 builds instead of this folder: s3:// is no kind of storage. */
#include "runtime/object/clt_object.h"

clt_status clt_object_register(void) {
    return CLT_OK;
}
void clt_object_unregister(void) {}
clt_object_totals clt_object_counted(void) {
    return (clt_object_totals){0};
}
