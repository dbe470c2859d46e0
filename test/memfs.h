/* memfs: a file system in memory behind clt_io, for tests of what goes wrong. It can lose power: what was not
 * synced is lost, partly there, or torn, as a seed or the test decides. clt_io_probe before it lets
 * operations fail. One thread at a time. */
#ifndef MEMFS_H
#define MEMFS_H

#include "runtime/base/clt_io.h"

extern const clt_io_ops mem_io;

void mem_reset(void); /* an empty file system */

/* The machine loses power and comes back. seed 0: exactly what was synced; seed 1: all that was written;
 * others: any part of what was not synced, the last write torn at a multiple of 512 bytes. */
void mem_crash(uint64_t seed);

/* What a loss of power decides on, one by one: a write since the last sync of its file (`last`: no later one
 * of this file), or a change of a folder since its last sync (a name made, removed, renamed, exchanged; bytes
 * 1). */
enum { MEM_CHANGES = 256 };
typedef struct {
    bool write, last;
    size_t bytes;
} mem_change;
int mem_pending(mem_change *out, int cap);
/* The machine loses power; of change i keep[i] bytes reach the disk (0: nothing of it), as mem_pending lists
 * them. */
void mem_crash_as(const size_t *keep);

/* Keep and bring back the whole state. */
typedef struct mem_state mem_state;
mem_state *mem_save(void);
void mem_restore(const mem_state *s);
void mem_free(mem_state *s);

/* Direct access, past all faults: the bytes of a file (borrowed until the next operation), NULL if there is
 * none. */
unsigned char *mem_file(const char *path, size_t *bytes);

#endif
