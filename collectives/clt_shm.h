/* clt_shm: memory that the ranks of one host share. Not for other folders. */
#ifndef CLT_SHM_H
#define CLT_SHM_H

#include <stddef.h>
#include <stdint.h>

#include "collectives/clt_group.h"

/* Maps `bytes` bytes, page aligned and zero, that all ranks share for which this call is made together: one
 * of them is `first`, `name` is the same for all, `agree` gives all of them the same status, a failure if one
 * failed. The memory has no name any more once it is reserved, so nothing is left behind when a run is
 * killed. *out is NULL after a failure. */
typedef clt_status (*clt_shm_agree)(clt_group *g, clt_status mine);
clt_status clt_shm_share(clt_group *g, clt_shm_agree agree, const char *name, size_t bytes, bool first,
                         void **out);
void clt_shm_unmap(void *p, size_t bytes); /* NULL: nothing */
/* Free bytes of the host's shared memory; UINT64_MAX if that is unknown. */
uint64_t clt_shm_free(void);

/* Sleeps a little longer each time it is called, but only yields at first, for the sake of short waits.
 * *spins starts at 0. */
void clt_wait_pause(unsigned *spins);

#endif
