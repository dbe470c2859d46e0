#include "runtime/data/clt_fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"
#include "runtime/data/clt_digest.h"
#include "runtime/data/clt_fetch_internal.h"

enum { THREADS = 4, MAX_THREADS = 64, MAX_NAME = 255 };
static const double retry_seconds = 0.02; /* until a shard that cannot come now is tried again */

/* --- threads --- */

/* What to download next: what somebody waits for, then the window in order. NULL: nothing now. Lock held. */
static fetch_item *pick(clt_fetch *f) {
    const double now = clt_now();
    fetch_item *first = NULL;
    for (size_t i = 0; i < f->n_window; i++) {
        fetch_item *it = f->items[f->window[i]];
        if (it->state != FETCH_IDLE || it->there || it->not_before > now) continue;
        if (it->waiters) return it;
        if (!first) first = it;
    }
    return first;
}

static void wait_a_moment(clt_fetch *f, double seconds) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += (long)(seconds * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&f->changed, &f->lock, &t);
}

/* Downloads one item; the lock is given up meanwhile. */
static void work_on(clt_fetch *f, fetch_item *it, char *buffer) {
    const bool needed = it->waiters > 0;
    bool later = false;
    it->state = FETCH_BUSY;
    pthread_mutex_unlock(&f->lock);
    const clt_status st = fetch_bring(f, it, needed, buffer, &later);
    pthread_mutex_lock(&f->lock);
    it->state = st == CLT_OK ? FETCH_IDLE : FETCH_FAILED;
    it->st = st;
    it->there = st == CLT_OK && !later;
    if (st != CLT_OK) snprintf(it->why, sizeof it->why, "%s", clt_last_error());
    if (later) it->not_before = clt_now() + retry_seconds;
    pthread_cond_broadcast(&f->changed);
}

static void *fetch_thread(void *arg) {
    clt_fetch *f = arg;
    char *buffer = f->buffers + (size_t)atomic_fetch_add(&f->started, 1) * f->p.piece;
    clt_error_quiet(true); /* clt_fetch_need reports */
    clt_io_heed_flag(&f->stop);
    pthread_mutex_lock(&f->lock);
    while (!atomic_load(&f->stop)) {
        fetch_item *it = pick(f);
        if (it)
            work_on(f, it, buffer);
        else
            wait_a_moment(f, f->n_window ? retry_seconds : 0.5);
    }
    pthread_mutex_unlock(&f->lock);
    clt_io_heed_flag(NULL);
    return NULL;
}

clt_status clt_fetch_create(const clt_fetch_params *p, clt_fetch **out) {
    clt_fetch *f = clt_calloc(1, sizeof *f);
    f->p = *p;
    if (!f->p.piece) f->p.piece = FETCH_PIECE;
    const int n = p->threads > 0 ? CLT_MIN(p->threads, MAX_THREADS) : THREADS;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->threads = clt_calloc((size_t)n, sizeof *f->threads);
    f->buffers = clt_try_malloc((size_t)n * f->p.piece);
    if (!f->buffers) {
        const uint64_t bytes = (uint64_t)n * f->p.piece;
        clt_fetch_close(f);
        return clt_no_memory("the buffers of downloads", bytes);
    }
    for (; f->n_threads < n; f->n_threads++) {
        const int e = clt_thread_start(&f->threads[f->n_threads], fetch_thread, f);
        if (e && f->n_threads == 0) {
            clt_fetch_close(f);
            return clt_error(CLT_FAIL, "cannot start a thread for downloads: %s", strerror(e));
        }
        if (e) break; /* fewer do */
    }
    *out = f;
    return CLT_OK;
}

static void free_file(fetch_file *g) {
    clt_free(g->name);
    clt_free(g->hex);
}

static void free_set(fetch_set *s) {
    clt_file_close(s->uses);
    clt_free(s->remote);
    clt_free(s->local);
    clt_free(s->work);
    clt_free(s);
}

void clt_fetch_close(clt_fetch *f) {
    if (!f) return;
    clt_fetch_stop(f);
    for (int i = 0; i < f->n_threads; i++) pthread_join(f->threads[i], NULL);
    for (size_t i = 0; i < f->n_items; i++) {
        free_file(&f->items[i]->get);
        free_file(&f->items[i]->keep);
        clt_free(f->items[i]);
    }
    for (size_t i = 0; i < f->n_sets; i++) free_set(f->sets[i]);
    clt_free(f->items);
    clt_free(f->sets);
    clt_free(f->window);
    clt_free(f->threads);
    clt_free(f->buffers);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->changed);
    clt_free(f);
}

void clt_fetch_stop(clt_fetch *f) {
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->stop, true);
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* --- sets --- */

static clt_status check_name(const char *dir, const char *name) {
    bool good = clt_path_is_safe(name) && strlen(name) <= MAX_NAME && strncmp(name, ".fetch", 6) != 0 &&
                strcmp(name, "index.json") != 0;
    for (const char *c = name; *c && good; c++) good = (unsigned char)*c >= 32 && *c != 127;
    if (good) return CLT_OK;
    return clt_error(
        CLT_BAD_DATA,
        "%s/index.json: a shard's file name cannot be stored here: it must be a plain name of at "
        "most %d bytes without control characters, and neither index.json nor .fetch",
        dir, MAX_NAME);
}

/* The checksum that `validate` asks for: NULL, the fastest one. */
static const mds_hash *choose_hash(const mds_file *m, const char *validate) {
    const mds_hash *best = NULL;
    const int algo = validate ? clt_digest_find(validate) : -1;
    if (validate && algo < 0) return NULL;
    for (size_t i = 0; i < m->num_hashes; i++) {
        const mds_hash *h = &m->hashes[i];
        if (validate ? h->algo == algo
                     : !best || clt_digest_fastest((int[]){best->algo, h->algo}, 2) == h->algo)
            best = h;
    }
    return best;
}

static fetch_file copy_file(const mds_file *m, const char *validate) {
    const mds_hash *h = choose_hash(m, validate);
    return (fetch_file){clt_strdup(m->name), m->bytes, h ? h->algo : -1, h ? clt_strdup(h->hex) : NULL};
}

/* Which of a shard's files is read, and what is downloaded for it. */
static clt_status make_item(const clt_fetch *f, const clt_fetch_set *s, fetch_set *set, mds_shard *sh,
                            size_t index, fetch_item **out) {
    CLT_TRY(check_name(s->remote, sh->raw.name));
    if (sh->compression) CLT_TRY(check_name(s->remote, sh->zip.name));
    sh->use_zip = sh->compression && !fetch_has_file(s->local, &sh->raw) &&
                  (s->keep_zip || fetch_has_file(s->local, &sh->zip));
    if (sh->compression && !clt_codec_plausible(sh->codec, sh->zip.bytes, sh->raw.bytes))
        return clt_error(CLT_BAD_DATA, "%s/%s: its bytes cannot decompress to raw_data.bytes %llu", s->remote,
                         sh->zip.name, (unsigned long long)sh->raw.bytes);
    const mds_file *keep = sh->use_zip ? &sh->zip : &sh->raw;
    if (f->p.cache_limit && keep->bytes > f->p.cache_limit)
        return clt_error(CLT_BAD_CONFIG,
                         "cache_limit %llu is smaller than a shard: %s has %llu bytes; four shards or more "
                         "make a useful cache",
                         (unsigned long long)f->p.cache_limit, keep->name, (unsigned long long)keep->bytes);
    fetch_item *it = clt_calloc(1, sizeof *it);
    it->set = set;
    it->index = index;
    it->order = SIZE_MAX;
    it->get = copy_file(sh->compression ? &sh->zip : &sh->raw, s->validate_hash);
    it->keep = copy_file(keep, s->validate_hash);
    it->codec = sh->compression && !sh->use_zip ? sh->codec : NULL;
    *out = it;
    return CLT_OK;
}

static clt_status grow(clt_fetch *f, size_t n) {
    void *items = clt_try_realloc(f->items, (n + 1) * sizeof *f->items);
    if (items) f->items = items;
    void *window = items ? clt_try_realloc(f->window, (n + 1) * sizeof *f->window) : NULL;
    if (window) f->window = window;
    return window ? CLT_OK : clt_no_memory("the shards of a cache", n * sizeof *f->items);
}

clt_status clt_fetch_add(clt_fetch *f, const clt_fetch_set *s, mds_index *x, size_t *first) {
    fetch_set *set = clt_calloc(1, sizeof *set);
    *set = (fetch_set){.remote = clt_strdup(s->remote),
                       .local = clt_strdup(s->local),
                       .work = clt_path_join(s->local, ".fetch"),
                       .first = f->n_items,
                       .retries = CLT_MAX(s->retries, 0),
                       .timeout = s->timeout > 0 ? s->timeout : CLT_FETCH_TIMEOUT};
    *first = f->n_items;
    pthread_mutex_lock(&f->lock);
    f->sets = clt_realloc(f->sets, (f->n_sets + 1) * sizeof *f->sets);
    f->sets[f->n_sets++] = set;
    clt_status st = grow(f, f->n_items + x->n);
    for (size_t i = 0; st == CLT_OK && i < x->n; i++) {
        st = make_item(f, s, set, &x->shards[i], i, &f->items[f->n_items]);
        if (st == CLT_OK) f->n_items++;
    }
    set->n = f->n_items - set->first;
    pthread_mutex_unlock(&f->lock);
    if (st == CLT_OK) st = fetch_require_cache(s->local);
    if (st == CLT_OK) st = clt_io_mkdirs(set->work);
    if (st == CLT_OK && f->p.cache_limit) st = fetch_open_uses(f, set);
    return st;
}

/* --- the window --- */

static void add_to_window(clt_fetch *f, size_t item) {
    if (f->items[item]->order != SIZE_MAX) return;
    f->items[item]->order = f->n_window;
    f->window[f->n_window++] = item;
}

void clt_fetch_announce(clt_fetch *f, const size_t *shards, size_t n) {
    const double now = clt_now(), refresh = 1;
    pthread_mutex_lock(&f->lock);
    const size_t before = f->n_window;
    f->n_window = 0;
    for (size_t i = 0; i < before; i++) f->items[f->window[i]]->order = SIZE_MAX;
    for (size_t i = 0; i < before; i++) /* window[i] is read before it may be written */
        if (f->items[f->window[i]]->waiters) add_to_window(f, f->window[i]);
    for (size_t i = 0; i < n; i++)
        if (shards[i] < f->n_items) add_to_window(f, shards[i]);
    for (size_t i = 0; i < f->n_window; i++) {
        fetch_item *it = f->items[f->window[i]];
        if (!it->there || now - it->stamped < refresh) continue;
        it->stamped = now;
        fetch_stamp(it, fetch_clock());
    }
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* --- waiting --- */

static void begin_wait(clt_fetch *f) {
    if (f->waiting++ == 0) f->wait_began = clt_now();
}

static void end_wait(clt_fetch *f) {
    if (--f->waiting == 0) f->waited += clt_now() - f->wait_began;
}

static clt_status wait_for(clt_fetch *f, fetch_item *it, double until) {
    const double look = 0.05; /* seconds between two looks at requests to stop */
    while (!it->there && it->state != FETCH_FAILED) {
        if (atomic_load(&f->stop) || clt_io_stop_requested()) return CLT_STOPPED;
        if (clt_now() >= until) return CLT_AGAIN;
        wait_a_moment(f, look);
    }
    return it->there ? CLT_OK : it->st;
}

double fetch_patience(int retries, double timeout) {
    return (1.0 + retries) * timeout;
}

/* Lock held. */
static clt_status wait_and_count(clt_fetch *f, fetch_item *it, char *why, size_t why_bytes) {
    const double start = clt_now(), patience = fetch_patience(it->set->retries, it->set->timeout);
    if (it->state == FETCH_FAILED) it->state = FETCH_IDLE; /* once more, now that it matters */
    it->not_before = 0;
    pthread_cond_broadcast(&f->changed);
    begin_wait(f);
    const clt_status st = wait_for(f, it, start + patience);
    end_wait(f);
    const bool tried = it->state == FETCH_FAILED;
    if (st != CLT_AGAIN)
        snprintf(why, why_bytes, "%s", it->why);
    else
        snprintf(why, why_bytes,
                 "%s of %s did not arrive in %.1f s (download_timeout %g s, download_retry %d): %s",
                 it->get.name, it->set->remote, clt_now() - start, it->set->timeout, it->set->retries,
                 tried ? it->why : "the download is not finished");
    return st;
}

clt_status clt_fetch_need(clt_fetch *f, size_t shard) {
    fetch_item *it = f->items[shard];
    char why[2048] = "";
    clt_status st = CLT_OK;
    pthread_mutex_lock(&f->lock);
    it->waiters++;
    add_to_window(f, shard);
    if (it->state != FETCH_BUSY) it->there = fetch_is_there(it); /* another process may have removed it */
    if (!it->there) st = wait_and_count(f, it, why, sizeof why);
    it->waiters--;
    it->stamped = clt_now();
    if (st == CLT_OK) fetch_stamp(it, fetch_clock());
    pthread_mutex_unlock(&f->lock);
    return st == CLT_OK || st == CLT_STOPPED ? st : clt_error(st, "%s", why);
}

void clt_fetch_drop(clt_fetch *f, size_t shard) {
    fetch_item *it = f->items[shard];
    char *path = fetch_path(it);
    pthread_mutex_lock(&f->lock);
    clt_io_try_unlink(path);
    it->there = false;
    fetch_stamp(it, 0);
    pthread_mutex_unlock(&f->lock);
    clt_free(path);
}

bool clt_fetch_has(clt_fetch *f, size_t shard) {
    return fetch_is_there(f->items[shard]);
}

double clt_fetch_waited(clt_fetch *f) {
    pthread_mutex_lock(&f->lock);
    const double waited = f->waited + (f->waiting ? clt_now() - f->wait_began : 0);
    pthread_mutex_unlock(&f->lock);
    return waited;
}

uint64_t clt_fetch_received(clt_fetch *f) {
    return atomic_load(&f->received);
}

/* --- a folder of its own --- */

clt_status clt_fetch_default_local(const char *remote, char **out) {
    const char *tmp = clt_env(CLT_ENV_TMPDIR);
    char hex[33];
    struct stat info;
    clt_hash_hex(clt_hash(remote, strlen(remote)), hex);
    char *path = clt_format("%s/cltrain-data-%ld-%.16s", tmp && *tmp ? tmp : "/tmp", (long)geteuid(), hex);
    /* The name can be guessed: somebody else's folder or link must not be used. */
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        clt_error(CLT_IO, "cannot make %s: %s; set `local`", path, strerror(errno));
    } else if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
        clt_error(CLT_IO, "%s is not a folder of this user; remove it or set `local`", path);
    } else {
        *out = path;
        return CLT_OK;
    }
    clt_free(path);
    return CLT_IO;
}
