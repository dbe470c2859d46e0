/* clt_shm: memory that the ranks of one host share, with a barrier and a page on which each rank notes what
 * it is doing. Not for other folders. */
#ifndef CLT_SHM_H
#define CLT_SHM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "clt_group.h"

/* What one rank is doing, for the table that is printed when a rank is stuck. */
typedef struct {
    _Atomic int64_t step;
    char phase[48];
    _Atomic int64_t since_ms; /* on the monotonic clock, which all processes of a host share */
    _Atomic int32_t pid;
} clt_shm_note;

typedef struct {
    _Atomic uint64_t arrived; /* ever growing count of arrivals: barrier k is over at k * ranks */
    clt_shm_note note[];      /* [ranks] */
} clt_shm_page;

/* Creates (first) or opens the file `name` of `bytes` bytes in the host's shared memory and maps it, page
 * aligned. */
clt_status clt_shm_map(const char *name, size_t bytes, bool create, void **out);
/* The name can go as soon as every rank has mapped it: nothing stays behind when a run is killed. */
void clt_shm_unlink(const char *name);
void clt_shm_unmap(void *p, size_t bytes);

/* Sleeps a little longer each time it is called, without giving up speed for short waits: *spins starts at 0.
 */
void clt_wait_pause(unsigned *spins);

#endif
