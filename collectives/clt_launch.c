#include "collectives/clt_launch.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "collectives/clt_group.h"
#include "runtime/base/clt_bind.h"

clt_launch_info clt_launch_detect(void) {
    static const struct {
        const char *name;
        clt_env_id rank, size, local_rank, local_size;
    } known[] = {
        {"Open MPI", CLT_ENV_OMPI_RANK, CLT_ENV_OMPI_SIZE, CLT_ENV_OMPI_LOCAL_RANK, CLT_ENV_OMPI_LOCAL_SIZE},
        {"PMI", CLT_ENV_PMI_RANK, CLT_ENV_PMI_SIZE, CLT_ENV_MPI_LOCALRANKID, CLT_ENV_MPI_LOCALNRANKS},
        {"Slurm", CLT_ENV_SLURM_PROCID, CLT_ENV_SLURM_STEP_NUM_TASKS, CLT_ENV_SLURM_LOCALID,
         CLT_ENV_SLURM_STEP_TASKS_PER_NODE},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(known); i++)
        if (clt_env(known[i].rank) && clt_env(known[i].size))
            return (clt_launch_info){(int)clt_env_long(known[i].rank, 0), (int)clt_env_long(known[i].size, 1),
                                     (int)clt_env_long(known[i].local_rank, 0),
                                     (int)clt_env_long(known[i].local_size, 1), known[i].name};
    return (clt_launch_info){0, 1, 0, 1, "none"};
}

bool clt_process_gone(long pid) {
    char path[32], state = 0;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return true;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    fclose(f);
    return state == 'Z';
}

/* false without a folder. */
static bool path_of(int rank, const char *what, char path[512]) {
    const char *dir = clt_env(CLT_ENV_LAUNCH_DIR);
    if (dir) snprintf(path, 512, "%s/%d.%s", dir, rank, what);
    return dir;
}

static void write_line(const char *what, const char *text) {
    char path[512];
    if (!path_of(clt_launch_detect().rank, what, path)) return;
    FILE *f = fopen(path, "w");
    if (!f) return;
    fputs(text, f);
    fclose(f);
}

void clt_launch_register(void) {
    char host[256] = "", text[300];
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), host);
    write_line("pid", text);
}

bool clt_launch_exit_path(char path[512]) {
    return path_of(clt_launch_detect().rank, "exit", path);
}

void clt_launch_report(int code) {
    char text[32];
    snprintf(text, sizeof text, "%d\n", code);
    write_line("exit", text);
}

void clt_launch_begin(void) {
    clt_launch_info l = clt_launch_detect();
    if (l.size > 1) {
        clt_log_set_rank(l.rank, l.size);
        clt_log_hold(true);
    }
    clt_bind_rank(l.local_rank, l.local_size);
}

/* mpirun ends rank 0, too, once another rank has failed. Rank 0's exit code in the folder shows that it has
 * printed its message; without the folder (or on another host) it gets a head start. */
static void let_rank_0_print(void) {
    static const double head_start = 0.5, at_most = 20, look = 0.02;
    const char *dir = clt_env(CLT_ENV_LAUNCH_DIR);
    const double end = clt_now() + (dir && access(dir, F_OK) == 0 ? at_most : head_start);
    char path[512];
    const bool named = path_of(0, "exit", path);
    while (clt_now() < end && !(named && access(path, F_OK) == 0)) clt_sleep(look);
}

int clt_launch_end(int code) {
    /* The command line is the same on every rank: rank 0 has printed what is wrong with it. */
    static const bool all[CLT_LOG_HELD] = {true, true, true, true, true, true, true, true};
    bool usage = code == clt_status_exit_code(CLT_USAGE);
    if (usage && clt_launch_detect().rank > 0) let_rank_0_print();
    clt_log_release(usage ? all : NULL);
    clt_launch_report(code);
    return code;
}
