/* The topology as hwloc sees it, which knows control groups, sub-NUMA modes and memory without CPUs. */
#include <hwloc.h>

#include "runtime/base/clt_topology.h"

static hwloc_obj_t numa_node(hwloc_topology_t t, int i) {
    return hwloc_get_obj_by_type(t, HWLOC_OBJ_NUMANODE, (unsigned)i);
}

/* The node whose memory the fewest CPUs share, this one among them. Two with the same CPUs, such as DRAM and
 * high-bandwidth memory, count as the first. -1: none. */
static int node_of(hwloc_topology_t t, int nodes, unsigned cpu) {
    int best = -1, least = 0;
    for (int i = 0; i < nodes; i++) {
        const hwloc_obj_t node = numa_node(t, i);
        const int weight = hwloc_bitmap_weight(node->cpuset);
        if (!hwloc_bitmap_isset(node->cpuset, cpu) || (best >= 0 && weight >= least)) continue;
        best = i;
        least = weight;
    }
    return best;
}

/* Adds the CPUs of `core` (a core, or a CPU without one) that are allowed and of this node. */
static void add_core(hwloc_topology_t t, hwloc_const_cpuset_t allowed, int nodes, int node, hwloc_obj_t core,
                     clt_topology *out) {
    const int before = out->cpus;
    unsigned cpu;
    hwloc_bitmap_foreach_begin(cpu, core->cpuset) {
        if (hwloc_bitmap_isset(allowed, cpu) && node_of(t, nodes, cpu) == node)
            out->cpu[out->cpus++] = (clt_topology_cpu){(int)cpu, out->cores, out->nodes};
    }
    hwloc_bitmap_foreach_end();
    out->cores += out->cpus > before;
}

static void list_cpus(hwloc_topology_t t, hwloc_const_cpuset_t allowed, clt_topology *out) {
    const int nodes = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_NUMANODE);
    const int cores = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE);
    const hwloc_obj_type_t type = cores > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    const int n = cores > 0 ? cores : hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_PU);
    out->cpu = clt_calloc((size_t)CLT_MAX(hwloc_bitmap_weight(allowed), 1), sizeof *out->cpu);
    out->node_number = clt_calloc((size_t)CLT_MAX(nodes, 1), sizeof *out->node_number);
    for (int i = 0; i < nodes; i++) {
        const int before = out->cpus;
        for (int k = 0; k < n; k++)
            add_core(t, allowed, nodes, i, hwloc_get_obj_by_type(t, type, (unsigned)k), out);
        if (out->cpus > before) out->node_number[out->nodes++] = (int)numa_node(t, i)->os_index;
    }
}

/* The affinity mask counts only on the machine that it is a mask of. */
static void keep_affinity(hwloc_topology_t t, hwloc_bitmap_t allowed) {
    const hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (mask && hwloc_get_cpubind(t, mask, HWLOC_CPUBIND_THREAD) == 0)
        hwloc_bitmap_and(allowed, allowed, mask);
    hwloc_bitmap_free(mask);
}

static clt_status list_topology(hwloc_topology_t t, clt_topology *out) {
    const hwloc_bitmap_t allowed = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(t));
    if (!allowed) return CLT_FAIL;
    out->here = hwloc_topology_is_thissystem(t);
    if (out->here) keep_affinity(t, allowed);
    list_cpus(t, allowed, out);
    hwloc_bitmap_free(allowed);
    if (out->nodes > 0) return CLT_OK;
    clt_topology_free(out);
    return CLT_FAIL;
}

clt_status clt_topology_read(clt_topology *out) {
    hwloc_topology_t t;
    *out = (clt_topology){0};
    if (hwloc_topology_init(&t) != 0) return CLT_FAIL;
    hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_NONE);
    const clt_status st = hwloc_topology_load(t) == 0 ? list_topology(t, out) : CLT_FAIL;
    hwloc_topology_destroy(t);
    return st;
}
