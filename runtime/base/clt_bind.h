/* clt_bind: which CPUs each rank of a host with CPU devices gets, and binding this process to its own, or to
 * the node of its GPU. A rank that runs on the CPUs of one NUMA node allocates there, because Linux places a
 * page on the node of the CPU that touches it first. Binding changes no result.
 *
 * `cltrain launch` decides whether ranks are bound to shares and tells them with CLTRAIN_BIND=numa; each rank
 * reads the topology of its own host, so hosts may differ. CLTRAIN_BIND=none turns both kinds off. */
#ifndef CLT_BIND_H
#define CLT_BIND_H

#include "runtime/base/clt_pci.h"
#include "runtime/base/clt_topology.h"

typedef struct {
    int first, count; /* places in clt_bind_plan.topology.cpu */
    int threads;      /* of the CPU device: one per core */
} clt_bind_share;

typedef struct {
    clt_topology topology; /* the CPUs of the nodes that take part */
    clt_bind_share *share; /* [ranks], owned */
    int ranks;
} clt_bind_plan;

/* How many ranks there are by default: the nodes that take part. Ranks get equal work, so a node with less
 * than half the cores of the largest one would delay all others; it takes no part. */
int clt_bind_default_ranks(const clt_topology *t);
/* The plan for `ranks` (at least 1) ranks of a host. With at least as many ranks as nodes, each rank is on
 * one node; nodes get ranks in proportion to their cores, at least one, and the ranks of a node divide its
 * cores evenly. Where a node has more ranks than cores they share all of its CPUs, one thread each. With
 * fewer ranks than nodes a rank gets neighbouring whole nodes. Local ranks are in the order of the nodes.
 * Free with clt_bind_plan_free. */
void clt_bind_plan_make(const clt_topology *t, int ranks, clt_bind_plan *out);
void clt_bind_plan_free(clt_bind_plan *p);
/* Whether some rank may not use all CPUs. If not, there is nothing to bind. */
bool clt_bind_plan_divides(const clt_bind_plan *p);

/* The system's numbers of the CPUs or nodes of a share, as "0-31,64-95". The caller frees it. */
char *clt_bind_cpus_text(const clt_bind_plan *p, int rank);
char *clt_bind_nodes_text(const clt_bind_plan *p, int rank);
/* "2 ranks, one per NUMA node: CPUs 0-31; 32-63". The caller frees it. */
char *clt_bind_plan_text(const clt_bind_plan *p);

/* At the start of a program of cltrain's own, which is one of local_size ranks of this host, before it has
 * threads: if CLTRAIN_BIND is "numa", binds it to its share and sets PoCL's variables for the number of
 * threads. PoCL takes it from the host otherwise; Intel's runtime follows the affinity mask. Prints a warning
 * if the system refuses. */
void clt_bind_rank(int local_rank, int local_size);
/* Binds this process to the CPUs of the NUMA node that the PCI device with this address (clt_pci_node) is
 * attached to: the threads that it has, except those with another affinity mask than the calling thread's,
 * and those to come. Ranks of one node share its CPUs. A share of clt_bind_rank is given up for it. Nothing
 * changes if the node is unknown, clt_bind_narrow says so, CLTRAIN_BIND is "none", or the program did not
 * call clt_bind_rank and so owns its threads itself. Prints a warning if the system refuses. */
void clt_bind_near(const char *address, int local_size);
/* The CPUs of `mask` that are of a node with the CPUs `node`, into *out; returns their number. 0: the process
 * keeps its mask. It is of this node already, or somebody chose it: it has fewer CPUs than the node, or less
 * than half of the node's. */
int clt_bind_narrow(const clt_cpus *mask, const clt_cpus *node, clt_cpus *out);
/* How many threads a CPU device of this process gets because it is bound: those of its clt_bind_share or,
 * bound by clt_bind_near alone, its equal part of the host's CPUs, at most those of the node. 0: not bound.
 */
int clt_bind_threads(void);
/* How many CPUs this process, one of local_size ranks of the host, may keep busy: clt_bind_threads if it is
 * bound, otherwise its equal part of clt_cpu_count; at least 1. */
int clt_bind_cpus_each(int local_size);

#endif
