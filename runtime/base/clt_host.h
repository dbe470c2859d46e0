/* clt_host: how much of the host's memory this process may use. */
#ifndef CLT_HOST_H
#define CLT_HOST_H

#include <stdint.h>

/* Bytes: the host's physical memory, or the smallest limit of the process's control group and its ancestors
 * if that is less (containers). */
uint64_t clt_host_memory(void);
/* The same with `root` prepended to /proc and /sys; for tests. */
uint64_t clt_host_memory_under(const char *root);

#endif
