/* memfs: a file system in memory as a storage component, for tests of what goes wrong. It can lose power:
 * what was not synced is lost, partly there, or torn, as a seed or the test decides. clt_io_probe before it
 * lets operations fail. Each memfs has its own state; one thread at a time. */
#ifndef MEMFS_H
#define MEMFS_H

#include "runtime/base/clt_io_component.h"

typedef struct memfs memfs;

memfs *mem_create(void);                    /* empty */
memfs *mem_mount(const char *key);          /* mem_create, registered: "mem" serves mem:///NAME */
void mem_destroy(memfs *fs);                /* after clt_io_unregister */
clt_io_component *mem_component(memfs *fs); /* with the capabilities of the local file system; a test may take
                                             * some away before it writes anything */

void mem_reset(memfs *fs); /* empty again */

/* From now on it behaves like an object store: no folders and no renames; a file is written from its
 * beginning to its end and appears with its name when it is closed; versions and conditional writes. What has
 * a name is durable. Call it while it is empty. */
void mem_become_object_store(memfs *fs);
/* Whoever holds the lock of this name has lost it, and anybody may take it. */
void mem_lose_lock(memfs *fs, const char *path);

/* The machine loses power and restarts. seed 0: exactly what was synced; seed 1: all that was written;
 * others: any part of what was not synced, the last write torn at a multiple of 512 bytes. */
void mem_crash(memfs *fs, uint64_t seed);

/* What a loss of power decides on, one by one: a write since the last sync of its file (`last`: no later one
 * of this file), or a change of a folder since its last sync (a name made, removed, renamed, exchanged; bytes
 * 1). */
enum { MEM_CHANGES = 256 };
typedef struct {
    bool write, last;
    size_t bytes;
} mem_change;
int mem_pending(const memfs *fs, mem_change *out, int cap);
/* The machine loses power; of change i keep[i] bytes reach the disk (0: none), as mem_pending lists them. */
void mem_crash_as(memfs *fs, const size_t *keep);

/* Keep the whole state and restore it. */
typedef struct mem_state mem_state;
mem_state *mem_save(const memfs *fs);
void mem_restore(memfs *fs, const mem_state *s);
void mem_free(mem_state *s);

/* Direct access, past all faults: the bytes of the file at a path or URL (borrowed until the next operation),
 * NULL if there is none. */
unsigned char *mem_file(memfs *fs, const char *path, size_t *bytes);

#endif
