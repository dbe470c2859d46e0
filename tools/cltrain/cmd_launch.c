/* cltrain launch: the same command on several ranks, under mpirun or srun with the flags that work. It takes
 * the signals itself and hands them to the ranks directly, and returns the ranks' own exit code. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "commands.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"

typedef enum { OPEN_MPI, MPICH, SRUN } launcher_kind;

typedef struct {
    launcher_kind kind;
    const char *hosts, *device;
    int64_t ranks;
    char *path; /* of mpirun or srun */
    char dir[64];
} launch;

static volatile sig_atomic_t pending[3]; /* SIGINT, SIGTERM, SIGUSR1: how many came */

static void on_signal(int sig) {
    pending[sig == SIGINT ? 0 : sig == SIGTERM ? 1 : 2]++;
}

/* --- finding the launcher
 * ------------------------------------------------------------------------------------------- */

static char *find_program(const char *name) {
    const char *path = clt_env(CLT_ENV_PATH);
    for (const char *at = path; at && *at; at += strcspn(at, ":"), at += *at == ':') {
        char *dir = clt_strndup(at, strcspn(at, ":")), *full = clt_path_join(*dir ? dir : ".", name);
        clt_free(dir);
        if (access(full, X_OK) == 0) return full;
        clt_free(full);
    }
    return NULL;
}

/* Which MPI this mpirun belongs to: its version text says. */
static launcher_kind kind_of_mpirun(const char *path) {
    char line[256] = "", *command = clt_format("'%s' --version 2>/dev/null", path);
    FILE *p = popen(command, "r");
    if (p) {
        if (!fgets(line, sizeof line, p)) line[0] = 0;
        pclose(p);
    }
    clt_free(command);
    return strstr(line, "Open MPI") || strstr(line, "OpenRTE") ? OPEN_MPI : MPICH;
}

static clt_status find_launcher(launch *l, const char *want) {
    bool in_slurm = clt_env(CLT_ENV_SLURM_JOB_ID) != NULL;
    bool srun = want ? strcmp(want, "srun") == 0 : in_slurm;
    if (want && !srun && strcmp(want, "mpirun") != 0)
        return clt_error(CLT_USAGE, "--launcher is '%s', it can be mpirun or srun", want);
    l->path = srun ? find_program("srun") : NULL;
    l->kind = SRUN;
    if (l->path) return CLT_OK;
    if (srun && want) return clt_error(CLT_FAIL, "srun is not on the PATH");
    l->path = find_program("mpirun");
    if (!l->path)
        return clt_error(
            CLT_FAIL,
            "mpirun is not on the PATH; install it (Debian, Ubuntu: apt-get install openmpi-bin) or "
            "start the ranks another way");
    l->kind = kind_of_mpirun(l->path);
    return CLT_OK;
}

/* --- the command line
 * -------------------------------------------------------------------------------------------------- */

static void add_all(clt_strv *v, const char *const *words) {
    for (; *words; words++) clt_strv_add(v, *words);
}

/* Binding is off because Open MPI would tie one or two ranks to a core each, which halves a CPU device. */
static void launcher_words(const launch *l, clt_strv *v) {
    char n[24];
    snprintf(n, sizeof n, "%lld", (long long)l->ranks);
    clt_strv_add(v, l->path);
    if (l->kind == SRUN) {
        add_all(v, (const char *const[]){"-n", n, "--kill-on-bad-exit=1", "--cpu-bind=none", NULL});
        return;
    }
    add_all(v, (const char *const[]){"-np", n, NULL});
    if (l->hosts)
        add_all(v, (const char *const[]){l->kind == OPEN_MPI ? "--hostfile" : "-f", l->hosts, NULL});
    if (l->kind == MPICH) {
        add_all(v, (const char *const[]){"-bind-to", "none", NULL});
        return;
    }
    add_all(v, (const char *const[]){"--bind-to", "none", "--oversubscribe", "--quiet", "-x",
                                     "CLTRAIN_LAUNCH_DIR", "--mca", "odls_base_sigkill_timeout", "30",
                                     "--mca", "orte_abort_print_stack", "0",
                                     /* containers often forbid what this would use */
                                     "--mca", "btl_vader_single_copy_mechanism", "none", NULL});
    if (geteuid() == 0) clt_strv_add(v, "--allow-run-as-root");
}

static char *own_path(void) {
    char buf[4096];
    ssize_t n = readlink("/proc/self/exe", buf, sizeof buf - 1);
    if (n <= 0) return clt_strdup("cltrain");
    buf[n] = 0;
    return clt_strdup(buf);
}

static void command_words(const launch *l, const clt_strv *rest, clt_strv *v) {
    if (l->ranks > 1) launcher_words(l, v);
    clt_strv_add_owned(v, own_path());
    if (clt_log_get_level() < CLT_LOG_INFO) clt_strv_add(v, "--quiet");
    if (clt_log_get_level() > CLT_LOG_INFO) clt_strv_add(v, "--verbose");
    for (size_t i = 0; i < rest->n; i++) clt_strv_add(v, rest->v[i]);
    if (l->device) add_all(v, (const char *const[]){"--device", l->device, NULL});
}

/* --- running
 * ------------------------------------------------------------------------------------------------------------
 */

/* The number in DIR/RANK.what, or -1. */
static long read_number(const launch *l, int rank, const char *what) {
    char *path = clt_format("%s/%d.%s", l->dir, rank, what);
    FILE *f = fopen(path, "r");
    long v = -1;
    if (f) {
        if (fscanf(f, "%ld", &v) != 1) v = -1;
        fclose(f);
    }
    clt_free(path);
    return v;
}

/* Hands signals that came to every rank of this host; ranks elsewhere hear of it from them. */
static void pass_signals(const launch *l, pid_t child, int passed[3]) {
    static const int sig[3] = {SIGINT, SIGTERM, SIGUSR1};
    for (int k = 0; k < 3; k++) {
        if (passed[k] == pending[k]) continue;
        passed[k] = pending[k];
        int reached = 0;
        for (int r = 0; r < l->ranks; r++) {
            long pid = read_number(l, r, "pid");
            if (pid > 0 && kill((pid_t)pid, sig[k]) == 0) reached++;
        }
        if (!reached) kill(child, SIGTERM); /* no rank has started yet */
    }
}

/* The code of the lowest rank that failed; a stop after a save only if nobody failed otherwise. */
static int ranks_code(const launch *l, int launcher_code) {
    int code = 0;
    for (int r = 0; r < l->ranks; r++) {
        long c = read_number(l, r, "exit");
        if (c < 0 && read_number(l, r, "pid") >= 0) {
            clt_error(CLT_FAIL,
                      "rank %d ended without a word (killed?); the last checkpoint is good, run it again", r);
            return launcher_code ? launcher_code : 1;
        }
        if (c > 0 && (code == 0 || code == 75)) code = (int)c;
    }
    return code ? code : launcher_code;
}

static int run(launch *l, clt_strv *words) {
    struct sigaction a;
    int passed[3] = {0}, status = 0;
    clt_strv_add_owned(words, NULL);
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    pid_t child = fork();
    if (child < 0)
        return clt_status_exit_code(clt_error(CLT_FAIL, "cannot start %s: %s", words->v[0], strerror(errno)));
    if (child == 0) {
        setpgid(0, 0); /* a Ctrl-C on the terminal is for the launch, which hands it on */
        setenv("CLTRAIN_LAUNCH_DIR", l->dir, 1);
        /* mpirun's hwloc would load OpenCL, whose loader cuts OCL_ICD_FILENAMES short in the ranks'
         * environment. */
        setenv("HWLOC_COMPONENTS", "-opencl", 0);
        execv(words->v[0], words->v);
        fprintf(stderr, "error: cannot run %s: %s\n", words->v[0], strerror(errno));
        _exit(127);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        pass_signals(l, child, passed);
        clt_sleep(0.02);
    }
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return code == 127 ? 127 : ranks_code(l, code);
}

static int start(launch *l, const clt_strv *rest, const char *want) {
    clt_strv words = {0};
    const char *tmp = clt_env(CLT_ENV_TMPDIR);
    snprintf(l->dir, sizeof l->dir, "%s/cltrain-launch.XXXXXX", tmp && strlen(tmp) < 32 ? tmp : "/tmp");
    if (l->ranks > 1) {
        clt_status st = find_launcher(l, want);
        if (st != CLT_OK) return clt_status_exit_code(st);
    }
    if (!mkdtemp(l->dir)) {
        clt_error(CLT_IO, "cannot make a folder %s: %s", l->dir, strerror(errno));
        return clt_status_exit_code(CLT_IO);
    }
    command_words(l, rest, &words);
    int code = run(l, &words);
    clt_io_remove_tree(l->dir);
    words.n--; /* the end mark */
    clt_strv_free(&words);
    clt_free(l->path);
    return code;
}

int cmd_launch(int argc, char **argv) {
    launch l = {.ranks = 1};
    const char *want = NULL;
    const clt_option options[] = {
        {"ranks", 'n', CLT_OPT_INT, &l.ranks, "N", "how many ranks"},
        {"hosts", 0, CLT_OPT_STR, &l.hosts, "FILE", "a host file, as mpirun takes it"},
        {"device", 'd', CLT_OPT_STR, &l.device, "LIST", "device patterns, one for each rank of a host"},
        {"launcher", 0, CLT_OPT_STR, &want, "NAME", "mpirun or srun (default: srun inside a Slurm job)"},
    };
    const clt_command command = {
        .name = "cltrain launch",
        .usage = "-n N COMMAND [arguments of the command]",
        .summary =
            "Runs a cltrain command on several ranks: finds mpirun or srun and gives it the flags that root, "
            "containers and shared cores need. Ctrl-C, SIGTERM and SIGUSR1 reach every rank: the run saves "
            "and "
            "ends with 75.",
        .examples = "  cltrain launch -n 4 train run.yaml\n"
                    "  cltrain launch -n 2 --device nvidia,pocl train run.yaml\n"
                    "  cltrain launch -n 16 --hosts hosts.txt train run.yaml\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options),
        .stop_at_positional = true};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "which command? For example: train run.yaml");
    if (code < 0 && (l.ranks < 1 || l.ranks > 1024))
        code = clt_options_fail(&command, "-n must be 1 to 1024");
    if (code < 0) code = start(&l, &rest, want);
    clt_strv_free(&rest);
    return code;
}
