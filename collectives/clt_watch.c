/* How ranks watch each other while they wait: a page in the memory of each host on which every rank notes
 * what it is doing, and the end of a job when one of them is gone or stuck. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "clt_launch.h"
#include "clt_mpi.h"

static clt_mpi_state *state(const clt_group *g) {
    return g->state;
}

static int64_t now_ms(void) {
    return (int64_t)(clt_now() * 1e3);
}

static clt_shm_note *my_note(const clt_group *g) {
    clt_shm_page *page = state(g)->page;
    return page ? &page->note[g->local_rank] : NULL;
}

void clt_watch_note(clt_group *g, int64_t step, const char *phase) {
    clt_shm_note *n = my_note(g);
    if (!n) return;
    strncpy(n->phase, phase, sizeof n->phase - 1);
    atomic_store(&n->step, step);
    atomic_store(&n->since_ms, now_ms());
}

/* --- the end of a job
 * ------------------------------------------------------------------------------------------------ */

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
}

void clt_watch_end_job(clt_group *g, int code) {
    clt_shm_page *page = state(g)->page;
    say_why(g);
    if (page) atomic_store(&page->ended, 1 + code);
    clt_launch_report(code);
    MPI_Abort(state(g)->world, code);
    _exit(code);
}

/* Another rank of this host ends the job. A launcher kills all ranks once the first has gone: that one must
 * have said why by then. */
static void follow(int code) {
    static const double its_time = 0.7;
    clt_log_release(NULL);
    clt_sleep(its_time);
    clt_launch_report(code);
    _exit(code);
}

/* --- who is missing
 * -------------------------------------------------------------------------------------------------- */

static double seconds_since(int64_t ms) {
    return (double)(now_ms() - ms) / 1e3;
}

/* Whether a has come less far than b: to fewer exchanges, else silent for longer. */
static bool behind(const clt_shm_note *a, const clt_shm_note *b) {
    return a->met != b->met ? a->met < b->met : a->seen_ms < b->seen_ms;
}

static const char *phase_of(const clt_shm_note *n) {
    return n->phase[0] ? n->phase : "start";
}

/* The rank of this host that is missing; NULL if all of them wait: then it is on another host. */
static const clt_shm_note *find_stuck(clt_group *g) {
    enum { ALIVE_SECONDS = 2 };
    const clt_shm_note *n = &state(g)->page->note[0];
    for (int r = 1; r < g->local_size; r++)
        if (behind(&state(g)->page->note[r], n)) n = &state(g)->page->note[r];
    return n->met < my_note(g)->met || seconds_since(n->seen_ms) > ALIVE_SECONDS ? n : NULL;
}

static void name_the_stuck(clt_group *g, const char *what) {
    char host[256] = "";
    const clt_shm_note *n = find_stuck(g), *mine = my_note(g);
    gethostname(host, sizeof host - 1);
    if (n) {
        clt_error(
            CLT_AGAIN,
            "rank %d (host %s, process %d) does not answer: step %lld, %s for %.0f s; waited %.0f s for %s "
            "(dist_timeout or CLTRAIN_COMM_TIMEOUT). The job ends; run it again: it goes on from the last "
            "checkpoint",
            (int)n->rank, host, (int)n->pid, (long long)n->step, phase_of(n), seconds_since(n->since_ms),
            g->timeout, what);
        return;
    }
    clt_sleep(1); /* the other host knows more, and ends the job meanwhile */
    clt_error(CLT_AGAIN,
              "a rank on another host than %s does not answer: the ranks here are at step %lld, %s, and "
              "waited %.0f s for "
              "%s (dist_timeout or CLTRAIN_COMM_TIMEOUT). The job ends; run it again: it goes on from the "
              "last checkpoint",
              host, (long long)mine->step, phase_of(mine), g->timeout, what);
}

static void deadline_passed(clt_group *g, const char *what) {
    int code = clt_status_exit_code(CLT_AGAIN);
    if (!state(g)->page) {
        clt_error(CLT_AGAIN, "no answer from the other ranks for %.0f s while starting; run it again",
                  g->timeout);
        clt_watch_end_job(g, code);
    }
    int32_t none = 0;
    if (!atomic_compare_exchange_strong(&state(g)->page->ended, &none, 1 + code)) follow(none - 1);
    name_the_stuck(g, what);
    clt_watch_end_job(g, code);
}

static bool is_gone(const clt_shm_note *n) {
    return n->pid > 0 && !n->left && kill(n->pid, 0) != 0 && errno == ESRCH;
}

static void look_at_others(clt_group *g) {
    clt_shm_page *page = state(g)->page;
    int32_t ended = atomic_load(&page->ended), none = 0;
    if (ended) follow(ended - 1);
    for (int r = 0; state(g)->see_processes && r < g->local_size; r++) {
        const clt_shm_note *n = &page->note[r];
        if (!is_gone(n)) continue;
        int code = clt_status_exit_code(CLT_FAIL);
        if (!atomic_compare_exchange_strong(&page->ended, &none, 1 + code)) follow(none - 1);
        clt_error(CLT_FAIL,
                  "rank %d (process %d) is gone: it was at step %lld, %s. The job ends; run it again: it "
                  "goes on from the "
                  "last checkpoint",
                  (int)n->rank, (int)n->pid, (long long)n->step, phase_of(n));
        clt_watch_end_job(g, code);
    }
}

/* --- waiting
 * ---------------------------------------------------------------------------------------------------------
 */

clt_watch clt_watch_begin(clt_group *g) {
    clt_shm_note *n = my_note(g);
    if (n) {
        atomic_fetch_add(&n->met, 1);
        atomic_store(&n->seen_ms, now_ms());
    }
    double now = clt_now();
    return (clt_watch){.start = now, .looked = now};
}

void clt_watch_pause(clt_group *g, clt_watch *w, const char *what) {
    static const double look_every = 0.05;
    clt_wait_pause(&w->spins);
    double now = clt_now();
    if (now - w->looked < look_every) return;
    w->looked = now;
    clt_shm_note *n = my_note(g);
    if (n) {
        atomic_store(&n->seen_ms, now_ms());
        look_at_others(g);
    }
    if (now - w->start > g->timeout) deadline_passed(g, what);
}
