/* clt_host: what of the host this process may use. */
#ifndef CLT_HOST_H
#define CLT_HOST_H

#include <stdint.h>

/* Bytes of memory: the host's, or less where the process's control group or one above it has a limit, as in a
 * container. */
uint64_t clt_host_memory(void);
/* The same with `root` before /proc and /sys, for tests. */
uint64_t clt_host_memory_under(const char *root);

#endif
