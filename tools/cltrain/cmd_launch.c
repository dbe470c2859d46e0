/* cltrain launch: runs a command on several ranks with mpirun or srun and the flags that they need. It passes
 * signals to the ranks directly and returns the ranks' own exit code. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/clt_group.h"
#include "tools/cltrain/commands.h"
#include "tools/cltrain/launch_hop.h"
#include "tools/cltrain/launch_run.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"

typedef enum { OPEN_MPI, MPICH, SRUN } launcher_kind;

typedef struct {
    launcher_kind kind;
    const char *hosts, *device;
    int64_t ranks;
    char *path; /* of mpirun or srun */
    char *dir;  /* CLTRAIN_LAUNCH_DIR of the ranks */
} launch;

/* --- finding the launcher --- */

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

/* The first line that `path --version` prints. */
static void version_of(const char *path, char *line, size_t cap) {
    int ends[2];
    line[0] = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        execl(path, path, "--version", (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    if (f && !fgets(line, (int)cap, f)) line[0] = 0;
    if (f)
        fclose(f);
    else
        close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
}

static launcher_kind kind_of_mpirun(const char *path) {
    char line[256];
    version_of(path, line, sizeof line);
    return strstr(line, "Open MPI") || strstr(line, "OpenRTE") ? OPEN_MPI : MPICH;
}

static clt_status find_launcher(launch *l, const char *want) {
    bool in_slurm = clt_env(CLT_ENV_SLURM_JOB_ID) != NULL;
    bool srun = want ? strcmp(want, "srun") == 0 : in_slurm;
    if (want && !srun && strcmp(want, "mpirun") != 0)
        return clt_error(CLT_USAGE, "--launcher must be mpirun or srun, not '%s'", want);
    l->path = srun ? find_program("srun") : NULL;
    l->kind = SRUN;
    if (l->path) return CLT_OK;
    if (srun && want)
        return clt_error(CLT_FAIL,
                         "srun is not on the PATH; use --launcher mpirun or start the ranks another way");
    l->path = find_program("mpirun");
    if (!l->path)
        return clt_error(CLT_FAIL, "mpirun is not on the PATH; install it (Debian, Ubuntu: apt-get install "
                                   "openmpi-bin) or start the ranks another way");
    l->kind = kind_of_mpirun(l->path);
    return CLT_OK;
}

/* --- the command line --- */

static void add_all(clt_strv *v, const char *const *words) {
    for (; *words; words++) clt_strv_add(v, *words);
}

/* Open MPI passes the environment only to the ranks of this host. These options pass the variables that
 * cltrain, OpenCL and object stores read to the other hosts. Only names are on the command line, which others
 * on the host can read; mpirun sends the values itself. */
static void environment_words(clt_strv *v) {
    static const clt_env_id others[] = {CLT_ENV_OCL_ICD_VENDORS, CLT_ENV_LD_LIBRARY_PATH,
                                        CLT_ENV_S3_ENDPOINT_URL};
    for (int i = 0; i < CLT_ENV_COUNT; i++) {
        const char *name = clt_env_name((clt_env_id)i);
        bool wanted = strncmp(name, "CLTRAIN_", 8) == 0 || strncmp(name, "AWS_", 4) == 0;
        for (size_t k = 0; k < CLT_COUNT_OF(others); k++) wanted |= others[k] == (clt_env_id)i;
        if (wanted && clt_env((clt_env_id)i)) add_all(v, (const char *const[]){"-x", name, NULL});
    }
}

/* Binding is off because Open MPI binds one or two ranks to one core each, and a CPU device would lose its
 * other cores. */
static void launcher_words(const launch *l, clt_strv *v) {
    char n[24];
    snprintf(n, sizeof n, "%lld", (long long)l->ranks);
    clt_strv_add(v, l->path);
    if (l->kind == SRUN) {
        add_all(v, (const char *const[]){"-n", n, "--kill-on-bad-exit=1", "--cpu-bind=none", NULL});
        if (l->hosts) add_all(v, (const char *const[]){"--nodefile", l->hosts, NULL});
        return;
    }
    add_all(v, (const char *const[]){"-np", n, NULL});
    if (l->hosts)
        add_all(v, (const char *const[]){l->kind == OPEN_MPI ? "--hostfile" : "-f", l->hosts, NULL});
    if (l->kind == MPICH) {
        add_all(v, (const char *const[]){"-bind-to", "none", NULL});
        return;
    }
    /* A rank alone on its host has nobody there who reports its death; mpirun does, unless it is quiet. */
    if (!l->hosts) clt_strv_add(v, "--quiet");
    add_all(v, (const char *const[]){"--bind-to", "none", "--oversubscribe",
                                     /* containers often forbid the system call of other values */
                                     "--mca", "btl_vader_single_copy_mechanism", "none", NULL});
    if (l->hosts) environment_words(v);
    if (geteuid() == 0) clt_strv_add(v, "--allow-run-as-root");
}

static char *own_path(void) {
    char buf[4096];
    ssize_t n = readlink("/proc/self/exe", buf, sizeof buf - 1);
    if (n <= 0) return clt_strdup("cltrain");
    buf[n] = 0;
    return clt_strdup(buf);
}

/* clbench is installed in the folder of cltrain. */
static char *clbench_path(void) {
    char *own = own_path(), *slash = strrchr(own, '/');
    char *path = clt_format("%.*sclbench", slash ? (int)(slash + 1 - own) : 0, own);
    clt_free(own);
    return path;
}

/* The command "clbench" is that program, which has no options before its benchmark's name. */
static void command_words(const launch *l, const clt_strv *rest, clt_strv *v) {
    const bool bench = strcmp(rest->v[0], "clbench") == 0;
    if (l->ranks > 1) launcher_words(l, v);
    clt_strv_add_owned(v, bench ? clbench_path() : own_path());
    if (clt_log_get_level() < CLT_LOG_INFO && !bench) clt_strv_add(v, "--quiet");
    if (clt_log_get_level() > CLT_LOG_INFO && !bench) clt_strv_add(v, "--verbose");
    for (size_t i = bench; i < rest->n; i++) clt_strv_add(v, rest->v[i]);
    if (l->device) add_all(v, (const char *const[]){"--device", l->device, NULL});
}

/* --- running --- */

static int run(launch *l, const clt_strv *rest) {
    clt_strv words = {0};
    command_words(l, rest, &words);
    clt_strv_add_owned(&words, NULL);
    clt_launch_run_params p = {.argv = words.v,
                               .dir = l->dir,
                               .hosts = l->hosts,
                               .ranks = (int)l->ranks,
                               .elsewhere = l->ranks > 1 && (l->hosts || l->kind == SRUN),
                               .forwards = l->ranks > 1 && l->kind == SRUN,
                               .deaf = l->ranks > 1 && l->kind == OPEN_MPI,
                               .filter = l->ranks > 1 && l->kind == OPEN_MPI};
    int code = clt_launch_run(&p);
    words.n--; /* the end mark */
    clt_strv_free(&words);
    return code;
}

static int start(launch *l, const clt_strv *rest, const char *want) {
    const char *tmp = clt_env(CLT_ENV_TMPDIR);
    clt_launch_run_signals();
    if (l->ranks > 1) {
        clt_status st = find_launcher(l, want);
        if (st != CLT_OK) return clt_status_exit_code(st);
    }
    l->dir = clt_format("%s/cltrain-launch.XXXXXX", tmp ? tmp : "/tmp");
    int code = clt_status_exit_code(CLT_IO);
    if (mkdtemp(l->dir)) {
        code = run(l, rest);
        clt_io_remove_tree(l->dir);
    } else {
        clt_error(CLT_IO, "cannot create folder %s: %s", l->dir, strerror(errno));
    }
    clt_free(l->dir);
    clt_free(l->path);
    return code;
}

typedef struct {
    launch l;
    const char *want;
} leg_launch;

static int start_leg(void *ctx, int64_t ranks, const char *device, const clt_strv *command) {
    const leg_launch *of = ctx;
    launch l = of->l;
    l.ranks = ranks;
    l.device = device;
    return start(&l, command, of->want);
}

/* Commands that do not work on several ranks: every rank would do the same and write the same files. */
static bool is_for_one(const char *name) {
    static const char *const names[] = {"generate", "devices", "plan",   "tune",
                                        "data",     "ckpt",    "report", "launch"};
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

int cmd_launch(int argc, char **argv) {
    enum { NOT_GIVEN = INT32_MIN };
    launch l = {.ranks = NOT_GIVEN};
    const char *want = NULL, *hop = NULL;
    const clt_option options[] = {
        {"ranks", 'n', CLT_OPT_INT, &l.ranks, "N", "number of ranks"},
        {"hosts", 0, CLT_OPT_STR, &l.hosts, "FILE", "mpirun's host file (srun: --nodefile)"},
        {"device", 'd', CLT_OPT_STR, &l.device, "LIST",
         "device patterns, one per rank of a host, used in turn"},
        {"hop", 0, CLT_OPT_STR, &hop, "LEGS",
         "change devices during the run: legs DEVICE*RANKS:TIME,... in turn, repeated until max_duration; a "
         "leg on several devices is DEVICE+DEVICE"},
        {"launcher", 0, CLT_OPT_STR, &want, "NAME", "mpirun or srun (default: srun inside a Slurm job)"},
    };
    const clt_command command = {
        .name = "cltrain launch",
        .usage = "[-n N | --hop LEGS] COMMAND [arguments of the command]",
        .summary = "Runs cltrain train or eval, or clbench, on several ranks. Finds mpirun or srun and adds "
                   "the flags that root, containers and shared cores need. Ctrl-C, SIGTERM and SIGUSR1 reach "
                   "every rank: the run saves and exits with code 75.",
        .examples = "  cltrain launch -n 4 train run.yaml\n"
                    "  cltrain launch -n 2 --device nvidia,pocl train run.yaml\n"
                    "  cltrain launch -n 16 --hosts hosts.txt train run.yaml\n"
                    "  cltrain launch -n 16 --hosts hosts.txt clbench allreduce\n"
                    "  cltrain launch --hop \"nvidia*1:200ba,pocl*2:20ba\" train run.yaml\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options),
        .stop_at_positional = true};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n == 0)
        code = clt_options_fail(&command, "COMMAND is missing, for example: train run.yaml");
    if (code < 0 && hop && (l.ranks != NOT_GIVEN || l.device))
        code = clt_options_fail(&command, "--hop sets ranks and devices of each leg: remove %s",
                                l.device ? "--device" : "-n");
    if (code < 0 && is_for_one(rest.v[0]))
        code = clt_options_fail(&command,
                                "only train, eval and clbench run on several ranks: start %s without launch",
                                rest.v[0]);
    if (l.ranks == NOT_GIVEN) l.ranks = 1;
    if (code < 0 && (l.ranks < 1 || l.ranks > CLT_GROUP_MAX_RANKS))
        code = clt_options_fail(&command, "-n must be 1 to %d", CLT_GROUP_MAX_RANKS);
    if (code < 0 && l.hosts && access(l.hosts, R_OK) != 0)
        code = clt_status_exit_code(
            clt_error(CLT_IO, "cannot read the host file %s: %s", l.hosts, strerror(errno)));
    leg_launch leg = {l, want};
    if (code < 0)
        code = hop ? clt_launch_hop(hop, &rest, !l.hosts && !clt_env(CLT_ENV_SLURM_JOB_ID), start_leg, &leg)
                   : start(&l, &rest, want);
    clt_strv_free(&rest);
    return code;
}
