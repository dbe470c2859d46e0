#include "test/memfs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INODES = 128, MAX_ENTRIES = 24 };

typedef struct {
    char name[96];
    int inode;
} entry;

typedef struct {
    entry e[MAX_ENTRIES];
    int n;
} entries;

/* Something that happened to a folder since its last sync; a rename inside one folder is one change. */
typedef struct {
    char remove[96], add[96], swap_a[96], swap_b[96];
    int inode;
} dir_change;

typedef struct {
    uint64_t offset;
    size_t bytes;
    unsigned char *data;
} file_change;

typedef struct {
    int kind; /* 0 free, 1 file, 2 folder */
    unsigned char *data, *durable;
    size_t bytes, durable_bytes;
    entries now, synced;
    file_change *writes;
    int n_writes;
    dir_change *changes;
    int n_changes;
} inode;

struct mem_state {
    int used; /* nodes from here on are free and zero */
    inode node[MAX_INODES];
};

static mem_state fs;
/* --- state --- */

static void forget_changes(inode *n) {
    for (int i = 0; i < n->n_writes; i++) clt_free(n->writes[i].data);
    clt_free(n->writes);
    clt_free(n->changes);
    n->writes = NULL;
    n->changes = NULL;
    n->n_writes = n->n_changes = 0;
}

static void clear(mem_state *s) {
    for (int i = 0; i < s->used; i++) {
        forget_changes(&s->node[i]);
        clt_free(s->node[i].data);
        clt_free(s->node[i].durable);
    }
    memset(s->node, 0, (size_t)s->used * sizeof *s->node);
    s->used = 0;
}

static void copy(mem_state *to, const mem_state *from) {
    to->used = from->used;
    memcpy(to->node, from->node, (size_t)from->used * sizeof *from->node);
    for (int i = 0; i < to->used; i++) {
        inode *n = &to->node[i];
        if (n->data) n->data = clt_memdup(n->data, n->bytes);
        if (n->durable) n->durable = clt_memdup(n->durable, n->durable_bytes);
        if (n->changes) n->changes = clt_memdup(n->changes, (size_t)n->n_changes * sizeof *n->changes);
        if (n->writes) n->writes = clt_memdup(n->writes, (size_t)n->n_writes * sizeof *n->writes);
        for (int k = 0; k < n->n_writes; k++)
            n->writes[k].data = clt_memdup(n->writes[k].data, n->writes[k].bytes);
    }
}

void mem_reset(void) {
    clear(&fs);
    fs.node[0].kind = 2;
    fs.used = 1;
}

mem_state *mem_save(void) {
    mem_state *s = clt_calloc(1, sizeof *s);
    copy(s, &fs);
    return s;
}

void mem_restore(const mem_state *s) {
    clear(&fs);
    copy(&fs, s);
}

void mem_free(mem_state *s) {
    clear(s);
    clt_free(s);
}

/* --- names --- */

static entry *find(entries *d, const char *name) {
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->e[i].name, name)) return &d->e[i];
    return NULL;
}

static void add(entries *d, const char *name, int ino) {
    if (d->n == MAX_ENTRIES) abort();
    snprintf(d->e[d->n].name, sizeof d->e[d->n].name, "%s", name);
    d->e[d->n++].inode = ino;
}

static void drop(entries *d, const char *name) {
    entry *e = find(d, name);
    if (e) *e = d->e[--d->n];
}

static void apply(entries *d, const dir_change *c) {
    if (*c->swap_a) {
        entry *a = find(d, c->swap_a), *b = find(d, c->swap_b);
        if (!a || !b) return;
        int i = a->inode;
        a->inode = b->inode;
        b->inode = i;
        return;
    }
    if (*c->remove) drop(d, c->remove);
    if (*c->add) {
        drop(d, c->add);
        add(d, c->add, c->inode);
    }
}

static void change_dir(int dir, const dir_change *c) {
    inode *n = &fs.node[dir];
    apply(&n->now, c);
    n->changes = clt_realloc(n->changes, (size_t)(n->n_changes + 1) * sizeof *n->changes);
    n->changes[n->n_changes++] = *c;
}

/* The folder that holds the last component, and that component; -1 if a folder on the way is missing. */
static int parent_of(const char *path, char *name) {
    int dir = 0;
    for (const char *s = path; *s == '/';) {
        size_t n = strcspn(++s, "/");
        if (n >= 96) abort();
        memcpy(name, s, n);
        name[n] = 0;
        s += n;
        if (!*s) return dir;
        entry *e = find(&fs.node[dir].now, name);
        if (!e || fs.node[e->inode].kind != 2) return -1;
        dir = e->inode;
    }
    return -1;
}

static int lookup(const char *path) {
    char name[96];
    if (!strcmp(path, "/")) return 0;
    int dir = parent_of(path, name);
    entry *e = dir < 0 ? NULL : find(&fs.node[dir].now, name);
    return e ? e->inode : -1;
}

static int new_inode(int kind) {
    for (int i = 1; i < MAX_INODES; i++)
        if (!fs.node[i].kind) {
            fs.node[i].kind = kind;
            fs.used = CLT_MAX(fs.used, i + 1);
            return i;
        }
    abort();
}

static int make(const char *path, int kind, int *out) {
    char name[96];
    int dir = parent_of(path, name);
    if (dir < 0) return ENOENT;
    if (find(&fs.node[dir].now, name)) return EEXIST;
    *out = new_inode(kind);
    dir_change c = {.inode = *out};
    snprintf(c.add, sizeof c.add, "%s", name);
    change_dir(dir, &c);
    return 0;
}

/* --- operations --- */

static inode *file_of(void *h) {
    return &fs.node[(int)(intptr_t)h];
}

static void put(unsigned char **data, size_t *size, uint64_t offset, const void *src, size_t bytes) {
    if (offset + bytes > *size) {
        *data = clt_realloc(*data, offset + bytes);
        memset(*data + *size, 0, offset + bytes - *size);
        *size = offset + bytes;
    }
    if (bytes) memcpy(*data + offset, src, bytes);
}

static void log_write(inode *n, uint64_t offset, const void *src, size_t bytes) {
    n->writes = clt_realloc(n->writes, (size_t)(n->n_writes + 1) * sizeof *n->writes);
    n->writes[n->n_writes++] = (file_change){offset, bytes, clt_memdup(src, bytes)};
}

static int mem_open(const char *path, clt_io_mode mode, void **handle) {
    int i = lookup(path), e;
    if (i < 0 && (mode == CLT_IO_READ || mode == CLT_IO_READ_PLAIN)) return ENOENT;
    if (i < 0 && (e = make(path, 1, &i)) != 0) return e;
    if (fs.node[i].kind != 1) return EISDIR;
    if (mode == CLT_IO_CREATE) fs.node[i].bytes = 0;
    *handle = (void *)(intptr_t)i;
    return 0;
}

static int mem_pread(void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    inode *n = file_of(h);
    *done = 0;
    if (offset < n->bytes) *done = CLT_MIN(bytes, n->bytes - offset);
    if (*done) memcpy(dst, n->data + offset, *done);
    return 0;
}

static int mem_pwrite(void *h, const void *src, size_t bytes, uint64_t offset, size_t *done) {
    inode *n = file_of(h);
    put(&n->data, &n->bytes, offset, src, bytes);
    log_write(n, offset, src, bytes);
    *done = bytes;
    return 0;
}

static int mem_append(void *h, const void *src, size_t bytes, size_t *done) {
    return mem_pwrite(h, src, bytes, file_of(h)->bytes, done);
}

static int mem_size(void *h, uint64_t *bytes) {
    *bytes = file_of(h)->bytes;
    return 0;
}

static int mem_sync(void *h) {
    inode *n = file_of(h);
    clt_free(n->durable);
    n->durable = clt_memdup(n->data ? n->data : (unsigned char *)"", n->bytes);
    n->durable_bytes = n->bytes;
    forget_changes(n);
    return 0;
}

static int mem_close(void *h) {
    (void)h;
    return 0;
}

static int mem_rename(const char *from, const char *to) {
    char a[96], b[96];
    int d = parent_of(from, a), d2 = parent_of(to, b), i = lookup(from), j = lookup(to);
    if (i < 0 || d != d2) return ENOENT;
    if (j >= 0 && fs.node[j].kind == 2 && fs.node[j].now.n) return ENOTEMPTY;
    dir_change c = {.inode = i};
    snprintf(c.remove, sizeof c.remove, "%s", a);
    snprintf(c.add, sizeof c.add, "%s", b);
    change_dir(d, &c);
    return 0;
}

static int mem_exchange(const char *x, const char *y) {
    dir_change c = {.inode = 0};
    int d = parent_of(x, c.swap_a);
    if (lookup(x) < 0 || lookup(y) < 0 || parent_of(y, c.swap_b) != d) return ENOENT;
    change_dir(d, &c);
    return 0;
}

static int remove_entry(const char *path, int kind) {
    dir_change c = {.inode = 0};
    int d = parent_of(path, c.remove), i = lookup(path);
    if (i < 0) return ENOENT;
    if (fs.node[i].kind != kind) return kind == 1 ? EISDIR : ENOTDIR;
    if (kind == 2 && fs.node[i].now.n) return ENOTEMPTY;
    change_dir(d, &c);
    return 0;
}

static int mem_unlink(const char *path) {
    return remove_entry(path, 1);
}
static int mem_rmdir(const char *path) {
    return remove_entry(path, 2);
}

static int mem_mkdir(const char *path) {
    int i;
    return make(path, 2, &i);
}

static int mem_sync_dir(const char *path) {
    int i = lookup(path);
    if (i < 0) return ENOENT;
    fs.node[i].synced = fs.node[i].now;
    forget_changes(&fs.node[i]);
    return 0;
}

static int mem_list(const char *path, clt_strv *names) {
    int i = lookup(path);
    if (i < 0) return ENOENT;
    for (int k = 0; k < fs.node[i].now.n; k++) clt_strv_add(names, fs.node[i].now.e[k].name);
    return 0;
}

static int mem_kind(const char *path, int *kind, uint64_t *bytes) {
    int i = lookup(path);
    *kind = i < 0 ? 0 : fs.node[i].kind;
    if (bytes) *bytes = i < 0 ? 0 : fs.node[i].bytes;
    return 0;
}

const clt_io_ops mem_io = {
    "memory",   mem_open,     mem_pread,  mem_pwrite, mem_append, mem_size,     mem_sync, mem_sync, mem_close,
    mem_rename, mem_exchange, mem_unlink, mem_rmdir,  mem_mkdir,  mem_sync_dir, mem_list, mem_kind,
};

unsigned char *mem_file(const char *path, size_t *bytes) {
    int i = lookup(path);
    if (i < 0 || fs.node[i].kind != 1) return NULL;
    *bytes = fs.node[i].bytes;
    return fs.node[i].data;
}

/* --- power loss --- */

static uint64_t next(uint64_t *seed) { /* splitmix64 */
    uint64_t z = *seed += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

int mem_pending(mem_change *out, int cap) {
    int n = 0;
    for (int i = 0; i < fs.used; i++) {
        const inode *d = &fs.node[i];
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
            put(&data, &bytes, n->writes[i].offset, n->writes[i].data, CLT_MIN(n->writes[i].bytes, keep[i]));
    clt_free(n->data);
    clt_free(n->durable);
    n->data = data;
    n->bytes = n->durable_bytes = bytes;
    n->durable = data ? clt_memdup(data, bytes) : NULL;
}

void mem_crash_as(const size_t *keep) {
    for (int i = 0; i < fs.used; i++) {
        inode *n = &fs.node[i];
        if (n->kind == 1) crash_file(n, keep);
        if (n->kind == 2) {
            n->now = n->synced;
            for (int k = 0; k < n->n_changes; k++)
                if (keep[n->n_writes + k]) apply(&n->now, &n->changes[k]);
            n->synced = n->now;
        }
        keep += n->n_writes + n->n_changes;
        forget_changes(n);
    }
}

void mem_crash(uint64_t seed) {
    mem_change change[MEM_CHANGES];
    size_t keep[MEM_CHANGES];
    uint64_t random = seed;
    int n = mem_pending(change, MEM_CHANGES);
    if (n == MEM_CHANGES) abort();
    for (int i = 0; i < n; i++) {
        keep[i] = seed == 1 || (seed && next(&random) % 2) ? change[i].bytes : 0;
        if (seed > 1 && change[i].last && keep[i])
            keep[i] = CLT_MIN(keep[i], next(&random) % (change[i].bytes / 512 + 1) * 512);
    }
    mem_crash_as(keep);
}
