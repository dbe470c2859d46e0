#include "collectives/clt_flight.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collectives/clt_group_internal.h"
#include "runtime/base/clt_thread.h"

int64_t clt_flight_now(void) {
    return (int64_t)(clt_now() * 1e3);
}

void clt_flight_begin(clt_flight_log *l, int rank) {
    atomic_store(&l->rank, rank);
    atomic_store(&l->pid, (int32_t)getpid());
    atomic_store(&l->since_ms, clt_flight_now());
}

static void add(clt_flight_log *l, uint64_t met, const char *what) {
    clt_flight_event *e = &l->event[atomic_load(&l->n) % CLT_FLIGHT_EVENTS];
    e->ms = clt_flight_now();
    e->step = atomic_load(&l->step);
    e->met = met;
    snprintf(e->what, sizeof e->what, "%s", what);
    atomic_fetch_add(&l->n, 1);
}

void clt_flight_phase(clt_flight_log *l, int64_t step, const char *phase) {
    snprintf(l->phase, sizeof l->phase, "%s", phase);
    atomic_store(&l->step, step);
    atomic_store(&l->since_ms, clt_flight_now());
    add(l, 0, phase);
}

void clt_flight_meet(clt_flight_log *l, const char *what) {
    uint64_t met = atomic_fetch_add(&l->met, 1) + 1;
    atomic_store(&l->seen_ms, clt_flight_now());
    add(l, met, what);
}

const char *clt_flight_phase_of(const clt_flight_log *l) {
    return l->phase[0] ? l->phase : "start";
}

/* --- messages and files --- */

static const char *host_name(char host[256]) {
    host[0] = host[255] = 0;
    gethostname(host, 255);
    return host;
}

static void state_line(const clt_flight_log *l, const char *host, clt_str *out) {
    clt_str_addf(out, "rank %d (host %s, process %d): step %lld, %s for %.1f s, exchange %llu%s",
                 (int)l->rank, host, (int)l->pid, (long long)l->step, clt_flight_phase_of(l),
                 (double)(clt_flight_now() - l->since_ms) / 1e3, (unsigned long long)l->met,
                 l->left ? ", ended" : "");
}

void clt_flight_table(const clt_group_run *run, clt_str *out) {
    enum { SCREEN = 16 };
    char host[256];
    host_name(host);
    for (int r = 0; r < run->local_size && run->local_size <= SCREEN; r++) {
        clt_str_add(out, "\n  ");
        state_line(&run->flight[r], host, out);
    }
}

/* Times are seconds before now. A rank that still runs may overwrite an event while it is read. */
static void events_of(const clt_flight_log *l, clt_str *out) {
    uint32_t n = atomic_load(&l->n), first = n > CLT_FLIGHT_EVENTS ? n - CLT_FLIGHT_EVENTS : 0;
    int64_t now = clt_flight_now();
    for (uint32_t i = first; i < n; i++) {
        const clt_flight_event *e = &l->event[i % CLT_FLIGHT_EVENTS];
        clt_str_addf(out, "  %10.3f s  step %lld  ", (double)(e->ms - now) / 1e3, (long long)e->step);
        if (e->met) clt_str_addf(out, "exchange %llu: ", (unsigned long long)e->met);
        clt_str_addf(out, "%.*s\n", CLT_FLIGHT_TEXT - 1, e->what);
    }
}

typedef struct {
    char *path;
    clt_str text;
    bool ok;
} dump_file;

/* Does not wait for the disk: the file system may be what hangs. */
static void *write_dump(void *arg) {
    dump_file *d = arg;
    FILE *f = fopen(d->path, "w");
    d->ok = f && fputs(d->text.s, f) >= 0;
    if (f && fclose(f) != 0) d->ok = false;
    return NULL;
}

/* Opening the file may hang as well, so a thread does it. One that takes too long is abandoned: the message
 * must still be printed. */
static bool write_in_time(dump_file *d, double seconds) {
    pthread_t thread;
    struct timespec until;
    if (clt_thread_start(&thread, write_dump, d) != 0) return false;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

void clt_flight_dump(const clt_group_run *run, const char *why, double at_most, clt_str *out) {
    char host[256];
    if (!run->folder) return;
    host_name(host);
    dump_file *d = clt_calloc(1, sizeof *d);
    d->path = clt_format("%s/events-%s-%.0f-rank%d.txt", run->folder, host, clt_wall(), run->rank);
    clt_str *text = &d->text;
    clt_str_addf(text, "%s\n", why);
    for (int r = 0; r < run->local_size; r++) {
        clt_str_add(text, "\n");
        state_line(&run->flight[r], host, text);
        clt_str_add(text, "\n");
        events_of(&run->flight[r], text);
    }
    if (!write_in_time(d, at_most)) return; /* the thread still uses d; the process ends */
    if (d->ok) clt_str_addf(out, "\n  last events: %s", d->path);
    clt_str_free(text);
    clt_free(d->path);
    clt_free(d);
}
