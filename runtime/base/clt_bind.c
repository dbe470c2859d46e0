#include "runtime/base/clt_bind.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_thread.h"

/* Written by the thread that starts the program and then opens its device. */
static bool own_process;  /* clt_bind_rank was called */
static int bound_threads; /* 0: not bound */
static clt_cpus outside;  /* of a bound process: its mask before it was bound */

/* --- nodes --- */

static int *cores_of_nodes(const clt_topology *t) {
    int *cores = clt_calloc((size_t)CLT_MAX(t->nodes, 1), sizeof *cores);
    for (int i = 0; i < t->cpus; i++)
        if (i == 0 || t->cpu[i].core != t->cpu[i - 1].core) cores[t->cpu[i].node]++;
    return cores;
}

static bool takes_part(const int *cores, int nodes, int node) {
    int most = 0;
    for (int i = 0; i < nodes; i++) most = CLT_MAX(most, cores[i]);
    return cores[node] * 2 >= most;
}

int clt_bind_default_ranks(const clt_topology *t) {
    int *cores = cores_of_nodes(t), n = 0;
    for (int i = 0; i < t->nodes; i++) n += takes_part(cores, t->nodes, i);
    clt_free(cores);
    return CLT_MAX(n, 1);
}

/* A copy without the nodes that take no part. */
static clt_topology parts_of(const clt_topology *t) {
    clt_topology out = {.cpu = clt_calloc((size_t)CLT_MAX(t->cpus, 1), sizeof *out.cpu),
                        .node_number = clt_calloc((size_t)CLT_MAX(t->nodes, 1), sizeof *out.node_number),
                        .here = t->here};
    int *cores = cores_of_nodes(t);
    for (int i = 0; i < t->cpus; i++) {
        const clt_topology_cpu *c = &t->cpu[i];
        if (!takes_part(cores, t->nodes, c->node)) continue;
        if (i == 0 || c->node != c[-1].node) out.node_number[out.nodes++] = t->node_number[c->node];
        out.cores += i == 0 || c->core != c[-1].core;
        out.cpu[out.cpus++] = (clt_topology_cpu){c->cpu, out.cores - 1, out.nodes - 1};
    }
    clt_free(cores);
    return out;
}

/* --- the plan --- */

/* The share of cores first to last - 1. */
static clt_bind_share share_of(const clt_topology *t, int first, int last) {
    clt_bind_share s = {.first = t->cpus, .threads = last - first};
    for (int i = 0; i < t->cpus; i++) {
        if (t->cpu[i].core < first || t->cpu[i].core >= last) continue;
        s.first = CLT_MIN(s.first, i);
        s.count++;
    }
    return s;
}

/* Gives the next rank to the node that then has the most cores for each of its ranks. */
static void count_ranks(const int *cores, int nodes, int ranks, int *count) {
    for (int i = 0; i < nodes; i++) count[i] = 1;
    for (int left = ranks - nodes; left > 0; left--) {
        int best = 0;
        for (int i = 1; i < nodes; i++)
            if ((int64_t)cores[i] * (count[best] + 1) > (int64_t)cores[best] * (count[i] + 1)) best = i;
        count[best]++;
    }
}

/* The n ranks of a node that has `cores` cores from `first` on. */
static void divide_node(const clt_topology *t, int first, int cores, int n, clt_bind_share *share) {
    for (int r = 0; r < n; r++) {
        const int begin = (int)((int64_t)r * cores / n), end = (int)((int64_t)(r + 1) * cores / n);
        share[r] = n > cores ? share_of(t, first, first + cores) : share_of(t, first + begin, first + end);
        share[r].threads = CLT_MAX(cores / n, 1);
    }
}

static void divide_nodes(const clt_topology *t, const int *cores, int ranks, clt_bind_share *share) {
    int *count = clt_calloc((size_t)t->nodes, sizeof *count), first = 0, rank = 0;
    count_ranks(cores, t->nodes, ranks, count);
    for (int i = 0; i < t->nodes; i++) {
        divide_node(t, first, cores[i], count[i], share + rank);
        first += cores[i];
        rank += count[i];
    }
    clt_free(count);
}

static void join_nodes(const clt_topology *t, const int *cores, int ranks, clt_bind_share *share) {
    for (int r = 0, first = 0; r < ranks; r++) {
        const int begin = r * t->nodes / ranks, end = (r + 1) * t->nodes / ranks;
        int n = 0;
        for (int i = begin; i < end; i++) n += cores[i];
        share[r] = share_of(t, first, first + n);
        first += n;
    }
}

void clt_bind_plan_make(const clt_topology *t, int ranks, clt_bind_plan *out) {
    *out = (clt_bind_plan){parts_of(t), clt_calloc((size_t)ranks, sizeof *out->share), ranks};
    int *cores = cores_of_nodes(&out->topology);
    const bool shares_nodes = ranks >= out->topology.nodes;
    (shares_nodes ? divide_nodes : join_nodes)(&out->topology, cores, ranks, out->share);
    clt_free(cores);
}

void clt_bind_plan_free(clt_bind_plan *p) {
    clt_topology_free(&p->topology);
    clt_free(p->share);
    *p = (clt_bind_plan){0};
}

bool clt_bind_plan_divides(const clt_bind_plan *p) {
    bool divides = false;
    for (int r = 0; r < p->ranks; r++) divides |= p->share[r].count < p->topology.cpus;
    return divides;
}

/* --- texts --- */

static int ascending(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

/* "0-3,8"; sorts v. */
static char *list_text(int *v, int n) {
    clt_str b = {0};
    qsort(v, (size_t)n, sizeof *v, ascending);
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && v[end] <= v[end - 1] + 1;) end++;
        clt_str_addf(&b, "%s%d", i ? "," : "", v[i]);
        if (v[end - 1] > v[i]) clt_str_addf(&b, "-%d", v[end - 1]);
    }
    return b.s;
}

static char *share_text(const clt_bind_plan *p, int rank, bool nodes) {
    const clt_bind_share *s = &p->share[rank];
    const clt_topology_cpu *cpu = &p->topology.cpu[s->first];
    int *v = clt_calloc((size_t)s->count, sizeof *v);
    for (int i = 0; i < s->count; i++) v[i] = nodes ? p->topology.node_number[cpu[i].node] : cpu[i].cpu;
    char *text = list_text(v, s->count);
    clt_free(v);
    return text;
}

char *clt_bind_cpus_text(const clt_bind_plan *p, int rank) {
    return share_text(p, rank, false);
}

char *clt_bind_nodes_text(const clt_bind_plan *p, int rank) {
    return share_text(p, rank, true);
}

char *clt_bind_plan_text(const clt_bind_plan *p) {
    enum { MOST = 16 };
    clt_str b = {0};
    clt_str_addf(&b, "%d rank%s%s: CPUs ", p->ranks, p->ranks == 1 ? "" : "s",
                 p->ranks > 1 && p->ranks == p->topology.nodes ? ", one per NUMA node" : "");
    for (int r = 0; r < CLT_MIN(p->ranks, (int)MOST); r++) {
        char *cpus = clt_bind_cpus_text(p, r);
        clt_str_addf(&b, "%s%s", r ? "; " : "", cpus);
        clt_free(cpus);
    }
    if (p->ranks > MOST) clt_str_add(&b, "; ...");
    return b.s;
}

/* --- this process --- */

/* A thread's affinity mask; 0: the calling thread. */
static bool get_mask(pid_t thread, clt_cpus *out) {
    return sched_getaffinity(thread, sizeof *out, out->part) == 0;
}

static clt_status set_mask(const clt_cpus *mask) {
    if (sched_setaffinity(0, sizeof *mask, mask->part) == 0) return CLT_OK;
    clt_warn("this rank cannot be bound to its CPUs and uses all: %s", strerror(errno));
    return CLT_FAIL;
}

static clt_status bind_to(const clt_bind_plan *p, int rank) {
    const clt_bind_share *s = &p->share[rank];
    clt_cpus mask;
    CPU_ZERO_S(sizeof mask, mask.part);
    for (int i = 0; i < s->count; i++)
        CPU_SET_S((size_t)p->topology.cpu[s->first + i].cpu, sizeof mask, mask.part);
    return get_mask(0, &outside) ? set_mask(&mask) : CLT_FAIL;
}

/* PoCL 4 renamed the variable. */
static void limit_pocl(int threads) {
    static const clt_env_id names[] = {CLT_ENV_POCL_MAX_PTHREAD_COUNT, CLT_ENV_POCL_CPU_MAX_CU_COUNT};
    char text[24];
    snprintf(text, sizeof text, "%d", threads);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) setenv(clt_env_name(names[i]), text, 0);
}

void clt_bind_rank(int local_rank, int local_size) {
    const char *how = clt_env(CLT_ENV_BIND);
    clt_topology t;
    clt_bind_plan p;
    own_process = true;
    if (!how || strcmp(how, "numa") != 0 || local_size < 2 || local_rank >= local_size) return;
    if (clt_topology_read(&t) != CLT_OK) return;
    clt_bind_plan_make(&t, local_size, &p);
    if (t.here && clt_bind_plan_divides(&p) && bind_to(&p, local_rank) == CLT_OK) {
        bound_threads = p.share[local_rank].threads;
        limit_pocl(bound_threads);
    }
    clt_bind_plan_free(&p);
    clt_topology_free(&t);
}

int clt_bind_narrow(const clt_cpus *mask, const clt_cpus *node, clt_cpus *out) {
    CPU_AND_S(sizeof *out, out->part, mask->part, node->part);
    const int have = CPU_COUNT_S(sizeof *mask, mask->part), of_node = CPU_COUNT_S(sizeof *node, node->part);
    const int both = CPU_COUNT_S(sizeof *out, out->part);
    return both < have && have >= of_node && both * 2 >= of_node ? both : 0;
}

/* Gives the threads of this process that have the mask `from` the mask `to`; returns how many. Others were
 * bound on purpose, as by PoCL. */
static int move_threads(const clt_cpus *from, const clt_cpus *to) {
    DIR *tasks = opendir("/proc/self/task");
    int moved = 0;
    clt_cpus mask;
    for (struct dirent *e; tasks && (e = readdir(tasks)) != NULL;) {
        const pid_t thread = (pid_t)atoi(e->d_name);
        if (thread > 0 && get_mask(thread, &mask) && CPU_EQUAL_S(sizeof mask, mask.part, from->part))
            moved += sched_setaffinity(thread, sizeof *to, to->part) == 0;
    }
    if (tasks) closedir(tasks);
    return moved;
}

static char *mask_text(const clt_cpus *mask) {
    int *v = clt_calloc(CLT_CPUS_MOST, sizeof *v), n = 0;
    for (int i = 0; i < CLT_CPUS_MOST; i++)
        if (CPU_ISSET_S((size_t)i, sizeof *mask, mask->part)) v[n++] = i;
    char *text = list_text(v, n);
    clt_free(v);
    return text;
}

/* Memory needs no policy of its own: what the bound threads touch first, and what the driver pins for them,
 * lies on their node, and on another one when theirs is full. */
void clt_bind_near(const char *address, int local_size) {
    const char *how = clt_env(CLT_ENV_BIND);
    clt_cpus now, node, near;
    if (!own_process || (how && strcmp(how, "none") == 0)) return;
    const int number = clt_pci_node(address, &node);
    if (number < 0 || !get_mask(0, &now)) return;
    if (!bound_threads) outside = now;
    const int cpus = clt_bind_narrow(&outside, &node, &near);
    if (!cpus || set_mask(&near) != CLT_OK) return;
    /* A thread that has not moved yet may start another one. */
    for (int pass = 0; pass < 8 && move_threads(&now, &near) > 0;) pass++;
    const int each = CPU_COUNT_S(sizeof outside, outside.part) / CLT_MAX(local_size, 1);
    if (!bound_threads) bound_threads = CLT_MAX(CLT_MIN(each, cpus), 1);
    char *text = mask_text(&near);
    clt_debug("bound to node %d, where device %s is: CPUs %s", number, address, text);
    clt_free(text);
}

int clt_bind_threads(void) {
    return bound_threads;
}

int clt_bind_cpus_each(int local_size) {
    return bound_threads ? bound_threads : CLT_MAX(clt_cpu_count() / CLT_MAX(local_size, 1), 1);
}
