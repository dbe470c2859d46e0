#include "collectives/clt_watch.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "collectives/clt_end.h"
#include "collectives/clt_group_internal.h"
#include "collectives/clt_launch.h"
#include "collectives/clt_shm.h"
#include "runtime/base/clt_signal.h"
#include "runtime/base/clt_thread.h"

struct clt_watcher {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    atomic_bool ending; /* this rank's own thread ends the job */
};

/* --- the end of a job --- */

/* Rank 0 prints at once, the others hold their messages. Of a message that several have, the first rank to
 * end the job prints it; rank 0 gets a head start. */
static void say_why(clt_group_run *run) {
    enum { HEAD_START_MS = 150 };
    clt_host_page *page = run->page;
    unsigned long long line[CLT_LOG_HELD];
    bool drop[CLT_LOG_HELD] = {false};
    if (run->rank != 0 && page) clt_sleep(HEAD_START_MS / 1e3);
    int n = clt_log_held(line);
    uint64_t none = 0;
    bool first = page && n && atomic_compare_exchange_strong(&page->said, &none, line[n - 1]);
    for (int i = 0; i < n; i++) drop[i] = page && !first && atomic_load(&page->said) == line[i];
    clt_log_release(drop);
    if (page) atomic_store(&page->spoken, 1);
}

void clt_watch_end_job(clt_group_run *run, int code) {
    static const double abort_seconds = 3;
    if (run->watcher) atomic_store(&run->watcher->ending, true);
    say_why(run);
    if (run->page) atomic_store(&run->page->ended, 1 + code);
    clt_launch_report(code);
    clt_end_after(abort_seconds, code, NULL);
    run->end_others(code);
    clt_end_process(code);
}

/* Another rank of this host ends the job. A launcher kills all ranks once the first has gone, so this one
 * stays until the other has printed why, which may take it longer on a busy machine. */
static void follow(const clt_group_run *run, int code) {
    static const double its_time = 0.7, at_most = 2.5, look = 0.02;
    const double start = clt_now();
    clt_log_release(NULL);
    clt_sleep(its_time);
    while (!atomic_load(&run->page->spoken) && clt_now() - start < at_most) clt_sleep(look);
    clt_end_process(code);
}

/* Whether this rank is the first of its host to end the job. If it is not, it follows the other. */
static void end_first(clt_group_run *run, int code) {
    int32_t none = 0;
    if (!atomic_compare_exchange_strong(&run->page->ended, &none, 1 + code)) follow(run, none - 1);
}

/* --- which rank is missing --- */

static double seconds_since(int64_t ms) {
    return (double)(clt_flight_now() - ms) / 1e3;
}

static bool is_member(const clt_group *g, int rank_in_run) {
    for (int r = 0; r < g->size; r++)
        if (clt_group_rank_in_run(g, r) == rank_in_run) return true;
    return false;
}

/* The rank of this host that has shown no sign of life for longest; NULL: all of them come to exchanges, or
 * wait. */
static const clt_flight_log *longest_silent(const clt_group *g, bool of_group) {
    static const double respond = 2; /* seconds, or half the deadline where that is less */
    const clt_group_run *run = g->run;
    const clt_flight_log *found = NULL;
    int64_t before = clt_flight_now() - (int64_t)(CLT_MIN(respond, run->timeout / 2) * 1e3);
    for (int r = 0; r < run->local_size; r++) {
        const clt_flight_log *l = &run->flight[r];
        if (l->seen_ms >= before || (of_group && !is_member(g, l->rank))) continue;
        before = l->seen_ms;
        found = l;
    }
    return found;
}

/* A rank of the group that is waited in, or one that such a rank waits for in another group. NULL: it is on
 * another host. */
static const clt_flight_log *find_stuck(const clt_group *g) {
    const clt_flight_log *l = longest_silent(g, true);
    return l ? l : longest_silent(g, false);
}

/* `text` about the job's end, then every rank of the host and where their last events are. mpirun leaves no
 * more than a second after a death. */
static void print_end(clt_group_run *run, clt_status st, const char *text, bool dead) {
    static const double after_death = 0.5;
    clt_str more = {0};
    if (!dead) clt_flight_table(run, &more);
    clt_flight_dump(run, text, dead ? after_death : CLT_FLIGHT_PATIENCE, &more);
    clt_error(st, "%s. The job ends; rerun the same command to resume from the last checkpoint%s", text,
              more.s ? more.s : "");
    clt_str_free(&more);
}

/* Who is missing, as far as this host can tell. */
static char *blame(const clt_watch *w, const clt_flight_log *stuck, const char *host) {
    const clt_group_run *run = w->group->run;
    const clt_flight_log *mine = &run->flight[run->local_rank];
    if (stuck)
        return clt_format("rank %d (host %s, process %d) does not respond: step %lld, %s for %.0f s; waited "
                          "%.0f s for %s (dist_timeout or CLTRAIN_COMM_TIMEOUT)",
                          (int)stuck->rank, host, (int)stuck->pid, (long long)stuck->step,
                          clt_flight_phase_of(stuck), seconds_since(stuck->since_ms), run->timeout, w->what);
    if (run->local_size < run->size)
        return clt_format("a rank on another host than %s does not respond: the ranks here are at step %lld, "
                          "%s, and waited %.0f s for %s (dist_timeout or CLTRAIN_COMM_TIMEOUT)",
                          host, (long long)mine->step, clt_flight_phase_of(mine), run->timeout, w->what);
    return clt_format("all ranks respond, but rank %d (host %s) waited %.0f s for %s at step %lld, %s: MPI "
                      "delivers nothing, or the ranks wait for different things, which is a bug",
                      run->rank, host, run->timeout, w->what, (long long)mine->step,
                      clt_flight_phase_of(mine));
}

static void name_the_stuck(const clt_watch *w) {
    clt_group_run *run = w->group->run;
    char host[256] = "";
    const clt_flight_log *stuck = find_stuck(w->group);
    gethostname(host, sizeof host - 1);
    char *text = blame(w, stuck, host);
    if (!stuck) clt_sleep(1); /* another host can name the rank, and ends the job meanwhile */
    print_end(run, CLT_AGAIN, text, false);
    clt_free(text);
}

static void deadline_passed(const clt_watch *w) {
    clt_group_run *run = w->group->run;
    const int code = clt_status_exit_code(CLT_AGAIN);
    if (!run->watcher) {
        clt_error(CLT_AGAIN,
                  "the other ranks did not respond for %.0f s while starting; rerun the same command",
                  run->timeout);
        clt_watch_end_job(run, code);
    }
    atomic_store(&run->watcher->ending, true);
    end_first(run, code);
    name_the_stuck(w);
    clt_watch_end_job(run, code);
}

static bool is_gone(const clt_flight_log *n) {
    return n->pid > 0 && !n->left && clt_process_gone(n->pid);
}

/* --- the watcher: a thread, which must not call MPI --- */

/* Exiting without MPI_Finalize tells the launcher as well as MPI_Abort does. */
static void end_for(clt_group_run *run, const clt_flight_log *n) {
    const int code = clt_status_exit_code(CLT_FAIL);
    end_first(run, code);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    char *text = clt_format("rank %d (host %s, process %d) is gone: it was at step %lld, %s", (int)n->rank,
                            host, (int)n->pid, (long long)n->step, clt_flight_phase_of(n));
    print_end(run, CLT_FAIL, text, true);
    say_why(run);
    clt_end_process(code);
}

static void look_at_others(clt_group_run *run) {
    const int32_t ended = atomic_load(&run->page->ended);
    if (atomic_load(&run->watcher->ending)) return;
    if (ended) follow(run, ended - 1);
    for (int r = 0; run->sees_processes && r < run->local_size; r++)
        if (is_gone(&run->flight[r])) end_for(run, &run->flight[r]);
}

static void *watch(void *arg) {
    enum { LOOK_MS = 50 };
    clt_group_run *run = arg;
    clt_watcher *w = run->watcher;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (!w->stop) look_at_others(run);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

clt_status clt_watch_start(clt_group_run *run) {
    clt_watcher *w = clt_calloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    run->watcher = w;
    const int e = clt_thread_start(&w->thread, watch, run);
    if (e == 0) return CLT_OK;
    run->watcher = NULL;
    clt_free(w);
    return clt_error(CLT_FAIL, "cannot start a thread: %s", strerror(e));
}

void clt_watch_stop(clt_group_run *run) {
    clt_watcher *w = run->watcher;
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL); /* it sleeps, or ends the process */
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    clt_free(w);
    run->watcher = NULL;
}

/* --- waiting --- */

clt_watch clt_watch_begin(const clt_group *g, const char *what) {
    clt_group_run *run = g->run;
    clt_watch w = {.group = g, .start = clt_now()};
    if (g->size < run->size)
        snprintf(w.what, sizeof w.what, "%s of %d ranks", what, g->size);
    else
        snprintf(w.what, sizeof w.what, "%s", what);
    w.looked = w.start;
    if (run->flight) clt_flight_meet(&run->flight[run->local_rank], w.what);
    return w;
}

/* Time in which this process itself was stopped does not count: the others were stopped, too (a suspended
 * job). */
void clt_watch_pause(clt_watch *w) {
    static const double look_every = 0.05, at_most = 1;
    clt_group_run *run = w->group->run;
    if (run->idle) run->idle(run->idle_ctx);
    clt_wait_pause(&w->spins);
    double now = clt_now();
    if (now - w->looked < look_every) return;
    w->waited += CLT_MIN(now - w->looked, at_most);
    w->looked = now;
    clt_signal_received(); /* passes a signal on to the other ranks of this host */
    if (run->flight) atomic_store(&run->flight[run->local_rank].seen_ms, clt_flight_now());
    if (w->waited > run->timeout) deadline_passed(w);
}

void clt_watch_end(clt_watch *w) {
    w->group->run->waited += clt_now() - w->start;
}
