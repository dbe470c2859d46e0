/* Shared by the files of memfs only: its state. */
#ifndef MEMFS_INTERNAL_H
#define MEMFS_INTERNAL_H

#include "test/memfs.h"

enum { MAX_INODES = 128, MAX_ENTRIES = 24 };

typedef struct {
    char name[96];
    int inode;
} entry;

typedef struct {
    entry e[MAX_ENTRIES];
    int n;
} entries;

/* A change of a folder since its last sync; a rename inside one folder is one change. */
typedef struct {
    char remove[96], add[96], swap_a[96], swap_b[96];
    int inode;
} dir_change;

typedef struct {
    uint64_t offset;
    size_t bytes;
    unsigned char *data;
} file_change;

enum { FREE, FILE_NODE, FOLDER };

typedef struct {
    int kind;
    bool locked;
    int locks;         /* how often the lock was taken: which of its holders has it */
    char pending[192]; /* an object store: the name that close gives this file; "": it has its name */
    bool must_be_new;
    uint64_t version;
    char owner[CLT_IO_OWNER_BYTES];
    unsigned char *data, *durable;
    size_t bytes, durable_bytes;
    entries now, synced;
    file_change *writes;
    int n_writes;
    dir_change *changes;
    int n_changes;
} inode;

struct mem_state {
    uint64_t versions;
    int used; /* nodes from here on are free and zero */
    inode node[MAX_INODES];
};

struct memfs {
    clt_io_component base;
    mem_state s;
};

void mem_forget_changes(inode *n);
void mem_apply(entries *d, const dir_change *c);
void mem_put(unsigned char **data, size_t *size, uint64_t offset, const void *src, size_t bytes);

#endif
