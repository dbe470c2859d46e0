/* clt_shm: memory that the ranks of one host share, with a barrier and a page on which each rank notes what
 * it is doing (clt_flight.h). Not for other folders. */
#ifndef CLT_SHM_H
#define CLT_SHM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "clt_flight.h"

typedef struct {
    _Atomic uint64_t arrived; /* ever growing count of arrivals: barrier k is over at k * ranks */
    _Atomic int32_t stop;     /* a signal that some rank got */
    _Atomic int32_t ended;    /* 1 + exit code once a rank has ended the job */
    _Atomic uint64_t said;    /* hash of the message that it printed */
    clt_flight_log flight[];  /* [ranks of the host] */
} clt_shm_page;

/* Creates (first) or opens the file `name` of `bytes` bytes in the host's shared memory and maps it, page
 * aligned. */
clt_status clt_shm_map(const char *name, size_t bytes, bool create, void **out);
/* The name can go as soon as every rank has mapped it: nothing stays behind when a run is killed. */
void clt_shm_unlink(const char *name);
void clt_shm_unmap(void *p, size_t bytes);
/* Bytes that the host's shared memory can still take; a very large number if that cannot be found out. */
uint64_t clt_shm_free(void);

/* Sleeps a little longer each time it is called, without giving up speed for short waits: *spins starts at 0.
 */
void clt_wait_pause(unsigned *spins);

#endif
