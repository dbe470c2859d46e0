/* clt_pci: which NUMA node a PCI device, such as a GPU, is attached to, from Linux's sysfs. */
#ifndef CLT_PCI_H
#define CLT_PCI_H

#include <sched.h>
#include <stdbool.h>

/* A set of CPUs by the system's numbers, for CPU_SET_S and its like with the size sizeof(clt_cpus). Linux
 * has at most 8192 CPUs. */
enum { CLT_CPUS_MOST = 8192 };
typedef struct {
    cpu_set_t part[CLT_CPUS_MOST / CPU_SETSIZE];
} clt_cpus;

/* Reads a list of the system's: "0-3,8", with or without a line end. false, and *out is undefined: the text
 * is no such list, names no CPU, or names one that Linux cannot have. */
bool clt_cpus_parse(const char *text, clt_cpus *out);

/* The number of the node, and its CPUs (cpus NULL: not wanted). address: "0000:3b:00.0". -1, and *cpus is
 * undefined: not known. $CLTRAIN_SYSFS is read instead of /sys. */
int clt_pci_node(const char *address, clt_cpus *cpus);

#endif
