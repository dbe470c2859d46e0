/* Several ranks: joining, leaving, and host data. */
#include "collectives/clt_mpi.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_signal.h"
#include "collectives/clt_launch.h"

static clt_mpi_state *state(clt_group *g) {
    return g->state;
}

/* --- calls of MPI that cannot be given a deadline --- */

static char exit_path[512]; /* "" without cltrain launch */

/* mpirun may not answer either: its code is then none of ours, so this rank leaves its own. */
static void on_alarm(int sig) {
    static const char text[] = "error: MPI does not answer while the ranks start or end; run it again\n";
    (void)sig;
    const int at = *exit_path ? open(exit_path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (at >= 0 && write(at, "75\n", 3) == 3) close(at);
    if (write(2, text, sizeof text - 1) < 0) _exit(74);
    _exit(75);
}

/* Between guard(timeout) and guard(0) the process ends if that takes longer. */
static void guard(double seconds) {
    static const double most = 1e6; /* dist_timeout may be more than alarm() counts */
    struct sigaction a;
    if (seconds > 0 && !clt_launch_exit_path(exit_path)) *exit_path = 0;
    memset(&a, 0, sizeof a);
    a.sa_handler = seconds > 0 ? on_alarm : SIG_DFL;
    sigemptyset(&a.sa_mask);
    alarm(0);
    sigaction(SIGALRM, &a, NULL);
    if (seconds > 0) alarm((unsigned)CLT_MIN(seconds, most) + 1);
}

/* --- joining and leaving --- */

/* Everybody's, as long as there is no page and no clt_group_agree. */
static clt_status worst(clt_group *g, clt_status mine) {
    int m = (int)mine, all = 0;
    MPI_Request r;
    MPI_Iallreduce(&m, &all, 1, MPI_INT, MPI_MAX, state(g)->world, &r);
    CLT_TRY(clt_mpi_wait(g, 1, &r, "joining"));
    return (clt_status)all;
}

/* The processes of a host may live in containers of their own: then their numbers mean nothing to each other.
 */
static bool sees_all(const clt_group *g, const clt_shm_page *page) {
    for (int r = 0; r < g->local_size; r++)
        if (kill(page->flight[r].pid, 0) != 0) return false;
    return true;
}

/* Rank 0 of the host names the page; all ranks of all hosts agree that theirs is there. */
static clt_status map_page(clt_group *g) {
    clt_mpi_state *s = state(g);
    char name[64];
    void *p = NULL;
    MPI_Request r;
    snprintf(name, sizeof name, "/cltrain.%ld.%.0f", (long)getpid(), clt_now() * 1e6);
    s->page_bytes = sizeof(clt_shm_page) + (size_t)g->local_size * sizeof(clt_flight_log);
    MPI_Ibcast(name, sizeof name, MPI_CHAR, 0, s->local, &r);
    CLT_TRY(clt_mpi_wait(g, 1, &r, "joining"));
    CLT_TRY(clt_shm_share(g, worst, name, s->page_bytes, g->local_rank == 0, &p));
    clt_shm_page *page = p;
    clt_flight_begin(&page->flight[g->local_rank], g->rank);
    clt_status st = worst(g, CLT_OK);
    if (st != CLT_OK) {
        clt_shm_unmap(p, s->page_bytes);
        return st;
    }
    s->see_processes = sees_all(g, page);
    s->page = page;
    g->flight = page->flight;
    clt_signal_share(&page->stop);
    return worst(g, clt_watch_start(g));
}

/* Every process that a wrong mpirun has started is alone and sees the same: the first one says it. */
static clt_status wrong_mpirun(const clt_launch_info *l) {
    if (l->rank == 0)
        return clt_error(CLT_BAD_CONFIG,
                         "%s started %d processes, but MPI sees one: this mpirun belongs to another MPI than "
                         "the one cltrain was built "
                         "with; use `cltrain launch` or the matching mpirun",
                         l->launcher, l->size);
    return CLT_BAD_CONFIG;
}

static clt_status join(clt_group *g) {
    int provided;
    clt_launch_info info = clt_launch_detect();
    clt_mpi_state *s = clt_calloc(1, sizeof *s);
    g->state = s;
    guard(g->timeout);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return clt_error(CLT_FAIL, "MPI could not start");
    s->world = MPI_COMM_WORLD;
    MPI_Comm_set_errhandler(s->world, MPI_ERRORS_RETURN);
    MPI_Comm_rank(s->world, &g->rank);
    MPI_Comm_size(s->world, &g->size);
    if (info.size > 1 && g->size == 1) return wrong_mpirun(&info);
    MPI_Comm_split_type(s->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &s->local);
    MPI_Comm_rank(s->local, &g->local_rank);
    MPI_Comm_size(s->local, &g->local_size);
    guard(0);
    clt_log_set_rank(g->rank, g->size);
    if (g->size > CLT_GROUP_MAX_RANKS)
        return worst(
            g, clt_error(CLT_BAD_CONFIG, "%d ranks, at most %d are possible", g->size, CLT_GROUP_MAX_RANKS));
    return map_page(g);
}

static void leave(clt_group *g) {
    static const double leave_seconds = 60;
    clt_mpi_state *s = state(g);
    int started = 0, done = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&done);
    clt_watch_stop(g);
    clt_signal_share(NULL);
    if (s->page) {
        atomic_store(&s->page->flight[g->local_rank].left, 1);
        clt_shm_unmap(s->page, s->page_bytes);
    }
    guard(CLT_MIN(g->timeout, leave_seconds)); /* ranks come here together */
    if (started && !done) MPI_Finalize();
    guard(0);
    clt_free(s);
}

/* --- waiting --- */

static clt_status failed(const clt_group *g, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    if (!g->flight) return clt_error(CLT_FAIL, "MPI failed in %s: %s", what, text);
    const clt_flight_log *l = &g->flight[g->local_rank];
    return clt_error(CLT_FAIL, "MPI failed in %s at step %lld, %s: %s", what, (long long)l->step,
                     clt_flight_phase_of(l), text);
}

clt_status clt_mpi_wait(clt_group *g, int n, MPI_Request *req, const char *what) {
    double start = clt_now();
    clt_watch w = clt_watch_begin(g, what);
    /* One after the other: with MPICH's declaration of MPI_Testall gcc takes MPI_STATUSES_IGNORE for an
     * array. */
    for (int k = 0, done = 0; k < n; k += done) {
        int code = MPI_Test(&req[k], &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return failed(g, code, what);
        if (!done) clt_watch_pause(g, &w, what);
    }
    g->waited += clt_now() - start;
    return CLT_OK;
}

clt_status clt_shm_barrier(clt_group *g) {
    double start = clt_now();
    clt_watch w = clt_watch_begin(g, "gradient reduction");
    clt_shm_page *page = state(g)->page;
    uint64_t n = (uint64_t)g->local_size, mine = atomic_fetch_add(&page->arrived, 1) + 1;
    uint64_t target = CLT_CEIL_DIV(mine, n) * n;
    while (atomic_load(&page->arrived) < target) clt_watch_pause(g, &w, "gradient reduction");
    g->waited += clt_now() - start;
    return CLT_OK;
}

/* --- host data --- */

enum { MPI_PART = 1 << 28 }; /* counts are int: long data goes in parts */

static clt_status barrier(clt_group *g) {
    MPI_Request r;
    MPI_Ibarrier(state(g)->world, &r);
    return clt_mpi_wait(g, 1, &r, "a barrier");
}

static clt_status broadcast(clt_group *g, int root, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += MPI_PART) {
        MPI_Request r;
        MPI_Ibcast((char *)data + at, (int)CLT_MIN(bytes - at, (size_t)MPI_PART), MPI_BYTE, root,
                   state(g)->world, &r);
        CLT_TRY(clt_mpi_wait(g, 1, &r, "a broadcast"));
    }
    return CLT_OK;
}

static clt_status all_gather(clt_group *g, const void *mine, size_t bytes, void *out) {
    MPI_Request r;
    if (bytes > INT_MAX) return clt_error(CLT_FAIL, "%zu bytes are too many to gather at once", bytes);
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, state(g)->world, &r);
    return clt_mpi_wait(g, 1, &r, "a gather");
}

const clt_group_ops clt_group_mpi = {
    "mpi",     join,       leave,           clt_watch_end_job, barrier,
    broadcast, all_gather, clt_blocks_plan, clt_blocks_unplan, clt_blocks_reduce,
};
const clt_group_ops clt_group_shm = {
    "shm",     join,       leave,           clt_watch_end_job, barrier,
    broadcast, all_gather, clt_blocks_plan, clt_blocks_unplan, clt_blocks_reduce,
};
