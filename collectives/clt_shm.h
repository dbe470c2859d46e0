/* clt_shm: memory that the ranks of one host share, with a barrier and a page on which each rank notes what
 * it is doing (clt_flight.h). Not for other folders. */
#ifndef CLT_SHM_H
#define CLT_SHM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "collectives/clt_flight.h"

typedef struct {
    _Atomic uint64_t arrived; /* ever growing count of arrivals: barrier k is over at k * ranks */
    _Atomic int32_t stop;     /* a signal that some rank got */
    _Atomic int32_t ended;    /* 1 + exit code once a rank has ended the job */
    _Atomic uint64_t said;    /* hash of the message that it printed */
    _Atomic int32_t spoken;   /* 1 once a rank that ends the job has printed what it had to say */
    clt_flight_log flight[];  /* [ranks of the host] */
} clt_shm_page;

/* Maps `bytes` bytes, page aligned, that all ranks share for which this call is made: one of them is `first`,
 * `name` is the same for all, `agree` gives all of them the worst status of any. The memory has no name any
 * more when it is reserved: nothing stays behind when a run is killed. *out is NULL after a failure. */
typedef clt_status (*clt_shm_agree)(clt_group *g, clt_status mine);
clt_status clt_shm_share(clt_group *g, clt_shm_agree agree, const char *name, size_t bytes, bool first,
                         void **out);
void clt_shm_unmap(void *p, size_t bytes);
/* Bytes that the host's shared memory can still take; a very large number if that cannot be found out. */
uint64_t clt_shm_free(void);

/* Sleeps a little longer each time it is called, without giving up speed for short waits: *spins starts at 0.
 */
void clt_wait_pause(unsigned *spins);

#endif
