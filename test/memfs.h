/* memfs: a file system in memory behind clt_io, for tests of what goes wrong. It can fail its N-th operation,
 * die at its N-th operation (everything after fails, as if the process were killed), and then lose power:
 * what was not synced is lost, partly there, or torn, as a seed decides. One thread at a time. */
#ifndef MEMFS_H
#define MEMFS_H

#include "runtime/base/clt_io.h"

extern const clt_io_ops mem_io;

void mem_reset(void); /* an empty file system, no faults */

typedef enum {
    MEM_FAIL,  /* the operation fails with `error` */
    MEM_SHORT, /* a write takes only half of its bytes, and the rest fails with `error`; other operations fail
                */
    MEM_DIE    /* this and all later operations fail with EIO */
} mem_fault;
/* Operation n from now on (1 is the next) is hit; error is an errno value. n 0: no fault. */
void mem_arm(long n, mem_fault fault, int error);
bool mem_fired(void);
long mem_operations(void); /* since the last mem_arm */

/* The machine loses power and comes back without faults. seed 0: exactly what was synced; seed 1: all that
 * was written; others: any part of what was not synced, the last write torn at a multiple of 512 bytes. */
void mem_crash(uint64_t seed);

/* Keep and bring back the whole state. */
typedef struct mem_state mem_state;
mem_state *mem_save(void);
void mem_restore(const mem_state *s);
void mem_free(mem_state *s);

/* Direct access, past all faults: the bytes of a file (borrowed until the next operation), NULL if there is
 * none. */
unsigned char *mem_file(const char *path, size_t *bytes);

#endif
