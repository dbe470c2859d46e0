/* clt_shared_ids: the order of an epoch once for all processes of a host. It is a file in /dev/shm whose name
 * is a hash of everything that the order follows from. One process computes it while it holds the file's lock
 * alone; the others wait for the lock, which they then share as long as they use the file. A lock ends with
 * its process, so an order that was not completed is computed by the next process, and a file without a lock
 * is left over and removed by the next call or by its last user. Not for other folders. */
#ifndef CLT_SHARED_IDS_H
#define CLT_SHARED_IDS_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/base/clt_hash.h"

typedef struct {
    void *ids; /* NULL: not open */
    size_t bytes;
    int fd;
    char path[80];
} clt_shared_ids;

/* Maps `bytes` bytes for this key. *compute: this process must fill them and call clt_shared_ids_publish;
 * otherwise they are complete. False, with a warning: this host has no room for them, or no /dev/shm. */
bool clt_shared_ids_open(clt_hash128 key, size_t bytes, clt_shared_ids *out, bool *compute);
void clt_shared_ids_publish(clt_shared_ids *s);
/* Unmaps; the last user removes the file. Does nothing if s is not open. */
void clt_shared_ids_close(clt_shared_ids *s);

#endif
