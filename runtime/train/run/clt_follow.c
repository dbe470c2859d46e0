#include "runtime/train/run/clt_follow.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include <stdatomic.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"

enum { MOST_BYTES = 1 << 30 };

typedef struct {
    char *name;
    clt_io_info copied; /* what the file was at its last copy; kind ABSENT: never */
    double when;        /* of that copy, clt_now */
} file_state;

struct clt_follow {
    char *local, *store, *hint;
    double seconds;
    const clt_run_lock *owned;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake, over;
    bool now, end, done; /* under lock */
    atomic_bool cancel;  /* ends the operation in progress */
    file_state *files;
    size_t n;
    long failures; /* since the last success */
    bool running;
};

/* --- one file --- */

static clt_status copy_file(const char *from, const char *to) {
    char *data;
    size_t bytes;
    CLT_TRY(clt_io_read_all(from, MOST_BYTES, &data, &bytes));
    const clt_status st = clt_io_write_atomic(to, data, bytes);
    clt_free(data);
    return st;
}

/* --- before the run --- */

typedef enum { EARLIER, LATER, OTHER } relation;

/* What the file at `path` is to `data`: an earlier part of it, the same and more, or something else. */
static clt_status compare(const char *path, const char *data, size_t bytes, relation *out) {
    char *here;
    size_t have;
    CLT_TRY(clt_io_read_all(path, MOST_BYTES, &here, &have));
    const bool same = !memcmp(here, data, CLT_MIN(have, bytes));
    *out = !same ? OTHER : have >= bytes ? LATER : EARLIER;
    clt_free(here);
    return CLT_OK;
}

static clt_status set_aside(const char *path, const char *store, const char *run_id) {
    char *aside = clt_format("%s.superseded.%s", path, run_id);
    clt_status st = clt_io_rename(path, aside);
    if (st == CLT_OK)
        clt_info("%s is not the continuation of what %s has, and is now %s", path, store,
                 clt_path_base(aside));
    clt_free(aside);
    return st;
}

/* The file at `to` becomes `data`, unless it is that and more. */
static clt_status take(const char *to, const char *data, size_t bytes, const char *store,
                       const char *run_id) {
    clt_io_info here;
    relation is = EARLIER;
    CLT_TRY(clt_io_stat(to, &here));
    if (here.kind == CLT_IO_FILE) CLT_TRY(compare(to, data, bytes, &is));
    if (is == LATER) return CLT_OK;
    if (is == OTHER) CLT_TRY(set_aside(to, store, run_id));
    return clt_io_write_atomic(to, data, bytes);
}

static clt_status fetch(const char *store, const char *local, const char *name, const char *run_id) {
    char *from = clt_path_join(store, name), *to = clt_path_join(local, name), *data = NULL;
    clt_io_info there;
    size_t bytes = 0;
    clt_status st = clt_io_stat(from, &there);
    if (st == CLT_OK && there.kind == CLT_IO_FILE) {
        st = clt_io_read_all(from, MOST_BYTES, &data, &bytes);
        if (st == CLT_OK) st = take(to, data, bytes, store, run_id);
    } else if (st == CLT_OK && clt_io_is_file(to)) {
        st = set_aside(to, store, run_id);
    }
    clt_free(data);
    clt_free(from);
    clt_free(to);
    return st;
}

clt_status clt_follow_fetch(const char *store, const char *local, const char *run_id,
                            const char *const *names, size_t n) {
    CLT_TRY(clt_io_mkdirs(local));
    for (size_t i = 0; i < n; i++) CLT_TRY(fetch(store, local, names[i], run_id));
    return CLT_OK;
}

/* --- rounds --- */

static file_state *state_of(clt_follow *f, const char *name) {
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->files[i].name, name)) return &f->files[i];
    f->files = clt_realloc(f->files, (f->n + 1) * sizeof *f->files);
    f->files[f->n] = (file_state){.name = clt_strdup(name), .copied = {.kind = CLT_IO_ABSENT}};
    return &f->files[f->n++];
}

static bool changed(const file_state *s, const clt_io_info *info) {
    return s->copied.kind == CLT_IO_ABSENT || s->copied.bytes != info->bytes ||
           memcmp(s->copied.id, info->id, sizeof info->id) != 0;
}

static void report(clt_follow *f, const char *name, bool good) {
    if (good)
        f->failures = 0;
    else if (f->failures++ == 0)
        clt_warn("%s could not be copied to %s: %s; it is tried again with the next round", name, f->store,
                 clt_last_error());
}

static void follow_file(clt_follow *f, const char *name, bool last) {
    file_state *s = state_of(f, name);
    char *from = clt_path_join(f->local, name), *to = clt_path_join(f->store, name);
    clt_io_info info;
    const bool there = clt_io_try_stat(from, &info) == 0 && info.kind == CLT_IO_FILE && changed(s, &info);
    const double pause = (double)info.bytes / (1 << 20);
    if (there && (last || s->copied.kind == CLT_IO_ABSENT || clt_now() - s->when >= pause)) {
        clt_error_quiet(true);
        const bool good = copy_file(from, to) == CLT_OK;
        clt_error_quiet(false);
        report(f, name, good);
        if (good) s->copied = info, s->when = clt_now();
    }
    clt_free(from);
    clt_free(to);
}

/* Neither what is being written nor what belongs to checkpoints and locks. */
static bool is_followed(const clt_follow *f, const char *name) {
    return !strstr(name, ".tmp.") && !strstr(name, ".superseded.") &&
           strncmp(name, ".write-test.", 12) != 0 && strcmp(name, "run.lock") != 0 &&
           !(f->hint && !strcmp(name, f->hint));
}

static void follow(clt_follow *f, bool last) {
    clt_strv names = {0};
    if (!clt_run_lock_is_held(f->owned)) return; /* the files of another run may be there */
    clt_error_quiet(true);
    const bool listed = clt_io_list(f->local, &names) == CLT_OK;
    clt_error_quiet(false);
    for (size_t i = 0; listed && i < names.n && !f->cancel; i++)
        if (is_followed(f, names.v[i])) follow_file(f, names.v[i], last);
    clt_strv_free(&names);
}

static void *rounds(void *arg) {
    clt_follow *f = arg;
    clt_io_heed_flag(&f->cancel);
    for (bool end = false; !end;) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec += (time_t)f->seconds;
        pthread_mutex_lock(&f->lock);
        for (int e = 0; !f->now && !f->end && e == 0;) e = pthread_cond_timedwait(&f->wake, &f->lock, &t);
        end = f->end;
        f->now = false;
        pthread_mutex_unlock(&f->lock);
        follow(f, end);
    }
    pthread_mutex_lock(&f->lock);
    f->done = true;
    pthread_cond_signal(&f->over);
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

clt_follow *clt_follow_start(const clt_follow_params *p) {
    clt_follow *f = clt_calloc(1, sizeof *f);
    f->local = clt_strdup(p->local);
    f->store = clt_strdup(p->store);
    f->hint = p->hint ? clt_strdup(p->hint) : NULL;
    f->seconds = p->seconds;
    f->owned = p->lock;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wake, NULL);
    pthread_cond_init(&f->over, NULL);
    f->running = clt_thread_start(&f->thread, rounds, f) == 0; /* without it only the last round is left */
    return f;
}

static void ask(clt_follow *f, bool end) {
    pthread_mutex_lock(&f->lock);
    f->now = true;
    f->end |= end;
    pthread_cond_signal(&f->wake);
    pthread_mutex_unlock(&f->lock);
}

void clt_follow_now(clt_follow *f) {
    if (f) ask(f, false);
}

/* Waits for the last round, no longer than until `t`. */
static void wait_until(clt_follow *f, const struct timespec *t) {
    pthread_mutex_lock(&f->lock);
    for (int e = 0; !f->done && e == 0;) e = pthread_cond_timedwait(&f->over, &f->lock, t);
    f->cancel = !f->done;
    pthread_mutex_unlock(&f->lock);
}

void clt_follow_end(clt_follow *f, double seconds) {
    struct timespec t;
    if (!f) return;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)seconds;
    ask(f, true);
    if (f->running && seconds >= 0) wait_until(f, &t);
    if (f->running)
        pthread_join(f->thread, NULL);
    else
        follow(f, true);
    for (size_t i = 0; i < f->n; i++) clt_free(f->files[i].name);
    clt_free(f->files);
    clt_free(f->local);
    clt_free(f->store);
    clt_free(f->hint);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->wake);
    pthread_cond_destroy(&f->over);
    clt_free(f);
}
