/* Several ranks: joining, host data, deadlines, and the end of a job. */
#include "clt_mpi.h"

#include "clt_launch.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

static clt_mpi_state *state(clt_group *g) {
    return g->state;
}

static int64_t now_ms(void) {
    return (int64_t)(clt_now() * 1e3);
}

/* --- joining and leaving
 * ----------------------------------------------------------------------------------------- */

/* Rank 0 of the host names and creates the page, everybody maps it, then the name goes. */
static clt_status map_page(clt_group *g) {
    clt_mpi_state *s = state(g);
    char name[64];
    void *p = NULL;
    snprintf(name, sizeof name, "/cltrain.%ld.%lld", (long)getpid(), (long long)now_ms());
    s->page_bytes = sizeof(clt_shm_page) + (size_t)g->local_size * sizeof(clt_shm_note);
    MPI_Bcast(name, sizeof name, MPI_CHAR, 0, s->local);
    clt_status st = g->local_rank == 0 ? clt_shm_map(name, s->page_bytes, true, &p) : CLT_OK;
    MPI_Barrier(s->local);
    if (g->local_rank != 0) st = clt_shm_map(name, s->page_bytes, false, &p);
    MPI_Barrier(s->local);
    if (g->local_rank == 0) clt_shm_unlink(name);
    s->page = p;
    if (p) atomic_store(&s->page->note[g->local_rank].pid, (int32_t)getpid());
    return st;
}

static clt_status join(clt_group *g) {
    int provided, size;
    clt_launch_info info = clt_launch_detect();
    clt_mpi_state *s = clt_calloc(1, sizeof *s);
    g->state = s;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return clt_error(CLT_FAIL, "MPI could not start");
    s->world = MPI_COMM_WORLD;
    MPI_Comm_rank(s->world, &g->rank);
    MPI_Comm_size(s->world, &size);
    g->size = size;
    if (info.size > 1 && size == 1)
        return clt_error(
            CLT_BAD_CONFIG,
            "%s started %d processes, but MPI sees one: this mpirun belongs to another MPI than the one "
            "cltrain was built with; use `cltrain launch` or the matching mpirun",
            info.launcher, info.size);
    MPI_Comm_split_type(s->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &s->local);
    MPI_Comm_rank(s->local, &g->local_rank);
    MPI_Comm_size(s->local, &g->local_size);
    if (g->size > CLT_GROUP_MAX_RANKS)
        return clt_error(CLT_BAD_CONFIG, "%d ranks, at most %d are possible", g->size, CLT_GROUP_MAX_RANKS);
    s->phase = "start";
    return map_page(g);
}

static void leave(clt_group *g) {
    clt_mpi_state *s = state(g);
    int done = 0;
    MPI_Finalized(&done);
    if (s->page) clt_shm_unmap(s->page, s->page_bytes);
    if (!done) MPI_Finalize();
    clt_free(s);
}

static void end_job(clt_group *g, int code) {
    clt_launch_report(code);
    MPI_Abort(state(g)->world, code);
    _exit(code);
}

static void note(clt_group *g, int64_t step, const char *phase) {
    clt_mpi_state *s = state(g);
    clt_shm_note *n = &s->page->note[g->local_rank];
    s->step = step;
    s->phase = phase;
    atomic_store(&n->step, step);
    strncpy(n->phase, phase, sizeof n->phase - 1);
    atomic_store(&n->since_ms, now_ms());
}

/* --- waiting
 * ----------------------------------------------------------------------------------------------------------
 */

/* The rank that is behind: the one that has been in its phase the longest among those with the lowest step.
 */
static void name_the_stuck(clt_group *g, const char *what) {
    clt_mpi_state *s = state(g);
    int slow = 0;
    for (int r = 1; r < g->local_size; r++) {
        const clt_shm_note *a = &s->page->note[r], *b = &s->page->note[slow];
        if (a->step < b->step || (a->step == b->step && a->since_ms < b->since_ms)) slow = r;
    }
    const clt_shm_note *n = &s->page->note[slow];
    clt_error(CLT_AGAIN,
              "no answer for %.0f s in %s: local rank %d (process %d) is at step %lld, %s, for %.0f s; the "
              "job ends, run "
              "it again (timeout: dist_timeout or CLTRAIN_COMM_TIMEOUT)",
              g->timeout, what, slow, (int)n->pid, (long long)n->step, n->phase[0] ? n->phase : "start",
              (double)(now_ms() - n->since_ms) / 1e3);
}

static void deadline_passed(clt_group *g, const char *what) {
    name_the_stuck(g, what);
    end_job(g, clt_status_exit_code(CLT_AGAIN));
}

clt_status clt_mpi_wait(clt_group *g, int n, MPI_Request *req, const char *what) {
    double start = clt_now();
    unsigned spins = 0;
    int done = 0;
    for (;;) {
        if (MPI_Testall(n, req, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
            return clt_error(CLT_FAIL, "MPI failed in %s", what);
        if (done) return CLT_OK;
        clt_wait_pause(&spins);
        if (clt_now() - start > g->timeout) deadline_passed(g, what);
    }
}

clt_status clt_shm_barrier(clt_group *g) {
    clt_shm_page *page = state(g)->page;
    uint64_t n = (uint64_t)g->local_size, mine = atomic_fetch_add(&page->arrived, 1) + 1;
    uint64_t target = CLT_CEIL_DIV(mine, n) * n;
    double start = clt_now();
    unsigned spins = 0;
    while (atomic_load(&page->arrived) < target) {
        clt_wait_pause(&spins);
        if (clt_now() - start > g->timeout) deadline_passed(g, "gradient reduction");
    }
    return CLT_OK;
}

/* --- host data
 * ---------------------------------------------------------------------------------------------------------
 */

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
    "mpi",
    join,
    leave,
    end_job,
    note,
    barrier,
    broadcast,
    all_gather,
    clt_blocks_plan,
    clt_blocks_unplan,
    clt_blocks_reduce,
};
const clt_group_ops clt_group_shm = {
    "shm",
    join,
    leave,
    end_job,
    note,
    barrier,
    broadcast,
    all_gather,
    clt_blocks_plan,
    clt_blocks_unplan,
    clt_blocks_reduce,
};
