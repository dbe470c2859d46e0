/* What HWLOC=0 builds instead of clt_topology_hwloc.c. */
#include "runtime/base/clt_topology.h"

clt_status clt_topology_read(clt_topology *out) {
    *out = (clt_topology){0};
    return CLT_FAIL;
}
