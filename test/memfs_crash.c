/* memfs: a loss of power. */
#include <stdlib.h>
#include <string.h>

#include "test/memfs_internal.h"

static uint64_t next(uint64_t *seed) { /* splitmix64 */
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int mem_pending(const memfs *fs, mem_change *out, int cap) {
    int n = 0;
    for (int i = 0; i < fs->s.used; i++) {
        const inode *d = &fs->s.node[i];
        for (int k = 0; k < d->n_writes && n < cap; k++)
            out[n++] = (mem_change){.write = true, .last = k == d->n_writes - 1, .bytes = d->writes[k].bytes};
        for (int k = 0; k < d->n_changes && n < cap; k++) out[n++] = (mem_change){.bytes = 1};
    }
    return n;
}

static void crash_file(inode *n, const size_t *keep) {
    unsigned char *data = n->durable ? clt_memdup(n->durable, n->durable_bytes) : NULL;
    size_t bytes = n->durable ? n->durable_bytes : 0;
    for (int i = 0; i < n->n_writes; i++)
        if (keep[i])
            mem_put(&data, &bytes, n->writes[i].offset, n->writes[i].data,
                    CLT_MIN(n->writes[i].bytes, keep[i]));
    clt_free(n->data);
    clt_free(n->durable);
    n->data = data;
    n->bytes = n->durable_bytes = bytes;
    n->durable = data ? clt_memdup(data, bytes) : NULL;
}

void mem_crash_as(memfs *fs, const size_t *keep) {
    for (int i = 0; i < fs->s.used; i++) {
        inode *n = &fs->s.node[i];
        if (n->kind == FILE_NODE) crash_file(n, keep);
        if (n->kind == FOLDER) {
            n->now = n->synced;
            for (int k = 0; k < n->n_changes; k++)
                if (keep[n->n_writes + k]) mem_apply(&n->now, &n->changes[k]);
            n->synced = n->now;
        }
        keep += n->n_writes + n->n_changes;
        n->locked = false;
        mem_forget_changes(n);
    }
}

void mem_crash(memfs *fs, uint64_t seed) {
    mem_change change[MEM_CHANGES];
    size_t keep[MEM_CHANGES];
    uint64_t random = seed;
    int n = mem_pending(fs, change, MEM_CHANGES);
    if (n == MEM_CHANGES) abort();
    for (int i = 0; i < n; i++) {
        keep[i] = seed == 1 || (seed && next(&random) % 2) ? change[i].bytes : 0;
        if (seed > 1 && change[i].last && keep[i])
            keep[i] = CLT_MIN(keep[i], next(&random) % (change[i].bytes / 512 + 1) * 512);
    }
    mem_crash_as(fs, keep);
}
