#include "runtime/base/clt_topology.h"

#include <string.h>

void clt_topology_free(clt_topology *t) {
    clt_free(t->cpu);
    clt_free(t->node_number);
    memset(t, 0, sizeof *t);
}
