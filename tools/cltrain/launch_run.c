#include "tools/cltrain/launch_run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/clt_launch.h"

enum { SIGNALS = 3, STOPPED_TWICE = 130, CANNOT_RUN = 127 };
static const int signal_of[SIGNALS] = {SIGINT, SIGTERM, SIGUSR1};
static volatile sig_atomic_t came[SIGNALS];

typedef struct {
    long pid;           /* 0: not started yet, or on another host */
    int code;           /* exit code; -1: not reported */
    bool gone;          /* the process does not exist any more */
    bool told[SIGNALS]; /* signals that it was sent */
} rank_info;

typedef struct {
    const clt_launch_run_params *p;
    rank_info *rank;
    pid_t child;
    char host[256];
    bool forwarded[SIGNALS]; /* signals that the launcher was sent */
    int lost;                /* the first rank that died without an exit code, or -1 */
    double trouble;          /* time of the first failure of a rank; 0: none */
    double asked;            /* time of the first signal; 0: none */
    double seen;             /* last time at which a rank was running or not started yet */
    bool at_once;            /* a second SIGINT was received */
    bool filtered;           /* stderr goes through the filter */
    clt_launch_filter filter;
} job;

static void on_signal(int sig) {
    for (int k = 0; k < SIGNALS; k++)
        if (signal_of[k] == sig) came[k]++;
}

void clt_launch_run_signals(void) {
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    for (int k = 0; k < SIGNALS; k++) sigaction(signal_of[k], &a, NULL);
    signal(SIGPIPE, SIG_IGN); /* the reader of the output may exit before the ranks have saved */
}

bool clt_launch_run_asked(void) {
    bool any = false;
    for (int k = 0; k < SIGNALS; k++) any |= came[k] != 0;
    return any;
}

/* --- ranks --- */

/* Reads "NUMBER WORD" from DIR/RANK.what; false if the file does not exist. */
static bool read_left(const job *j, int rank, const char *what, long *number, char word[256]) {
    char *path = clt_format("%s/%d.%s", j->p->dir, rank, what);
    FILE *f = fopen(path, "r");
    clt_free(path);
    word[0] = 0;
    if (!f) return false;
    int n = fscanf(f, "%ld %255s", number, word);
    fclose(f);
    return n >= 1;
}

static void look_at_rank(job *j, int r) {
    rank_info *k = &j->rank[r];
    char word[256];
    long n;
    if (k->gone) return;
    if (!k->pid && read_left(j, r, "pid", &n, word) && strcmp(word, j->host) == 0) k->pid = n;
    bool gone = k->pid && clt_process_gone(k->pid);
    if (k->code < 0 && read_left(j, r, "exit", &n, word))
        k->code = (int)n; /* read after the check: a rank writes its code before it exits */
    k->gone = gone;
    bool lost = gone && k->code < 0;
    if (lost && j->lost < 0) j->lost = r;
    if ((lost || k->code > 0) && j->trouble == 0) j->trouble = clt_now();
}

static void kill_ranks(const job *j) {
    for (int r = 0; r < j->p->ranks; r++)
        if (j->rank[r].pid && !j->rank[r].gone) kill((pid_t)j->rank[r].pid, SIGKILL);
}

/* --- signals --- */

/* The signal that ends the launcher. */
static int end_signal(const clt_launch_run_params *p) {
    return p->deaf ? SIGHUP : SIGTERM;
}

/* Sends signal k to every rank of this host once, as soon as the rank has started. Ranks on other hosts learn
 * of it from these. */
static void pass_signal(job *j, int k) {
    enum { START_SECONDS = 20 };
    int reached = 0;
    if (j->asked == 0) j->asked = clt_now();
    for (int r = 0; r < j->p->ranks; r++) {
        rank_info *x = &j->rank[r];
        if (!x->pid) continue;
        reached++;
        if (!x->told[k] && !x->gone) kill((pid_t)x->pid, signal_of[k]);
        x->told[k] = true;
    }
    if (reached || j->forwarded[k]) return;
    /* No rank on this host: signal the launcher instead. mpirun then leaves its ranks one second. */
    if (!j->p->elsewhere && clt_now() - j->asked < START_SECONDS) return;
    kill(j->child, j->p->forwards && signal_of[k] != SIGINT ? signal_of[k] : end_signal(j->p));
    j->forwarded[k] = true;
}

static void look_at_signals(job *j) {
    static const char text[] = "stopped at once without saving\n";
    for (int k = 0; k < SIGNALS; k++)
        if (came[k]) pass_signal(j, k);
    if (came[0] < 2 || j->at_once) return;
    j->at_once = true;
    if (write(2, text, sizeof text - 1) < 0) clt_debug("stderr is closed");
    kill_ranks(j);
    kill(j->child, end_signal(j->p));
}

/* Whether, as far as this host can see, a rank has not started yet or is still running. */
static bool any_working(const job *j) {
    int come = 0;
    for (int r = 0; r < j->p->ranks; r++) {
        come += j->rank[r].pid != 0;
        if (j->rank[r].pid && !j->rank[r].gone && j->rank[r].code < 0) return true;
    }
    return j->p->elsewhere || come < j->p->ranks;
}

/* Kills ranks that still run some time after another rank failed or after a second SIGINT; later the
 * launcher, too. */
static void end_what_stays(job *j, double *killed) {
    enum { GRACE = 3, LAUNCHER_GRACE = 4, IDLE = 10 };
    double now = clt_now();
    if (*killed == 0 && (j->at_once || (j->trouble > 0 && now - j->trouble > GRACE))) {
        kill_ranks(j);
        *killed = now;
    }
    if (any_working(j)) j->seen = now;
    /* All ranks have exited but the launcher has not: perhaps it is suspended. */
    if (*killed == 0 && now - j->seen > IDLE) *killed = now;
    if (*killed > 0 && now - *killed > LAUNCHER_GRACE) {
        kill(j->child, SIGKILL);
        *killed = now;
    }
}

/* --- running --- */

static pid_t start_child(const clt_launch_run_params *p, int out) {
    const pid_t launch = getpid(), child = fork();
    if (child != 0) return child;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    prctl(PR_SET_PDEATHSIG, end_signal(p));     /* nothing keeps running if this launch is killed */
    if (getppid() != launch) _exit(CANNOT_RUN); /* it was killed before prctl */
    setpgid(0, 0); /* Ctrl-C on the terminal reaches only the launch, which passes it on */
    if (null >= 0) dup2(null, 0);
    if (out >= 0) dup2(out, 2);
    setenv("CLTRAIN_LAUNCH_DIR", p->dir, 1);
    /* mpirun's hwloc would load OpenCL, whose loader truncates OCL_ICD_FILENAMES in the ranks' environment,
     * and try twenty X displays, which takes seconds if the name localhost is resolved by another host. */
    setenv("HWLOC_COMPONENTS", "-opencl,-gl", 0);
    if (out >= 0 && clt_color(stderr)) setenv("CLICOLOR_FORCE", "1", 0);
    sigset_t kept;
    sigemptyset(&kept);
    for (int k = 0; k < SIGNALS; k++) {
        signal(signal_of[k], SIG_DFL);
        sigaddset(&kept, signal_of[k]);
    }
    signal(SIGPIPE, SIG_DFL);
    if (p->deaf) sigprocmask(SIG_BLOCK, &kept, NULL); /* mpirun unblocks them in its ranks */
    execv(p->argv[0], p->argv);
    fprintf(stderr, "error: cannot run %s: %s\n", p->argv[0], strerror(errno));
    _exit(CANNOT_RUN);
}

/* Waits up to `ms` for text from `in` and passes it to the filter. False at the end of the text. */
static bool pump(int in, clt_launch_filter *f, int ms) {
    char text[4096];
    struct pollfd fd = {.fd = in, .events = POLLIN};
    if (in < 0) {
        clt_sleep(ms / 1e3);
        return true;
    }
    if (poll(&fd, 1, ms) <= 0) {
        clt_launch_filter_flush(f);
        return true;
    }
    ssize_t n = read(in, text, sizeof text);
    if (n > 0) clt_launch_filter_add(f, text, (size_t)n);
    return n > 0 || (n < 0 && errno == EINTR);
}

static void look_at_ranks(job *j) {
    for (int r = 0; r < j->p->ranks; r++) look_at_rank(j, r);
}

static bool any_left(const job *j) {
    for (int r = 0; r < j->p->ranks; r++)
        if (j->rank[r].pid && !j->rank[r].gone) return true;
    return false;
}

/* After the launcher has exited: its ranks exit, too, unless it was killed. Waits for them, then kills
 * them. */
static void end_ranks(job *j) {
    static const double grace = 2;
    double start = clt_now();
    for (look_at_ranks(j); any_left(j) && clt_now() - start < grace; look_at_ranks(j)) clt_sleep(0.02);
    kill_ranks(j);
}

/* Supervises the job until the launcher exits; returns its status as waitpid gives it. */
static int watch(job *j, int in) {
    enum { LOOK_MS = 20, RANKS_PER_LOOK = 16 };
    clt_launch_filter *f = &j->filter;
    int status = 0;
    double next = 0, killed = 0;
    bool open = in >= 0;
    while (waitpid(j->child, &status, WNOHANG) == 0) {
        open = pump(open ? in : -1, f, LOOK_MS) && open;
        if (clt_now() < next) continue;
        next = clt_now() + LOOK_MS / 1e3 * (1 + j->p->ranks / RANKS_PER_LOOK);
        look_at_ranks(j);
        look_at_signals(j);
        end_what_stays(j, &killed);
    }
    while (open && poll(&(struct pollfd){.fd = in, .events = POLLIN}, 1, 0) > 0) open = pump(in, f, 0);
    clt_launch_filter_end(f);
    j->filtered = in >= 0;
    end_ranks(j);
    return status;
}

/* Reports a failure that no rank could report. With ranks on other hosts the launcher kills those of this
 * host, so they only count as lost if it names no other rank. */
static void explain(const job *j, int status) {
    static const char advice[] = "; rerun the same command to resume from the last checkpoint";
    const char *launcher = strrchr(j->p->argv[0], '/') + 1;
    const clt_launch_filter *f = &j->filter;
    if (WIFSIGNALED(status)) {
        clt_error(CLT_FAIL, "%s was killed (signal %d)%s", launcher, WTERMSIG(status), advice);
        return;
    }
    if (WEXITSTATUS(status) == 0 || f->named || (j->p->elsewhere && f->ended && !f->death.signal)) return;
    if (f->death.signal)
        clt_error(CLT_FAIL, "rank %d (host %s, process %ld) is gone: signal %d ended it%s", f->death.rank,
                  f->death.node, f->death.pid, f->death.signal, advice);
    else if (j->lost >= 0)
        clt_error(CLT_FAIL, "rank %d (process %ld) is gone%s%s", j->lost, j->rank[j->lost].pid,
                  WEXITSTATUS(status) == 128 + SIGKILL ? ", killed" : "", advice);
    else if (j->filtered && !f->said) /* --quiet also hides mpirun's own errors */
        clt_error(CLT_FAIL, "%s exited with code %d and printed nothing; to see why: %s -np %d%s%s hostname",
                  launcher, WEXITSTATUS(status), launcher, j->p->ranks, j->p->hosts ? " --hostfile " : "",
                  j->p->hosts ? j->p->hosts : "");
}

/* The exit code of the lowest rank that failed; 75 only if no rank has another code. */
static int job_code(const job *j, int status) {
    int code = 0;
    if (j->at_once) return STOPPED_TWICE;
    for (int r = 0; r < j->p->ranks; r++) {
        int c = j->rank[r].code;
        if (c > 0 && (code == 0 || code == clt_status_exit_code(CLT_AGAIN))) code = c;
    }
    if (code) return code;
    if (j->asked == 0) explain(j, status);
    if (!WIFEXITED(status)) return 128 + WTERMSIG(status);
    if (j->filter.death.signal) return clt_status_exit_code(CLT_FAIL);
    /* If a signal ended a rank, MPICH's mpirun returns the signal's number, which is not one of our codes. */
    if (j->lost >= 0 && WEXITSTATUS(status) > 2 && WEXITSTATUS(status) < 32)
        return clt_status_exit_code(CLT_FAIL);
    return WEXITSTATUS(status);
}

int clt_launch_run(const clt_launch_run_params *p) {
    job j = {.p = p, .lost = -1, .rank = clt_calloc((size_t)p->ranks, sizeof(rank_info))};
    int pipe_ends[2] = {-1, -1};
    clt_launch_run_signals();
    for (int r = 0; r < p->ranks; r++) j.rank[r].code = -1;
    gethostname(j.host, sizeof j.host - 1);
    if (p->filter && pipe2(pipe_ends, O_CLOEXEC) != 0) pipe_ends[0] = pipe_ends[1] = -1;
    j.child = start_child(p, pipe_ends[1]);
    if (pipe_ends[1] >= 0) close(pipe_ends[1]);
    int code;
    if (j.child < 0)
        code = clt_status_exit_code(clt_error(CLT_FAIL, "cannot start %s: %s", p->argv[0], strerror(errno)));
    else
        code = job_code(&j, watch(&j, pipe_ends[0]));
    if (pipe_ends[0] >= 0) close(pipe_ends[0]);
    clt_free(j.rank);
    return code == CANNOT_RUN ? clt_status_exit_code(CLT_FAIL) : code;
}
