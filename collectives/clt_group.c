/* The functions of clt_group.h: which component serves, and what is written once for all of them. */
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "collectives/clt_exchange.h"
#include "collectives/clt_launch.h"
#include "runtime/base/clt_signal.h"

/* The first that serves under this launcher is taken. */
static const clt_group_ops *const by_priority[] = {&clt_group_loopback, &clt_group_mpi};

static clt_status join(clt_group *g) {
    clt_launch_info info = clt_launch_detect();
    for (size_t i = 0; i < CLT_COUNT_OF(by_priority) && !g->ops; i++)
        if (by_priority[i]->serves(&info)) g->ops = by_priority[i];
    if (!g->ops)
        return clt_error(CLT_BAD_CONFIG, "%s starts a job of %d ranks, which no component serves",
                         info.launcher, info.size);
    return g->ops->join(g);
}

static clt_status choose_timeout(double timeout, double *out) {
    enum { DEFAULT_TIMEOUT = 600 };
    const char *text = clt_env(CLT_ENV_COMM_TIMEOUT);
    int64_t set = 0;
    *out = timeout > 0 ? timeout : DEFAULT_TIMEOUT;
    if (text && (!clt_parse_i64(text, &set) || set < 1 || set > 1000000))
        return clt_error(CLT_BAD_CONFIG,
                         "CLTRAIN_COMM_TIMEOUT is '%s', it must be a number of seconds, at least 1", text);
    if (text) *out = (double)set;
    return CLT_OK;
}

static bool is_child(const clt_group *g) {
    return g->member;
}

static void free_group(clt_group *g) {
    if (!is_child(g)) {
        clt_exchange_times_free(g->run);
        clt_free(g->run->folder);
        clt_free(g->run);
    }
    clt_free(g->member);
    clt_free(g);
}

/* `ready`: whether this rank can take part; the ranks' first exchange. */
static clt_status create(double timeout, clt_status ready, clt_group **out) {
    clt_group *g = clt_calloc(1, sizeof *g);
    g->run = clt_calloc(1, sizeof *g->run);
    clt_status usable = choose_timeout(timeout, &g->run->timeout);
    if (usable == CLT_OK) usable = clt_exchange_check_environment();
    clt_launch_register();
    clt_status st = join(g);
    if (st == CLT_OK) st = clt_group_agree(g, ready != CLT_OK ? ready : usable);
    if (st != CLT_OK) {
        if (g->ops) g->ops->leave(g);
        free_group(g);
        return st;
    }
    *out = g;
    return CLT_OK;
}

clt_status clt_group_create(double timeout, clt_group **out) {
    return create(timeout, CLT_OK, out);
}

clt_status clt_group_refuse(clt_status why) {
    clt_group *none = NULL;
    if (clt_launch_detect().size > 1) create(0, why, &none);
    return why;
}

void clt_group_destroy(clt_group *g) {
    if (!g) return;
    if (is_child(g))
        g->ops->unsplit(g);
    else
        g->ops->leave(g);
    free_group(g);
}

void clt_group_abort(clt_group *g, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    clt_verror(CLT_FAIL, fmt, ap);
    va_end(ap);
    g->ops->abort(g, code);
}

void clt_group_give_up(clt_group *g, clt_status st) {
    if (g->run->failed || g->run->size == 1) return;
    g->ops->abort(g, clt_status_exit_code(st));
}

int clt_group_rank(const clt_group *g) {
    return g->rank;
}
int clt_group_size(const clt_group *g) {
    return g->size;
}
int clt_group_local_rank(const clt_group *g) {
    return g->local_rank;
}
int clt_group_local_size(const clt_group *g) {
    return g->local_size;
}
int clt_group_rank_in_run(const clt_group *g, int rank) {
    return is_child(g) ? g->member[rank] : rank;
}
int clt_group_host(const clt_group *g) {
    return g->run->host;
}
double clt_group_waited(const clt_group *g) {
    return g->run->waited;
}
void clt_group_note(clt_group *g, int64_t step, const char *phase) {
    clt_flight_phase(&g->run->flight[g->run->local_rank], step, phase);
}
const char *clt_group_phase(const clt_group *g) {
    return clt_flight_phase_of(&g->run->flight[g->run->local_rank]);
}
void clt_group_set_folder(clt_group *g, const char *folder) {
    clt_free(g->run->folder);
    g->run->folder = folder ? clt_strdup(folder) : NULL;
}

void clt_group_end_hung(clt_group *g) {
    const clt_flight_log *l = &g->run->flight[g->run->local_rank];
    char host[256] = "";
    clt_str more = {0};
    gethostname(host, sizeof host - 1);
    clt_flight_table(g->run, &more);
    clt_flight_dump(g->run, clt_last_error(), CLT_FLIGHT_PATIENCE, &more);
    clt_group_abort(
        g, clt_status_exit_code(CLT_AGAIN),
        "rank %d (host %s) ends the job at step %lld, %s: its device hangs. Rerun the same command "
        "to resume from the last checkpoint%s",
        g->run->rank, host, (long long)l->step, clt_flight_phase_of(l), more.s ? more.s : "");
}

clt_status clt_group_barrier(clt_group *g) {
    return g->ops->barrier(g);
}

clt_status clt_group_broadcast(clt_group *g, int root, void *data, size_t bytes) {
    return g->ops->broadcast(g, root, data, bytes);
}

clt_status clt_group_all_gather(clt_group *g, const void *mine, size_t bytes, void *out) {
    return g->ops->all_gather(g, mine, bytes, out);
}

clt_status clt_group_all_gatherv(clt_group *g, const void *mine, size_t bytes, size_t *lens, void **out) {
    uint64_t n = bytes, most = 0, *all = clt_calloc((size_t)g->size, sizeof *all);
    size_t total = 0;
    clt_status st = g->ops->all_gather(g, &n, sizeof n, all);
    for (int r = 0; st == CLT_OK && r < g->size; r++) most = CLT_MAX(most, all[r]);
    char *padded = clt_calloc(1, most), *gathered = clt_calloc((size_t)g->size, most);
    if (bytes) memcpy(padded, mine, bytes);
    if (st == CLT_OK && most) st = g->ops->all_gather(g, padded, most, gathered);
    for (int r = 0; st == CLT_OK && r < g->size; r++) {
        memmove(gathered + total, gathered + (size_t)r * most, all[r]);
        lens[r] = all[r];
        total += all[r];
    }
    clt_free(padded);
    clt_free(all);
    if (st == CLT_OK)
        *out = gathered;
    else
        clt_free(gathered);
    return st;
}

/* Gathers v of every rank and combines in rank order. */
static clt_status combine_i64(clt_group *g, int64_t *v, int n, bool max) {
    size_t bytes = (size_t)n * sizeof *v;
    int64_t *all = clt_calloc((size_t)g->size, bytes);
    clt_status st = g->ops->all_gather(g, v, bytes, all);
    for (int i = 0; st == CLT_OK && i < n; i++) {
        v[i] = all[i];
        for (int r = 1; r < g->size; r++) v[i] = max ? CLT_MAX(v[i], all[r * n + i]) : v[i] + all[r * n + i];
    }
    clt_free(all);
    return st;
}

clt_status clt_group_sum_i64(clt_group *g, int64_t *v, int n) {
    return combine_i64(g, v, n, false);
}
clt_status clt_group_max_i64(clt_group *g, int64_t *v, int n) {
    return combine_i64(g, v, n, true);
}

/* What every rank tells the others when they agree. */
typedef struct {
    int32_t rank_in_run, status, signal, n_lines;
    unsigned long long line[CLT_LOG_HELD]; /* hashes of the messages since the last time */
} report;

static bool has_line(const report *r, unsigned long long line) {
    for (int i = 0; i < r->n_lines; i++)
        if (r->line[i] == line) return true;
    return false;
}

/* Of the ranks of g that hold the same message the lowest in the run prints it: rank 0 of the run has done
 * so. */
static void release_messages(const clt_group *g, const report *all) {
    bool drop[CLT_LOG_HELD] = {false};
    const report *mine = &all[g->rank];
    for (int i = 0; i < mine->n_lines; i++)
        for (int r = 0; r < g->size && !drop[i]; r++)
            drop[i] = all[r].rank_in_run < mine->rank_in_run && has_line(&all[r], mine->line[i]);
    clt_log_release(drop);
}

clt_status clt_group_agree(clt_group *g, clt_status mine) {
    report r = {.rank_in_run = g->run->rank, .status = (int32_t)mine, .signal = clt_signal_received()}, *all;
    r.n_lines = g->size > 1 ? clt_log_held(r.line) : 0;
    all = clt_calloc((size_t)g->size, sizeof *all);
    clt_status st = g->ops->all_gather(g, &r, sizeof r, all);
    if (st == CLT_OK) {
        if (g->size > 1) release_messages(g, all);
        for (int i = g->size - 1; i >= 0; i--) {
            if (all[i].status != CLT_OK) st = (clt_status)all[i].status;
            if (all[i].signal) g->stop = all[i].signal;
        }
        if (!is_child(g)) g->run->failed = st != CLT_OK;
    }
    clt_free(all);
    return st;
}

int clt_group_stop(const clt_group *g) {
    return g->stop;
}

bool clt_group_stop_asked(clt_group *g) {
    (void)g;
    return clt_signal_received() != 0;
}
