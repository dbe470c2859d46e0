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
#include "tools/cltrain/launch_bind.h"
#include "tools/cltrain/launch_hop.h"
#include "tools/cltrain/launch_hosts.h"
#include "tools/cltrain/launch_run.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_options.h"

typedef enum { OPEN_MPI, MPICH, SRUN } launcher_kind;

typedef struct {
    launcher_kind kind;
    const char *hosts, *device, *bind;
    const clt_launch_hosts *chosen; /* instead of `hosts`; NULL: none */
    bool dry;                       /* only print what would be done */
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
    /* CLTRAIN_SLOTS counts ranks host by host */
    if (l->chosen) add_all(v, (const char *const[]){"--map-by", "slot", NULL});
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

static void print_binding(const clt_bind_plan *plan) {
    for (int r = 0; r < plan->ranks; r++) {
        char *nodes = clt_bind_nodes_text(plan, r), *cpus = clt_bind_cpus_text(plan, r);
        printf("rank %d: node %s, CPUs %s, threads %d\n", r, nodes, cpus, plan->share[r].threads);
        clt_free(nodes);
        clt_free(cpus);
    }
}

static void print_plan(const launch *l, const clt_strv *words, const clt_bind_plan *plan) {
    for (int i = 0; l->chosen && i < l->chosen->n; i++) {
        const clt_launch_host *host = &l->chosen->v[i];
        printf("host %s: slots", host->name);
        for (int k = 0; k < host->n; k++) printf("%s%d", k ? "," : " ", host->slot[k]);
        puts("");
    }
    printf("ranks: %lld\n", (long long)l->ranks);
    print_binding(plan);
    printf("command:");
    for (size_t i = 0; i < words->n; i++) printf(" %s", words->v[i]);
    puts("");
}

static int run_words(const launch *l, clt_strv *words) {
    clt_strv_add_owned(words, NULL);
    clt_launch_run_params p = {.argv = words->v,
                               .dir = l->dir,
                               .hosts = l->hosts,
                               .ranks = (int)l->ranks,
                               .elsewhere = l->ranks > 1 && (l->hosts || l->kind == SRUN),
                               .forwards = l->ranks > 1 && l->kind == SRUN,
                               .deaf = l->ranks > 1 && l->kind == OPEN_MPI,
                               .filter = l->ranks > 1 && l->kind == OPEN_MPI};
    int code = clt_launch_run(&p);
    words->n--; /* the end mark */
    return code;
}

static int run(const launch *l, const clt_strv *rest) {
    const bool here = !l->hosts && (l->ranks == 1 || l->kind != SRUN);
    clt_bind_plan plan;
    clt_strv words = {0};
    int code = 0;
    clt_launch_bind_set(&(clt_launch_bind_params){l->bind, l->device, rest}, (int)l->ranks, here, &plan);
    command_words(l, rest, &words);
    char *text = plan.ranks > 1 ? clt_bind_plan_text(&plan) : NULL;
    if (l->dry) {
        print_plan(l, &words, &plan);
    } else {
        if (text) clt_info("%s", text);
        code = run_words(l, &words);
    }
    clt_free(text);
    clt_strv_free(&words);
    clt_bind_plan_free(&plan);
    return code;
}

/* The chosen hosts as mpirun's host file in the launch's folder, and their slots for the ranks. One that is
 * only this host needs no file. */
static clt_status write_hosts(launch *l, char **path) {
    if (!l->chosen) return CLT_OK;
    if (l->kind == SRUN && l->ranks > 1)
        return clt_error(CLT_USAGE,
                         "--hostfile, --include and --exclude are for mpirun: under srun choose hosts "
                         "with Slurm's options, or give --launcher mpirun");
    char *slots = clt_launch_hosts_slots(l->chosen);
    const char *name = clt_env_name(CLT_ENV_SLOTS);
    if (slots)
        setenv(name, slots, 1);
    else
        unsetenv(name);
    clt_free(slots);
    if (l->chosen->n == 1 && !strcmp(l->chosen->v[0].name, "localhost")) return CLT_OK;
    if (l->ranks == 1)
        return clt_error(CLT_USAGE, "one rank on host '%.80s' needs no launch: start cltrain there",
                         l->chosen->v[0].name);
    char *text = clt_launch_hosts_text(l->chosen, l->kind == MPICH);
    *path = clt_path_join(l->dir, "hosts");
    clt_status st = clt_io_write_atomic(*path, text, strlen(text));
    clt_free(text);
    l->hosts = *path;
    return st;
}

static int start_in_folder(launch *l, const clt_strv *rest) {
    char *hosts = NULL;
    const clt_status st = write_hosts(l, &hosts);
    const int code = st == CLT_OK ? run(l, rest) : clt_status_exit_code(st);
    clt_free(hosts);
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
        code = start_in_folder(l, rest);
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

enum { NOT_GIVEN = INT32_MIN };

typedef struct {
    launch l;
    const char *want, *hop, *file;
    clt_launch_filter_words filter;
    clt_launch_hosts chosen;
} arguments;

static clt_status read_hosts(arguments *a) {
    char *text;
    size_t bytes;
    if (!a->file) {
        clt_launch_hosts_local(a->filter.slots ? (int)a->filter.slots : CLT_LAUNCH_MOST_SLOTS, &a->chosen);
        return CLT_OK;
    }
    CLT_TRY(clt_io_read_all(a->file, 1 << 20, &text, &bytes));
    char *copy = clt_strndup(text, bytes);
    clt_status st = clt_launch_hosts_parse(copy, a->file, &a->chosen);
    clt_free(copy);
    clt_free(text);
    return st;
}

/* The options of the deepspeed launcher. Returns -1, or an exit code after a message. */
static int choose_hosts(const clt_command *command, arguments *a) {
    const clt_launch_filter_words *f = &a->filter;
    if (!a->file && !f->include && !f->exclude && !f->nodes && !f->slots) return -1;
    if (a->l.hosts || a->hop)
        return clt_options_fail(command,
                                "%s cannot be combined with --hostfile, --include, --exclude, --num_nodes "
                                "and --num_gpus",
                                a->hop ? "--hop" : "--hosts");
    if (f->nodes < 0 || f->slots < 0 || f->slots > CLT_LAUNCH_MOST_SLOTS)
        return clt_options_fail(command, "--num_nodes and --num_gpus must be above 0");
    if (!a->file && (f->exclude || (!f->slots && !(f->include && strchr(f->include, ':')))))
        return clt_options_fail(command, "%s needs --hostfile, which says how many slots a host has",
                                f->exclude   ? "--exclude"
                                : f->include ? "--include HOST"
                                             : "--num_nodes");
    clt_status st = read_hosts(a);
    if (st == CLT_OK) st = clt_launch_hosts_apply(&a->chosen, f);
    if (st != CLT_OK) return clt_status_exit_code(st);
    const int ranks = clt_launch_hosts_ranks(&a->chosen);
    if (a->l.ranks != NOT_GIVEN && a->l.ranks != ranks)
        return clt_options_fail(command, "-n is %lld, but the hosts have %d slots: leave -n out",
                                (long long)a->l.ranks, ranks);
    a->l.ranks = ranks;
    a->l.chosen = &a->chosen;
    return -1;
}

/* All ranks are on this host: with a host file or in a Slurm job the user says how many there are. */
static int default_ranks(const launch *l, const clt_strv *rest) {
    if (l->hosts || clt_env(CLT_ENV_SLURM_JOB_ID)) return 1;
    const int ranks = clt_launch_bind_ranks(&(clt_launch_bind_params){l->bind, l->device, rest});
    char *mpirun = find_program("mpirun");
    if (ranks > 1 && !mpirun)
        clt_info("one rank: %d, one per NUMA node, need mpirun (Debian, Ubuntu: apt-get install openmpi-bin)",
                 ranks);
    const int out = mpirun ? ranks : 1;
    clt_free(mpirun);
    return out;
}

static int check_arguments(const clt_command *command, arguments *a, const clt_strv *rest) {
    launch *l = &a->l;
    if (rest->n == 0) return clt_options_fail(command, "COMMAND is missing, for example: train run.yaml");
    if (a->hop && (l->ranks != NOT_GIVEN || l->device || l->dry))
        return clt_options_fail(command, "--hop sets ranks and devices of each leg: remove %s",
                                l->device               ? "--device"
                                : l->ranks != NOT_GIVEN ? "-n"
                                                        : "--dry-run");
    if (is_for_one(rest->v[0]))
        return clt_options_fail(command,
                                "only train, eval and clbench run on several ranks: start %s without launch",
                                rest->v[0]);
    int code = choose_hosts(command, a);
    if (code >= 0) return code;
    if (!l->bind) l->bind = clt_env(CLT_ENV_BIND);
    code = clt_status_exit_code(clt_launch_bind_check(l->bind));
    if (code) return code;
    if (l->ranks == NOT_GIVEN) l->ranks = a->hop ? 1 : default_ranks(l, rest);
    if (l->ranks < 1 || l->ranks > CLT_GROUP_MAX_RANKS)
        return clt_options_fail(command, "-n must be 1 to %d", CLT_GROUP_MAX_RANKS);
    if (l->hosts && access(l->hosts, R_OK) != 0)
        return clt_status_exit_code(
            clt_error(CLT_IO, "cannot read the host file %s: %s", l->hosts, strerror(errno)));
    return -1;
}

int cmd_launch(int argc, char **argv) {
    arguments a = {.l = {.ranks = NOT_GIVEN}};
    const clt_option options[] = {
        {"ranks", 'n', CLT_OPT_INT, &a.l.ranks, "N",
         "number of ranks (default: 1; on CPU devices one per NUMA node of this host)"},
        {"hosts", 0, CLT_OPT_STR, &a.l.hosts, "FILE", "mpirun's host file (srun: --nodefile)"},
        {"hostfile", 0, CLT_OPT_STR, &a.file, "FILE",
         "DeepSpeed's host file (HOST slots=N): one rank for each slot"},
        {"include", 0, CLT_OPT_STR, &a.filter.include, "SLOTS",
         "only these slots: HOST[:SLOT,SLOT...]@HOST..."},
        {"exclude", 0, CLT_OPT_STR, &a.filter.exclude, "SLOTS", "all slots of --hostfile but these"},
        {"num_nodes", 0, CLT_OPT_INT, &a.filter.nodes, "N", "only the first N hosts of --hostfile"},
        {"num_gpus", 0, CLT_OPT_INT, &a.filter.slots, "N", "slots 0 to N-1 of each host, or of this one"},
        {"device", 'd', CLT_OPT_STR, &a.l.device, "LIST",
         "device patterns, one per rank of a host, used in turn"},
        {"hop", 0, CLT_OPT_STR, &a.hop, "LEGS",
         "change devices during the run: legs DEVICE*RANKS:TIME,... in turn, repeated until max_duration; a "
         "leg on several devices is DEVICE+DEVICE"},
        {"bind", 0, CLT_OPT_STR, &a.l.bind, "HOW",
         "numa: bind each rank to CPUs of a NUMA node; none: do not (default: numa on CPU devices, on GPUs "
         "the node of the rank's GPU)"},
        {"launcher", 0, CLT_OPT_STR, &a.want, "NAME", "mpirun or srun (default: srun inside a Slurm job)"},
        {"dry-run", 0, CLT_OPT_FLAG, &a.l.dry, NULL,
         "print hosts, slots, binding and the command, and start nothing"},
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
                    "  cltrain launch --hostfile hosts.txt --include node1@node2:0,2 train run.yaml\n"
                    "  cltrain launch -n 16 --hosts hosts.txt clbench allreduce\n"
                    "  cltrain launch --hop \"nvidia*1:200ba,pocl*2:20ba\" train run.yaml\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options),
        .stop_at_positional = true};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0) code = check_arguments(&command, &a, &rest);
    leg_launch leg = {a.l, a.want};
    if (code < 0)
        code = a.hop ? clt_launch_hop(a.hop, &rest, !a.l.hosts && !clt_env(CLT_ENV_SLURM_JOB_ID), start_leg,
                                      &leg)
                     : start(&a.l, &rest, a.want);
    clt_launch_hosts_free(&a.chosen);
    clt_strv_free(&rest);
    return code;
}
