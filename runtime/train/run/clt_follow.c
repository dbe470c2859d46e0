#include "runtime/train/run/clt_follow.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"

enum { MOST_BYTES = 1 << 30 };

typedef struct {
    char *name;
    clt_io_info copied; /* what the file was at its last copy; kind ABSENT: never */
    double when;        /* of that copy, clt_now */
} file_state;

struct clt_follow {
    char *local, *store;
    double seconds;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool now, end; /* under lock */
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

static clt_status fetch(const char *store, const char *local, const char *name) {
    char *from = clt_path_join(store, name), *to = clt_path_join(local, name);
    clt_io_info here, there;
    clt_status st = clt_io_stat(from, &there);
    if (st == CLT_OK) st = clt_io_stat(to, &here);
    if (st == CLT_OK && there.kind == CLT_IO_FILE && (here.kind != CLT_IO_FILE || there.bytes > here.bytes))
        st = copy_file(from, to);
    clt_free(from);
    clt_free(to);
    return st;
}

clt_status clt_follow_fetch(const char *store, const char *local, const char *const *names, size_t n) {
    CLT_TRY(clt_io_mkdirs(local));
    for (size_t i = 0; i < n; i++) CLT_TRY(fetch(store, local, names[i]));
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

static void follow(clt_follow *f, bool last) {
    clt_strv names = {0};
    clt_error_quiet(true);
    const bool listed = clt_io_list(f->local, &names) == CLT_OK;
    clt_error_quiet(false);
    for (size_t i = 0; listed && i < names.n; i++)
        if (!strstr(names.v[i], ".tmp.") && strcmp(names.v[i], "run.lock") != 0)
            follow_file(f, names.v[i], last);
    clt_strv_free(&names);
}

static void *rounds(void *arg) {
    clt_follow *f = arg;
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
    return NULL;
}

clt_follow *clt_follow_start(const char *local, const char *store, double seconds) {
    clt_follow *f = clt_calloc(1, sizeof *f);
    f->local = clt_strdup(local);
    f->store = clt_strdup(store);
    f->seconds = seconds;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->wake, NULL);
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

void clt_follow_end(clt_follow *f) {
    if (!f) return;
    ask(f, true);
    if (f->running)
        pthread_join(f->thread, NULL);
    else
        follow(f, true);
    for (size_t i = 0; i < f->n; i++) clt_free(f->files[i].name);
    clt_free(f->files);
    clt_free(f->local);
    clt_free(f->store);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->wake);
    clt_free(f);
}
