/* numa_host: the rates of ranks on a host of CPUs with several NUMA nodes, for the simulator of step_sim.h
 * (docs/scaling.md, "CPUs with several NUMA nodes"). */
#ifndef CLBENCH_NUMA_HOST_H
#define CLBENCH_NUMA_HOST_H

#include "tools/clbench/step_sim.h"

typedef struct {
    int cores, nodes; /* of the host; equal nodes */
    double core;      /* FLOP per second of a core in the products of a pass */
    double memory;    /* bytes per second of a node's memory, read plus written */
    double link;      /* bytes per second at which a node reaches the memory of all others */
} numa_host;

/* Bytes per second that a rank's threads reach, with one rank in all or one per node. A rank on one node has
 * its memory. One rank on all nodes has its pages on all of them, and a thread finds a page on its own node
 * only by chance, 1 in `nodes`; the rest passes the links. */
double numa_memory(const numa_host *h, int ranks);

/* Bytes that the passes of a microbatch move: weights are read twice and gradients read and written
 * (elements of 4 bytes); what is stored for the backward pass (bytes) is written and read, and so is its
 * gradient. */
double numa_pass_bytes(uint64_t elements, double activations);

/* The rates of each of `ranks` ranks, 1 or h->nodes, whose microbatches have these FLOP and bytes; forward:
 * the part of them that is the forward pass. A rank writes its own memory when it hands out gradients, and
 * reads that of others. */
step_rates numa_rates(const numa_host *h, int ranks, double flops, double bytes, double forward);

#endif
