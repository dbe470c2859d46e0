/* clt_topology: the CPUs of this host that the process may use, by NUMA node and core. A CPU here is what the
 * system schedules on: a hardware thread of a core. */
#ifndef CLT_TOPOLOGY_H
#define CLT_TOPOLOGY_H

#include "runtime/base/clt_base.h"

typedef struct {
    int cpu;        /* the system's number */
    int core, node; /* counted from 0 in the order of the list, without gaps */
} clt_topology_cpu;

typedef struct {
    clt_topology_cpu *cpu; /* [cpus], neighbouring nodes and cores together; owned */
    int cpus, cores, nodes;
    int *node_number; /* [nodes] the system's number of each node; owned */
    bool here;        /* false: HWLOC_SYNTHETIC or HWLOC_XMLFILE describes another machine (tests) */
} clt_topology;

/* The CPUs that the process's control group and the affinity mask of the calling thread allow. A CPU belongs
 * to the node whose memory the fewest CPUs share; nodes without CPUs (memory only) are not listed. On a host
 * without NUMA all CPUs are of one node. CLT_FAIL, without a message, if the host cannot be examined or the
 * program was built with HWLOC=0; *out is then empty. Free with clt_topology_free. */
clt_status clt_topology_read(clt_topology *out);
void clt_topology_free(clt_topology *t);

#endif
