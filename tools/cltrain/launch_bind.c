#include "tools/cltrain/launch_bind.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/device/clt_device.h"
#include "tools/cltrain/train_args.h"

static bool is(const char *how, const char *word) {
    return how && strcmp(how, word) == 0;
}

clt_status clt_launch_bind_check(const char *how) {
    clt_topology t;
    if (!how || is(how, "none")) return CLT_OK;
    if (!is(how, "numa")) return clt_error(CLT_USAGE, "--bind must be numa or none, not '%s'", how);
    if (clt_topology_read(&t) != CLT_OK)
        return clt_error(CLT_BAD_CONFIG, "--bind numa needs the NUMA nodes of this host, and this build of "
                                         "cltrain cannot read them: build it with hwloc (make HWLOC=1)");
    clt_topology_free(&t);
    return CLT_OK;
}

/* The value of --device among the command's words. */
static const char *device_word(const clt_strv *command) {
    static const char option[] = "--device";
    const size_t n = sizeof option - 1;
    for (size_t i = 1; i < command->n; i++) {
        const char *w = command->v[i];
        const bool next = i + 1 < command->n && (!strcmp(w, option) || !strcmp(w, "-d"));
        if (next) return command->v[i + 1];
        if (!strncmp(w, option, n) && w[n] == '=') return w + n + 1;
    }
    return NULL;
}

static bool all_on_cpu(const char *pattern, int ranks) {
    clt_device_type *type = clt_calloc((size_t)ranks, sizeof *type);
    bool cpu = clt_device_types(pattern, ranks, type) == CLT_OK;
    for (int r = 0; r < ranks; r++) cpu &= type[r] == CLT_DEVICE_CPU;
    clt_free(type);
    return cpu;
}

/* Whether `ranks` ranks would have CPU devices. If *ranks may be reduced, it becomes the largest number that
 * the configuration allows. */
static bool examine(const clt_launch_bind_params *p, int *ranks, bool reduce) {
    clt_train_args a = {0};
    const char *pattern = p->device ? p->device : device_word(p->command);
    clt_str list = {0};
    if (!strcmp(p->command->v[0], "train") &&
        clt_train_args_read((int)p->command->n, p->command->v, &a) < 0) {
        for (size_t i = 0; i < a.cfg->devices.n; i++)
            clt_str_addf(&list, "%s%s", i ? "," : "", a.cfg->devices.v[i]);
        while (reduce && *ranks > 1 && clt_config_check_run(a.cfg, *ranks) != CLT_OK) --*ranks;
    }
    if (!pattern) pattern = list.s;
    const bool cpu = all_on_cpu(pattern, *ranks);
    clt_str_free(&list);
    clt_train_args_free(&a);
    return cpu;
}

static void silence(void) {
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    clt_log_follow_stderr();
}

/* examine in a child process: opening drivers leaves threads behind, which would disturb the launcher, and
 * changes the environment that ranks would get. What is wrong with the command its ranks will report. */
static bool ask(const clt_launch_bind_params *p, int *ranks, bool reduce) {
    int ends[2], answer[2] = {0, 1};
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    const pid_t child = fork();
    if (child == 0) {
        silence();
        answer[0] = examine(p, ranks, reduce);
        answer[1] = *ranks;
        _exit(write(ends[1], answer, sizeof answer) != (ssize_t)sizeof answer);
    }
    close(ends[1]);
    const bool answered = child > 0 && read(ends[0], answer, sizeof answer) == (ssize_t)sizeof answer;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    if (answered) *ranks = answer[1];
    return answered && answer[0];
}

int clt_launch_bind_ranks(const clt_launch_bind_params *p) {
    clt_topology t;
    int ranks = 1;
    if (clt_topology_read(&t) == CLT_OK) ranks = clt_bind_default_ranks(&t);
    clt_topology_free(&t);
    return ranks > 1 && ask(p, &ranks, true) ? ranks : 1;
}

/* The user decides how many threads PoCL has, and where. */
static bool is_set(void) {
    return clt_env(CLT_ENV_POCL_MAX_PTHREAD_COUNT) || clt_env(CLT_ENV_POCL_CPU_MAX_CU_COUNT) ||
           clt_env(CLT_ENV_POCL_AFFINITY);
}

static bool decide(const clt_launch_bind_params *p, int ranks, bool divides) {
    if (p->how) return is(p->how, "numa");
    return divides && !is_set() && ask(p, &ranks, false);
}

void clt_launch_bind_set(const clt_launch_bind_params *p, int ranks, bool here, clt_bind_plan *plan) {
    clt_topology t;
    *plan = (clt_bind_plan){0};
    const bool known = clt_topology_read(&t) == CLT_OK;
    if (here && known) clt_bind_plan_make(&t, ranks, plan);
    clt_topology_free(&t);
    const bool divides = ranks > 1 && (!here || clt_bind_plan_divides(plan));
    const bool binds = known && decide(p, ranks, divides) && divides;
    if (!binds) clt_bind_plan_free(plan);
    if (binds || is(p->how, "none"))
        setenv(clt_env_name(CLT_ENV_BIND), binds ? "numa" : "none", 1);
    else
        unsetenv(clt_env_name(CLT_ENV_BIND));
}
