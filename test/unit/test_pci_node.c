/* From a driver's answers to the CPUs that a rank is bound to: addresses, the nodes of a simulated sysfs, and
 * binding this process with what its own affinity mask allows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_bind.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"
#include "runtime/device/clt_pci_address.h"

static char root[64];

static void put(const char *address, const char *name, const char *text) {
    char *dir = clt_format("%s/bus/pci/devices/%s", root, address), *path = clt_path_join(dir, name);
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(dir);
    clt_free(path);
}

static int set_up(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/test_pci_node.XXXXXX");
    if (!mkdtemp(root)) return -1;
    setenv("CLTRAIN_SYSFS", root, 1);
    unsetenv("CLTRAIN_BIND");
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(root) == CLT_OK ? 0 : -1;
}

/* --- addresses --- */

static void addresses_of_answers(void **state) {
    (void)state;
    enum { U = sizeof(cl_uint), KHR = 4 * U, AMD = 24 };
    const unsigned char one[] = {1, 0, 0, 0}, big[] = {0, 0, 0, 1};
    const cl_uint type = 1;
    const unsigned char *pcie = memcmp(&type, one, U) == 0 ? one : big;
#define TOPOLOGY(bus, device, function)                                                                      \
    { pcie[0], pcie[1], pcie[2], pcie[3], [21] = bus, device, function }
    const struct {
        clt_pci_answers a;
        const char *want;
    } cases[] = {
        {{0}, ""},
        {{.khr_bytes = KHR, .khr = {0, 0x3b, 0, 0}}, "0000:3b:00.0"},
        {{.khr_bytes = KHR, .khr = {0x10000, 0xe1, 31, 7}}, "10000:e1:1f.7"},
        {{.khr_bytes = KHR, .khr = {UINT32_MAX, 255, 31, 7}}, "ffffffff:ff:1f.7"},
        {{.khr_bytes = KHR, .khr = {0, 256, 0, 0}}, ""},
        {{.khr_bytes = KHR, .khr = {0, 1, 32, 0}}, ""},
        {{.khr_bytes = KHR, .khr = {0, 1, 0, 8}}, ""},
        {{.khr_bytes = U, .khr = {0, 1, 0, 0}}, ""},
        {{.nv_bus_bytes = U,
          .nv_slot_bytes = U,
          .nv_domain_bytes = U,
          .nv_bus = 0x84,
          .nv_slot = 8,
          .nv_domain = 2},
         "0002:84:01.0"},
        {{.nv_bus_bytes = U, .nv_slot_bytes = U, .nv_bus = 0x84, .nv_slot = 9}, "0000:84:01.1"},
        {{.nv_bus_bytes = U, .nv_bus = 0x84}, ""},
        {{.nv_bus_bytes = U, .nv_slot_bytes = U, .nv_bus = 0x84, .nv_slot = 256}, ""},
        {{.amd_bytes = AMD, .amd = TOPOLOGY(0xc3, 2, 1)}, "0000:c3:02.1"},
        {{.amd_bytes = AMD, .amd = {[21] = 0xc3}}, ""}, /* another type than PCIe */
        {{.amd_bytes = 12, .amd = TOPOLOGY(0xc3, 0, 0)}, ""},
        /* The first usable answer counts. */
        {{.khr_bytes = KHR, .nv_bus_bytes = U, .nv_slot_bytes = U, .khr = {0, 1}, .nv_bus = 2},
         "0000:01:00.0"},
        {{.khr_bytes = KHR, .nv_bus_bytes = U, .nv_slot_bytes = U, .khr = {0, 999}, .nv_bus = 2},
         "0000:02:00.0"},
    };
#undef TOPOLOGY
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        char got[CLT_PCI_ADDRESS] = "old";
        clt_pci_address_text(&cases[i].a, got);
        if (strcmp(got, cases[i].want) != 0) fail_msg("case %zu: '%s', not '%s'", i, got, cases[i].want);
    }
}

/* --- nodes --- */

static clt_cpus cpus(const char *list) {
    clt_cpus c;
    CPU_ZERO_S(sizeof c, c.part);
    if (*list) assert_true(clt_cpus_parse(list, &c));
    return c;
}

static bool same(const clt_cpus *a, const clt_cpus *b) {
    return CPU_EQUAL_S(sizeof *a, a->part, b->part);
}

static void nodes_of_addresses(void **state) {
    (void)state;
    clt_cpus got, want = cpus("0-3,8-11");
    put("0000:3b:00.0", "numa_node", "0\n");
    put("0000:3b:00.0", "local_cpulist", "0-3,8-11\n");
    put("0000:84:00.0", "numa_node", "1\n");
    put("0000:84:00.0", "local_cpulist", "4-7,12-15\n");
    assert_int_equal(clt_pci_node("0000:3b:00.0", &got), 0);
    assert_true(same(&got, &want));
    want = cpus("4-7,12-15");
    assert_int_equal(clt_pci_node("0000:84:00.0", &got), 1);
    assert_true(same(&got, &want));
    assert_int_equal(clt_pci_node("0000:84:00.0", NULL), 1);
    assert_int_equal(clt_pci_node("0000:85:00.0", &got), -1);
    assert_int_equal(clt_pci_node("", &got), -1);
}

static void unusable_files(void **state) {
    (void)state;
    static const char *const nodes[] = {"-1\n", "",     "\n",    "x\n",    "1x\n",
                                        " 1\n", "+1\n", "1 2\n", "9999\n", "99999999999999999999\n"};
    static const char *const lists[] = {"",
                                        "\n",
                                        ",\n",
                                        "0,\n",
                                        ",0\n",
                                        "0,,1\n",
                                        "-3\n",
                                        "3-\n",
                                        "3-1\n",
                                        "0--3\n",
                                        "0-3-5\n",
                                        "0 1\n",
                                        "x\n",
                                        "0-3 \n",
                                        "0-8192\n",
                                        "8192\n",
                                        "99999999999999999999\n",
                                        "0-3\n4\n\n"};
    put("0000:01:00.0", "local_cpulist", "0-3\n");
    assert_int_equal(clt_pci_node("0000:01:00.0", NULL), -1); /* no numa_node */
    for (size_t i = 0; i < CLT_COUNT_OF(nodes); i++) {
        put("0000:01:00.0", "numa_node", nodes[i]);
        if (clt_pci_node("0000:01:00.0", NULL) != -1) fail_msg("node '%s' is accepted", nodes[i]);
    }
    put("0000:02:00.0", "numa_node", "1\n");
    assert_int_equal(clt_pci_node("0000:02:00.0", NULL), -1); /* no local_cpulist */
    clt_cpus out;
    for (size_t i = 0; i < CLT_COUNT_OF(lists); i++)
        if (clt_cpus_parse(lists[i], &out)) fail_msg("list '%s' is accepted", lists[i]);
    put("0000:02:00.0", "local_cpulist", "\n"); /* a node without CPUs */
    assert_int_equal(clt_pci_node("0000:02:00.0", NULL), -1);
    char *longest = clt_calloc(8192, 1);
    memset(longest, '1', 8191);
    put("0000:02:00.0", "local_cpulist", longest);
    assert_int_equal(clt_pci_node("0000:02:00.0", NULL), -1);
    clt_free(longest);
    assert_true(clt_cpus_parse("0,8191", &out));
    assert_int_equal(CPU_COUNT_S(sizeof out, out.part), 2);
}

/* --- binding --- */

static void masks(void **state) {
    (void)state;
    const struct {
        const char *mask, *node, *want; /* "": the mask is kept */
    } cases[] = {
        {"0-15", "8-15", "8-15"},     {"0-15", "0-15", ""}, /* one node */
        {"8-15", "8-15", ""},                               /* bound to it already */
        {"9-12", "8-15", ""},                               /* chosen: a part of it */
        {"0-7", "8-15", ""},                                /* chosen: another one */
        {"5-11", "8-15", ""},                               /* chosen: fewer CPUs than the node has */
        {"0-8", "8-15", ""},                                /* hardly any of it */
        {"0-11", "8-15", "8-11"},                           /* half of it */
        {"1-7,9-15", "8-15", "9-15"}, {"0-1", "0-63", ""},  /* CPUs that do not exist: more than there are */
        {"0-7", "4-9", "4-7"},                              /* ... or beyond the last one */
        {"0-7", "100-103", ""},       {"0-4095", "2048-4095", "2048-4095"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        const clt_cpus mask = cpus(cases[i].mask), node = cpus(cases[i].node), want = cpus(cases[i].want);
        clt_cpus got;
        const int n = clt_bind_narrow(&mask, &node, &got);
        if (n != CPU_COUNT_S(sizeof want, want.part) || (n && !same(&got, &want)))
            fail_msg("mask %s, node %s: %d CPUs, not %s", cases[i].mask, cases[i].node, n, cases[i].want);
    }
}

static clt_cpus mask_of(pid_t thread) {
    clt_cpus c;
    if (sched_getaffinity(thread, sizeof c, c.part) != 0) abort();
    return c;
}

static clt_cpus one_cpu(int cpu) {
    clt_cpus c = cpus("");
    CPU_SET_S((size_t)cpu, sizeof c, c.part);
    return c;
}

typedef struct {
    const clt_cpus *first; /* NULL, or the mask that the thread gives itself */
    pthread_barrier_t *bar;
    clt_cpus seen;
} other_thread;

static void *look(void *p) {
    other_thread *t = p;
    if (t->first && sched_setaffinity(0, sizeof *t->first, t->first->part) != 0) abort();
    pthread_barrier_wait(t->bar);
    pthread_barrier_wait(t->bar);
    t->seen = mask_of(0);
    return NULL;
}

typedef struct {
    const char *how; /* CLTRAIN_BIND; NULL: not set */
    bool embedded;   /* the program did not call clt_bind_rank */
    const clt_cpus *mask, *want, *pinned;
    int ranks, threads; /* clt_bind_threads; -1: any */
} process;

/* Runs in a process of its own: 0, or the number of the check that failed. */
static int bind_process(const process *p) {
    pthread_barrier_t bar;
    pthread_t id[2];
    other_thread other[2] = {{NULL, &bar}, {p->pinned, &bar}};
    if (p->how) setenv("CLTRAIN_BIND", p->how, 1);
    if (sched_setaffinity(0, sizeof *p->mask, p->mask->part) != 0) return 1;
    if (!p->embedded) clt_bind_rank(0, p->ranks);
    pthread_barrier_init(&bar, NULL, 3);
    for (int i = 0; i < 2; i++)
        if (clt_thread_start(&id[i], look, &other[i]) != 0) return 2;
    pthread_barrier_wait(&bar);
    clt_bind_near("0000:84:00.0", p->ranks);
    pthread_barrier_wait(&bar);
    for (int i = 0; i < 2; i++) pthread_join(id[i], NULL);
    const clt_cpus mine = mask_of(0);
    if (!same(&mine, p->want)) return 3;
    if (!same(&other[0].seen, p->want)) return 4;
    if (!same(&other[1].seen, p->pinned)) return 5;
    return p->threads < 0 || clt_bind_threads() == p->threads ? 0 : 6;
}

static void the_process_is_bound(void **state) {
    (void)state;
    const clt_cpus all = mask_of(0);
    int cpu[2], n = 0;
    for (int i = 0; i < CLT_CPUS_MOST && n < 2; i++)
        if (CPU_ISSET_S((size_t)i, sizeof all, all.part)) cpu[n++] = i;
    if (n < 2) skip();
    const clt_cpus first = one_cpu(cpu[0]), second = one_cpu(cpu[1]);
    char *list = clt_format("%d\n", cpu[1]);
    put("0000:84:00.0", "numa_node", "1\n");
    put("0000:84:00.0", "local_cpulist", list);
    clt_free(list);
    const process cases[] = {
        {NULL, false, &all, &second, &first, 1, 1},     {NULL, false, &all, &second, &first, 2, 1},
        {"numa", false, &all, &second, &second, 2, -1}, /* a share of another node is given up */
        {"none", false, &all, &all, &first, 1, 0},      {NULL, true, &all, &all, &first, 1, 0},
        {NULL, false, &first, &first, &first, 1, 0},    {NULL, false, &second, &second, &first, 1, 0},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        int status;
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(bind_process(&cases[i]));
        assert_int_equal(waitpid(child, &status, 0), child);
        if (status != 0) fail_msg("case %zu: check %d failed", i, WEXITSTATUS(status));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_of_answers), cmocka_unit_test(nodes_of_addresses),
        cmocka_unit_test(unusable_files),       cmocka_unit_test(masks),
        cmocka_unit_test(the_process_is_bound),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
