#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test/memfs_internal.h"

/* --- state --- */

void mem_forget_changes(inode *n) {
    for (int i = 0; i < n->n_writes; i++) clt_free(n->writes[i].data);
    clt_free(n->writes);
    clt_free(n->changes);
    n->writes = NULL;
    n->changes = NULL;
    n->n_writes = n->n_changes = 0;
}

static void clear(mem_state *s) {
    for (int i = 0; i < s->used; i++) {
        mem_forget_changes(&s->node[i]);
        clt_free(s->node[i].data);
        clt_free(s->node[i].durable);
    }
    memset(s->node, 0, (size_t)s->used * sizeof *s->node);
    s->used = 0;
    s->versions = 0;
}

static void copy(mem_state *to, const mem_state *from) {
    to->used = from->used;
    to->versions = from->versions;
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

void mem_reset(memfs *fs) {
    clear(&fs->s);
    fs->s.node[0].kind = FOLDER;
    fs->s.used = 1;
}

mem_state *mem_save(const memfs *fs) {
    mem_state *s = clt_calloc(1, sizeof *s);
    copy(s, &fs->s);
    return s;
}

void mem_restore(memfs *fs, const mem_state *s) {
    clear(&fs->s);
    copy(&fs->s, s);
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

void mem_apply(entries *d, const dir_change *c) {
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

static void change_dir(mem_state *fs, int dir, const dir_change *c) {
    inode *n = &fs->node[dir];
    mem_apply(&n->now, c);
    n->changes = clt_realloc(n->changes, (size_t)(n->n_changes + 1) * sizeof *n->changes);
    n->changes[n->n_changes++] = *c;
}

/* The folder that holds the last component, and that component; -1 if a folder on the way is missing. */
static int parent_of(mem_state *fs, const char *path, char *name) {
    int dir = 0;
    for (const char *s = path + strcspn(path, "/"); *s == '/';) { /* the authority of a URL is not a folder */
        size_t n = strcspn(++s, "/");
        if (n >= 96) abort();
        memcpy(name, s, n);
        name[n] = 0;
        s += n;
        if (!*s) return dir;
        entry *e = find(&fs->node[dir].now, name);
        if (!e || fs->node[e->inode].kind != FOLDER) return -1;
        dir = e->inode;
    }
    return -1;
}

static int lookup(mem_state *fs, const char *path) {
    char name[96];
    const char *inside = path + strcspn(path, "/");
    if (!*inside || !strcmp(inside, "/")) return 0;
    int dir = parent_of(fs, path, name);
    entry *e = dir < 0 ? NULL : find(&fs->node[dir].now, name);
    return e ? e->inode : -1;
}

static int new_inode(mem_state *fs, int kind) {
    for (int i = 1; i < MAX_INODES; i++)
        if (!fs->node[i].kind) {
            fs->node[i].kind = kind;
            fs->used = CLT_MAX(fs->used, i + 1);
            return i;
        }
    abort();
}

static int make(mem_state *fs, const char *path, int kind, int *out) {
    char name[96];
    int dir = parent_of(fs, path, name);
    if (dir < 0) return ENOENT;
    if (find(&fs->node[dir].now, name)) return EEXIST;
    *out = new_inode(fs, kind);
    dir_change c = {.inode = *out};
    snprintf(c.add, sizeof c.add, "%s", name);
    change_dir(fs, dir, &c);
    return 0;
}

/* Without CLT_IO_HAS_FOLDERS the folders above a name exist with it. */
static void make_parents(mem_state *fs, const char *path) {
    char *p = clt_strdup(path);
    int i;
    for (char *s = p + 1; (s = strchr(s, '/')); s++) {
        *s = 0;
        make(fs, p, FOLDER, &i);
        *s = '/';
    }
    clt_free(p);
}

/* --- operations --- */

static mem_state *state_of(clt_io_component *c) {
    return &((memfs *)c)->s;
}

static inode *file_of(clt_io_component *c, void *h) {
    return &state_of(c)->node[(int)(intptr_t)h];
}

static bool is_object(const clt_io_component *c) {
    return c->caps & CLT_IO_HAS_VERSIONS;
}

void mem_put(unsigned char **data, size_t *size, uint64_t offset, const void *src, size_t bytes) {
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

/* An upload: a file without a name until it is closed. */
static int open_upload(mem_state *fs, const char *path, clt_io_mode mode, void **handle) {
    int i = lookup(fs, path);
    if (i >= 0 && fs->node[i].kind == FOLDER) return EISDIR;
    if (i >= 0 && mode == CLT_IO_CREATE_NEW) return EEXIST;
    i = new_inode(fs, FILE_NODE);
    snprintf(fs->node[i].pending, sizeof fs->node[i].pending, "%s", path);
    fs->node[i].must_be_new = mode == CLT_IO_CREATE_NEW;
    *handle = (void *)(intptr_t)i;
    return 0;
}

static int mem_open(clt_io_component *c, const char *path, clt_io_mode mode, void **handle) {
    mem_state *fs = state_of(c);
    int i = lookup(fs, path), e;
    if (is_object(c) && (mode == CLT_IO_CREATE || mode == CLT_IO_CREATE_NEW))
        return open_upload(fs, path, mode, handle);
    if (i < 0 && (mode == CLT_IO_READ || mode == CLT_IO_READ_PLAIN)) return ENOENT;
    if (i >= 0 && mode == CLT_IO_CREATE_NEW) return EEXIST;
    if (i < 0 && !(c->caps & CLT_IO_HAS_FOLDERS)) make_parents(fs, path);
    if (i < 0 && (e = make(fs, path, FILE_NODE, &i)) != 0) return e;
    if (fs->node[i].kind != FILE_NODE) return EISDIR;
    if (mode == CLT_IO_CREATE) fs->node[i].bytes = 0;
    *handle = (void *)(intptr_t)i;
    return 0;
}

static int mem_pread(clt_io_component *c, void *h, void *dst, size_t bytes, uint64_t offset, size_t *done) {
    inode *n = file_of(c, h);
    *done = 0;
    if (offset < n->bytes) *done = CLT_MIN(bytes, n->bytes - offset);
    if (*done) memcpy(dst, n->data + offset, *done);
    return 0;
}

static int mem_pwrite(clt_io_component *c, void *h, const void *src, size_t bytes, uint64_t offset,
                      size_t *done) {
    inode *n = file_of(c, h);
    *done = 0;
    if (is_object(c) && (offset != n->bytes || !*n->pending)) return EINVAL;
    mem_put(&n->data, &n->bytes, offset, src, bytes);
    log_write(n, offset, src, bytes);
    *done = bytes;
    return 0;
}

static int mem_append(clt_io_component *c, void *h, const void *src, size_t bytes, size_t *done) {
    return mem_pwrite(c, h, src, bytes, file_of(c, h)->bytes, done);
}

static int mem_size(clt_io_component *c, void *h, uint64_t *bytes) {
    *bytes = file_of(c, h)->bytes;
    return 0;
}

static int mem_sync(clt_io_component *c, void *h) {
    inode *n = file_of(c, h);
    clt_free(n->durable);
    n->durable = clt_memdup(n->data ? n->data : (unsigned char *)"", n->bytes);
    n->durable_bytes = n->bytes;
    mem_forget_changes(n);
    return 0;
}

static void free_inode(inode *n) {
    mem_forget_changes(n);
    clt_free(n->data);
    clt_free(n->durable);
    memset(n, 0, sizeof *n);
}

/* Gives a name to an upload, in the place of what had it. */
static int give_name(mem_state *fs, int i) {
    char name[96], *path = clt_strdup(fs->node[i].pending);
    make_parents(fs, path);
    int dir = parent_of(fs, path, name), old = lookup(fs, path);
    clt_free(path);
    if (old >= 0 && fs->node[i].must_be_new) return EEXIST;
    if (old >= 0) free_inode(&fs->node[old]);
    dir_change change = {.inode = i};
    snprintf(change.add, sizeof change.add, "%s", name);
    change_dir(fs, dir, &change);
    fs->node[i].pending[0] = 0;
    fs->node[i].version = ++fs->versions;
    return 0;
}

static void mem_abandon(clt_io_component *c, void *h) {
    if (*file_of(c, h)->pending) free_inode(file_of(c, h));
}

static int mem_close(clt_io_component *c, void *h) {
    int e = *file_of(c, h)->pending ? give_name(state_of(c), (int)(intptr_t)h) : 0;
    if (e) mem_abandon(c, h);
    return e;
}

static int mem_version(clt_io_component *c, const char *path, char version[CLT_IO_VERSION_BYTES]) {
    mem_state *fs = state_of(c);
    int i = lookup(fs, path);
    if (i < 0 || fs->node[i].kind != FILE_NODE) return ENOENT;
    snprintf(version, CLT_IO_VERSION_BYTES, "\"%llu\"", (unsigned long long)fs->node[i].version);
    return 0;
}

static int mem_replace(clt_io_component *c, const char *path, const void *data, size_t bytes,
                       const char *expected, char version[CLT_IO_VERSION_BYTES]) {
    char now[CLT_IO_VERSION_BYTES] = "";
    void *h;
    size_t done;
    mem_version(c, path, now);
    if (expected && strcmp(expected, now) != 0) return *expected ? ESTALE : EEXIST;
    int e = open_upload(state_of(c), path, CLT_IO_CREATE, &h);
    if (!e) e = mem_pwrite(c, h, data, bytes, 0, &done);
    if (!e) e = mem_close(c, h);
    if (!e) mem_version(c, path, version);
    return e;
}

static int mem_rename(clt_io_component *c, const char *from, const char *to) {
    mem_state *fs = state_of(c);
    char a[96], b[96];
    int d = parent_of(fs, from, a), d2 = parent_of(fs, to, b), i = lookup(fs, from), j = lookup(fs, to);
    if (i < 0 || d != d2) return ENOENT;
    if (j >= 0 && fs->node[j].kind == FOLDER && fs->node[j].now.n) return ENOTEMPTY;
    dir_change change = {.inode = i};
    snprintf(change.remove, sizeof change.remove, "%s", a);
    snprintf(change.add, sizeof change.add, "%s", b);
    change_dir(fs, d, &change);
    return 0;
}

static int mem_exchange(clt_io_component *c, const char *x, const char *y) {
    mem_state *fs = state_of(c);
    dir_change change = {.inode = 0};
    int d = parent_of(fs, x, change.swap_a);
    if (lookup(fs, x) < 0 || lookup(fs, y) < 0 || parent_of(fs, y, change.swap_b) != d) return ENOENT;
    change_dir(fs, d, &change);
    return 0;
}

static int remove_entry(mem_state *fs, const char *path, int kind) {
    dir_change change = {.inode = 0};
    int d = parent_of(fs, path, change.remove), i = lookup(fs, path);
    if (i < 0) return ENOENT;
    if (fs->node[i].kind != kind) return kind == FILE_NODE ? EISDIR : ENOTDIR;
    if (kind == FOLDER && fs->node[i].now.n) return ENOTEMPTY;
    change_dir(fs, d, &change);
    if (fs->node[i].version) free_inode(&fs->node[i]);
    return 0;
}

static int mem_unlink(clt_io_component *c, const char *path) {
    return remove_entry(state_of(c), path, FILE_NODE);
}
static int mem_rmdir(clt_io_component *c, const char *path) {
    return remove_entry(state_of(c), path, FOLDER);
}

static int mem_mkdir(clt_io_component *c, const char *path) {
    int i;
    return make(state_of(c), path, FOLDER, &i);
}

static int mem_sync_dir(clt_io_component *c, const char *path) {
    mem_state *fs = state_of(c);
    int i = lookup(fs, path);
    if (i < 0) return ENOENT;
    fs->node[i].synced = fs->node[i].now;
    mem_forget_changes(&fs->node[i]);
    return 0;
}

static bool holds_file(mem_state *fs, int i) {
    if (fs->node[i].kind == FILE_NODE) return true;
    for (int k = 0; k < fs->node[i].now.n; k++)
        if (holds_file(fs, fs->node[i].now.e[k].inode)) return true;
    return false;
}

/* Without CLT_IO_HAS_FOLDERS a folder is a prefix of files. */
static bool exists(clt_io_component *c, int i) {
    return c->caps & CLT_IO_HAS_FOLDERS || i == 0 || holds_file(state_of(c), i);
}

static int mem_list(clt_io_component *c, const char *path, clt_strv *names) {
    mem_state *fs = state_of(c);
    int i = lookup(fs, path);
    if (i < 0) return c->caps & CLT_IO_HAS_FOLDERS ? ENOENT : 0;
    for (int k = 0; k < fs->node[i].now.n; k++) {
        const entry *e = &fs->node[i].now.e[k];
        if (exists(c, e->inode)) clt_strv_add(names, e->name);
    }
    return 0;
}

static int mem_stat(clt_io_component *c, const char *path, clt_io_info *out) {
    static const clt_io_kind kinds[] = {CLT_IO_ABSENT, CLT_IO_FILE, CLT_IO_FOLDER};
    mem_state *fs = state_of(c);
    int i = lookup(fs, path);
    *out = (clt_io_info){.kind = CLT_IO_ABSENT};
    if (i < 0) return 0;
    *out = (clt_io_info){.kind = kinds[fs->node[i].kind], .bytes = fs->node[i].bytes, .id = {1, (uint64_t)i}};
    if (!exists(c, i)) out->kind = CLT_IO_ABSENT;
    return 0;
}

/* A lock's value names the file and the holder. */
static inode *locked_file(clt_io_component *c, void *lock) {
    return file_of(c, (void *)((intptr_t)lock % MAX_INODES));
}

static bool mem_is_held(clt_io_component *c, void *lock) {
    const inode *n = locked_file(c, lock);
    return n->locked && n->locks == (int)((intptr_t)lock / MAX_INODES);
}

static int mem_lock(clt_io_component *c, const char *path, const char *owner, void **lock,
                    char holder[CLT_IO_OWNER_BYTES]) {
    int e = mem_open(c, path, CLT_IO_APPEND, lock);
    inode *n = e ? NULL : file_of(c, *lock);
    *holder = 0;
    if (e) return e;
    if (n->locked) memcpy(holder, n->owner, sizeof n->owner);
    if (n->locked) return EWOULDBLOCK;
    n->locked = true;
    n->locks++;
    *lock = (void *)((intptr_t)*lock + (intptr_t)n->locks * MAX_INODES);
    snprintf(n->owner, sizeof n->owner, "%s", owner);
    return 0;
}

static int mem_sign(clt_io_component *c, void *lock, const char *owner) {
    inode *n = locked_file(c, lock);
    if (!mem_is_held(c, lock)) return ESTALE;
    snprintf(n->owner, sizeof n->owner, "%s", owner);
    return 0;
}

static void mem_unlock(clt_io_component *c, void *lock) {
    if (mem_is_held(c, lock)) locked_file(c, lock)->locked = false;
}

memfs *mem_create(void) {
    static const clt_io_ops ops = {
        .name = "memory",
        .open = mem_open,
        .pread = mem_pread,
        .pwrite = mem_pwrite,
        .append = mem_append,
        .size = mem_size,
        .datasync = mem_sync,
        .sync = mem_sync,
        .close = mem_close,
        .abandon = mem_abandon,
        .rename = mem_rename,
        .exchange = mem_exchange,
        .unlink = mem_unlink,
        .rmdir = mem_rmdir,
        .mkdir = mem_mkdir,
        .sync_dir = mem_sync_dir,
        .list = mem_list,
        .stat = mem_stat,
        .lock = mem_lock,
        .sign = mem_sign,
        .unlock = mem_unlock,
        .is_held = mem_is_held,
        .replace = mem_replace,
        .version = mem_version,
    };
    memfs *fs = clt_calloc(1, sizeof *fs);
    fs->base = (clt_io_component){&ops, clt_io_local()->caps, .lock_retry = 0.01};
    mem_reset(fs);
    return fs;
}

void mem_become_object_store(memfs *fs) {
    fs->base.caps = CLT_IO_CAN_READ_RANGES | CLT_IO_CAN_CREATE_NEW | CLT_IO_CAN_LOCK | CLT_IO_APPEARS_WHOLE |
                    CLT_IO_HAS_VERSIONS;
}

void mem_lose_lock(memfs *fs, const char *path) {
    int i = lookup(&fs->s, path + clt_path_scheme(path));
    if (i < 0 || !fs->s.node[i].locked) abort();
    fs->s.node[i].locked = false;
}

memfs *mem_mount(const char *key) {
    memfs *fs = mem_create();
    if (clt_io_register(key, &fs->base) != CLT_OK) abort();
    return fs;
}

void mem_destroy(memfs *fs) {
    clear(&fs->s);
    clt_free(fs);
}

clt_io_component *mem_component(memfs *fs) {
    return &fs->base;
}

unsigned char *mem_file(memfs *fs, const char *path, size_t *bytes) {
    int i = lookup(&fs->s, path + clt_path_scheme(path));
    if (i < 0 || fs->s.node[i].kind != FILE_NODE) return NULL;
    *bytes = fs->s.node[i].bytes;
    return fs->s.node[i].data;
}
