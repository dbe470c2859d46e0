/* How ranks watch each other while they wait: a page in the memory of each host on which every rank notes
 * what it is doing, and the end of a job when one of them is gone or stuck. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_signal.h"
#include "collectives/clt_launch.h"
#include "collectives/clt_mpi.h"

static clt_mpi_state *state(const clt_group *g) {
    return g->state;
}

/* What looks after the others while this rank computes, compiles or waits. */
struct clt_watcher {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    atomic_bool ending; /* this rank's own thread ends the job */
};

/* --- the end of a job --- */

/* Rank 0 prints at once, the others hold their messages: of a message that several have, the first to end the
 * job prints it, and rank 0 is given the time to be that. */
static void say_why(clt_group *g) {
    enum { HEAD_START_MS = 150 };
    clt_shm_page *page = state(g)->page;
    unsigned long long line[CLT_LOG_HELD];
    bool drop[CLT_LOG_HELD] = {false};
    if (g->rank != 0 && page) clt_sleep(HEAD_START_MS / 1e3);
    int n = clt_log_held(line);
    uint64_t none = 0;
    bool first = page && n && atomic_compare_exchange_strong(&page->said, &none, line[n - 1]);
    for (int i = 0; i < n; i++) drop[i] = page && !first && atomic_load(&page->said) == line[i];
    clt_log_release(drop);
    if (page) atomic_store(&page->spoken, 1);
}

static volatile sig_atomic_t end_code;

static void on_alarm(int sig) {
    (void)sig;
    _exit(end_code);
}

/* MPI_Abort tells the launcher, and has no deadline of its own. */
void clt_watch_end_job(clt_group *g, int code) {
    enum { ABORT_SECONDS = 3 };
    clt_mpi_state *s = state(g);
    if (s->watcher) atomic_store(&s->watcher->ending, true);
    say_why(g);
    if (s->page) atomic_store(&s->page->ended, 1 + code);
    clt_launch_report(code);
    end_code = code;
    signal(SIGALRM, on_alarm);
    alarm(ABORT_SECONDS);
    MPI_Abort(s->world, code);
    _exit(code);
}

/* Another rank of this host ends the job. A launcher kills all ranks once the first has gone: that one must
 * have said why by then, which may take it longer on a busy machine. */
static void follow(const clt_group *g, int code) {
    static const double its_time = 0.7, at_most = 2.5, look = 0.02;
    const double start = clt_now();
    clt_log_release(NULL);
    clt_sleep(its_time);
    while (!atomic_load(&state(g)->page->spoken) && clt_now() - start < at_most) clt_sleep(look);
    clt_launch_report(code);
    _exit(code);
}

/* --- who is missing --- */

static double seconds_since(int64_t ms) {
    return (double)(clt_flight_now() - ms) / 1e3;
}

/* Whether a has come less far than b: to fewer exchanges, else silent for longer. */
static bool behind(const clt_flight_log *a, const clt_flight_log *b) {
    return a->met != b->met ? a->met < b->met : a->seen_ms < b->seen_ms;
}

/* The rank of this host that is missing; NULL if all of them wait: then it is on another host. */
static const clt_flight_log *find_stuck(clt_group *g) {
    enum { ALIVE_SECONDS = 2 };
    const clt_flight_log *n = &g->flight[0];
    for (int r = 1; r < g->local_size; r++)
        if (behind(&g->flight[r], n)) n = &g->flight[r];
    return n->met < g->flight[g->local_rank].met || seconds_since(n->seen_ms) > ALIVE_SECONDS ? n : NULL;
}

/* `text` about the job's end, then every rank of the host, and where their last events are. mpirun leaves no
 * more than a second after a death. */
static void tell(clt_group *g, clt_status st, const char *text, bool dead) {
    static const double after_death = 0.5;
    clt_str more = {0};
    if (!dead) clt_flight_table(g, &more);
    clt_flight_dump(g, text, dead ? after_death : CLT_FLIGHT_PATIENCE, &more);
    clt_error(st, "%s. The job ends; run it again: it goes on from the last checkpoint%s", text,
              more.s ? more.s : "");
    clt_str_free(&more);
}

static void name_the_stuck(clt_group *g, const char *what) {
    char host[256] = "";
    const clt_flight_log *n = find_stuck(g), *mine = &g->flight[g->local_rank];
    gethostname(host, sizeof host - 1);
    char *text =
        n ? clt_format("rank %d (host %s, process %d) does not answer: step %lld, %s for %.0f s; waited %.0f "
                       "s for %s (dist_timeout or CLTRAIN_COMM_TIMEOUT)",
                       (int)n->rank, host, (int)n->pid, (long long)n->step, clt_flight_phase_of(n),
                       seconds_since(n->since_ms), g->timeout, what)
          : clt_format("a rank on another host than %s does not answer: the ranks here are at step %lld, %s, "
                       "and waited %.0f s for %s (dist_timeout or CLTRAIN_COMM_TIMEOUT)",
                       host, (long long)mine->step, clt_flight_phase_of(mine), g->timeout, what);
    if (!n) clt_sleep(1); /* the other host knows more, and ends the job meanwhile */
    tell(g, CLT_AGAIN, text, false);
    clt_free(text);
}

static void deadline_passed(clt_group *g, const char *what) {
    int code = clt_status_exit_code(CLT_AGAIN);
    if (!state(g)->watcher) {
        clt_error(CLT_AGAIN, "no answer from the other ranks for %.0f s while starting; run it again",
                  g->timeout);
        clt_watch_end_job(g, code);
    }
    int32_t none = 0;
    atomic_store(&state(g)->watcher->ending, true);
    if (!atomic_compare_exchange_strong(&state(g)->page->ended, &none, 1 + code)) follow(g, none - 1);
    name_the_stuck(g, what);
    clt_watch_end_job(g, code);
}

static bool is_gone(const clt_flight_log *n) {
    return n->pid > 0 && !n->left && clt_process_gone(n->pid);
}

/* --- the watcher: a thread, which must not call MPI --- */

/* Leaving without MPI_Finalize tells the launcher as well as MPI_Abort does. */
static void end_for(clt_group *g, const clt_flight_log *n) {
    int code = clt_status_exit_code(CLT_FAIL);
    int32_t none = 0;
    if (!atomic_compare_exchange_strong(&state(g)->page->ended, &none, 1 + code)) follow(g, none - 1);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    char *text = clt_format("rank %d (host %s, process %d) is gone: it was at step %lld, %s", (int)n->rank,
                            host, (int)n->pid, (long long)n->step, clt_flight_phase_of(n));
    tell(g, CLT_FAIL, text, true);
    say_why(g);
    clt_launch_report(code);
    _exit(code);
}

static void look_at_others(clt_group *g) {
    clt_mpi_state *s = state(g);
    int32_t ended = atomic_load(&s->page->ended);
    if (atomic_load(&s->watcher->ending)) return;
    if (ended) follow(g, ended - 1);
    for (int r = 0; s->see_processes && r < g->local_size; r++)
        if (is_gone(&g->flight[r])) end_for(g, &g->flight[r]);
}

static void *watch(void *arg) {
    enum { LOOK_MS = 50 };
    clt_group *g = arg;
    clt_watcher *w = state(g)->watcher;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&w->changed, &w->lock, &until);
        if (!w->stop) look_at_others(g);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

clt_status clt_watch_start(clt_group *g) {
    clt_watcher *w = clt_calloc(1, sizeof *w);
    sigset_t all, old;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    state(g)->watcher = w;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* signals are for other threads */
    const int e = pthread_create(&w->thread, NULL, watch, g);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e == 0) return CLT_OK;
    state(g)->watcher = NULL;
    clt_free(w);
    return clt_error(CLT_FAIL, "cannot start a thread: %s", strerror(e));
}

void clt_watch_stop(clt_group *g) {
    clt_watcher *w = state(g)->watcher;
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL); /* it sleeps, or ends the process */
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    clt_free(w);
    state(g)->watcher = NULL;
}

/* --- waiting --- */

clt_watch clt_watch_begin(clt_group *g, const char *what) {
    if (g->flight) clt_flight_meet(&g->flight[g->local_rank], what);
    return (clt_watch){.looked = clt_now()};
}

/* Time in which this process itself was stopped does not count: the others were, too (a suspended job). */
void clt_watch_pause(clt_group *g, clt_watch *w, const char *what) {
    static const double look_every = 0.05, at_most = 1;
    clt_wait_pause(&w->spins);
    double now = clt_now();
    if (now - w->looked < look_every) return;
    w->waited += CLT_MIN(now - w->looked, at_most);
    w->looked = now;
    clt_signal_received(); /* lets the others of this host know */
    if (g->flight) atomic_store(&g->flight[g->local_rank].seen_ms, clt_flight_now());
    if (w->waited > g->timeout) deadline_passed(g, what);
}
