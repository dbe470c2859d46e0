/* The limit of the cache: a file LOCAL/.fetch/uses has the time of the last use of every shard, for all
 * processes that share the folder. */
#include <errno.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_fetch_internal.h"

uint64_t fetch_clock(void) {
    return (uint64_t)(clt_wall() * 1e6);
}

void fetch_stamp(const fetch_item *it, uint64_t when) {
    if (!it->set->uses) return;
    clt_error_quiet(true); /* a lost time only makes a worse choice later */
    clt_file_pwrite(it->set->uses, &when, sizeof when, it->index * sizeof when);
    clt_error_quiet(false);
}

clt_status fetch_lock(clt_fetch *f, const char *folder, const char *name, clt_io_lock **out) {
    char holder[CLT_IO_OWNER_BYTES], *path = clt_path_join(folder, name);
    clt_status st = CLT_OK;
    for (;;) {
        const int e = clt_io_lock_try(path, "changes the cache", out, holder);
        if (e == 0) break;
        if (e != EWOULDBLOCK)
            st = clt_error(CLT_IO, "cannot lock %s: %s; the local folder must be on storage that has locks",
                           path, clt_io_explain(path, e));
        else if ((f && atomic_load(&f->stop)) || clt_io_stop_requested())
            st = CLT_STOPPED;
        if (st != CLT_OK) break;
        clt_sleep(0.005);
    }
    clt_free(path);
    return st;
}

/* Times of the shards of a set, of the set's size. */
static clt_status read_uses(const fetch_set *s, uint64_t *when) {
    uint64_t bytes, want = s->n * sizeof *when;
    memset(when, 0, want);
    CLT_TRY(clt_file_size(s->uses, &bytes));
    return clt_file_pread(s->uses, when, (size_t)CLT_MIN(bytes, want), 0);
}

clt_status fetch_open_uses(clt_fetch *f, fetch_set *s) {
    char *path = clt_path_join(s->work, "uses");
    uint64_t *when = clt_try_calloc(s->n + 1, sizeof *when);
    clt_io_lock *lock = NULL;
    clt_status st =
        when ? clt_file_open(path, CLT_IO_UPDATE, &s->uses) : clt_no_memory(path, s->n * sizeof *when);
    if (st == CLT_OK) st = fetch_lock(f, s->work, "room.lock", &lock);
    if (st == CLT_OK) st = read_uses(s, when);
    for (size_t i = 0; st == CLT_OK && i < s->n; i++)
        if (when[i] == 0 && fetch_is_there(f->items[s->first + i])) when[i] = 1; /* before all times */
    if (st == CLT_OK) st = clt_file_pwrite(s->uses, when, s->n * sizeof *when, 0);
    clt_io_lock_release(lock);
    clt_free(when);
    clt_free(path);
    return st;
}

/* Which shard goes: the one whose last use is longest ago and that is not in the window. When somebody waits
 * for `it`, also one of the window, the last one first. NULL: none. Lock of f held. */
static fetch_item *choose(clt_fetch *f, const fetch_item *it, const uint64_t *when, bool needed) {
    fetch_item *oldest = NULL, *last = NULL;
    for (size_t i = 0; i < f->n_items; i++) {
        fetch_item *c = f->items[i];
        if (c == it || when[i] == 0 || c->state == FETCH_BUSY || c->waiters) continue;
        if (c->order == SIZE_MAX) {
            if (!oldest || when[i] < when[oldest->set->first + oldest->index]) oldest = c;
        } else if (needed && (!last || c->order > last->order)) {
            last = c;
        }
    }
    return oldest ? oldest : last;
}

static void remove_item(fetch_item *c) {
    char *path = fetch_path(c);
    clt_io_try_unlink(path);
    fetch_stamp(c, 0);
    c->there = false;
    clt_free(path);
}

static clt_status make_room(clt_fetch *f, fetch_item *it, bool needed, uint64_t *when, bool *full) {
    uint64_t used = 0;
    for (size_t i = 0; i < f->n_sets; i++) CLT_TRY(read_uses(f->sets[i], when + f->sets[i]->first));
    for (size_t i = 0; i < f->n_items; i++)
        if (when[i] && f->items[i] != it) used += f->items[i]->keep.bytes;
    while (!*full && used + it->keep.bytes > f->p.cache_limit) {
        pthread_mutex_lock(&f->lock);
        fetch_item *c = choose(f, it, when, needed);
        if (c) remove_item(c);
        pthread_mutex_unlock(&f->lock);
        *full = c == NULL;
        if (!c) break;
        when[c->set->first + c->index] = 0;
        used -= c->keep.bytes;
    }
    if (!*full) fetch_stamp(it, fetch_clock());
    return CLT_OK;
}

clt_status fetch_make_room(clt_fetch *f, fetch_item *it, bool needed, bool *full) {
    clt_io_lock *lock = NULL;
    uint64_t *when = clt_try_calloc(f->n_items + 1, sizeof *when);
    clt_status st = when ? CLT_OK : clt_no_memory("the shards of a cache", f->n_items * sizeof *when);
    if (st == CLT_OK) st = fetch_lock(f, f->sets[0]->work, "room.lock", &lock);
    if (st == CLT_OK) st = make_room(f, it, needed, when, full);
    clt_io_lock_release(lock);
    clt_free(when);
    return st;
}
