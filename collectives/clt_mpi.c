/* mpi: a group of several ranks. Host data goes through MPI, which moves bytes and never adds. Only this file
 * and clt_mpi_anchor.c, which no run uses, include mpi.h. */
#include <assert.h>
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "collectives/clt_end.h"
#include "collectives/clt_group_internal.h"
#include "collectives/clt_launch.h"
#include "collectives/clt_shm.h"
#include "runtime/base/clt_signal.h"

typedef struct {
    MPI_Comm comm;
    size_t page_bytes; /* of run->page */
} mpi_state;

static MPI_Comm comm_of(const clt_group *g) {
    return ((mpi_state *)g->state)->comm;
}

/* --- waiting --- */

static clt_status failed(const clt_group *g, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    if (!g->run->flight) return clt_error(CLT_FAIL, "MPI failed in %s: %s", what, text);
    const clt_flight_log *l = &g->run->flight[g->run->local_rank];
    return clt_error(CLT_FAIL, "MPI failed in %s at step %lld, %s: %s", what, (long long)l->step,
                     clt_flight_phase_of(l), text);
}

/* Waits for n requests with the group's deadline. When it passes, the job ends and this does not return. */
static clt_status wait_for(clt_group *g, int n, MPI_Request *req, const char *what) {
    clt_watch w = clt_watch_begin(g, what);
    /* One after the other: with MPICH's declaration of MPI_Testall gcc takes MPI_STATUSES_IGNORE for an
     * array. */
    for (int k = 0, done = 0; k < n; k += done) {
        int code = MPI_Test(&req[k], &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return failed(g, code, what);
        if (!done) clt_watch_pause(&w);
    }
    clt_watch_end(&w);
    return CLT_OK;
}

/* Calls of MPI without a deadline of their own are made between these two. */
static void limit_call(double seconds) {
    clt_end_after(
        seconds, clt_status_exit_code(CLT_AGAIN),
        "error: MPI does not respond while ranks join, leave or split a group; rerun the same command\n");
}
static void end_limit(void) {
    clt_end_cancel();
}

/* --- joining and leaving --- */

static bool serves(const clt_launch_info *l) {
    return l->size > 1;
}

static void end_others(int code) {
    MPI_Abort(MPI_COMM_WORLD, code);
}

/* The worst status of all ranks, as long as there is no clt_group_agree. */
static clt_status worst(clt_group *g, clt_status mine) {
    int m = (int)mine, all = 0;
    MPI_Request r;
    MPI_Iallreduce(&m, &all, 1, MPI_INT, MPI_MAX, comm_of(g), &r);
    CLT_TRY(wait_for(g, 1, &r, "joining"));
    return (clt_status)all;
}

/* The processes of a host may run in separate containers; then their numbers mean nothing to each other. */
static bool sees_all(const clt_group_run *run) {
    for (int r = 0; r < run->local_size; r++)
        if (kill(run->page->flight[r].pid, 0) != 0) return false;
    return true;
}

/* What the lowest rank of a host tells the others there. */
typedef struct {
    int rank;
    char name[CLT_SHM_NAME]; /* of the shared page */
} host_word;

/* All ranks of all hosts agree that theirs is there. */
static clt_status map_page(clt_group *g, MPI_Comm local) {
    static const double settled = 10; /* seconds: ranks open a name within milliseconds */
    clt_group_run *run = g->run;
    mpi_state *s = g->state;
    host_word w = {.rank = run->rank};
    void *p = NULL;
    MPI_Request r;
    if (run->local_rank == 0) clt_shm_sweep(CLT_SHM_FOLDER, settled);
    clt_shm_new_name("page", w.name);
    s->page_bytes = sizeof(clt_host_page) + (size_t)run->local_size * sizeof(clt_flight_log);
    MPI_Ibcast(&w, sizeof w, MPI_BYTE, 0, local, &r);
    CLT_TRY(wait_for(g, 1, &r, "joining"));
    run->host = w.rank;
    const bool first = run->local_rank == 0;
    const clt_shm_part own = {0, first ? s->page_bytes : 0};
    CLT_TRY(clt_shm_share(g, worst, w.name, s->page_bytes, first, own, &p));
    run->page = p;
    run->flight = run->page->flight;
    clt_flight_begin(&run->flight[run->local_rank], run->rank);
    CLT_TRY(worst(g, CLT_OK));
    run->sees_processes = sees_all(run);
    clt_signal_share(&run->page->stop);
    return worst(g, clt_watch_start(run));
}

/* Every process that a wrong mpirun has started is alone and finds the same; the first one prints it. */
static clt_status wrong_mpirun(const clt_launch_info *l) {
    if (l->rank == 0)
        return clt_error(CLT_BAD_CONFIG,
                         "%s started %d processes, but MPI sees one: this mpirun belongs to another MPI than "
                         "the one cltrain was built with; use `cltrain launch` or the matching mpirun",
                         l->launcher, l->size);
    return CLT_BAD_CONFIG;
}

/* What ranks exchange from here on depends on the version, so this comes first. */
static clt_status check_program(clt_group *g) {
    char *text = clt_format("cltrain: %s (%s)\n", clt_version(), clt_version_git());
    const clt_status st = clt_group_check_same(g, "program", text, "start the same program on all hosts");
    clt_free(text);
    return st;
}

/* The ranks of this rank's host, or of what CLTRAIN_HOSTS makes a host. */
static void split_by_host(const clt_group_run *run, MPI_Comm all, MPI_Comm *local) {
    const int hosts = (int)clt_env_long(CLT_ENV_HOSTS, 0);
    MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, local);
    if (hosts < 1) return;
    MPI_Comm whole = *local;
    MPI_Comm_split(whole, run->rank * hosts / run->size, 0, local);
    MPI_Comm_free(&whole);
}

/* Meets the other ranks, after MPI has told who they are. */
static clt_status meet(clt_group *g, MPI_Comm local) {
    CLT_TRY(check_program(g));
    if (g->size > CLT_GROUP_MAX_RANKS)
        return worst(
            g, clt_error(CLT_BAD_CONFIG, "%d ranks, at most %d are possible", g->size, CLT_GROUP_MAX_RANKS));
    return map_page(g, local);
}

static clt_status join(clt_group *g) {
    int provided;
    clt_launch_info info = clt_launch_detect();
    clt_group_run *run = g->run;
    mpi_state *s = clt_calloc(1, sizeof *s);
    MPI_Comm local;
    g->state = s;
    run->end_others = end_others;
    limit_call(run->timeout);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return clt_error(CLT_FAIL, "MPI could not start");
    s->comm = MPI_COMM_WORLD;
    MPI_Comm_set_errhandler(s->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(s->comm, &run->rank);
    MPI_Comm_size(s->comm, &run->size);
    if (info.size > 1 && run->size == 1) return wrong_mpirun(&info);
    split_by_host(run, s->comm, &local);
    MPI_Comm_rank(local, &run->local_rank);
    MPI_Comm_size(local, &run->local_size);
    end_limit();
    g->rank = run->rank;
    g->size = run->size;
    g->local_rank = run->local_rank;
    g->local_size = run->local_size;
    clt_log_set_rank(run->rank, run->size);
    const clt_status st = meet(g, local);
    MPI_Comm_free(&local);
    return st;
}

static void leave(clt_group *g) {
    static const double leave_seconds = 60;
    clt_group_run *run = g->run;
    mpi_state *s = g->state;
    int started = 0, done = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&done);
    clt_watch_stop(run);
    clt_signal_share(NULL);
    if (run->page) {
        atomic_store(&run->flight[run->local_rank].left, 1);
        clt_shm_unmap(run->page, s->page_bytes);
    }
    limit_call(CLT_MIN(run->timeout, leave_seconds)); /* all ranks leave at the same time */
    if (started && !done) MPI_Finalize();
    end_limit();
    clt_free(s);
}

/* --- children --- */

static clt_status split(clt_group *g, int color, clt_group *child) {
    MPI_Comm comm = MPI_COMM_NULL;
    limit_call(g->run->timeout);
    const int code =
        MPI_Comm_split(comm_of(g), child ? color : MPI_UNDEFINED, child ? child->rank : 0, &comm);
    end_limit();
    if (code != MPI_SUCCESS) return failed(g, code, "splitting a group");
    if (!child) return CLT_OK;
    mpi_state *s = clt_calloc(1, sizeof *s);
    s->comm = comm;
    child->state = s;
    return CLT_OK;
}

static void unsplit(clt_group *child) {
    mpi_state *s = child->state;
    limit_call(child->run->timeout);
    MPI_Comm_free(&s->comm);
    end_limit();
    clt_free(s);
}

__attribute__((noreturn)) static void end_job(clt_group *g, int code) {
    clt_watch_end_job(g->run, code);
}

/* --- host data --- */

enum { MPI_PART = 1 << 28 }; /* counts are int: long data goes in parts */

static clt_status barrier(clt_group *g) {
    MPI_Request r;
    MPI_Ibarrier(comm_of(g), &r);
    return wait_for(g, 1, &r, "a barrier");
}

static clt_status broadcast(clt_group *g, int root, void *data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += MPI_PART) {
        MPI_Request r;
        MPI_Ibcast((char *)data + at, (int)CLT_MIN(bytes - at, (size_t)MPI_PART), MPI_BYTE, root, comm_of(g),
                   &r);
        CLT_TRY(wait_for(g, 1, &r, "a broadcast"));
    }
    return CLT_OK;
}

static clt_status all_gather(clt_group *g, const void *mine, size_t bytes, void *out) {
    MPI_Request r;
    const bool in_place = mine == (char *)out + (size_t)g->rank * bytes;
    if (bytes > INT_MAX) return clt_error(CLT_FAIL, "%zu bytes are too many to gather at once", bytes);
    MPI_Iallgather(in_place ? MPI_IN_PLACE : mine, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE,
                   comm_of(g), &r);
    return wait_for(g, 1, &r, "a gather");
}

static_assert(sizeof(MPI_Request) <= sizeof(clt_request), "a request of MPI fits");

static clt_status start(clt_group *g, const clt_message *m, clt_request *r) {
    MPI_Request request;
    if (m->bytes > INT_MAX) return clt_error(CLT_FAIL, "%zu bytes are too many for a message", m->bytes);
    const int code = m->send
                         ? MPI_Isend(m->data, (int)m->bytes, MPI_BYTE, m->rank, m->tag, comm_of(g), &request)
                         : MPI_Irecv(m->data, (int)m->bytes, MPI_BYTE, m->rank, m->tag, comm_of(g), &request);
    memcpy(r, &request, sizeof request);
    return code == MPI_SUCCESS ? CLT_OK : failed(g, code, "sending gradients");
}

static clt_status test(clt_group *g, clt_request *r, bool *done) {
    MPI_Request request;
    int through = 0;
    memcpy(&request, r, sizeof request);
    const int code = MPI_Test(&request, &through, MPI_STATUS_IGNORE);
    memcpy(r, &request, sizeof request);
    *done = through;
    return code == MPI_SUCCESS ? CLT_OK : failed(g, code, "an exchange of gradients");
}

const clt_group_ops clt_group_mpi = {
    .name = "mpi",
    .serves = serves,
    .join = join,
    .leave = leave,
    .split = split,
    .unsplit = unsplit,
    .abort = end_job,
    .barrier = barrier,
    .broadcast = broadcast,
    .all_gather = all_gather,
    .start = start,
    .test = test,
};
