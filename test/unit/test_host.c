/* What a process may use of the host: limits of control groups, in folders that look like /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_host.h"
#include "runtime/base/clt_io.h"

static void write_file(const char *root, const char *name, const char *text) {
    char *path = clt_path_join(root, name), *dir = clt_path_dir(path);
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(dir);
    clt_free(path);
}

static void limits_of_groups(void **state) {
    (void)state;
    enum { FILES = 3 };
    const uint64_t all = clt_host_memory_under("/nowhere");
    const struct {
        const char *groups; /* /proc/self/cgroup */
        const char *file[FILES][2];
        uint64_t want; /* 0: no limit */
    } cases[] = {
        {"0::/a/b\n", {{"a/b/memory.max", "3145728\n"}, {"a/memory.max", "max\n"}}, 3 << 20},
        {"0::/a/b\n", {{"a/b/memory.max", "3145728\n"}, {"a/memory.max", "2097152\n"}}, 2 << 20},
        {"0::/a/b\n", {{"a/b/memory.max", "max\n"}}, 0},
        {"0::/a/b\n", {{"a/c/memory.max", "4096\n"}, {"memory.limit_in_bytes", "4096\n"}}, 0},
        {"0::/\n", {{"memory.max", "5242880\n"}}, 5 << 20}, /* a container with names of its own */
        {"0::/../other\n", {{"memory.max", "5242880\n"}}, 5 << 20},
        {"5:cpu,cpuacct:/x\n4:hugetlb,memory:/docker/1f\n1:name=systemd:/y\n0::/\n",
         {{"memory/docker/1f/memory.limit_in_bytes", "4194304\n"},
          {"memory/docker/memory.limit_in_bytes", "9223372036854771712\n"},
          {"memory/x/memory.limit_in_bytes", "4096\n"}},
         4 << 20},
        /* a container of version 1: the group's name is the host's, the folder is the container's */
        {"4:memory:/docker/1f\n0::/\n", {{"memory/memory.limit_in_bytes", "6291456\n"}}, 6 << 20},
        {"4:memory:/\n", {{"memory/memory.limit_in_bytes", "9223372036854771712\n"}}, 0},
        {"4:memory\nnonsense\n\n", {{"memory/memory.limit_in_bytes", "4096\n"}}, 0},
    };
    assert_true(all > (uint64_t)64 << 20 && all < (uint64_t)1 << 50);
    assert_true(clt_host_memory() <= all);
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        char root[] = "/tmp/test_host.XXXXXX";
        assert_non_null(mkdtemp(root));
        write_file(root, "proc/self/cgroup", cases[i].groups);
        for (int f = 0; f < FILES && cases[i].file[f][0]; f++) {
            char *name = clt_path_join("sys/fs/cgroup", cases[i].file[f][0]);
            write_file(root, name, cases[i].file[f][1]);
            clt_free(name);
        }
        uint64_t got = clt_host_memory_under(root), want = cases[i].want ? cases[i].want : all;
        if (got != want)
            fail_msg("case %zu: %llu bytes, not %llu", i, (unsigned long long)got, (unsigned long long)want);
        clt_io_remove_tree(root);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(limits_of_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
